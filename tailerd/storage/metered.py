"""Counts the requests to a store: they cost money on S3 and time everywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import BinaryIO, Literal

from tailerd.storage.base import (
    FileMeta,
    FolderMark,
    MarksFolders,
    ObjectStore,
    ShowsUnfinished,
    count_requests,
    delete_all,
    put_nondurable,
)
from tailerd.storage.output import Output, open_output, sweep

RequestKind = Literal["list", "get", "head", "put", "delete", "open"]

KINDS: tuple[RequestKind, ...] = ("list", "get", "head", "put", "delete", "open")


class MeteredStore:
    """Wraps a store and counts requests by kind; all calls are forwarded.

    Attributes:
        inner: The wrapped store.
        requests: Started requests by kind; every kind is present from the start. `get_many` counts
            one request per file.
    """

    def __init__(
        self, inner: ObjectStore, on_request: Callable[[RequestKind], None] | None = None
    ) -> None:
        """Wrap `inner`; `on_request` is called for each request, in the thread that sends it."""
        self.inner = inner
        self.scheme: str = inner.scheme
        self.is_remote: bool = inner.is_remote
        self.is_local_folder: bool = inner.is_local_folder
        self.requests: dict[RequestKind, int] = dict.fromkeys(KINDS, 0)
        self._on_request = on_request
        self._marks = inner if isinstance(inner, MarksFolders) else None
        if isinstance(inner, ShowsUnfinished):
            # Not counted: only local disks support it.
            self.stat_finished = inner.stat_finished
            self.wait_finished = inner.wait_finished

    @property
    def total(self) -> int:
        """Number of requests of all kinds."""
        return sum(self.requests.values())

    def reset(self) -> None:
        """Count from zero again."""
        self.requests = dict.fromkeys(KINDS, 0)

    def _count(self, kind: RequestKind, times: int = 1) -> None:
        self.requests[kind] += times
        if self._on_request is not None:
            for _ in range(times):
                self._on_request(kind)

    def format_url(self, path: str) -> str:
        """Return the wrapped store's URL of a path."""
        return self.inner.format_url(path)

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """Count a list."""
        self._count("list")
        async for meta in self.inner.list_from(folder, start_after):
            yield meta

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Count a get."""
        self._count("get")
        return await self.inner.get(path, start, length)

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        """Count a get."""
        self._count("get")
        return await self.inner.fetch(path, start, length)

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Count a get for each file."""
        self._count("get", len(paths))
        return await self.inner.get_many(paths)

    async def head(self, path: str) -> FileMeta:
        """Count a head."""
        self._count("head")
        return await self.inner.head(path)

    async def folder_mark(self, folder: str) -> FolderMark | None:
        """Return the wrapped store's mark, if it has one; not counted: only local disks do."""
        return None if self._marks is None else await self._marks.folder_mark(folder)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Count a put."""
        self._count("put")
        await self.inner.put(path, data, if_absent=if_absent)

    async def put_nondurable(self, path: str, data: bytes, *, if_absent: bool = True) -> None:
        """Count a put."""
        self._count("put")
        await put_nondurable(self.inner, path, data, if_absent=if_absent)

    async def delete(self, path: str) -> None:
        """Count a delete."""
        self._count("delete")
        await self.inner.delete(path)

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Count a delete for each request."""
        self._count("delete", count_requests(self.inner, len(paths)))
        await delete_all(self.inner, paths)

    def open_input(self, path: str) -> BinaryIO:
        """Count an open."""
        self._count("open")
        return self.inner.open_input(path)

    def open_output(self, path: str) -> Output:
        """Count a put."""
        self._count("put")
        return open_output(self.inner, path)

    async def sweep(self, folder: str, before_ms: int) -> int:
        """Count a list."""
        self._count("list")
        return await sweep(self.inner, folder, before_ms)
