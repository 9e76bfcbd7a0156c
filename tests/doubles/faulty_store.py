"""An object store that misbehaves when told to: errors, stale listings, torn reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from tailerd.errors import StorageError
from tailerd.storage.base import FileMeta, ObjectStore
from tailerd.storage.metered import RequestKind
from tailerd.storage.output import Output, open_output, sweep


@dataclass(slots=True)
class _Failure:
    countdown: int
    error: BaseException
    kind: RequestKind | None
    name_part: str


@dataclass(slots=True)
class _Tear:
    name: str
    keep_bytes: int
    times: int


@dataclass(slots=True)
class FaultyStore:
    """Wraps a real store; without instructions it changes nothing.

    Attributes:
        inner: The store that does the work.
        log: (kind, path) of every request, in order.
    """

    inner: ObjectStore
    log: list[tuple[RequestKind, str]] = field(default_factory=list)
    scheme: str = ""
    is_remote: bool = False
    is_local_folder: bool = False
    _failures: list[_Failure] = field(default_factory=list)
    _tears: list[_Tear] = field(default_factory=list)
    _hidden: set[str] = field(default_factory=set)
    _stale_lists: int = 0

    def __post_init__(self) -> None:
        self.scheme = self.inner.scheme
        self.is_remote = self.inner.is_remote
        self.is_local_folder = self.inner.is_local_folder

    def format_url(self, path: str) -> str:
        return self.inner.format_url(path)

    def fail_nth(
        self,
        n: int,
        error: BaseException | None = None,
        *,
        kind: RequestKind | None = None,
        path_part: str = "",
    ) -> None:
        """Let the n-th request from now (1 is the next) of that kind and path raise `error`."""
        reason = error or StorageError("The storage failed because the test told it to.")
        self._failures.append(_Failure(n, reason, kind, path_part))

    def hide_from_listings(self, *names: str, times: int = 1) -> None:
        """Leave files of these names out of the next `times` listings, as a stale cache does."""
        self._hidden = set(names)
        self._stale_lists = times

    def tear(self, name: str, keep_bytes: int, *, times: int = 1) -> None:
        """Let the next `times` reads of the file `name` see only its first `keep_bytes`."""
        self._tears.append(_Tear(name, keep_bytes, times))

    def count(self, kind: RequestKind) -> int:
        """Return how many requests of a kind there were."""
        return sum(1 for seen, _ in self.log if seen == kind)

    def _request(self, kind: RequestKind, path: str) -> None:
        self.log.append((kind, path))
        for failure in list(self._failures):
            if failure.kind not in (None, kind) or failure.name_part not in path:
                continue
            failure.countdown -= 1
            if failure.countdown == 0:
                self._failures.remove(failure)
                raise failure.error

    def _torn(self, path: str, body: bytes) -> bytes:
        for tear in self._tears:
            if tear.times > 0 and path.endswith("/" + tear.name):
                tear.times -= 1
                return body[: tear.keep_bytes]
        return body

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        self._request("list", folder)
        hidden: set[str] = set()
        if self._stale_lists > 0:
            self._stale_lists -= 1
            hidden = self._hidden
        async for meta in self.inner.list_from(folder, start_after):
            if meta.name not in hidden:
                yield meta

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._request("get", path)
        return self._torn(path, await self.inner.get(path, start, length))

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        self._request("get", path)
        meta, body = await self.inner.fetch(path, start, length)
        torn = self._torn(path, body)
        size = meta.size_bytes if torn == body else len(torn)
        return msgspec.structs.replace(meta, size_bytes=size), torn

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        for path in paths:
            self._request("get", path)
        bodies = await self.inner.get_many(paths)
        return [self._torn(path, body) for path, body in zip(paths, bodies, strict=True)]

    async def head(self, path: str) -> FileMeta:
        self._request("head", path)
        return await self.inner.head(path)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        self._request("put", path)
        await self.inner.put(path, data, if_absent=if_absent)

    async def delete(self, path: str) -> None:
        self._request("delete", path)
        await self.inner.delete(path)

    def open_input(self, path: str) -> BinaryIO:
        self._request("open", path)
        return self.inner.open_input(path)

    def open_output(self, path: str) -> Output:
        self._request("put", path)
        return FaultyOutput(open_output(self.inner, path), lambda: self._request("put", path))

    async def sweep(self, folder: str, before_ms: int) -> int:
        self._request("list", folder)
        return await sweep(self.inner, folder, before_ms)


class FaultyOutput(Output):
    """A file whose pieces and whose end are requests, each of which may fail."""

    def __init__(self, inner: Output, request: Callable[[], None]) -> None:
        self._inner = inner
        self._request = request

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._request()
        written = self._inner.write(data)
        self.size_bytes = self._inner.size_bytes
        return written

    async def finish(self, *, if_absent: bool = False) -> None:
        self._request()
        await self._inner.finish(if_absent=if_absent)

    async def discard(self) -> None:
        self._request = lambda: None
        await self._inner.discard()
