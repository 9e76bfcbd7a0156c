"""The rows between two offsets as a stream: planned and read while they are consumed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from contextlib import aclosing

import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Offset
from tailerd.sources.base import ChangeSource


class ChangeStream:
    """Batches of [start, end) in order. At most two batches are in memory: one read ahead.

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
        async for group in self._source.plan(self._start, self._end):
            for task in group.tasks:
                async with aclosing(self._read(task)) as batches:
                    async for batch in batches:
                        self._count(batch)
                        yield batch
        self.is_complete = True

    async def _read(self, task: ChangeTask) -> AsyncGenerator[ChangeBatch, None]:
        loop = asyncio.get_running_loop()
        iterator = self._source.read(task, self._limit)
        pending = loop.run_in_executor(self._executor, _next, iterator)
        try:
            while (batch := await asyncio.shield(pending)) is not None:
                pending = loop.run_in_executor(self._executor, _next, iterator)
                yield batch
        finally:
            # A thread cannot be stopped, and closing an iterator that runs is an error.
            await asyncio.wait({pending})
            if not pending.cancelled():
                pending.exception()
            _close(iterator)

    def _count(self, batch: ChangeBatch) -> None:
        self.bytes += batch.size_bytes
        if isinstance(batch.change_type, ChangeType):
            self.rows[batch.change_type.value] += batch.num_rows
            return
        for pair in pc.value_counts(batch.change_type).to_pylist():
            self.rows[str(pair["values"])] += int(pair["counts"])


def _next(iterator: Iterator[ChangeBatch]) -> ChangeBatch | None:
    return next(iterator, None)


def _close(iterator: Iterator[ChangeBatch]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
