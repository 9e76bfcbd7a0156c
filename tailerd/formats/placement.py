"""Where a table is: its store, and the folder in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tailerd.errors import ConfigError, TailerdError
from tailerd.state.ledger import LedgerPlace
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores, normal_url, within_table


def ignore_warning(_: TailerdError) -> None:
    """Ignore what is unexpected but safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """A table to be opened by one of its format's parts.

    Attributes:
        store, root: The store, and the table's folder in it.
        url: Where other processes find the table; accepted by `Stores.locate`.
        stores: How other places are accessed, such as the ledger's.
        ledger: As in `OpenRequest`.
        ledgers: Those of every configured pipeline, whichever table it reads.
        warn: Receives what is unexpected but safe, such as a checksum mismatch.
        is_strict: A contradiction in the log is an error, not a warning.
    """

    store: ObjectStore
    root: str
    url: str
    stores: Stores = field(default_factory=Stores)
    ledger: LedgerPlace | None = None
    ledgers: tuple[LedgerPlace, ...] = ()
    warn: Callable[[TailerdError], None] = ignore_warning
    is_strict: bool = False


def allowed_places(places: Iterable[str]) -> tuple[str, ...]:
    """Return configured places, in any form of a table's place, normalised for `DataPaths`.

    Raises:
        ConfigError: One is empty, or has an unsupported scheme.
    """
    return tuple(_normalise_location(place) for place in places)


def _normalise_location(place: str) -> str:
    if not place:
        raise ConfigError(
            "A place that the log may name files in (--allow-path, allowed_paths) is empty.",
            remedy="Give a folder or a URL, or leave it out.",
        )
    # Only the root still has a slash to strip.
    return normal_url(place).rstrip("/")


def place_at(
    place: str,
    *,
    stores: Stores,
    allowed: Iterable[str] = (),
    wrap_store: Callable[[ObjectStore], ObjectStore] | None = None,
    warn: Callable[[TailerdError], None] = ignore_warning,
    is_strict: bool = False,
    commits: str = "",
    ledger: LedgerPlace | None = None,
    ledgers: Iterable[LedgerPlace] = (),
) -> TablePlace:
    """Return where a table is.

    Args:
        place: A path or URL, as the user gave it.
        stores: How its files are accessed.
        allowed: Places outside the table that symbolic links in it may lead to.
        wrap_store: Wraps the store, for example to count requests.
        warn, is_strict, ledger, ledgers: As in `TablePlace`.
        commits: The folder of its commits, according to its format; empty: in the table's own.

    Raises:
        ConfigError: No store serves this place, or an allowed one.
    """
    located, root = stores.locate(place)
    is_within = not commits or f"{commits}/".startswith(f"{root.rstrip('/')}/")
    # Links may lead anywhere below where the table is, its commits included.
    store = within_table(located, root if is_within else commits, allowed_places(allowed))
    asked = store if wrap_store is None else wrap_store(store)
    return TablePlace(
        store=asked,
        root=root.rstrip("/"),
        url=store.url_of(root),
        stores=stores,
        ledger=ledger,
        ledgers=tuple(ledgers),
        warn=warn,
        is_strict=is_strict,
    )
