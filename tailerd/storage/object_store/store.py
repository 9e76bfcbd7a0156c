"""Containers and buckets as an object store."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import obstore

from tailerd.errors import FileExistsAlreadyError, FileMissingError, StorageError
from tailerd.storage.base import FileMeta
from tailerd.storage.object_store.accounts import Account
from tailerd.storage.object_store.failures import (
    ERRORS,
    is_beyond_the_end,
    is_refused_token,
    map_failure,
    map_settings,
    may_pass,
)
from tailerd.storage.remote_input import Fetched, RemoteReads, refuse_name
from tailerd.storage.request_threads import RequestThreads
from tailerd.storage.retries import Retries

T = TypeVar("T")

_PAGE = 1000
_TOKEN = "tailerd"
"""Name of the metadata field that shows who wrote a file: Azure allows only names of variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """A container's client."""

    client: Any
    opened_at: float = field(default_factory=time.monotonic)


class CloudStore(RemoteReads):
    """Containers as folders: paths are `container/key`, taken literally.

    Requests run in separate threads, so the store may be used from any event loop: obstore's
    own asynchronous requests take twice the CPU.
    """

    is_remote: bool = True
    is_local_folder: bool = False

    def __init__(self, scheme: str, account: Account, host: str = "") -> None:
        """Connect with the first request.

        Args:
            scheme: Of the URLs.
            account: How containers are reached.
            host: What follows the container and an `@` in URLs; empty for none.
        """
        self.scheme = scheme
        self.account = account
        self._host = host
        self._connections: dict[tuple[Account, str], _Connection] = {}
        self._retries = Retries()
        self._threads: RequestThreads | None = None

    def format_url(self, path: str) -> str:
        """Return the URL of a path, without escapes."""
        container, slash, key = path.partition("/")
        host = f"@{self._host}" if self._host else ""
        return f"{self.scheme}://{container}{host}{slash}{key}"

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """List as `ObjectStore.list_from`.

        Only Google starts a listing at a name; there it includes sub-folders, which are left out.
        """
        container, key = _split(folder.rstrip("/"))
        prefix = f"{key}/" if key else ""
        if start_after and self._cloud == "google":
            async for meta in self._list_after(folder, container, prefix, start_after):
                yield meta
            return
        answer = await self._call(
            "list", folder, lambda client: obstore.list_with_delimiter(client, prefix)
        )
        metas = [_meta(container, found) for found in answer["objects"]]
        # Azure sorts names by UTF-16.
        for meta in sorted(metas, key=lambda each: each.path.encode()):
            if meta.name.encode() > start_after.encode() and meta.path != f"{container}/{key}":
                yield meta

    async def _list_after(
        self, folder: str, container: str, prefix: str, start_after: str
    ) -> AsyncIterator[FileMeta]:
        after, attempt = start_after, 0
        while True:
            client = self._connect(container).client
            listing = iter(obstore.list(client, prefix, offset=prefix + after, chunk_size=_PAGE))
            try:
                while chunk := await self._run(partial(next, listing, ())):
                    for each in chunk:
                        name = each["path"].removeprefix(prefix)
                        # Some servers ignore the start.
                        if "/" not in name and name.encode() > after.encode():
                            after = name
                            yield _meta(container, each)
            except ERRORS as error:
                if not await self._may_repeat(error, attempt):
                    raise self._failure(error, "list", folder, attempt) from None
                attempt += 1
            else:
                return

    async def list_folders(
        self, folder: str, starts_with: str = "", on_page: Callable[[], None] | None = None
    ) -> AsyncIterator[str]:
        """List as `ListsFolders.list_folders`."""
        _, key = _split(folder.rstrip("/"))
        prefix = f"{key}/" if key else ""
        if on_page is not None:
            on_page()
        answer = await self._call(
            "list", folder, lambda client: obstore.list_with_delimiter(client, prefix)
        )
        names = [str(each).rstrip("/").removeprefix(prefix) for each in answer["common_prefixes"]]
        for name in sorted(names, key=str.encode):
            if name.startswith(starts_with):
                yield name

    async def fetch_here(
        self,
        path: str,
        start: int = 0,
        length: int | None = None,
        etag: str = "",
        into: memoryview | None = None,
    ) -> Fetched:
        """Do what `fetch` does, on the I/O thread; as `remote_input.Fetch`."""
        if start < 0:
            # Azure has no ranges from the end.
            found = await self.fetch_here(path, 0, -start, etag)
            if found.meta.size_bytes <= -start:
                return found
            return await self.fetch_here(path, found.meta.size_bytes + start, -start, found.etag)
        options = _get_options(start, length, etag)

        def work(client: Any) -> Fetched:
            _, key = _split(path)
            try:
                answer = obstore.get(client, key, options=cast(Any, options))
            except ERRORS as error:
                if not is_beyond_the_end(error):
                    raise
                found = obstore.head(client, key)
                return Fetched(meta=_meta(path.partition("/")[0], found), body=b"")
            body = memoryview(answer.bytes())
            meta = _meta(path.partition("/")[0], answer.meta)
            return Fetched(meta=meta, body=body, etag=str(answer.meta["e_tag"] or ""))

        try:
            return await self._call("get", path, work)
        except FileExistsAlreadyError as error:
            raise StorageError(
                f"{self.format_url(path)} was replaced while it was read."
            ) from error

    async def run_here(self, work: Coroutine[object, object, T]) -> T:
        """Run work in any event loop."""
        return await work

    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""
        self.require_key(path)
        container, key = _split(path)
        found = await self._call("get", path, lambda client: obstore.head(client, key))
        return _meta(container, found)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file; with `if_absent` exactly one concurrent writer succeeds."""
        _, key = _split(path)
        token = secrets.token_hex(8)
        mode: Any = "create" if if_absent else "overwrite"
        attributes: Any = {_TOKEN: token} if if_absent else None

        def work(client: Any) -> None:
            obstore.put(
                client, key, bytes(data), mode=mode, attributes=attributes, use_multipart=False
            )

        try:
            await self._call("put", path, work)
        except StorageError as error:
            # A retried request may find the file that it wrote itself.
            may_be_ours = isinstance(error, FileExistsAlreadyError) or error.retryable
            if not (if_absent and may_be_ours and await self._has_token(path, token)):
                raise

    async def _has_token(self, path: str, token: str) -> bool:
        def work(client: Any) -> bool:
            answer = obstore.get(client, _split(path)[1], options={"head": True})
            return answer.attributes.get(cast(Any, _TOKEN)) == token

        try:
            return await self._call("get", path, work)
        except FileMissingError:
            return False

    async def delete(self, path: str) -> None:
        """Delete a file; succeeds if it does not exist."""
        _, key = _split(path)
        try:
            await self._call("delete", path, lambda client: obstore.delete(client, key))
        except FileMissingError:
            return

    @property
    def _cloud(self) -> str:
        return self.account.cloud

    async def _call(self, doing: str, path: str, work: Callable[[Any], T]) -> T:
        """Call `work` with the client of a path's container until it succeeds or gives up."""
        container, _ = _split(path)
        has_renewed, attempt = False, 0
        while True:
            connection = self._connect(container)
            try:
                done = await self._run(partial(work, connection.client))
            except UnicodeEncodeError as error:
                raise refuse_name(self.format_url(path)) from error
            except ERRORS as error:
                age_seconds = time.monotonic() - connection.opened_at
                if is_refused_token(error, age_seconds) and not has_renewed:
                    has_renewed = True
                    self._drop(container, connection)
                    continue
                if not await self._may_repeat(error, attempt):
                    # Without its cause, which may have a signature.
                    raise self._failure(error, doing, path, attempt) from None
                attempt += 1
            else:
                self._retries.note_success()
                return done

    async def _run(self, request: Callable[[], T]) -> T:
        if self._threads is None:
            self._threads = RequestThreads(self.account.max_connections)
        return await asyncio.wrap_future(self._threads.submit(request))

    async def _may_repeat(self, error: Exception, attempt: int) -> bool:
        """Wait before the request is sent again; return False, at once, if it must not be."""
        return may_pass(error) and await self._retries.wait(attempt, self.account.attempts)

    def _failure(self, error: Exception, doing: str, path: str, attempt: int) -> StorageError:
        url = self.format_url(path)
        return map_failure(error, doing, url, self._cloud, attempts=attempt + 1)

    def _connect(self, container: str) -> _Connection:
        key = (self.account, container)
        if key not in self._connections:
            try:
                client = self.account.connect(container)
            except ERRORS as error:
                # Without its cause, which may have a part of a key.
                raise map_settings(error, self.format_url(container), self._cloud) from None
            self._connections[key] = _Connection(client=client)
        return self._connections[key]

    def _drop(self, container: str, used: _Connection) -> None:
        """Forget a connection, so that the next one resolves credentials again."""
        key = (self.account, container)
        if self._connections.get(key) is used:
            del self._connections[key]

    def require_key(self, path: str) -> None:
        """Refuse the path of a container itself."""
        if not _split(path)[1]:
            raise FileMissingError(f"{self.format_url(path)} is a container, not a file.")


def _get_options(start: int, length: int | None, etag: str) -> dict[str, object]:
    options: dict[str, object] = {}
    if length is not None:
        options["range"] = (start, start + length)
    elif start:
        options["range"] = {"offset": start}
    return options | ({"if_match": etag} if etag else {})


def _split(path: str) -> tuple[str, str]:
    container, _, key = path.partition("/")
    return container, key


def _meta(container: str, found: Any) -> FileMeta:
    time_ms = int(found["last_modified"].timestamp()) * 1000
    etag = str(found["e_tag"] or "").strip('"')
    return FileMeta(
        f"{container}/{found['path']}", int(found["size"]), time_ms, hash(etag) if etag else 0
    )
