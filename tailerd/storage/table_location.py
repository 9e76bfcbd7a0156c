"""Where a table is: resolved once from the user's text, and passed down."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

from tailerd.errors import ConfigError
from tailerd.storage.base import ObjectStore, OpensAhead
from tailerd.storage.links import AllowedPaths
from tailerd.storage.local import LocalStore
from tailerd.storage.stores import Stores, normal_url


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """A table's folder, and access to it and to the files it may reference.

    Attributes:
        name: The path or URL that the user gave, for messages.
        store: The table's store; a local one follows links only to where files may be.
        root: The table's folder in the store, without a trailing slash.
        url: The location in its normal form; other processes find the table there.
        stores: Access to other locations, such as a ledger's.
        allowed: Locations outside the table that it may reference, in their normal form.
        links: Real paths that its files may resolve to; None in a bucket.
        opens_ahead: Whether the store can open files before they are needed.
    """

    name: str
    store: ObjectStore
    root: str
    url: str
    stores: Stores
    allowed: tuple[str, ...] = ()
    links: AllowedPaths | None = None
    opens_ahead: bool = False

    @property
    def is_local(self) -> bool:
        """Whether its files are in a folder of this machine."""
        return self.store.is_local_folder

    def with_commits(self, folder: str) -> Self:
        """Return the location of a table whose commits are in a folder, maybe outside its own.

        Links may lead anywhere below where the table is, its commits included.
        """
        if self.links is None or f"{folder}/".startswith(f"{self.root}/"):
            return self
        links = AllowedPaths(folder, self.allowed)
        return replace(self, store=_confine(self.store, links), links=links)

    def wrap(self, wrap: Callable[[ObjectStore], ObjectStore] | None) -> Self:
        """Return the location with a wrapper around its store, such as one that counts requests."""
        return self if wrap is None else replace(self, store=wrap(self.store))


def locate_table(
    name: str, allowed: Iterable[str] = (), *, stores: Stores | None = None
) -> TableLocation:
    """Return where a table is; nothing is connected.

    Args:
        name: A path or URL, as the user gave it.
        allowed: Locations outside the table that it may reference, in any form.
        stores: Access to its files; by default configured by the environment.

    Raises:
        ConfigError: No store serves this location, or an allowed one is wrong.
    """
    stores = stores or Stores()
    store, root = stores.locate(name)
    folders = tuple(map(_normalise, allowed))
    links = AllowedPaths(root, folders) if store.is_local_folder else None
    return TableLocation(
        name=name,
        store=store if links is None else _confine(store, links),
        root=root.rstrip("/"),
        url=store.format_url(root),
        stores=stores,
        allowed=folders,
        links=links,
        opens_ahead=isinstance(store, OpensAhead),
    )


def confine(store: ObjectStore, root: str) -> ObjectStore:
    """Return the local store confined to one table, unless it is already; others unchanged."""
    is_open = isinstance(store, LocalStore) and store.locations is None
    return _confine(store, AllowedPaths(root)) if is_open else store


def _confine(store: ObjectStore, links: AllowedPaths) -> ObjectStore:
    # Not for subclasses: a copy would duplicate their state.
    return store.within(links) if type(store) is LocalStore else store


def _normalise(location: str) -> str:
    if not location:
        raise ConfigError(
            "A location that the log may name files in (--allow-path, allowed_paths) is empty.",
            remedy="Give a folder or a URL, or leave it out.",
        )
    # Only the root still has a slash to strip.
    return normal_url(location).rstrip("/")
