"""Where a table is: its store, and the folder in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tailerd.errors import ConfigError, TailerdError
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores, normal_url, within_table


def ignore_warning(_: TailerdError) -> None:
    """Ignore what is unexpected but safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """A table to be opened by one of its format's parts.

    Attributes:
        store, root: The store, and the table's folder in it.
        url: Where other processes find the table; accepted by `Stores.locate`.
        stores: How other locations are accessed, such as the ledger's.
        ledger: As in `OpenRequest`.
        ledgers: Those of every configured pipeline, whichever table it reads.
        warn: Receives what is unexpected but safe, such as a checksum mismatch.
        is_strict: A contradiction in the log is an error, not a warning.
    """

    store: ObjectStore
    root: str
    url: str
    stores: Stores = field(default_factory=Stores)
    ledger: LedgerLocation | None = None
    ledgers: tuple[LedgerLocation, ...] = ()
    warn: Callable[[TailerdError], None] = ignore_warning
    is_strict: bool = False


def allowed_locations(locations: Iterable[str]) -> tuple[str, ...]:
    """Return configured locations, in any form of a table's location, normalised for `DataPaths`.

    Raises:
        ConfigError: One is empty, or has an unsupported scheme.
    """
    return tuple(_normalise_location(location) for location in locations)


def _normalise_location(location: str) -> str:
    if not location:
        raise ConfigError(
            "A place that the log may name files in (--allow-path, allowed_paths) is empty.",
            remedy="Give a folder or a URL, or leave it out.",
        )
    # Only the root still has a slash to strip.
    return normal_url(location).rstrip("/")


def table_location(
    location: str,
    *,
    stores: Stores,
    allowed: Iterable[str] = (),
    wrap_store: Callable[[ObjectStore], ObjectStore] | None = None,
    warn: Callable[[TailerdError], None] = ignore_warning,
    is_strict: bool = False,
    commits: str = "",
    ledger: LedgerLocation | None = None,
    ledgers: Iterable[LedgerLocation] = (),
) -> TableLocation:
    """Return where a table is.

    Args:
        location: A path or URL, as the user gave it.
        stores: How its files are accessed.
        allowed: Locations outside the table that symbolic links in it may lead to.
        wrap_store: Wraps the store, for example to count requests.
        warn, is_strict, ledger, ledgers: As in `TableLocation`.
        commits: The folder of its commits, according to its format; empty: in the table's own.

    Raises:
        ConfigError: No store serves this location, or an allowed one.
    """
    located, root = stores.locate(location)
    is_within = not commits or f"{commits}/".startswith(f"{root.rstrip('/')}/")
    # Links may lead anywhere below where the table is, its commits included.
    store = within_table(located, root if is_within else commits, allowed_locations(allowed))
    asked = store if wrap_store is None else wrap_store(store)
    return TableLocation(
        store=asked,
        root=root.rstrip("/"),
        url=store.url_of(root),
        stores=stores,
        ledger=ledger,
        ledgers=tuple(ledgers),
        warn=warn,
        is_strict=is_strict,
    )
