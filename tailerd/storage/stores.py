"""From what a user or a log calls a place to the store that holds it and the path within.

Which stores there are is in the registry, by URL scheme. A `Stores` object is made from the
configuration, once a process, and passed to whatever opens places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec

from tailerd import registry
from tailerd.errors import BugError, ConfigError
from tailerd.storage.base import ObjectStore, OpensAhead, PendingInput, StoreProvider
from tailerd.storage.links import RealPlaces
from tailerd.storage.local import LocalPlaces, LocalStore, absolute
from tailerd.storage.memory import MemoryPlaces, MemoryStore
from tailerd.storage.shared_reads import SharedReads

if TYPE_CHECKING:
    from tailerd.config.storage import StorageConfig

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How every kind of store is reached. Picklable and hashable; `repr` shows no secret.

    Attributes:
        by_name: (name of a store, its settings), of stores that differ from the environment's.
    """

    by_name: tuple[tuple[str, object], ...] = field(default=(), repr=False)

    @classmethod
    def of_config(cls, config: StorageConfig) -> StoreSettings:
        """Return what the section `storage` says.

        Raises:
            ConfigError: A store's own section is wrong, or its distribution does not load.
        """
        providers = _providers((*registry.STORES, *(config.stores or ())))
        return cls(tuple((name, each.settings_of(config)) for name, each in providers.items()))

    @classmethod
    def of_environment(cls) -> StoreSettings:
        """Return what this process's environment says, for others that have another."""
        providers = _providers(registry.STORES)
        return cls(tuple((name, each.settings_of(None)) for name, each in providers.items()))

    def of(self, provider: type[StoreProvider]) -> object:
        """Return a store's settings: those given, else what the environment says."""
        for name, settings in self.by_name:
            if name == provider.name:
                return settings
        return provider.settings_of(None)

    def to_json(self) -> dict[str, msgspec.Raw]:
        """Return what a message to another process of this machine carries; has secrets."""
        return {name: msgspec.Raw(msgspec.json.encode(each)) for name, each in self.by_name}

    @classmethod
    def of_json(cls, fields: Mapping[str, msgspec.Raw]) -> StoreSettings:
        """Read what `to_json` returned.

        Raises:
            BugError: It is none.
        """
        providers = _providers(registry.store_schemes())
        try:
            return cls(
                tuple(
                    (name, msgspec.json.decode(raw, type=providers[name].settings_type))
                    for name, raw in fields.items()
                )
            )
        except (KeyError, msgspec.MsgspecError):
            # What was read may hold secrets, and so may the error.
            raise BugError("The settings of storage from another process are malformed.") from None


