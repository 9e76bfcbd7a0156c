"""Lance tables as a table format: the one object that the registry names."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.formats.base import Capabilities, ChangeSource, CommitNames, OpenRequest
from tailerd.formats.inspection import Inspector
from tailerd.formats.lance.payload import FORMAT
from tailerd.formats.lance.protocol.version_names import SUFFIX, VERSIONS_FOLDER, parse_version
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.one_process import OneProcessMaintainer
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.statistics import Statistics
from tailerd.storage.table_location import TableLocation

if TYPE_CHECKING:
    from tailerd.config.maintenance import MaintenanceConfig
    from tailerd.formats.lance.reader import LanceTaskReader


class LanceFormat(OptionalParts):
    """Lance tables; see `formats.base.TableFormat`."""

    name = FORMAT
    # Updates are pairs if rows have stable ids, or columns are rewritten in place.
    capabilities = Capabilities()
    names = CommitNames(folder=VERSIONS_FOLDER, suffix=SUFFIX, version_of=parse_version)
    options: frozenset[str] = frozenset()

    @cached_property
    def reader(self) -> LanceTaskReader:
        """The reader of fragments."""
        from tailerd.formats.lance.reader import LanceTaskReader

        return LanceTaskReader()

    @property
    def inspector(self) -> Inspector:
        """Shows versions, files and commits."""
        from tailerd.formats.lance.inspect import LanceInspection

        return LanceInspection

    @property
    def maintainer(self) -> Maintainer:
        """Compacts fragments, updates indices, and deletes old versions."""
        from tailerd.formats.lance.maintenance import LanceMaintenance

        return OneProcessMaintainer(LanceMaintenance)

    @property
    def maintenance_config(self) -> type[MaintenanceConfig]:
        """Its section `maintenance`."""
        from tailerd.formats.lance.config import LanceMaintenanceConfig

        return LanceMaintenanceConfig

    @property
    def statistics(self) -> Statistics:
        """Measures tables by their manifests."""
        from tailerd.formats.lance.statistics import LanceStatistics

        return LanceStatistics

    @property
    def demo(self) -> Demo:
        """Creates a table of orders."""
        from tailerd.formats.lance.demo import DEMO

        return DEMO

    async def detect(self, location: TableLocation) -> bool:
        """Return whether there is a manifest of a table."""
        async for file in location.store.list_from(f"{location.root}/{VERSIONS_FOLDER}"):
            if parse_version(file.name) is not None:
                return True
        return False

    def folder(self, location: TableLocation) -> str:
        """Return the folder of a table's manifests."""
        return f"{location.root}/{VERSIONS_FOLDER}"

    def is_at(self, location: TableLocation) -> bool:
        """Return whether there is a folder with a manifest; blocking."""
        folder = Path(self.folder(location))
        if not folder.is_dir():
            return False
        return any(parse_version(path.name) is not None for path in folder.iterdir())

    async def open(self, location: TableLocation, request: OpenRequest) -> ChangeSource:
        """Open a table; see `log.open_source`."""
        from tailerd.formats.lance.log import open_source

        return await open_source(location, request, self.reader)
