"""The only module that loads pylance: opens tables by version, and keeps them open.

After pylance was used, a forked child that reads hangs forever. So nothing here runs before a
process reads its first rows, and processes are started by `exec`.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from tailerd.errors import ConfigError, MissingExtraError
from tailerd.registry import store_provider
from tailerd.storage.object_store.accounts import Account
from tailerd.storage.s3.settings import S3Account, S3Settings
from tailerd.storage.stores import Stores

if TYPE_CHECKING:
    import lance

_OPEN_TABLES = 16
_METADATA_BYTES = 16 * 1024 * 1024
_INDEX_BYTES = 1024 * 1024
_LOG_LEVEL = "LANCE_LOG"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""Environment variables of the AWS SDK; pylance reads keys from the environment itself."""


def load_lance() -> Any:
    """Import pylance.

    Raises:
        MissingExtraError: It is not installed.
    """
    # pylance writes warnings to standard error; relevant problems are raised.
    os.environ.setdefault(_LOG_LEVEL, "error")
    try:
        import lance
    except ImportError as error:
        raise MissingExtraError(
            "Rows of Lance tables are read with pylance, which is not installed.",
            remedy="Install it: pip install 'tailerd[lance]'.",
        ) from error
    return lance


class OpenTables:
    """Tables that are open in this process, by version. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, int | None, str, int], lance.LanceDataset] = (
            OrderedDict()
        )

    def get(
        self, url: str, version: int | None, identity: str, stores: Stores
    ) -> lance.LanceDataset:
        """Return a version of a table; blocking.

        Args:
            version: None for the newest.
            identity: Of the version; differs for a table that was created again.

        Raises:
            MissingExtraError: pylance is not installed.
            ConfigError: pylance cannot access this location with the configured storage.
            OSError, ValueError: It cannot be opened.
        """
        options = storage_options(url, stores)
        key = (url, version, identity, hash(tuple(sorted(options.items()))))
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        opened: lance.LanceDataset = load_lance().dataset(
            url,
            version=version,
            storage_options=options or None,
            metadata_cache_size_bytes=_METADATA_BYTES,
            index_cache_size_bytes=_INDEX_BYTES,
        )
        with self._lock:
            self._open[key] = opened
            while len(self._open) > _OPEN_TABLES:
                self._open.popitem(last=False)
        return opened


def storage_options(url: str, stores: Stores) -> dict[str, str]:
    """Return pylance's storage options for a location, from the section `storage`; contain secrets.

    Raises:
        ConfigError: pylance cannot access the location with the configured storage.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        return {}
    provider = store_provider(scheme, url)
    settings = stores.settings.select(provider)  # type: ignore[arg-type]
    if isinstance(settings, Account):
        is_plain = settings.endpoint.startswith("http://")
        return settings.options() | ({"allow_http": "true"} if is_plain else {})
    if not isinstance(settings, S3Settings):
        raise ConfigError(
            f"The rows of {url} cannot be read: pylance does not support the store {scheme!r}.",
            remedy="Keep Lance tables in a local folder or a bucket of S3, Azure or Google.",
        )
    return _bucket_options(settings.select_account(rest.partition("/")[0]), url)


def _bucket_options(account: S3Account, url: str) -> dict[str, str]:
    if account.profile:
        raise ConfigError(
            f"The rows of {url} cannot be read with the profile {account.profile!r}: pylance only"
            " accepts keys or the environment's credentials.",
            remedy="Give access_key_id and secret_access_key, or set AWS_PROFILE for the process.",
        )
    endpoint = account.endpoint or _environment(*_ENDPOINTS)
    region = account.region or _environment(*_REGIONS)
    is_path_style = bool(endpoint) if account.path_style is None else account.path_style
    reported = {
        "aws_endpoint": endpoint,
        "allow_http": "true" if endpoint.startswith("http://") else "",
        "aws_region": region or ("us-east-1" if endpoint else ""),
        "aws_access_key_id": account.access_key_id,
        "aws_secret_access_key": account.secret_access_key,
        "aws_session_token": account.session_token,
        "aws_skip_signature": "true" if account.is_anonymous else "",
        "aws_virtual_hosted_style_request": "false" if is_path_style else "true",
        "connect_timeout": f"{account.connect_timeout_seconds:g}s",
        "timeout": f"{max(account.read_timeout_seconds, 1):g}s",
        "client_max_retries": str(max(account.attempts - 1, 0)),
    }
    return {name: value for name, value in reported.items() if value}


def _environment(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
