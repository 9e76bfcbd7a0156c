"""A table in memory that can be asked for its changes, and told to fail. Keeps the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import (
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
    TaskGroup,
)
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import ConsecutiveVersions, Offset, Phase, Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.errors import MissingDataFileError, MissingVersionError, TableRecreatedError
from tailerd.formats.base import Backlog, SchemaStep, TableIdentity

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@dataclass
class FakeTable:
    """Commits of files of row ids; every row is an insert. A commit may have no files.

    Attributes:
        first: Versions before this one were cleaned up.
        lost: (version, position) of files of commits that are not there any more.
        schema_id: Identity of the schema of every version.
    """

    table_id: str = "table-1"
    commits: list[list[list[int]]] = field(default_factory=list)
    first: int = 0
    lost: set[tuple[int, int]] = field(default_factory=set)
    schema_id: str = "schema-1"

    def commit(self, *files: Sequence[int]) -> Version:
        """Append a commit with these files; return its version."""
        self.commits.append([list(file) for file in files])
        return Version(len(self.commits) - 1)

    @property
    def head(self) -> int:
        return len(self.commits) - 1

    def ids(self, first: int = 0, last: int | None = None) -> list[int]:
        """All row ids of versions [first, last], in order."""
        until = len(self.commits) if last is None else last + 1
        return [i for commit in self.commits[first:until] for file in commit for i in file]


def never_fails(_: str) -> None:
    """Let every call succeed."""


class FakeSource(ConsecutiveVersions):
    """A `ChangeSource` over a `FakeTable`.

    Attributes:
        committed: Offsets heard by `commit`.
        open_reads: Iterators that were begun and have not ended.
    """

    name = "fake"

    def __init__(self, table: FakeTable, fails: Callable[[str], None] = never_fails) -> None:
        """Call `fails(method)` in every method; it may raise."""
        self._table = table
        self._fails = fails
        self.committed: list[Offset] = []
        self.open_reads = 0
        self.reads_begun = 0

    async def initial_offset(self, start: str) -> Offset:
        self._fails("initial_offset")
        table = self._table
        if start == "snapshot":
            return Offset(
                table_id=table.table_id, version=Version(table.head), phase=Phase.SNAPSHOT
            )
        version = table.head + 1 if start == "latest" else int(start)
        return Offset(table_id=table.table_id, version=Version(version))

    @property
    def table_id(self) -> str:
        return self._table.table_id

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        return Offset(table_id=self._table.table_id, version=version, phase=phase)

    async def end_version(self, end: str) -> Version:
        return Version(int(end))

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        if start.is_before(end):
            yield SchemaStep(offset=start, version=start.version, schema=SCHEMA)

    async def schema_at(
        self, version: Version | None, columns: Sequence[str] | None = None
    ) -> pa.Schema:
        return SCHEMA

    async def identity(self, version: Version) -> TableIdentity:
        self._fails("identity")
        known = 0 <= version <= self._table.head
        return TableIdentity(
            table_id=self._table.table_id, schema_id=self._table.schema_id if known else ""
        )

    def notify(self, version: int | None) -> None:
        pass

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        await asyncio.sleep(0)
        self._fails("latest_offset")
        self._check(start)
        admitted = 0
        here = start
        while (files := self._files(here)) is not None:
            left = len(files) - here.position
            if admitted + left > limit.max_files:
                return here.at(here.position + max(limit.max_files - admitted, int(admitted == 0)))
            admitted += left
            here = here.after_version(self)
        return here

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        self._fails("plan")
        here = start
        while here.is_before(end):
            files = self._files(here)
            if files is None:
                raise MissingVersionError(f"Version {here.version} is missing.")
            is_last = (here.version, here.phase) == (end.version, end.phase)
            until = end.position if is_last else len(files)
            after = end if is_last else here.after_version(self)
            yield self._group(here, after, until)
            here = after

    run_bytes = 0

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        for task in tasks:
            yield from self.read(task, limit)

    def read(self, task: ChangeTask, limit: BatchLimit) -> Iterator[ChangeBatch]:
        self.open_reads += 1
        self.reads_begun += 1
        try:
            rows = self._rows_of(task)
            is_commit = task.change_source is not ChangeSourceKind.SNAPSHOT
            if is_commit and (task.version, task.position) in self._table.lost:
                raise MissingDataFileError(f"The file {task.payload} is gone.")
            for first in range(0, len(rows), limit.max_rows):
                self._fails("read")
                ids = pa.array(rows[first : first + limit.max_rows], pa.int64())
                yield ChangeBatch(
                    rows=pa.RecordBatch.from_arrays([ids], schema=SCHEMA),
                    change_type=ChangeType.INSERT,
                    version=task.version,
                    timestamp_us=task.timestamp_us,
                    change_source=task.change_source,
                    positions=RowPositions(table_id=task.table_id, files=task.position, rows=first),
                )
        finally:
            self.open_reads -= 1

    async def backlog(self, start: Offset) -> Backlog:
        self._fails("backlog")
        behind = max(0, self._table.head + 1 - start.version)
        return Backlog(
            head_version=Version(self._table.head),
            versions=behind,
            head_timestamp_ms=timestamp_ms(self._table.head),
            oldest_undelivered_timestamp_ms=timestamp_ms(start.version) if behind else None,
        )

    async def commit(self, end: Offset) -> None:
        self._fails("commit")
        self.committed.append(end)

    async def arrow_schema(self) -> pa.Schema:
        return SCHEMA

    def _check(self, offset: Offset) -> None:
        if offset.table_id != self._table.table_id:
            raise TableRecreatedError("Another table answers.")

    def _files(self, offset: Offset) -> list[list[int]] | None:
        """The files of the offset's phase and version; None after the head."""
        if offset.phase is Phase.SNAPSHOT:
            return [file for commit in self._table.commits[: offset.version + 1] for file in commit]
        if offset.version >= len(self._table.commits):
            return None
        if offset.version < self._table.first:
            raise MissingVersionError(f"Version {offset.version} was cleaned up.")
        return self._table.commits[offset.version]

    def _group(self, start: Offset, end: Offset, until: int) -> TaskGroup:
        is_snapshot = start.phase is Phase.SNAPSHOT
        kind = ChangeSourceKind.SNAPSHOT if is_snapshot else ChangeSourceKind.FILES
        tasks = tuple(
            ChangeTask(
                version=start.version,
                timestamp_us=timestamp_ms(start.version) * 1000,
                position=position,
                change_source=kind,
                change_type=ChangeType.INSERT,
                size_bytes=1,
                format="fake",
                payload=f"fake:///{start.version}/{position}",
            )
            for position in range(start.position, until)
        )
        return TaskGroup(
            start=start,
            end=end,
            version=start.version,
            timestamp_us=timestamp_ms(start.version) * 1000,
            change_source=kind,
            tasks=tasks,
        )

    def _rows_of(self, task: ChangeTask) -> list[int]:
        is_snapshot = task.change_source is ChangeSourceKind.SNAPSHOT
        phase = Phase.SNAPSHOT if is_snapshot else Phase.FOLLOW
        offset = Offset(table_id=self._table.table_id, version=task.version, phase=phase)
        files = self._files(offset)
        assert files is not None
        return files[task.position]


def timestamp_ms(version: int) -> int:
    """Commit time of a version: one second after the one before."""
    return 1_700_000_000_000 + version * 1000
