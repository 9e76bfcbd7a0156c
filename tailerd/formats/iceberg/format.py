"""Iceberg tables as a table format: the one object that the registry names."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.changefeed.offset import Version
from tailerd.errors import FileMissingError
from tailerd.formats.base import Capabilities, ChangeSource, CommitNames, OpenRequest
from tailerd.formats.iceberg.catalog import is_in_catalog
from tailerd.formats.iceberg.metadata import METADATA_FOLDER, SUFFIX, metadata_number
from tailerd.formats.iceberg.payload import FORMAT
from tailerd.formats.iceberg.table_files import (
    find_metadata,
    is_metadata_file,
    metadata_folder,
    table_folder,
)
from tailerd.formats.inspection import Inspector
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.statistics import Statistics
from tailerd.storage.table_location import TableLocation

if TYPE_CHECKING:
    from tailerd.formats.iceberg.reader import IcebergTaskReader

_DELTA_LOG = "_delta_log"
"""Delta tables with UniForm have Iceberg metadata too, written after the log and not always."""
_OBSERVED = Version(0)
"""A metadata file shows that something was committed, but not which version."""


def commit_version(name: str) -> Version | None:
    """Return a placeholder version for a metadata file; None for other files."""
    return None if metadata_number(name) is None else _OBSERVED


class IcebergFormat(OptionalParts):
    """Iceberg tables; see `formats.base.TableFormat`."""

    name = FORMAT
    # Updates are pairs if rows have ids, as from format version 3 on, or by a key.
    capabilities = Capabilities()
    names = CommitNames(folder=METADATA_FOLDER, suffix=SUFFIX, version_of=commit_version)
    options = frozenset({"branch"})

    @cached_property
    def reader(self) -> IcebergTaskReader:
        """The reader of data files."""
        from tailerd.formats.iceberg.reader import IcebergTaskReader

        return IcebergTaskReader()

    @property
    def inspector(self) -> Inspector:
        """Shows versions, files and commits."""
        from tailerd.formats.iceberg.inspect import IcebergInspection

        return IcebergInspection

    @property
    def statistics(self) -> Statistics:
        """Measures tables by their manifests."""
        from tailerd.formats.iceberg.statistics import IcebergStatistics

        return IcebergStatistics

    @property
    def demo(self) -> Demo:
        """Creates a table of orders."""
        from tailerd.formats.iceberg.demo import DEMO

        return DEMO

    async def detect(self, location: TableLocation) -> bool:
        """Return whether there is a metadata file of a table."""
        if is_in_catalog(location):
            return True
        store, root = location.store, location.root
        if await find_metadata(store, root) is None:
            return False
        if not is_metadata_file(root):
            with suppress(FileMissingError):
                async for _ in store.list_from(f"{root}/{_DELTA_LOG}"):
                    return False
        return True

    def folder(self, location: TableLocation) -> str:
        """Return the folder of a table's metadata files; of one file, the table's own folder."""
        root = location.root
        return table_folder(root) if is_metadata_file(root) else metadata_folder(root)

    def is_at(self, location: TableLocation) -> bool:
        """Return whether there is a folder with a metadata file; blocking."""
        if is_metadata_file(location.root):
            return Path(location.root).is_file()
        folder = Path(self.folder(location))
        if not folder.is_dir() or Path(location.root, _DELTA_LOG).is_dir():
            return False
        return any(metadata_number(path.name) is not None for path in folder.iterdir())

    async def open(self, location: TableLocation, request: OpenRequest) -> ChangeSource:
        """Open a table; see `log.open_source`."""
        from tailerd.formats.iceberg.log import open_source

        return await open_source(location, request, self.reader)
