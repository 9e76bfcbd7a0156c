"""Delta tables as a table format: the one object that the registry names."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.changefeed.offset import Version
from tailerd.errors import FileMissingError
from tailerd.formats.base import Capabilities, ChangeSource, CommitNames, OpenRequest, TaskReader
from tailerd.formats.delta.protocol.data_file import FORMAT
from tailerd.formats.delta.protocol.log_path import LOG_FOLDER
from tailerd.formats.inspection import Inspector
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.statistics import Statistics
from tailerd.storage.table_location import TableLocation

if TYPE_CHECKING:
    # Processes that read rows must not load the configuration models.
    from tailerd.config.maintenance import MaintenanceConfig

_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)


def commit_version(name: str) -> Version | None:
    """Return the version in a commit file's name; None for other files of the log."""
    found = _COMMIT.fullmatch(name)
    return None if found is None else Version(int(found[1]))


class DeltaFormat(OptionalParts):
    """Delta tables; see `formats.base.TableFormat`."""

    name = FORMAT
    capabilities = Capabilities()
    names = CommitNames(folder=LOG_FOLDER, suffix=".json", version_of=commit_version)
    options = frozenset({"partition_timezone"})

    @cached_property
    def reader(self) -> TaskReader:
        """The reader of data files and change files."""
        from tailerd.formats.delta.changes.task_reader import DeltaTaskReader

        return DeltaTaskReader()

    @property
    def inspector(self) -> Inspector:
        """Shows versions, files and commits."""
        from tailerd.formats.delta.inspect import DeltaInspection

        return DeltaInspection

    @property
    def maintainer(self) -> Maintainer:
        """Writes checkpoints, compactions and checksums, and deletes expired files."""
        from tailerd.formats.delta.maintenance.maintainer import DeltaMaintainer

        return DeltaMaintainer()

    @property
    def maintenance_config(self) -> type[MaintenanceConfig]:
        """Its section `maintenance`."""
        from tailerd.formats.delta.config import DeltaMaintenanceConfig

        return DeltaMaintenanceConfig

    @property
    def statistics(self) -> Statistics:
        """Measures tables by their log."""
        from tailerd.formats.delta.stats.table_growth import open_growth

        return open_growth

    @property
    def demo(self) -> Demo:
        """Creates a table of orders."""
        from tailerd.formats.delta.demo import DEMO

        return DEMO

    async def detect(self, location: TableLocation) -> bool:
        """Return whether there is a non-empty log."""
        try:
            async for _ in location.store.list_from(f"{location.root}/{LOG_FOLDER}", ""):
                return True
        except FileMissingError:
            pass
        return False

    def folder(self, location: TableLocation) -> str:
        """Return the folder of a table's log."""
        return f"{location.root}/{LOG_FOLDER}"

    def is_at(self, location: TableLocation) -> bool:
        """Return whether there is a log folder."""
        return Path(self.folder(location)).is_dir()

    async def open(self, location: TableLocation, request: OpenRequest) -> ChangeSource:
        """Open a table at its newest version.

        Raises:
            NotATableError, TableError: The table cannot be read.
            ConfigError: There is no zone of that name.
        """
        from tailerd.formats.delta.changes.log import open_source
        from tailerd.formats.delta.changes.partition_zone import PartitionZone
        from tailerd.formats.delta.changes.snapshot_files import Spool

        zone = request.options.get("partition_timezone")
        zone_text = None if zone is None else str(zone)
        return await open_source(
            location,
            request,
            spool=None if request.scratch is None else Spool(request.scratch),
            zone=PartitionZone(location.name, zone_text, request.on_warning),
        )
