"""The rows between two offsets as a stream: planned and read while they are consumed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, TaskGroup
from tailerd.changefeed.limits import BatchLimit, reader_bytes
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.formats.base import ChangeSource
from tailerd.pipeline.change_runs import Run, RunPlanner, RunReader
from tailerd.pipeline.memory_budget import (
    SMALLEST_PIECE,
    MemoryBudget,
    Piece,
    ReaderBudget,
    TableMemory,
)
from tailerd.telemetry.events import DeliveredCommit
from tailerd.threads import release_memory, wait_done

RUNS_AHEAD = 1 + (os.cpu_count() or 1)
"""Runs of files read concurrently: one for each processor, and one that is waiting."""
EXPANSION = 8
"""Estimated size of rows in memory relative to their files; the actual size is counted later."""
UNBOUNDED_BYTES = 1 << 60
COMPARED = (
    ChangeSourceKind.ROWS,
    ChangeSourceKind.VECTORS,
    ChangeSourceKind.NET,
    ChangeSourceKind.LATE,
)
"""Changes that are found by comparing rows, which takes memory in addition to the batches."""
SMALL_FILE_BYTES = 128 * 1024
"""Comparing files up to this size is mostly work of Python, which one thread does twice as fast as
several that take turns at Python's lock."""


class ChangeStream:
    """Batches of [start, end) in order, several runs of files read at once.

    Memory: each piece of a run that is being read holds at most `limit.max_bytes` (or one batch, if
    that is larger), and half as much more while it orders a commit by key; there are at most
    `RUNS_AHEAD` runs and the one being consumed, and fewer if the process's budget requires it.

    Attributes:
        rows: Rows yielded so far, by `_change_type`.
        bytes: Their Arrow bytes.
        commits: Their commits so far, as planned.
        is_complete: Whether the stream was consumed to its end.
    """

    def __init__(
        self,
        source: ChangeSource,
        start: Offset,
        end: Offset,
        *,
        limit: BatchLimit,
        key: Sequence[str] = (),
        executor: Executor | None = None,
        memory: TableMemory | None = None,
        on_batch: Callable[[ChangeBatch], None] | None = None,
    ) -> None:
        """Read with `executor`'s threads, by default the loop's own, within the table's memory.

        With a `key`, rows of a commit that only remove come first (`records.key_order`).
        `on_batch` is called with every batch right before it is yielded.
        """
        self._on_batch = on_batch
        self.commits = DeliveredCommits()
        planner = RunPlanner(source, is_keyed=bool(key), on_group=self.commits.count)
        self._runs = planner.between(start, end)
        self._reader = RunReader(source.read_run, key)
        self._limit = limit
        self._executor = executor
        self._memory = memory or MemoryBudget(UNBOUNDED_BYTES).join()
        # Without a budget of the process, the stream's own readers are bounded.
        own = ReaderBudget(reader_bytes(limit.memory_bytes))
        self._readers = own if memory is None else memory.readers
        self.rows: Counter[str] = Counter()
        self.bytes = 0
        self._unchanged: list[int] = []
        self._small_files = threading.Lock()
        self.is_complete = False

    @property
    def unchanged(self) -> int:
        """Updates left out so far, because they change nothing that is delivered."""
        return sum(self._unchanged)

    @property
    def total_rows(self) -> int:
        """Rows yielded so far."""
        return self.rows.total()

    async def batches(self) -> AsyncGenerator[ChangeBatch, None]:
        """Yield the batches; to be consumed once, and closed when not consumed to the end."""
        ahead: deque[_Reading] = deque()
        try:
            async for run in self._runs:
                while (reading := self._begin(run, len(ahead))) is None:
                    async with aclosing(self._drain(ahead[0])) as batches:
                        async for batch in batches:
                            yield batch
                    ahead.popleft()
                ahead.append(reading)
            while ahead:
                async with aclosing(self._drain(ahead[0])) as batches:
                    async for batch in batches:
                        yield batch
                ahead.popleft()
        finally:
            await _abandon(ahead)
        self.is_complete = True

    def _begin(self, run: Run, ahead: int) -> _Reading | None:
        """Begin to read a run after `ahead` others; None if it must wait for the first of them."""
        requested = _estimate_bytes(run, self._limit)
        if ahead:
            memory = self._memory.admit_ahead(requested) if ahead <= RUNS_AHEAD else None
            if memory is None:
                return None
        else:
            memory = self._memory.admit(requested)
        most = run.limit_bytes(min(self._limit.max_bytes, memory.size_bytes))
        is_abandoned = threading.Event()
        limit = replace(
            self._limit,
            max_bytes=most,
            working_bytes=memory.size_bytes,
            is_abandoned=is_abandoned.is_set,
            readers=self._readers,
            on_unchanged=self._unchanged.append,
        )
        turn = self._small_files if _is_small_comparison(run) else nullcontext()
        reading = _Reading(self._reader.read(run, limit), requested, most, is_abandoned, turn)
        reading.read_on(memory, self._executor)
        return reading

    async def _drain(self, reading: _Reading) -> AsyncGenerator[ChangeBatch, None]:
        while True:
            piece = await reading.piece()
            try:
                more = None if piece.is_last else self._memory.admit_ahead(reading.requested_bytes)
                if more is not None:
                    reading.read_on(more, self._executor)
                for batch, rows in piece.batches:
                    self.rows.update(rows)
                    self.bytes += batch.size_bytes
                    if self._on_batch is not None:
                        self._on_batch(batch)
                    yield batch
            finally:
                piece.memory.release()
            if piece.is_last:
                return
            if more is None:
                # The sink is waiting for it now.
                reading.read_on(self._memory.admit(reading.requested_bytes), self._executor)


