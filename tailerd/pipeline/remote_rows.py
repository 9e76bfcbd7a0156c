"""Delivers rows in an engine's worker processes: the work sent there, and its results.

The daemon plans, as for rows that it reads itself; a worker process of the engine reads the runs
one after another and passes the rows to the sink's writer. Only counts are returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Offset
from tailerd.errors import BugError
from tailerd.formats.base import ChangeSource
from tailerd.formats.detect import read_tasks
from tailerd.pipeline.change_runs import Run, RunPlanner, RunReader
from tailerd.pipeline.change_stream import DeliveredCommits
from tailerd.reading.read_ahead import read_ahead
from tailerd.sinks.base import HasDestination, RowWriter
from tailerd.storage.stores import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWork:
    """The rows of a delivery and the writer that gets them. Picklable.

    Attributes:
        table: Configured name.
        runs: What to read, in order.
        key: Columns that identify a row; empty if there is no key.
        limit: Size of a batch.
        writer: Gets all rows.
    """

    table: str
    runs: tuple[Run, ...]
    key: tuple[str, ...]
    limit: BatchLimit
    writer: RowWriter

    @property
    def size_bytes(self) -> int:
        """Bytes of the files to read."""
        return sum(task.size_bytes for run in self.runs for task in run.tasks)

    @property
    def destination(self) -> str:
        """The writer's dependencies; empty if it does not name them."""
        writer: object = self.writer
        return writer.destination if isinstance(writer, HasDestination) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAnswer:
    """The result of remote work. Picklable.

    Attributes:
        rows: Rows written, by `_change_type`.
        bytes: Their Arrow bytes.
        unchanged: Updates left out, because they change nothing that is delivered.
        written: The writer's result.
    """

    rows: Counter[str]
    bytes: int
    unchanged: int
    written: object


class TaskRunner(Protocol):
    """Where an engine does work."""

    async def run(self, work: RemoteWork) -> RemoteAnswer:
        """Do work once; if cancelled, return only after it has ended.

        Raises:
            TailerdError: Of reading or writing, or of the engine; rows may have been written.
        """
        ...


def do_remote_work(work: RemoteWork, stores: Stores) -> RemoteAnswer:
    """Read and write; blocking, in a process of the engine.

    Raises:
        TailerdError: Of reading or writing.
        BugError: The writer did not take all rows.
    """
    rows: Counter[str] = Counter()
    size = 0
    unchanged: list[int] = []
    is_complete = False
    limit = replace(work.limit, on_unchanged=unchanged.append)

    def count_rows() -> Generator[ChangeBatch, None, None]:
        nonlocal size, is_complete
        for batch in read_ahead(_batches(work, limit, stores), lambda batch: batch.size_bytes):
            rows.update(batch.count_changes())
            size += batch.size_bytes
            yield batch
        is_complete = True

    with closing(count_rows()) as batches:
        written = work.writer(batches)
    if not is_complete:
        raise BugError(
            f"Rows of {work.table} were written elsewhere, but only {rows.total()} were"
            " requested, which is not all of them."
        )
    return RemoteAnswer(rows=rows, bytes=size, unchanged=sum(unchanged), written=written)


def _batches(
    work: RemoteWork, limit: BatchLimit, stores: Stores
) -> Generator[ChangeBatch, None, None]:
    reader = RunReader(partial(read_tasks, stores=stores), work.key)
    for run in work.runs:
        most = run.limit_bytes(limit.max_bytes)
        yield from reader.read(run, replace(limit, max_bytes=most))


class RemoteRows:
    """The rows between two offsets, read by a worker process; counts as `ChangeStream` does.

    Attributes:
        rows: Rows by `_change_type`.
        bytes: Their Arrow bytes.
        unchanged: Updates left out, because they change nothing that is delivered.
        commits: Their commits, as planned.
    """

    def __init__(
        self,
        source: ChangeSource,
        start: Offset,
        end: Offset,
        *,
        table: str,
        limit: BatchLimit,
        key: Sequence[str],
        runner: TaskRunner,
    ) -> None:
        self._between = start, end
        self._table, self._limit, self._key = table, limit, tuple(key)
        self._runner = runner
        self.commits = DeliveredCommits()
        self._planner = RunPlanner(source, is_keyed=bool(key), on_group=self.commits.count)
        self._runs: tuple[Run, ...] = ()
        self.rows: Counter[str] = Counter()
        self.bytes = self.unchanged = 0

    async def plan(self) -> bool:
        """Plan what to read; return whether there is anything.

        Raises:
            TableError: As the source's `plan`.
        """
        self._runs = tuple([run async for run in self._planner.between(*self._between)])
        return bool(self._runs)

    @property
    def tasks(self) -> Iterator[ChangeTask]:
        """The planned tasks, in order."""
        return (task for run in self._runs for task in run.tasks)

    async def run(self, writer: RowWriter) -> object:
        """Read and write the planned rows; return the writer's result.

        Raises:
            TailerdError: Of reading or writing, or of the engine.
        """
        answer = await self._runner.run(
            RemoteWork(
                table=self._table,
                runs=self._runs,
                key=self._key,
                limit=self._limit,
                writer=writer,
            )
        )
        self.rows, self.bytes, self.unchanged = answer.rows, answer.bytes, answer.unchanged
        return answer.written
