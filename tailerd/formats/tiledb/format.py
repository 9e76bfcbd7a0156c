"""TileDB arrays as a table format: the one object that the registry names."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.changefeed.offset import Version
from tailerd.formats.base import Capabilities, ChangeSource, CommitNames, OpenRequest, Ordering
from tailerd.formats.inspection import Inspector
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.one_process import OneProcessMaintainer
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.statistics import Statistics
from tailerd.formats.tiledb.array_log import is_array, is_group
from tailerd.formats.tiledb.protocol.names import (
    COMMITS,
    OLD_SCHEMA,
    SCHEMA,
    CommitKind,
    commit_file,
)
from tailerd.formats.tiledb.scan import FORMAT
from tailerd.storage.table_location import TableLocation

if TYPE_CHECKING:
    from tailerd.config.maintenance import MaintenanceConfig
    from tailerd.formats.tiledb.reader import TileDBTaskReader

_COMMITS = (CommitKind.WRITE, CommitKind.OLD_WRITE, CommitKind.DELETE)


def commit_version(name: str) -> Version | None:
    """Return the version in a commit file's name; None for a file that commits nothing."""
    known = commit_file(name)
    return None if known is None or known[1] not in _COMMITS else Version(known[0].last_ms)


class TileDBFormat(OptionalParts):
    """TileDB arrays; see `formats.base.TableFormat`."""

    name = FORMAT
    # Updates are pairs unless duplicates are allowed; all versions are emitted unless merged.
    capabilities = Capabilities(ordering=Ordering.CLOCK)
    names = CommitNames(folder=COMMITS, suffix="", version_of=commit_version)
    options = frozenset({"on_late"})

    @cached_property
    def reader(self) -> TileDBTaskReader:
        """The reader of steps."""
        from tailerd.formats.tiledb.reader import TileDBTaskReader

        return TileDBTaskReader()

    @property
    def inspector(self) -> Inspector:
        """Shows versions, fragments and commits."""
        from tailerd.formats.tiledb.inspect import TileDBInspection

        return TileDBInspection

    @property
    def maintainer(self) -> Maintainer:
        """Merges commits and fragments, and deletes merged files."""
        from tailerd.formats.tiledb.maintenance import ArrayMaintenance

        return OneProcessMaintainer(ArrayMaintenance)

    @property
    def maintenance_config(self) -> type[MaintenanceConfig]:
        """Its section `maintenance`."""
        from tailerd.formats.tiledb.config import TileDBMaintenanceConfig

        return TileDBMaintenanceConfig

    @property
    def statistics(self) -> Statistics:
        """Measures arrays by their fragments."""
        from tailerd.formats.tiledb.statistics import TileDBStatistics

        return TileDBStatistics

    @property
    def demo(self) -> Demo:
        """Creates an array of orders."""
        from tailerd.formats.tiledb.demo import DEMO

        return DEMO

    async def detect(self, location: TableLocation) -> bool:
        """Return whether there is an array, or a group of arrays, at a location."""
        store, root = location.store, location.root
        return await is_array(store, root) or await is_group(store, root)

    async def is_group(self, location: TableLocation) -> bool:
        """Return whether there is a group of arrays at a location."""
        return await is_group(location.store, location.root)

    def folder(self, location: TableLocation) -> str:
        """Return the folder of an array's commits."""
        return f"{location.root}/{COMMITS}"

    def is_at(self, location: TableLocation) -> bool:
        """Return whether there is an array at a local location; blocking."""
        path = Path(location.root or "/")
        return (path / SCHEMA).is_dir() or (path / OLD_SCHEMA).is_file()

    async def open(self, location: TableLocation, request: OpenRequest) -> ChangeSource:
        """Open an array; see `log.open_source`."""
        from tailerd.formats.tiledb.log import open_source

        return await open_source(location, request, self.reader)
