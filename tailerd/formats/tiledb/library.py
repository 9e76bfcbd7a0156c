"""The only module that loads TileDB: opens arrays at a time, maps errors, configures buckets.

TileDB is never used before a fork: a child that reads with a library used by its parent hangs
forever. Other processes get only an array's URL and times, no TileDB objects.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tailerd.errors import (
    ConfigError,
    LogCleanedUpError,
    MissingExtraError,
    StorageError,
    TableError,
    UnreadableDataFileError,
)
from tailerd.storage.object_store.accounts import AzureAccount, GoogleAccount
from tailerd.storage.object_store.provider import AzureStoreProvider, GoogleStoreProvider
from tailerd.storage.s3.provider import S3StoreProvider
from tailerd.storage.s3.settings import S3Account, S3Settings
from tailerd.storage.stores import Stores

if TYPE_CHECKING:
    import tiledb

_MERGE_BYTES = 256 * 1024 * 1024
"""Memory to merge fragments; by default TileDB uses 10 GiB, even for a few cells."""

Config = tuple[tuple[str, str], ...]

ATTEMPTS = 5
"""Attempts to read an array while others delete merged files."""

_SCHEMES = {"s3": "s3", "az": "azure", "abfs": "azure", "abfss": "azure", "gs": "gcs"}
"""Scheme of a store -> TileDB's for it."""
_BUFFER_BYTES = 16 * 1024 * 1024
"""Buffer of each column while it is read; the rest is requested again."""
library_lock = threading.RLock()
"""Held while an array is open. If a thread opens one while another opens, reads or closes one,
TileDB 2.30 corrupts its memory and the process dies. A context for each thread does not help."""


def load() -> Any:
    """Import TileDB.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import tiledb
    except ImportError as error:
        raise MissingExtraError(
            f"TileDB arrays are read with TileDB's own library, which cannot be loaded: {error}.",
            remedy="Install it: pip install 'tailerd[tiledb]'.",
        ) from error
    return tiledb


def format_uri(location: str, stores: Stores) -> str:
    """Return an array's URI for TileDB.

    Raises:
        ConfigError: TileDB cannot access the store.
    """
    store, path = stores.locate(location)
    if store.is_local_folder:
        return path
    if (scheme := _SCHEMES.get(store.scheme)) is not None:
        return f"{scheme}://{path}"
    raise ConfigError(
        f"{location} is in a store that TileDB's library does not support.",
        remedy="Arrays are read from folders of this machine and from buckets.",
    )


@contextmanager
def open_array(
    location: str, stores: Stores, first_ms: int, last_ms: int
) -> Iterator[tiledb.Array]:
    """Open an array at the time range [first, last], milliseconds since 1970.

    The other threads of the process wait until it is closed again.

    Raises:
        LogCleanedUpError: A file was merged and deleted meanwhile.
        UnreadableDataFileError, StorageError: TileDB cannot read it.
        MissingExtraError: It is not installed.
    """
    library, uri = load(), format_uri(location, stores)
    with library_lock, mapped_errors(location, is_remote="://" in uri):
        context = _context(os.getpid(), build_config(uri, stores))
        times = (max(first_ms, 0), max(last_ms, 0))
        with _open(library, uri, ctx=context, timestamp=times) as array:
            yield array


def _open(library: Any, uri: str, **settings: Any) -> Any:
    for _ in range(ATTEMPTS - 1):
        try:
            return library.open(uri, **settings)
        except library.TileDBError as error:
            # Deleted between listing and reading: it was merged into another file.
            if not _is_gone(error):
                raise
    return library.open(uri, **settings)


def _is_gone(error: Exception) -> bool:
    """Return whether a file was missing; TileDB has one class for all errors."""
    return os.strerror(errno.ENOENT) in str(error)


@contextmanager
def mapped_errors(location: str, *, is_remote: bool) -> Iterator[None]:
    """Map TileDB's errors to those of tailerd."""
    library = load()
    try:
        yield
    except library.TileDBError as error:
        kind: type[StorageError | TableError] = UnreadableDataFileError
        if is_remote:
            kind = StorageError
        elif _is_gone(error):
            kind = LogCleanedUpError
        raise kind(
            f"TileDB cannot read the array {location}: {error}",
            remedy="If a fragment was just consolidated or vacuumed, the next attempt reads it"
            " again.",
            path=location,
        ) from error


