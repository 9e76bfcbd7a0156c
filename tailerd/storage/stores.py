"""Resolve a location, as a user or a log names it, to a store and a path in it.

The registry lists the stores by URL scheme. Each process creates one `Stores` object from the
configuration and passes it to all code that opens locations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec

from tailerd import registry
from tailerd.errors import BugError, ConfigError
from tailerd.storage.base import NoSettings, ObjectStore, OpensAhead, PendingInput, StoreProvider
from tailerd.storage.local import LocalStoreProvider, absolute
from tailerd.storage.memory import MemoryStore, MemoryStoreProvider
from tailerd.storage.shared_reads import SharedReads

if TYPE_CHECKING:
    from tailerd.config.storage import StorageConfig

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of all kinds of stores. Picklable and hashable; `repr` shows no secret.

    Attributes:
        by_name: (name of a store, its settings); other stores use the environment's settings.
    """

    by_name: tuple[tuple[str, object], ...] = field(default=(), repr=False)

    @classmethod
    def from_config(cls, config: StorageConfig) -> StoreSettings:
        """Return the settings of the section `storage`.

        Raises:
            ConfigError: A store's own section is invalid, or its distribution does not load.
        """
        providers = _providers((*registry.STORES, *(config.stores or ())))
        return cls(tuple((name, each.read_settings(config)) for name, each in providers.items()))

    @classmethod
    def from_environment(cls) -> StoreSettings:
        """Return the settings of this process's environment, to pass to other processes."""
        providers = _providers(registry.STORES)
        return cls(tuple((name, each.read_settings(None)) for name, each in providers.items()))

    def select(self, provider: type[StoreProvider]) -> object:
        """Return a store's settings: those given, else those of the environment."""
        for name, settings in self.by_name:
            if name == provider.name:
                return settings
        return provider.read_settings(None)

    def to_json(self) -> dict[str, msgspec.Raw]:
        """Return the settings for a message to another process of this machine, with secrets."""
        return {name: msgspec.Raw(msgspec.json.encode(each)) for name, each in self.by_name}

    @classmethod
    def from_json(cls, fields: Mapping[str, msgspec.Raw]) -> StoreSettings:
        """Return the settings from the result of `to_json`.

        Raises:
            BugError: The fields are malformed.
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
            # The fields may contain secrets, and so may the error.
            raise BugError("The settings of storage from another process are malformed.") from None


class Stores:
    """The stores of one process, each created on first use. Thread-safe.

    Connections stay open as long as the object exists. Pickling includes the settings only; the
    other process opens its own connections.

    Attributes:
        local: The store of this machine's file system.
        shared_reads: Files that readers of the same log share instead of fetching them twice.
    """

    def __init__(self, settings: StoreSettings | None = None) -> None:
        """Initialize; nothing is connected yet.

        Args:
            settings: None uses the environment's, as for commands without a configuration.
        """
        self._settings = settings or StoreSettings()
        files = LocalStoreProvider(NoSettings())
        self.local = files.store
        self._by_name: dict[str, StoreProvider] = {files.name: files}
        self.shared_reads = SharedReads()

    @classmethod
    def from_config(cls, config: StorageConfig) -> Stores:
        """Return stores with the settings of the section `storage`.

        Raises:
            ConfigError: As `StoreSettings.from_config`.
        """
        return cls(StoreSettings.from_config(config))

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Stores:
        """Return stores with the fields of the section `storage` that a caller gives.

        Raises:
            ConfigError: A field is unknown or invalid; the message names it.
        """
        # A third of a second, for those who give fields.
        from pydantic import ValidationError

        from tailerd.config.explain import describe_error
        from tailerd.config.storage import StorageConfig

        try:
            config = StorageConfig.model_validate(dict(fields))
        except ValidationError as error:
            # Pydantic's messages quote values, which may be secrets.
            raise describe_error(error, StorageConfig, "storage.{}".format, "storage") from None
        return cls.from_config(config)

    def __reduce__(self) -> tuple[type[Stores], tuple[StoreSettings]]:
        """Pickle only the settings."""
        return (Stores, (self._settings,))

    @property
    def settings(self) -> StoreSettings:
        """The current settings."""
        return self._settings

    def reconfigure(self, settings: StoreSettings) -> None:
        """Use other settings for requests from now on, also in open stores."""
        self._settings = settings
        for provider in list(self._by_name.values()):
            provider.reconfigure(settings.select(type(provider)))

    def memory(self, name: str) -> MemoryStore:
        """Return the store of `memory://NAME`, created on first use."""
        return cast(MemoryStore, self._find_provider("memory").locate("", name, "/")[0])

    def add(self, store: MemoryStore) -> None:
        """Register an in-memory store by its name; replaces one of the same name."""
        cast(MemoryStoreProvider, self._find_provider("memory")).add(store)

    def locate(self, url: str) -> tuple[ObjectStore, str]:
        """Return the store of a location and the absolute path in it, without a trailing slash.

        A path is used literally and made absolute. In `file:` and `memory:` URLs, percent escapes
        are decoded once. Other stores parse their URLs themselves.

        Raises:
            ConfigError: The location is empty, or its scheme is not supported.
        """
        if not url:
            raise ConfigError(
                "A table needs a location, but it is empty.", remedy="Give a path or a URL."
            )
        match = _SCHEME.match(url)
        if match is None:
            return self.local, absolute(url)
        host, path = _split_host(url[match.end() - 1 :])
        return self._find_provider(match.group(1).lower(), url).locate(url, host, path)

    def open_data_file(self, url: str) -> BinaryIO:
        """Open a data file for random reading, blocking; for worker threads and executors.

        Raises:
            ConfigError: The scheme is not supported.
            StorageError: The file is missing or cannot be read.
        """
        store, path = self.locate(url)
        return store.open_input(path)

    def begin_data_file(self, url: str) -> PendingInput | None:
        """Start to open a data file; None if the store opens files without delay.

        Raises:
            ConfigError: The scheme is not supported.
        """
        store, path = self.locate(url)
        return store.begin_input(path) if isinstance(store, OpensAhead) else None

    def _find_provider(self, scheme: str, url: str = "") -> StoreProvider:
        kind = _provider(scheme, url)
        known = self._by_name.get(kind.name)
        if known is None:
            # Atomic: concurrent first calls get the same object.
            known = self._by_name.setdefault(kind.name, kind(self._settings.select(kind)))
        return known


def normal_url(url: str) -> str:
    """Return the canonical form of a location; nothing is connected.

    Raises:
        ConfigError: As `Stores.locate`.
    """
    store, path = Stores().locate(url)
    return store.format_url(path)


def _providers(schemes: Iterable[str]) -> dict[str, type[StoreProvider]]:
    """Return the providers of schemes by name, each once."""
    return {provider.name: provider for provider in map(_provider, schemes)}


def _provider(scheme: str, url: str = "") -> type[StoreProvider]:
    return cast(type[StoreProvider], registry.store_provider(scheme, url))


def _split_host(rest: str) -> tuple[str, str]:
    """Split what follows `scheme:` into host and path."""
    if not rest.startswith("//"):
        return "", rest
    host, slash, path = rest[2:].partition("/")
    return host, slash + path