class Stores:
    """The stores of one process, each made when a place of it is first named. Thread-safe.

    Connections are kept as long as the object. It is picklable: the settings go along, and the
    other process connects for itself.

    Attributes:
        shared_reads: What readers of the same log need not ask for twice.
    """

    def __init__(self, settings: StoreSettings | None = None) -> None:
        """Connect to nothing yet.

        Args:
            settings: By default what the environment says, as for commands without configuration.
        """
        self._settings = settings or StoreSettings()
        self._by_name: dict[str, StoreProvider] = {}
        self.shared_reads = SharedReads()

    @classmethod
    def of_config(cls, config: StorageConfig) -> Stores:
        """Return the stores as the section `storage` says.

        Raises:
            ConfigError: As `StoreSettings.of_config`.
        """
        return cls(StoreSettings.of_config(config))

    def __reduce__(self) -> tuple[type[Stores], tuple[StoreSettings]]:
        """Pickle the settings alone."""
        return (Stores, (self._settings,))

    @property
    def settings(self) -> StoreSettings:
        """How places are reached now."""
        return self._settings

    def reconfigure(self, settings: StoreSettings) -> None:
        """Use other settings for requests that begin from now on, of stores that are open too."""
        self._settings = settings
        for provider in list(self._by_name.values()):
            provider.reconfigure(settings.of(type(provider)))

    @property
    def local(self) -> LocalStore:
        """The store of this machine's file system."""
        return cast(LocalPlaces, self._of("file")).store

    def memory(self, name: str) -> MemoryStore:
        """Return the store of `memory://NAME`; it appears on first use."""
        return cast(MemoryStore, self._of("memory").locate("", name, "/")[0])

    def add(self, store: MemoryStore) -> None:
        """Serve a store of memory by its name, in place of one that had it."""
        cast(MemoryPlaces, self._of("memory")).add(store)

    def locate(self, url: str) -> tuple[ObjectStore, str]:
        """Return the store of a place and the absolute path in it, without a trailing slash.

        A path is taken literally and made absolute; in a `file:` or `memory:` URL percent escapes
        are decoded once; the URLs of other stores are their own matter.

        Raises:
            ConfigError: The place is empty, or of a scheme that is not served.
        """
        if not url:
            raise ConfigError(
                "A table needs a place, but it is empty.", remedy="Give a path or a URL."
            )
        match = _SCHEME.match(url)
        if match is None:
            return self.local, absolute(url)
        host, path = _split_host(url[match.end() - 1 :])
        return self._of(match.group(1).lower(), url).locate(url, host, path)

    def locate_table(self, url: str, allowed: Iterable[str] = ()) -> tuple[ObjectStore, str]:
        """Return what `locate` does, for a table: links below it lead out of it to nothing else.

        Args:
            allowed: But to these places, for reading; as `allowed_places` returns them.

        Raises:
            ConfigError: As `locate`.
        """
        store, root = self.locate(url)
        return within_table(store, root, allowed), root

    def open_data_file(self, url: str) -> BinaryIO:
        """Open a data file for random reading, blocking; for worker threads and executors.

        Raises:
            ConfigError: The scheme is not served.
            StorageError: The file is missing, may not be read, or reading fails.
        """
        store, path = self.locate(url)
        return store.open_input(path)

    def begin_data_file(self, url: str) -> PendingInput | None:
        """Begin to open a data file; None where a store's files open at once.

        Raises:
            ConfigError: The scheme is not served.
        """
        store, path = self.locate(url)
        return store.begin_input(path) if isinstance(store, OpensAhead) else None

    def _of(self, scheme: str, url: str = "") -> StoreProvider:
        kind = _provider(scheme, url)
        known = self._by_name.get(kind.name)
        if known is None:
            # Atomic: of two threads that come first, both get the same.
            known = self._by_name.setdefault(kind.name, kind(self._settings.of(kind)))
        return known


def path_of(url: str) -> str:
    """Return the path of a place within its store; nothing is connected.

    Raises:
        ConfigError: As `Stores.locate`.
    """
    return Stores().locate(url)[1]


def normal_url(url: str) -> str:
    """Return a place in the one form that all its spellings have in common; as `path_of`."""
    store, path = Stores().locate(url)
    return store.url_of(path)


def within_table(store: ObjectStore, root: str, allowed: Iterable[str] = ()) -> ObjectStore:
    """Return this machine's store for one table alone; any other store as it is."""
    # No kind derived from it: a copy would have what that kind remembers twice.
    if type(store) is LocalStore and store.places is None:
        return store.within(RealPlaces(root, allowed))
    return store


def _providers(schemes: Iterable[str]) -> dict[str, type[StoreProvider]]:
    """Return the providers of schemes, each once, by their names."""
    return {provider.name: provider for provider in map(_provider, schemes)}


def _provider(scheme: str, url: str = "") -> type[StoreProvider]:
    return cast(type[StoreProvider], registry.store_provider(scheme, url))


def _split_host(rest: str) -> tuple[str, str]:
    """Split what follows `scheme:` into host and path."""
    if not rest.startswith("//"):
        return "", rest
    host, slash, path = rest[2:].partition("/")
    return host, slash + path
