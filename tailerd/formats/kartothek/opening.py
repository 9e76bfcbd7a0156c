"""Opens a table of a Kartothek dataset for its changes."""

from __future__ import annotations

from pathlib import Path

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import ConfigError, NotATableError, UnsupportedFeatureError
from tailerd.formats.base import OpenRequest
from tailerd.formats.kartothek.dataset import DatasetAddress, find_dataset
from tailerd.formats.kartothek.history import DatasetHistory
from tailerd.formats.kartothek.reader import KartothekTaskReader
from tailerd.formats.kartothek.source import KartothekSource
from tailerd.formats.kartothek.spool import FileSpool
from tailerd.formats.ledger import open_ledger
from tailerd.formats.source import source_place
from tailerd.storage.base import ObjectStore

_REFUSED = {
    ChangeMode.CDF: "which has no change data feed",
    ChangeMode.NET: "whose former states cannot be compared",
}


async def open_source(
    place: str, request: OpenRequest, reader: KartothekTaskReader
) -> KartothekSource:
    """Open a table of a dataset at its current state.

    Raises:
        NotATableError: There is no dataset.
        UnsupportedFeatureError: Change files or net changes are requested.
        TableError: It is not supported.
        ConfigError: No store serves this place, or the ledger's.
    """
    if (why := _REFUSED.get(request.changes)) is not None:
        raise UnsupportedFeatureError(
            f"{place} is a Kartothek dataset, {why}.", remedy="Leave `changes` out."
        )
    located, root = request.stores.locate(place)
    ledger = open_ledger(request.ledger, request.stores)
    address = await find_dataset(located, root)
    if address is None:
        if await ledger.numbers():
            await ledger.mark_dropped()
        raise NotATableError(
            f"There is no dataset at {place}: no file UUID.by-dataset-metadata.json or"
            " .msgpack.zstd next to it.",
            remedy="Name it STORE/UUID, or STORE/UUID/TABLE where it has several tables.",
        )
    at = source_place(place, request, address.folder)
    spool = _spool_of(request, address, located, place)
    history = await DatasetHistory.open(
        at.store, address, ledger, place, spool, request.memory_bytes
    )
    return KartothekSource(
        place,
        address,
        history,
        reader,
        request,
        places=at.links,
    )


def _spool_of(
    request: OpenRequest, address: DatasetAddress, store: ObjectStore, place: str
) -> FileSpool | None:
    """Return the file spool for the option `spool`, below the ledger; None if not set.

    Raises:
        ConfigError: It is not `link`, or the dataset or the ledger is not on a local disk.
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