def _is_small_comparison(run: Run) -> bool:
    """Return whether reading a run is comparing small files."""
    size = sum(task.size_bytes for task in run.tasks)
    is_compared = all(task.change_source in COMPARED for task in run.tasks)
    return is_compared and size <= SMALL_FILE_BYTES * len(run.tasks)


def _estimate_bytes(run: Run, limit: BatchLimit) -> int:
    """Return the estimated memory of a run, from the sizes of its files."""
    sizes = [task.size_bytes for task in run.tasks]
    is_compared = any(task.change_source in COMPARED for task in run.tasks)
    most = max(limit.max_bytes, limit.memory_bytes // 2) if is_compared else limit.max_bytes
    if min(sizes) <= 0:
        return most
    return min(most, EXPANSION * sum(sizes) + SMALLEST_PIECE)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive batches of one run, read together, each with its rows by `_change_type`."""

    batches: list[tuple[ChangeBatch, dict[str, int]]]
    is_last: bool
    memory: Piece


class _Reading:
    """One run's batches, read in a thread, one piece ahead of the consumer."""

    def __init__(
        self,
        batches: Iterator[ChangeBatch],
        requested_bytes: int,
        most_bytes: int,
        is_abandoned: threading.Event,
        turn: AbstractContextManager[object],
    ) -> None:
        """Read pieces of at most `most_bytes`; `requested_bytes` may be more to compare rows.

        Each piece is read within `turn`, such as a lock that other readings share.
        """
        self._batches = batches
        self.requested_bytes = requested_bytes
        self._most_bytes = most_bytes
        self._is_abandoned = is_abandoned
        self._turn = turn
        self._memory: Piece | None = None
        self._pending: asyncio.Future[_Piece] | None = None

    def read_on(self, memory: Piece, executor: Executor | None) -> None:
        """Begin to read the next piece into `memory`; the previous one must have been consumed."""
        self._memory = memory
        loop = asyncio.get_running_loop()
        self._pending = loop.run_in_executor(executor, self._read, memory)

    def _read(self, memory: Piece) -> _Piece:
        with self._turn:
            return self._read_piece(memory)

    def _read_piece(self, memory: Piece) -> _Piece:
        batches: list[tuple[ChangeBatch, dict[str, int]]] = []
        size, is_last = 0, True
        for batch in self._batches:
            batches.append((batch, batch.count_changes()))
            size += batch.size_bytes
            if size >= min(memory.size_bytes, self._most_bytes):
                is_last = False
                break
        release_memory(size)
        return _Piece(batches, is_last, memory)

    async def piece(self) -> _Piece:
        """Return the piece that is being read; the caller releases its memory.

        Raises:
            TableError: The file cannot be read.
        """
        assert self._pending is not None
        # A thread cannot be stopped: `abandon` waits for it.
        piece = await asyncio.shield(self._pending)
        piece.memory.resize(sum(batch.size_bytes for batch, _ in piece.batches))
        self._memory = None
        return piece

    def stop(self) -> None:
        """Ask the thread to end early."""
        self._is_abandoned.set()

    async def abandon(self) -> None:
        """Wait for the thread, close the file, free the memory; errors no longer matter.

        Cancelled meanwhile, it does so too, and then propagates the cancellation.
        """
        self.stop()
        try:
            if self._pending is not None:
                await wait_done(self._pending)
        finally:
            if self._pending is not None and not self._pending.cancelled():
                self._pending.exception()
            # Closing an iterator that runs in a thread would be an error.
            close = getattr(self._batches, "close", None)
            if close is not None:
                close()
            if self._memory is not None:
                self._memory.release()


async def _abandon(readings: Collection[_Reading]) -> None:
    """Abandon all readings, even if cancelled meanwhile; then propagate the cancellation."""
    for reading in readings:
        reading.stop()
    cancellation: asyncio.CancelledError | None = None
    for reading in readings:
        try:
            await reading.abandon()
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


class DeliveredCommits:
    """Counts commits where they begin: a large one comes in several groups, and deliveries.

    Attributes:
        kinds: Commits begun so far, by how they are read; snapshots are not counted.
        details: The plan's details of each of them.
        planned: End of the last tasks that were planned; some of them may still be read.
        last: Version and `timestamp_us` of these tasks.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.details: list[DeliveredCommit] = []
        self.planned: Offset | None = None
        self.last: tuple[Version, int] | None = None
        self._counted: Version | None = None

    def count(self, group: TaskGroup) -> None:
        """Add a group of tasks."""
        self.planned, self.last = group.end, (group.version, group.timestamp_us)
        is_begin = group.start.phase is Phase.FOLLOW and group.start.position == 0
        if is_begin and group.version != self._counted:
            self._counted = group.version
            self.kinds["skipped" if group.is_skipped else group.change_source.value] += 1
            self.details.append(_details(group))


def _details(group: TaskGroup) -> DeliveredCommit:
    return DeliveredCommit(
        version=group.version,
        timestamp_ms=group.timestamp_us // 1000,
        mode=group.change_source.value,
        operation=group.operation,
        files_added=group.files_added,
        bytes_added=group.bytes_added,
        files_removed=group.files_removed,
        bytes_removed=group.bytes_removed,
    )
