"""Where a table is: the store that is asked, and the folder in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tailerd.errors import ConfigError, TailerdError
from tailerd.formats.ledger import LedgerPlace
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores, normal_url, within_table


def ignore_warning(_: TailerdError) -> None:
    """Ignore what is unexpected but safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """A table that is to be opened by one of its format's parts.

    Attributes:
        store, root: What is asked, and the table's folder in it.
        url: Where other processes find the table: what `Stores.locate` takes.
        stores: How other places are reached, such as the ledger's.
        ledger: As `OpenRequest` has it.
        ledgers: Those of every pipeline that is configured, whichever table it reads.
        warn: Receives what is unexpected but safe, such as a checksum that does not add up.
        is_strict: What the log says twice and not the same is an error, not a warning.
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
    """Return configured places, in any form a table's place may have, as `DataPaths` compares them.

    Raises:
        ConfigError: One is empty, or of a scheme that is not served.
    """
    return tuple(_compared(place) for place in places)


def _compared(place: str) -> str:
    if not place:
        raise ConfigError(
            "A place that the log may name files in (--allow-path, allowed_paths) is empty.",
            remedy="Give a folder or a URL, or leave it out.",
        )
    # Only of the root anything is left to strip.
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
        stores: How its files are reached.
        allowed: Places outside the table that symbolic links in it may lead to.
        wrap_store: Puts a wrapper, such as one that counts requests, around the store.
        warn, is_strict, ledger, ledgers: As `TablePlace` has them.
        commits: The folder of its commits, as its format says; empty: in the table's own.

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
