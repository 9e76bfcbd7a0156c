"""Resolve bucket URLs to the store that serves all buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tailerd.errors import ConfigError
from tailerd.storage.base import ObjectStore
from tailerd.storage.s3.settings import S3Account, S3Settings

if TYPE_CHECKING:
    from tailerd.config.storage import StorageConfig
    from tailerd.storage.s3.store import S3Store


class S3StoreProvider:
    """Serves `s3:`, `s3a:` and `s3n:`; a `storage.base.StoreProvider`.

    URLs are used literally, as other S3 tools do; paths start with the bucket.
    """

    name: ClassVar[str] = "s3"
    is_remote: ClassVar[bool] = True
    settings_type: ClassVar[type[S3Settings]] = S3Settings

    @classmethod
    def read_settings(cls, config: StorageConfig | None) -> S3Settings:
        """Return the settings of the section `storage`; for None, those of the environment."""
        if config is None:
            return S3Settings(default=S3Account.from_environment())
        return S3Settings.from_config(config)

    def __init__(self, settings: S3Settings) -> None:
        """Initialize; the client is loaded when the first URL is resolved."""
        self._settings = settings
        self._store: S3Store | None = None

    def reconfigure(self, settings: S3Settings) -> None:
        """Use other settings for requests from now on."""
        self._settings = settings
        if self._store is not None:
            self._store.settings = settings

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store and `bucket/key`.

        Raises:
            ConfigError: The URL has no bucket, or contains credentials.
        """
        if "@" in host or (":" in host and "@" in path):
            # The URL is not in the message: it would be shown and logged. Half of Amazon's secrets
            # contain a slash, so the `@` may be in the path.
            raise ConfigError(
                "A bucket's URL cannot contain credentials, and this one has an @.",
                remedy="Write s3://bucket/path; credentials come from `storage` or the"
                " environment.",
            )
        if not host:
            raise ConfigError(f"{url} names no bucket.", remedy="Write s3://bucket/path.")
        if self._store is None:
            # Loads the client, which local tables do not need.
            from tailerd.storage.s3.store import S3Store

            self._store = S3Store(self._settings)
        return self._store, f"{host}{path}".rstrip("/")
