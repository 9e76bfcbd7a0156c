"""Kartothek datasets as a table format: the one object that the registry names."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.changefeed.offset import Version
from tailerd.formats.base import (
    Capabilities,
    ChangeSource,
    CommitNames,
    History,
    OpenRequest,
    Ordering,
)
from tailerd.formats.inspection import Inspector
from tailerd.formats.kartothek.dataset import DatasetAddress, addresses, find_dataset
from tailerd.formats.kartothek.metadata import SUFFIXES, parse_metadata_name
from tailerd.formats.kartothek.partition_files import FORMAT
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.one_process import OneProcessMaintainer
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.statistics import Statistics
from tailerd.storage.table_location import TableLocation

if TYPE_CHECKING:
    from tailerd.formats.kartothek.reader import KartothekTaskReader

_OBSERVED = Version(0)
"""A metadata file shows that something was committed, but not which version."""


def commit_version(name: str) -> Version | None:
    """Return a placeholder version for the metadata file of a dataset; None for other files."""
    return None if parse_metadata_name(name) is None else _OBSERVED


class KartothekFormat(OptionalParts):
    """Kartothek datasets; see `formats.base.TableFormat`."""

    name = FORMAT
    # Of several commits between two polls only the net change is observed.
    capabilities = Capabilities(
        pairs_updates=False,
        has_intermediate_versions=False,
        ordering=Ordering.OBSERVED,
        history=History.NONE,
    )
    names = CommitNames(
        folder="", suffix="", version_of=commit_version, table_of=parse_metadata_name
    )
    options = frozenset({"spool"})

    @cached_property
    def reader(self) -> KartothekTaskReader:
        """The reader of partition files."""
        from tailerd.formats.kartothek.reader import KartothekTaskReader

        return KartothekTaskReader()

    @property
    def inspector(self) -> Inspector:
        """Shows the current state, and earlier ones from a ledger."""
        from tailerd.formats.kartothek.inspect import KartothekInspection

        return KartothekInspection

    @property
    def maintainer(self) -> Maintainer:
        """Deletes unreferenced files."""
        from tailerd.formats.kartothek.maintenance import DatasetMaintenance

        return OneProcessMaintainer(DatasetMaintenance)

    @property
    def statistics(self) -> Statistics:
        """Measures the newest state."""
        from tailerd.formats.kartothek.statistics import KartothekStatistics

        return KartothekStatistics

    @property
    def demo(self) -> Demo:
        """Creates a dataset of orders."""
        from tailerd.formats.kartothek.demo import DEMO

        return DEMO

    async def detect(self, location: TableLocation) -> bool:
        """Return whether there is the metadata file of a dataset for this location."""
        return await find_dataset(location.store, location.root) is not None

    def folder(self, location: TableLocation) -> str:
        """Return the folder of the dataset's metadata file."""
        found = addresses(location.root)
        here = next(filter(_is_here, found), None)
        return here.folder if here else found[0].folder if found else location.root

    def is_at(self, location: TableLocation) -> bool:
        """Return whether there is a dataset at a local location; blocking."""
        return any(map(_is_here, addresses(location.root)))

    async def open(self, location: TableLocation, request: OpenRequest) -> ChangeSource:
        """Open a table of a dataset; see `log.open_source`."""
        from tailerd.formats.kartothek.log import open_source

        return await open_source(location, request, self.reader)


def _is_here(address: DatasetAddress) -> bool:
    if address.table is not None and not Path(address.schema_path(address.table)).is_file():
        return False
    return any(Path(address.metadata_path(suffix)).is_file() for suffix in SUFFIXES)
