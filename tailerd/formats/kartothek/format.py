"""Kartothek datasets as a table format: the one object that the registry names."""

from __future__ import annotations

from pathlib import Path

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Version
from tailerd.errors import ConfigError, NotATableError, UnsupportedFeatureError
from tailerd.formats.allowed_places import allowed_places
from tailerd.formats.base import (
    CommitNames,
    OpenRequest,
)
from tailerd.formats.inspection import Inspector
from tailerd.formats.kartothek.capabilities import CAPABILITIES
from tailerd.formats.kartothek.dataset import DatasetAddress, addresses, find_dataset
from tailerd.formats.kartothek.history import DatasetHistory
from tailerd.formats.kartothek.metadata import SUFFIXES, uuid_of_metadata
from tailerd.formats.kartothek.partition_files import FORMAT
from tailerd.formats.kartothek.reader import KartothekTaskReader
from tailerd.formats.kartothek.source import KartothekSource
from tailerd.formats.kartothek.spool import FileSpool
from tailerd.formats.ledger import open_ledger
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.statistics import Statistics
from tailerd.storage.base import ObjectStore
from tailerd.storage.links import RealPlaces
from tailerd.storage.stores import path_of, within_table

_OBSERVED = Version(0)
"""A metadata file says that something was committed, and not which version that is."""


def commit_version(name: str) -> Version | None:
    """Tell whether a file is the metadata of a dataset; it says no version."""
    return None if uuid_of_metadata(name) is None else _OBSERVED


class KartothekFormat(OptionalParts):
    """Kartothek datasets; see `formats.base.TableFormat`."""

    name = FORMAT
    capabilities = CAPABILITIES
    names = CommitNames(folder="", suffix="", version_of=commit_version, table_of=uuid_of_metadata)
    options = frozenset({"spool"})
    reader = KartothekTaskReader()

    @property
    def inspector(self) -> Inspector:
        """Shows the present state, and what a ledger has of former ones."""
        from tailerd.formats.kartothek.inspect import KartothekInspector

        return KartothekInspector()

    @property
    def maintainer(self) -> Maintainer:
        """Deletes files that nothing names any more."""
        from tailerd.formats.kartothek.maintenance import KartothekMaintainer

        return KartothekMaintainer()

    @property
    def statistics(self) -> Statistics:
        """Measures the newest state."""
        from tailerd.formats.kartothek.statistics import KartothekStatistics

        return KartothekStatistics()

    @property
    def demo(self) -> Demo:
        """Makes a dataset of orders."""
        from tailerd.formats.kartothek.demo import KartothekDemo

        return KartothekDemo()

    async def detect(self, store: ObjectStore, root: str) -> bool:
        """Tell whether the metadata file of a dataset lies where one of this name has it."""
        return await find_dataset(store, root) is not None

    def folder(self, place: str) -> str:
        """Return the folder that holds the dataset's metadata file."""
        path = path_of(place)
        found = addresses(path)
        here = next(filter(_is_here, found), None)
        return here.folder if here else found[0].folder if found else path

    def is_at(self, place: str) -> bool:
        """Tell whether a dataset lies at a local place; blocking."""
        return any(map(_is_here, addresses(path_of(place))))

    async def open(self, place: str, request: OpenRequest) -> KartothekSource:
        """Open a table of a dataset as it is now.

        Raises:
            NotATableError: There is no dataset.
            UnsupportedFeatureError: Change files or net changes are asked for.
            TableError: It cannot be served.
            ConfigError: No store serves this place, or the ledger's.
        """
        if request.changes is ChangeMode.CDF:
            raise UnsupportedFeatureError(
                f"{place} is a Kartothek dataset, which has no change data feed.",
                remedy="Leave `changes` out.",
            )
        if request.changes is ChangeMode.NET:
            raise UnsupportedFeatureError(
                f"{place} is a Kartothek dataset, whose former states cannot be compared.",
                remedy="Leave `changes` out.",
            )
        located, root = request.stores.locate(place)
        ledger = open_ledger(request.ledger, request.stores)
        address = await find_dataset(located, root)
        if address is None:
            if await ledger.numbers():
                await ledger.mark_dropped()
            raise NotATableError(
                f"There is no dataset at {place}: no file UUID.by-dataset-metadata.json or"
                " .msgpack.zstd beside it.",
                remedy="Name it STORE/UUID, or STORE/UUID/TABLE where it has several tables.",
            )
        allowed = allowed_places(request.allowed_paths)
        store = within_table(located, address.folder, allowed)
        if request.wrap_store is not None:
            store = request.wrap_store(store)
        spool = _spool_of(request, address, located, place)
        history = await DatasetHistory.open(store, address, ledger, place, spool)
        is_local = located.is_local_folder
        return KartothekSource(
            place,
            address,
            history,
            self.reader,
            stores=request.stores,
            columns=request.columns,
            places=RealPlaces(address.folder, allowed) if is_local else None,
            is_exact=request.changes is ChangeMode.AUTO,
            identity=request.identity,
        )


def _spool_of(
    request: OpenRequest, address: DatasetAddress, store: ObjectStore, place: str
) -> FileSpool | None:
    """Return the links that the option `spool` asks for, below the ledger.

    Raises:
        ConfigError: It is not `link`, or the dataset or the ledger is on no disk of this machine.
    """
    wanted, ledger = request.options.get("spool"), request.ledger
    if wanted is None or (ledger is not None and ledger.is_read_only):
        return None
    if wanted != "link":
        raise ConfigError(
            f"The option spool of {place} is {wanted!r}.", remedy="Say `spool: link`."
        )
    if ledger is None or not store.is_local_folder or "://" in ledger.place:
        raise ConfigError(
            f"The files of {place} cannot be linked: that needs the dataset and its ledger on one"
            " disk of this machine.",
            remedy="Keep the state in a folder there, or leave the option `spool` out.",
        )
    return FileSpool(address.folder, Path(ledger.place) / "files")


def _is_here(address: DatasetAddress) -> bool:
    if address.table is not None and not Path(address.schema_path(address.table)).is_file():
        return False
    return any(Path(address.metadata_path(suffix)).is_file() for suffix in SUFFIXES)
