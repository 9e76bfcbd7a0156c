"""The columns that readers of a pipeline know, and the changes of columns in a delivery.

After a delivery they know the columns of the rows before its end, whether these rows exist or a
commit only changed the columns. So the offset alone shows which columns they know, also after a
restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Phase, Version
from tailerd.errors import TableError
from tailerd.formats.base import ChangeSource
from tailerd.formats.detect import find_reader
from tailerd.pipeline.change_stream import DeliveredCommits
from tailerd.records.schema_changes import SchemaChange, SchemaTracker


class DeliveredSchemas:
    """The columns of the feed before an offset."""

    def __init__(self, source: ChangeSource) -> None:
        self._source = source
        self._known: tuple[str, pa.Schema] | None = None
        self._last: tuple[Offset, pa.Schema | None] | None = None

    async def watch(
        self, start: Offset, end: Offset, first: Offset | None, schema_id: str
    ) -> SchemaWatch:
        """Return the watch over a delivery.

        Args:
            start, end: Its offsets.
            first: Where the pipeline began: before it, readers know no columns.
            schema_id: `TableIdentity.schema_id` before `end`.
        """
        # Before the first delivery, readers know nothing.
        told = None if first is None or start.order == first.order else await self.before(start)
        known, is_inside = self._known, end.position or end.phase is Phase.SNAPSHOT
        if is_inside or known is None or not schema_id or known[0] != schema_id:
            after = await self.before(end)
        else:
            after = known[1]
        self._last = end, after
        return SchemaWatch(told, after)

    def forget(self, offset: Offset) -> None:
        """Tell all columns at an offset: readers were not told of the commit before it."""
        self._last = offset, None

    async def before(self, offset: Offset) -> pa.Schema | None:
        """Return the columns of the rows before an offset; None if they are not known."""
        if self._last is not None and self._last[0] == offset:
            return self._last[1]
        return await self._find(offset)

    async def _find(self, offset: Offset) -> pa.Schema | None:
        source, version = self._source, offset.last_version(self._source)
        if version == BEFORE_ALL:
            return None
        try:
            schema_id = (await source.identity(version)).schema_id
            is_inside = offset.phase is Phase.FOLLOW and offset.position > 0
            if is_inside and schema_id != await self._id_before(version):
                begin = await source.offset_at(version)
                steps = [step.schema async for step in source.schema_steps(begin, offset)]
                return steps[-1] if steps else None
            if self._known is None or not schema_id or self._known[0] != schema_id:
                self._known = schema_id, await source.schema_at(version)
            return self._known[1]
        except TableError:
            # All columns are told again.
            return None

    async def _id_before(self, version: Version) -> str:
        before = self._source.version_before(version)
        return "" if before == BEFORE_ALL else (await self._source.identity(before)).schema_id


class SchemaWatch:
    """Notices changes of the columns in one delivery.

    Attributes:
        pending: Changes that the sink has not taken, as in `Delivery`.
        changes: All of them.
    """

    def __init__(self, told: pa.Schema | None, after: pa.Schema | None) -> None:
        """Begin with the columns that readers know; `after` the delivery, they know those."""
        self.pending: deque[SchemaChange] = deque()
        self.changes: list[SchemaChange] = []
        self._tracker = SchemaTracker(told)
        self._after = after

    async def watch(
        self, batches: AsyncIterator[ChangeBatch], commits: DeliveredCommits
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Yield the batches; a change is pending before the first of them that has it."""
        tracker = self._tracker
        async for batch in batches:
            # A batch with the columns of the one before needs no call.
            schema = batch.rows.schema
            if tracker.told is None or not tracker.told.equals(schema, check_metadata=True):
                self._add(tracker.observe(batch))
            yield batch
        self._finish(commits)

    def plan(self, tasks: Iterable[ChangeTask], commits: DeliveredCommits) -> None:
        """Note the columns of tasks that another process reads; all changes are pending."""
        kinds: dict[object, ChangeTask] = {}
        for task in tasks:
            # Tasks of one kind in a version have one schema.
            kinds.setdefault((task.version, task.change_type), task)
        for task in kinds.values():
            schema, source = find_reader(task).schema(task), task.change_source
            self._add(self._tracker.compare(schema, task.version, task.timestamp_us, source))
        self._finish(commits)

    def _finish(self, commits: DeliveredCommits) -> None:
        """Note the columns after the delivery: a commit that changed them may have no rows."""
        told, after = self._tracker.told, self._after
        if after is None or commits.last is None:
            return
        if told is None or not told.equals(after, check_metadata=True):
            self._add(self._tracker.compare(after, *commits.last))

    def _add(self, change: SchemaChange | None) -> None:
        if change is not None:
            self.pending.append(change)
            self.changes.append(change)
