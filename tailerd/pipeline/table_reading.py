"""Reads a table between two points or follows it, without saved offsets: for `tail` and Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version, clip_end
from tailerd.clock import SystemClock
from tailerd.errors import TailerdError
from tailerd.formats.base import ChangeSource
from tailerd.formats.detect import presumed_format
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.registry import AUTO
from tailerd.storage.local import LocalStore
from tailerd.storage.table_location import TableLocation
from tailerd.watchers.base import Watcher
from tailerd.watchers.local import watch_folders
from tailerd.watchers.poll import PollWatcher
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """A batch of rows, and the position of reading.

    Attributes:
        rows: The rows.
        start: Where the step that it belongs to began.
        end: Where that step ends, if this is its last batch with rows; else None.
        planned: How far files were listed when it was read; None if that is not known yet.
    """

    rows: ChangeBatch
    start: Offset
    end: Offset | None
    planned: Offset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a table is read.

    Attributes:
        source: The table.
        last: The last version to read; None: no end.
        on_head: Called with the newest version when reading waits for another for the first time.
        read_limit, batch_limit: Of a step, and of a batch.
    """

    source: ChangeSource
    last: Version | None = None
    on_head: Callable[[Version], None] | None = None
    read_limit: ReadLimit = field(
        default_factory=lambda: ReadLimit(max_files=20_000, max_bytes=8 * 1024**3)
    )
    batch_limit: BatchLimit = field(
        default_factory=lambda: BatchLimit(max_rows=16_384, max_bytes=16 * 1024 * 1024)
    )

    async def batches(
        self, at: Offset, wakeup: Wakeup | None = None
    ) -> AsyncGenerator[ReadBatch, None]:
        """Yield the rows from an offset on, in order.

        Args:
            at: The first thing to read.
            wakeup: Waited for at the head; without it reading ends there.

        Raises:
            TableError: The rows cannot be read, or a version is missing.
            StorageError: The table cannot be reached.
        """
        on_head = self.on_head
        while self.last is None or at.version <= self.last:
            found = await self.source.latest_offset(at, self.read_limit)
            end = clip_end(found, self.last, self.source)
            if end == at:
                if wakeup is None:
                    return
                if on_head is not None:
                    on_head(at.last_version(self.source))
                    on_head = None
                await wakeup.wait()
                continue
            async with aclosing(self._step(at, end)) as step:
                async for batch in step:
                    yield batch
            await self.source.commit(end)
            at = end

    async def _step(self, start: Offset, end: Offset) -> AsyncGenerator[ReadBatch, None]:
        stream = ChangeStream(self.source, start, end, limit=self.batch_limit)
        held: ReadBatch | None = None
        try:
            async with aclosing(stream.batches()) as batches:
                async for batch in batches:
                    if held is not None:
                        yield held
                    held = ReadBatch(
                        rows=batch, start=start, end=None, planned=stream.commits.planned
                    )
        except TailerdError:
            # Rows read before the error are valid.
            if held is not None:
                yield held
            raise
        if held is not None:
            yield ReadBatch(rows=held.rows, start=start, end=end, planned=held.planned)


async def resolve_range(
    source: ChangeSource, start: str, end: str | None
) -> tuple[Offset, Version | None]:
    """Return where to begin, and the last version to read; None without an end.

    A snapshot with an end is that of the end, if the table has newer versions by now.

    Args:
        start: As for `ChangeSource.initial_offset`.
        end: A version or a time, inclusive.

    Raises:
        TableError, UsageError: The table has no such point.
    """
    at = await source.initial_offset(start)
    if end is None:
        return at, None
    last = await source.end_version(end)
    if at.phase is Phase.SNAPSHOT and last < at.version:
        at = await source.offset_at(last, Phase.SNAPSHOT)
    return at, last


@asynccontextmanager
async def watch_table(
    table: TableLocation, *, table_format: str = AUTO, poll_seconds: float = 1.0
) -> AsyncGenerator[Wakeup, None]:
    """Yield a wakeup that is set when the table's log may have changed, and periodically.

    Args:
        poll_seconds: Longest time between two notifications.
    """
    found = presumed_format(table, table_format)
    folder, version_of = found.folder(table), found.names.version_of
    board = WakeupRegistry()
    wakeup = board.subscribe(folder)
    watchers: list[Watcher] = [
        PollWatcher([folder], interval_seconds=poll_seconds, clock=SystemClock())
    ]
    if isinstance(table.store, LocalStore):
        names, finished = {folder: version_of}, table.store.finished
        watchers.append(watch_folders([folder], names=names, finished=finished))
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(board.run(watchers))
        try:
            yield wakeup
        except GeneratorExit:
            # The group would turn an iteration that is left early into an error.
            pass
        finally:
            listening.cancel()
