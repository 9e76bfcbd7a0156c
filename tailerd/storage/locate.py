"""From what a user or a log calls a place to the store that holds it and the path within."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import BinaryIO
from urllib.parse import quote, unquote

from tailerd.errors import ConfigError
from tailerd.storage.base import ObjectStore, OpensAhead, PendingInput
from tailerd.storage.links import RealPlaces
from tailerd.storage.local import LocalStore
from tailerd.storage.memory import MemoryStore

_LOCAL = LocalStore()
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
S3_SCHEMES = ("s3", "s3a", "s3n")


def locate(url: str) -> tuple[ObjectStore, str]:
    """Return the store that answers to `url` and the absolute path in it, without trailing slash.

    A path is taken literally and made absolute; in a `file:` or `memory:` URL percent escapes are
    decoded once. An `s3:` URL is taken literally, as all tools of S3 do; its path begins with the
    bucket. How buckets are reached, `s3.settings` says.

    Raises:
        ConfigError: The place is empty, or of a scheme that is not served.
    """
    if not url:
        raise ConfigError("A table needs a place, but it is empty.", hint="Give a path or a URL.")
    match = _SCHEME.match(url)
    if match is None:
        return _LOCAL, _absolute(url)
    scheme, rest = match.group(1).lower(), url[match.end() - 1 :]
    host, path = _split_host(rest)
    if scheme == "file":
        if host not in ("", "localhost"):
            raise ConfigError(
                f"{url} names the host {host!r}, but a file: URL can only mean this machine.",
                hint=f"Write file:///{host}{path} if {host!r} is a folder.",
            )
        return _LOCAL, _absolute(unquote(path))
    if scheme == "memory":
        return MemoryStore.named(host), _absolute(unquote(path))
    if scheme in S3_SCHEMES:
        return _locate_in_bucket(url, host, path)
    raise ConfigError(
        f"{url} has the unknown scheme {scheme!r}.",
        hint="Known are: a path, file://, s3://, memory://.",
    )


def locate_table(url: str, allowed: Iterable[str] = ()) -> tuple[ObjectStore, str]:
    """Return what `locate` does, for a table: links below it lead out of it to nothing else.

    Args:
        allowed: But to these places, for reading; as `allowed_places` returns them.

    Raises:
        ConfigError: As `locate`.
    """
    store, root = locate(url)
    return within_table(store, root, allowed), root


def within_table(store: ObjectStore, root: str, allowed: Iterable[str] = ()) -> ObjectStore:
    """Return this machine's store for one table alone; any other store as it is."""
    # No kind derived from it: a copy would have what that kind remembers twice.
    if type(store) is LocalStore and store.places is None:
        return store.within(RealPlaces(root, allowed))
    return store


def _locate_in_bucket(url: str, bucket: str, path: str) -> tuple[ObjectStore, str]:
    # Loads the client, which local tables do without.
    from tailerd.storage.s3.store import S3Store

    if "@" in bucket or (":" in bucket and "@" in path):
        # Not repeated: it would be shown and logged wherever the table is. Half of Amazon's
        # secrets have a slash.
        raise ConfigError(
            "A URL of a bucket has no room for credentials, and here is one with an @.",
            hint="Write s3://bucket/path; credentials come from `storage` or the environment.",
        )
    if not bucket:
        raise ConfigError(f"{url} names no bucket.", hint="Write s3://bucket/path.")
    return S3Store(), f"{bucket}{path}".rstrip("/")


def url_of(store: ObjectStore, path: str) -> str:
    """Return what `locate` turns back into `store` and `path`, in any process but for memory."""
    if store.scheme in S3_SCHEMES:
        return f"s3://{path}"
    if store.scheme != MemoryStore.scheme:
        return path
    name = getattr(store, "name", "")
    return f"memory://{name}{quote(path)}"


def open_data_file(url: str) -> BinaryIO:
    """Open a data file for random reading, blocking; for worker threads and executors.

    Raises:
        ConfigError: The scheme is not served.
        StorageError: The file is missing, may not be read, or reading fails.
    """
    store, path = locate(url)
    return store.open_input(path)


def begin_data_file(url: str) -> PendingInput | None:
    """Begin to open a data file; None where a store's files open at once.

    Raises:
        ConfigError: The scheme is not served.
    """
    store, path = locate(url)
    return store.begin_input(path) if isinstance(store, OpensAhead) else None


def _split_host(rest: str) -> tuple[str, str]:
    """Split what follows `scheme:` into host and path."""
    if not rest.startswith("//"):
        return "", rest
    host, slash, path = rest[2:].partition("/")
    return host, slash + path


def _absolute(path: str) -> str:
    # `abspath` keeps two leading slashes, as POSIX allows them a meaning; here they have none.
    return "/" + os.path.abspath(path or "/").lstrip("/")  # noqa: PTH100 - Path would keep `..`
