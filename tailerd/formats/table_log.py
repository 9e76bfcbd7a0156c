"""The contract between a table's log and `versioned_source`, which makes it a change source.

A format describes the versions of a table, and the files from which the rows between two are read.
Limits, net steps, marks and everything else about offsets is in `versioned_source` only.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version, Versions
from tailerd.errors import MissingVersionError
from tailerd.formats.base import Backlog, TableIdentity
from tailerd.formats.plain_schema import decode_schema
from tailerd.storage.table_location import TableLocation

_PLANS_IN_MEMORY = 4
_REMOTE_RUN_BYTES = 8 * 1024 * 1024
"""A bucket sends so much in some tenths of a second, which hides the latency of a request."""
_TASKS_AT_ONCE = 32
"""A log may request the sizes of the files of so many tasks together."""
_Plan = TypeVar("_Plan")
_Planned = TypeVar("_Planned", bound="PlannedRows")


@dataclass(kw_only=True)
class StepPlan:
    """How the rows of one commit, snapshot, late commit or difference are read.

    Planned again, also in another process, its tasks are the same.

    Attributes:
        version, timestamp_us, kind: As in `TaskGroup`; the version of its rows.
        table_id: Identity of the table once any of its tasks are delivered.
        following: Version of the offset after it.
        following_position: Position of the offset after it.
        max_files: Upper bound for the files that it reads.
        is_whole: It must not be split over deliveries.
        is_alone: The step delivers nothing else.
        resume_state: What planning the rest of it needs to repeat its choices; short.
        operation, files_added, bytes_added, files_removed, bytes_removed: As in `TaskGroup`.
        applications, user_metadata: As in `CommitFilter`; of the commit.
    """

    version: Version
    timestamp_us: int
    kind: ChangeSourceKind
    table_id: str
    following: Version
    following_position: int = 0
    max_files: int = 1
    is_whole: bool = True
    is_alone: bool = False
    resume_state: str = ""
    operation: str = ""
    files_added: int = 0
    bytes_added: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    applications: Sequence[str] = ()
    user_metadata: str = ""

    async def size_bytes(self) -> int:
        """Return an upper bound for the bytes to read; called only if `max_files` fits."""
        return 0

    def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[ChangeTask]]:
        """Yield the tasks from a position on, ascending, in groups of bounded size.

        Args:
            until: Tasks from this position on may be left out; None for none.

        Raises:
            TableError: They cannot be planned.
        """
        raise NotImplementedError

    def schemas(self, start: int) -> AsyncIterator[tuple[int, Version, pa.Schema]]:
        """Yield where rows of another schema begin, from a position on.

        Each is a position, the version whose schema it is, and its columns without change columns.
        """
        raise NotImplementedError

    def count_files(self, task: ChangeTask) -> int:
        """Return how many files a task reads."""
        return 1

    def local_files(self, tasks: Sequence[ChangeTask]) -> Iterable[str]:
        """Return the paths to check for symbolic links before tasks are read."""
        return ()

    async def fit(self, start: int, limit: ReadLimit) -> int | None:
        """Return the position before which tasks fit the limit, at least one; None if all do."""
        files = size = 0
        position = start
        async for tasks in self.tasks(start, None):
            for task in tasks:
                files, size = files + self.count_files(task), size + task.size_bytes
                if position > start and (files > limit.max_files or size > limit.max_bytes):
                    return position
                position = task.position + 1
        return None


class PlannedRows(Protocol):
    """The content of a task, before its step gives it a position."""

    @property
    def schema(self) -> bytes:
        """The columns of the rows, as encoded by `plain_schema`."""
        ...

    @property
    def files(self) -> Sequence[str]:
        """The data files that are read."""
        ...


@dataclass(kw_only=True)
class ListedStep(StepPlan, Generic[_Planned]):
    """A step whose tasks are listed when it is planned, and counted from 0."""

    planned: Sequence[_Planned]

    async def make_tasks(self, planned: Sequence[_Planned], start: int) -> Sequence[ChangeTask]:
        """Return the tasks at the positions from `start` on; the first of them, at least one."""
        raise NotImplementedError

    async def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[ChangeTask]]:
        """Yield the tasks from a position on."""
        end = len(self.planned) if until is None else until
        while start < end:
            last = min(start + _TASKS_AT_ONCE, end)
            tasks = await self.make_tasks(self.planned[start:last], start)
            yield tasks
            start += len(tasks)

    async def schemas(self, start: int) -> AsyncIterator[tuple[int, Version, pa.Schema]]:
        """Yield where the schema of tasks changes, from a position on."""
        last = b""
        for position, task in enumerate(self.planned[start:], start):
            if task.schema != last:
                last = task.schema
                yield position, self.version, decode_schema(last)

    def count_files(self, task: ChangeTask) -> int:
        """Return how many data files a task reads."""
        return len(self.planned[task.position].files)

    def local_files(self, tasks: Sequence[ChangeTask]) -> Iterable[str]:
        """Return the data files of tasks."""
        return (file for task in tasks for file in self.planned[task.position].files)


class TableLog(Versions, Protocol):
    """The versions of one table. Used by one task at a time.

    Attributes:
        location: The table.
        run_bytes: As in `ChangeSource`.
        commit_facts: The fields of `CommitFilter` that it knows of its commits.
    """

    location: TableLocation
    run_bytes: int = 0
    commit_facts: frozenset[str] = frozenset({"operations"})

    @property
    def name(self) -> str:
        """The table's location, as the user gave it."""
        return self.location.name

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        ...

    # ------------------------------------------------------------------ points

    async def refresh(self) -> Version | None:
        """Return the newest version for a new reader; None before the first commit.

        The data that a reader of it needs after a restart is durable afterwards.
        """
        ...

    async def locate_version(self, version: Version) -> Version:
        """Return where an offset at a version begins, after `refresh`.

        Raises:
            MissingVersionError: It is not there, or more than one ahead of the head.
        """
        ...

    async def find_first_since(self, time: datetime.datetime) -> Version | None:
        """Return the first version whose commit is at or after a time, after `refresh`.

        None if there is none.

        Raises:
            MissingVersionError: Its changes are no longer known.
        """
        ...

    async def find_last_until(self, time: datetime.datetime) -> Version:
        """Return the last version whose commit is at or before a time.

        Raises:
            MissingVersionError: There is none.
        """
        ...

    async def prepare_snapshot(self, start: Offset) -> None:
        """Make the data durable that the delivery of a snapshot needs after a restart."""
        return

    # ------------------------------------------------------------------ offsets

    async def identify(self, offset: Offset, end: Offset | None = None) -> Offset:
        """Return an offset with the token by which `check` recognises the state before it.

        Args:
            offset: Without a table id if that is not known yet.
            end: End of the planned step that contains the offset; None: the offset is new, and its
                token must be durable.
        """
        ...

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's identity in a version; see `ChangeSource`."""
        ...

    async def check(self, offset: Offset) -> None:
        """Make sure that an offset is one of this table and its history.

        Raises:
            TableRecreatedError: It is of another table.
            MissingVersionError: The history was rewritten, or is no longer known.
        """
        ...

    # ------------------------------------------------------------------ steps

    def notify(self, version: int | None) -> None:
        """Note that the table may have changed since the last poll, or that a version exists."""
        return

    async def advance(self, start: Offset, walk: Callable[[], Awaitable[Offset]]) -> Offset:
        """Poll, check `start`, and return how far a step may go.

        Args:
            walk: Returns that from the commits that exist; `start` if nothing is new.

        Raises:
            TableRecreatedError: The table was dropped, or `start` is of another one.
            MissingVersionError: A version that is needed is gone.
        """
        ...

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> StepPlan | None:
        """Return the plan of the first commit at or after an offset.

        Args:
            state: `StepPlan.resume_state` at an offset inside a commit; else empty.
            end: End of the planned step; None while polling.

        Returns:
            None while polling if there is no such commit yet, without a request if a poll showed
            that; for a planned step, if the log is sparse and has no version before its end.

        Raises:
            MissingVersionError: It is no longer there, or not yet although it is planned.
            TableError: It cannot be read.
        """
        ...

    async def snapshot(self, at: Offset, state: str, end: Offset | None = None) -> StepPlan:
        """Return the plan of a version's snapshot; arguments as for `commit`."""
        ...

    # ------------------------------------------------------------------ the rest

    async def schema(self, version: Version | None, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of a version, without change columns.

        Args:
            version: None for the newest that is known without a request.
            columns: Names to have; None for all.

        Raises:
            TableError: The version no longer exists.
            UsageError: It has no such column.
        """
        ...

    async def column_names(self, version: Version | None) -> Sequence[str]:
        """Return the names of a version's columns, also of those with unsupported types."""
        return list((await self.schema(version, None)).names)

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the head is from an offset, with at most one poll."""
        ...

    async def forget(self, end: Offset) -> None:
        """Drop state that only offsets before `end` need."""
        return


@runtime_checkable
class SupportsDifference(Protocol):
    """A log that can compare any two versions. Optional."""

    @property
    def newest(self) -> Version | None:
        """The newest version that a poll showed; None if none did."""
        ...

    async def find_head(self, start: Offset) -> Version | None:
        """Poll, check `start`, and return the newest version; None if it is before `start`."""
        ...

    async def check_difference(self, start: Offset, end: Offset) -> None:
        """Make sure that [start, end), both at the start of a commit, has a difference.

        Raises:
            TableError: It has not, or one of the versions can no longer be read.
        """
        ...

    async def difference(self, start: Offset, end: Offset) -> StepPlan:
        """Return the plan of the difference of the states before two offsets.

        Raises:
            TableError: As `check_difference`.
        """
        ...


class PlanCache(Generic[_Plan]):
    """The plans of a few steps, so that a step is not planned again to deliver it."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, tuple[Version, _Plan]] = {}

    async def find(
        self, key: Hashable, version: Version, make_plan: Callable[[], Awaitable[_Plan]]
    ) -> _Plan:
        """Return the plan of a step of `version`; `make_plan` makes it if it is not known."""
        if key not in self._plans:
            found = await make_plan()
            while len(self._plans) >= _PLANS_IN_MEMORY:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = version, found
        return self._plans[key][1]

    def forget_before(self, version: Version) -> None:
        """Drop the plans of earlier versions."""
        for key in [key for key, (planned, _) in self._plans.items() if planned < version]:
            del self._plans[key]


def version_ahead(name: str, version: int, head: int) -> MissingVersionError:
    """Return the error for a version that is more than one ahead of the head."""
    return MissingVersionError(
        f"Version {version} is ahead of {name}: the newest is {head}.",
        remedy=f"Start at {head + 1} at most, to wait for the next commit.",
    )


def ahead_bytes(location: TableLocation) -> int:
    """Return the `run_bytes` of a source whose files can be opened ahead."""
    return _REMOTE_RUN_BYTES if location.opens_ahead else 0
