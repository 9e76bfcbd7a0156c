"""The contract of a change source: Spark's own verbs, asynchronous."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, TaskGroup
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What lies between an offset and the head of the table, as far as the log was looked at.

    `retention_seconds` is how long after its time a commit and its files are kept at least; None
    where the source does not know.
    """

    head_version: Version
    versions: int
    head_timestamp_ms: int
    oldest_undelivered_timestamp_ms: int | None
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """What tells two tables, or two histories of one table, apart.

    Attributes:
        table_id: Identity the table had in one version; that of the newest where it can no longer
            be told.
        schema_id: Hash of the schema of that version; empty where it can no longer be told.
    """

    table_id: str
    schema_id: str = ""


@runtime_checkable
class HearsEvents(Protocol):
    """What a source may offer besides: it looks no further than it must, unless it is told."""

    def hear(self, version: int | None) -> None:
        """Hear that something may have happened since the last look, or that a version is there.

        Whoever says so may be wrong.
        """
        ...


@runtime_checkable
class ReadsRuns(Protocol):
    """What a source may offer besides: several files in a row, the next under way meanwhile."""

    @property
    def run_bytes(self) -> int:
        """How much of small files is best read in a row; 0 where it makes no difference."""
        ...

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read the rows of tasks in order, as `read` does each."""
        ...


class ChangeSource(Protocol):
    """A table that can be asked for its changes.

    An offset that is not of its log raises `TableRecreatedError`. A table that is replaced within
    its log gets another id there, and offsets behind that have it.
    Planning is deterministic: the same start and end give the same tasks in the same order, in
    another process too.
    """

    @property
    def name(self) -> str:
        """The table's place, as the user gave it."""
        ...

    async def initial_offset(self, start: str) -> Offset:
        """Return where to begin: `snapshot`, `latest`, a version, or a timestamp.

        `snapshot` is the head version's snapshot, then what follows; `latest` is after the head;
        a version is inclusive; a timestamp means the first commit at or after it.
        """
        ...

    async def identity(self, version: Version) -> TableIdentity:
        """Return who the table was in `version`; below 0 it has the first id and no schema."""
        ...

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` when nothing is new.

        Never in the middle of a commit that must stay whole; never past a version that is missing
        (`MissingVersionError`).
        """
        ...

    def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end) in order, in groups of bounded size."""
        ...

    def read(self, task: ChangeTask, limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read one task's rows; blocking, for worker threads and executors."""
        ...

    async def backlog(self, start: Offset) -> Backlog:
        """Say how far the head is from `start`, with at most one look at the log."""
        ...

    async def commit(self, end: Offset) -> None:
        """Hear that everything before `end` is delivered; caches may forget it."""
        ...

    async def arrow_schema(self) -> pa.Schema:
        """Return the head version's columns, without change columns."""
        ...
