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

RUNS_AHEAD = 1 + (os.cpu_count() or 1)
"""Runs of files read at the same time: one a processor, and one that waits for its turn."""
RUN_BYTES = 2 * 1024 * 1024
RUN_FILES = 16
"""Small files are read several in a row: a hop between threads costs as much as a tiny file."""


class ChangeStream:
    """Batches of [start, end) in order, several runs of files read at once.

    Memory: each run that is being read holds at most `limit.max_bytes` (or one batch, if that is
    larger); there are `RUNS_AHEAD` of them and the one being consumed.

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
        ahead: deque[_Reading] = deque()
        try:
            async for run in self._runs():
                ahead.append(self._begin(run))
                if len(ahead) > RUNS_AHEAD:
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

    async def _runs(self) -> AsyncIterator[list[ChangeTask]]:
        """Yield consecutive tasks that are read in one go."""
        run: list[ChangeTask] = []
        size = 0
        async for group in self._source.plan(self._start, self._end):
            for task in group.tasks:
                if run and (len(run) >= RUN_FILES or size + task.size_bytes > RUN_BYTES):
                    yield run
                    run, size = [], 0
                run.append(task)
                size += task.size_bytes
        if run:
            yield run

    def _begin(self, run: list[ChangeTask]) -> _Reading:
        reading = _Reading(self._read(run), self._limit.max_bytes)
        reading.read_on(self._executor)
        return reading

    def _read(self, run: list[ChangeTask]) -> Iterator[ChangeBatch]:
        for task in run:
            yield from self._source.read(task, self._limit)

    async def _drain(self, reading: _Reading) -> AsyncGenerator[ChangeBatch, None]:
        while True:
            piece = await reading.piece()
            if not piece.is_last:
                reading.read_on(self._executor)
            for batch, rows in piece.batches:
                self.rows.update(rows)
                self.bytes += batch.size_bytes
                yield batch
            if piece.is_last:
                return


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive batches of one run, read in one go, each with its rows by change."""

    batches: list[tuple[ChangeBatch, dict[str, int]]]
    is_last: bool


class _Reading:
    """One run's batches, read in a thread, a piece ahead of their use."""

    def __init__(self, batches: Iterator[ChangeBatch], max_bytes: int) -> None:
        self._batches = batches
        self._max_bytes = max_bytes
        self._pending: asyncio.Future[_Piece] | None = None

    def read_on(self, executor: Executor | None) -> None:
        """Begin to read the next piece; the one before must have been taken."""
        self._pending = asyncio.get_running_loop().run_in_executor(executor, self._read)

    def _read(self) -> _Piece:
        batches: list[tuple[ChangeBatch, dict[str, int]]] = []
        size = 0
        for batch in self._batches:
            batches.append((batch, batch.count_changes()))
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