@contextmanager
def changing(location: str, stores: Stores) -> Iterator[tuple[Any, str, Any]]:
    """Yield TileDB, an array's URI and a new configuration, for merging and deleting.

    The other threads of the process wait.

    Raises:
        UnreadableDataFileError, StorageError: TileDB failed.
    """
    library, uri = load(), format_uri(location, stores)
    settings = {"sm.mem.total_budget": str(_MERGE_BYTES), **dict(build_config(uri, stores))}
    with library_lock, mapped_errors(location, is_remote="://" in uri):
        yield library, uri, library.Config(settings)


@functools.lru_cache(maxsize=16)
def _context(process: int, config: Config) -> Any:
    # One for each process: threads do not survive a fork.
    return load().Ctx({"py.init_buffer_bytes": str(_BUFFER_BYTES), **dict(config)})


def build_config(uri: str, stores: Stores) -> Config:
    """Return TileDB's settings to access an array; they may contain secrets."""
    if "://" not in uri:
        return ()
    if uri.startswith("azure:"):
        return tuple(_azure_config(stores.settings.select(AzureStoreProvider)))
    if uri.startswith("gcs:"):
        return tuple(_google_config(stores.settings.select(GoogleStoreProvider)))
    settings = stores.settings.select(S3StoreProvider)
    if not isinstance(settings, S3Settings):
        return ()
    account = settings.select_account(urlsplit(uri).netloc)
    return tuple(_bucket_config(account))


def _azure_config(account: object) -> Iterator[tuple[str, str]]:
    assert isinstance(account, AzureAccount)
    # obstore reads these variables itself; TileDB knows other names.
    for name, value, variable in (
        ("storage_account_name", account.account, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("storage_account_key", account.account_key, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("storage_account_sas_token", account.sas_token, "AZURE_STORAGE_SAS_TOKEN"),
        ("blob_endpoint", account.endpoint, "AZURE_STORAGE_ENDPOINT"),
    ):
        if found := value or os.environ.get(variable):
            yield f"vfs.azure.{name}", found


def _google_config(account: object) -> Iterator[tuple[str, str]]:
    assert isinstance(account, GoogleAccount)
    if account.endpoint:
        yield "vfs.gcs.endpoint", account.endpoint
    if account.service_account_file:
        key = Path(account.service_account_file).read_text(encoding="utf-8")
        yield "vfs.gcs.service_account_key", key


def _bucket_config(account: S3Account) -> Iterator[tuple[str, str]]:
    endpoint = account.endpoint or os.environ.get(
        "AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", "")
    )
    region = account.region or os.environ.get(
        "AWS_REGION", os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
    )
    yield "vfs.s3.region", region
    if endpoint:
        where = urlsplit(endpoint)
        yield "vfs.s3.endpoint_override", where.netloc
        yield "vfs.s3.scheme", where.scheme
    is_path = bool(endpoint) if account.path_style is None else account.path_style
    yield "vfs.s3.use_virtual_addressing", "false" if is_path else "true"
    if account.profile:
        raise ConfigError(
            f"TileDB's library does not support profiles, and `storage` names {account.profile!r}.",
            remedy="Give access_key_id and secret_access_key, or leave both to the environment.",
        )
    if account.access_key_id:
        yield "vfs.s3.aws_access_key_id", account.access_key_id
        yield "vfs.s3.aws_secret_access_key", account.secret_access_key
    if account.session_token:
        yield "vfs.s3.aws_session_token", account.session_token
    if account.is_anonymous:
        yield "vfs.s3.no_sign_request", "true"
    yield "vfs.s3.connect_timeout_ms", str(int(account.connect_timeout_seconds * 1000))
    yield "vfs.s3.request_timeout_ms", str(int(account.read_timeout_seconds * 1000))
    yield "vfs.s3.connect_max_tries", str(account.attempts)
