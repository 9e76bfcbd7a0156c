"""The rows between two offsets as a stream: planned and read while they are consumed."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from dataclasses import dataclass

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Offset
from tailerd.sources.base import ChangeSource

FILES_AHEAD = max(2, os.cpu_count() or 1)
"""Files read at the same time; more than there are processors only costs memory."""


class ChangeStream:
    """Batches of [start, end) in order, several files read at once.

    Memory: each file that is being read holds at most `limit.max_bytes` (or one batch, if that is
    larger); there are `FILES_AHEAD` of them and the one being consumed.

    Attributes:
        rows: Rows given so far, by `_change_type`.
        bytes: Their Arrow bytes.
        is_complete: Whether the last batch was asked for and there was none left.
    """

    def __init__(
        self,
        source: ChangeSource,
        start: Offset,
        end: Offset,
        *,
        limit: BatchLimit,
        executor: Executor | None = None,
    ) -> None:
        """Read with `executor`'s threads, by default the loop's own."""
        self._source = source
        self._start = start
        self._end = end
        self._limit = limit
        self._executor = executor
        self.rows: Counter[str] = Counter()
        self.bytes = 0
        self.is_complete = False

    @property
    def total_rows(self) -> int:
        """Rows given so far."""
        return self.rows.total()

    async def batches(self) -> AsyncGenerator[ChangeBatch, None]:
        """Yield the batches; to be consumed once, and closed when not consumed to the end."""
        ahead: deque[_FileReading] = deque()
        try:
            async for task in self._tasks():
                ahead.append(self._begin(task))
                if len(ahead) > FILES_AHEAD:
                    async with aclosing(self._drain(ahead[0])) as batches:
                        async for batch in batches:
                            yield batch
                    ahead.popleft()
            while ahead:
                async with aclosing(self._drain(ahead[0])) as batches:
                    async for batch in batches:
                        yield batch
                ahead.popleft()
        finally:
            for reading in ahead:
                await reading.abandon()
        self.is_complete = True

    async def _tasks(self) -> AsyncIterator[ChangeTask]:
        async for group in self._source.plan(self._start, self._end):
            for task in group.tasks:
                yield task

    def _begin(self, task: ChangeTask) -> _FileReading:
        reading = _FileReading(self._source.read(task, self._limit), self._limit.max_bytes)
        reading.read_on(self._executor)
        return reading

    async def _drain(self, reading: _FileReading) -> AsyncGenerator[ChangeBatch, None]:
        while True:
            piece = await reading.piece()
            if not piece.is_last:
                reading.read_on(self._executor)
            for batch in piece.batches:
                self._count(batch)
                yield batch
            if piece.is_last:
                return

    def _count(self, batch: ChangeBatch) -> None:
        self.bytes += batch.size_bytes
        self.rows.update(batch.count_changes())


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive batches of one file, read in one go."""

    batches: list[ChangeBatch]
    is_last: bool


class _FileReading:
    """One file's batches, read in a thread, a piece ahead of their use."""

    def __init__(self, batches: Iterator[ChangeBatch], max_bytes: int) -> None:
        self._batches = batches
        self._max_bytes = max_bytes
        self._pending: asyncio.Future[_Piece] | None = None

    def read_on(self, executor: Executor | None) -> None:
        """Begin to read the next piece; the one before must have been taken."""
        self._pending = asyncio.get_running_loop().run_in_executor(executor, self._read)

    def _read(self) -> _Piece:
        batches: list[ChangeBatch] = []
        size = 0
        for batch in self._batches:
            batches.append(batch)
            size += batch.size_bytes
            if size >= self._max_bytes:
                return _Piece(batches, is_last=False)
        return _Piece(batches, is_last=True)

    async def piece(self) -> _Piece:
        """Return the piece that was begun.

        Raises:
            TableError: The file cannot be read.
        """
        assert self._pending is not None
        # A thread cannot be stopped: `abandon` waits for it.
        return await asyncio.shield(self._pending)

    async def abandon(self) -> None:
        """Wait for the thread and close the file; errors no longer matter."""
        if self._pending is not None:
            with suppress(Exception):
                await self._pending
        # Closing an iterator that runs in a thread would be an error.
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
