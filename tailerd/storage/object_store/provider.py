"""Resolve URLs of Azure and Google to their stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote

from tailerd.errors import ConfigError
from tailerd.storage.base import ObjectStore
from tailerd.storage.object_store.accounts import Account, AzureAccount, GoogleAccount

if TYPE_CHECKING:
    from tailerd.config.storage import StorageConfig
    from tailerd.storage.object_store.store import CloudStore

_AZURE_HOSTS = (".blob.core.windows.net", ".dfs.core.windows.net", ".fabric.microsoft.com")


class _Provider:
    """The common part; a `storage.base.StoreProvider`."""

    is_remote: ClassVar[bool] = True
    settings_type: ClassVar[type[Account]]

    @classmethod
    def read_settings(cls, config: StorageConfig | None) -> Account:
        """Return the settings of the section `storage`; for None, those of the environment."""
        kind = cls.settings_type
        return kind.from_environment() if config is None else kind.from_config(config)

    def __init__(self, settings: Account) -> None:
        """Initialize; the client is loaded when the first URL is resolved."""
        self._settings = settings
        self._stores: dict[tuple[str, str], CloudStore] = {}

    def reconfigure(self, settings: Account) -> None:
        """Use other settings for requests from now on."""
        self._settings = settings
        for (_, host), store in self._stores.items():
            store.account = self._account(host)

    def _account(self, host: str) -> Account:
        """Return the settings for the host of a URL, which may be empty."""
        return self._settings

    def _store(self, scheme: str, host: str = "") -> CloudStore:
        if (scheme, host) not in self._stores:
            # Loads the client, which local tables do not need.
            from tailerd.storage.object_store.store import CloudStore

            self._stores[scheme, host] = CloudStore(scheme, self._account(host), host)
        return self._stores[scheme, host]


class AzureStoreProvider(_Provider):
    """Serves `az:`, `abfs:`, `abfss:`, and `https:` URLs of blobs."""

    name: ClassVar[str] = "azure"
    settings_type: ClassVar[type[Account]] = AzureAccount

    def _account(self, host: str) -> Account:
        assert isinstance(self._settings, AzureAccount)
        name = host.partition(".")[0]
        return replace(self._settings, account=name) if name else self._settings

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store and `container/key`.

        Raises:
            ConfigError: The URL has no container, or is of another server.
        """
        scheme = url.partition(":")[0].lower()
        if scheme == "https":
            if not host.endswith(_AZURE_HOSTS):
                raise ConfigError(
                    f"https://{host} is not a container of Azure.",
                    remedy="Write az://CONTAINER/PATH and the account in storage.azure.",
                )
            # As people paste it: with escapes, and perhaps a signature.
            container, _, key = unquote(path.partition("?")[0]).strip("/").partition("/")
            scheme, host = "abfss", f"{container}@{host}"
            path = f"/{key}"
        container, _, domain = host.partition("@")
        if not container:
            raise ConfigError(
                "The location names no container.", remedy="Write az://CONTAINER/PATH."
            )
        return self._store(scheme, domain), f"{container}{path}".rstrip("/")


class GoogleStoreProvider(_Provider):
    """Serves `gs:` and `gcs:`."""

    name: ClassVar[str] = "google"
    settings_type: ClassVar[type[Account]] = GoogleAccount

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store and `bucket/key`.

        Raises:
            ConfigError: The URL has no bucket.
        """
        if not host:
            raise ConfigError("The location names no bucket.", remedy="Write gs://BUCKET/PATH.")
        return self._store("gs"), f"{host}{path}".rstrip("/")
