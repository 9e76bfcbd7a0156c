"""Runs of small compared files are read in turns; all others at the same time."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, TaskGroup
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.pipeline.change_stream import SMALL_FILE_BYTES, ChangeStream
from tests.doubles.fake_source import FakeSource, FakeTable

WAIT_SECONDS = 0.2


class CountingSource(FakeSource):
    """Counts the threads that read at the same time; each waits a moment for another one.

    Attributes:
        most: The greatest number.
    """

    def __init__(self, table: FakeTable, kind: ChangeSourceKind, size_bytes: int) -> None:
        super().__init__(table)
        self._kind, self._size = kind, size_bytes
        self._changed = threading.Condition()
        self._reading = 0
        self.most = 0

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        async for group in super().plan(start, end):
            tasks = [
                replace(task, change_source=self._kind, size_bytes=self._size)
                for task in group.tasks
            ]
            yield replace(group, tasks=tuple(tasks), change_source=self._kind)

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        with self._changed:
            self._reading += 1
            self.most = max(self.most, self._reading)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > 1, WAIT_SECONDS)
        yield from super().read_run(tasks, limit)
        with self._changed:
            self._reading -= 1


@pytest.mark.parametrize(
    ("kind", "size_bytes", "is_in_turns"),
    [
        (ChangeSourceKind.ROWS, SMALL_FILE_BYTES, True),
        (ChangeSourceKind.VECTORS, SMALL_FILE_BYTES, True),
        (ChangeSourceKind.ROWS, SMALL_FILE_BYTES * 20, False),
        (ChangeSourceKind.FILES, SMALL_FILE_BYTES, False),
    ],
)
async def test_only_small_comparisons_take_turns(
    kind: ChangeSourceKind, size_bytes: int, is_in_turns: bool
) -> None:
    table = FakeTable()
    for number in range(64):
        table.commit([number])
    source = CountingSource(table, kind, size_bytes)
    start = Offset(table_id=table.table_id, version=Version(0))
    end = Offset(table_id=table.table_id, version=Version(table.head + 1))
    stream = ChangeStream(source, start, end, limit=BatchLimit())
    batches = [batch async for batch in stream.batches()]
    assert [number for batch in batches for number in batch.rows["id"].to_pylist()] == table.ids()
    assert (source.most == 1) is is_in_turns
