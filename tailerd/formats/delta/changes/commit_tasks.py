"""Plans the tasks of commits."""

from __future__ import annotations

import bisect
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, ChangeType
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Version
from tailerd.errors import MissingVersionError, TableError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.commit_cache import CommitCache
from tailerd.formats.delta.changes.delta_step import DeltaStep, find_rows_schema
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.protocol.change_plan import CommitPlan, TaskPlanner
from tailerd.formats.delta.protocol.data_file import VERSIONS, data_file
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.rewritten_files import exact_task, rewritten_files
from tailerd.rows.groups import FileBounds

MAX_ADMITTED_TASKS = 10_000
"""Maximum number of tasks of a commit that are kept from measuring it until they are read."""


@dataclass(slots=True)
class _Marks:
    """Positions in a large commit at which reading can resume: task position, pass and byte."""

    positions: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, 0, 0)])

    def before(self, position: int) -> tuple[int, int, int]:
        """Return the last mark at or before a position."""
        end = bisect.bisect_right(self.positions, (position, sys.maxsize, sys.maxsize))
        return self.positions[end - 1]

    def note(self, position: int, number: int, byte: int) -> None:
        """Record a position, if it is after the last."""
        if (position, number, byte) > self.positions[-1]:
            self.positions.append((position, number, byte))


class CommitTasks:
    """Plans the commits of one table.

    Args:
        window: Looks up commits.
        paths: Resolves the files they name.
        request: Key columns by which deletes and inserts are paired to updates, and the condition
            whose columns have bounds that exclude files.
    """

    def __init__(self, window: CommitCache, paths: DataPaths, request: OpenRequest) -> None:
        self._window = window
        self._paths = paths
        self._key = tuple(request.identity)
        where = None if request.view is None else request.view.where
        self._conditioned = () if where is None else where.columns
        self._former = FormerValues(window.reader, paths)
        self._marks: dict[int, _Marks] = {}
        self._admitted: tuple[Version, int, list[ChangeTask]] | None = None

    def forget_before(self, version: int) -> None:
        """Drop what only versions before `version` need."""
        self._former.forget_before(version)
        if self._admitted is not None and self._admitted[0] < version:
            self._admitted = None
        for old in [known for known in self._marks if known < version]:
            del self._marks[old]

    def admit(self, version: Version, start: int, tasks: list[ChangeTask]) -> None:
        """Record the tasks that one step reads of a commit: it requests exactly these next."""
        self._admitted = version, start, tasks

    async def tasks(
        self, version: Version, start: int, until: int | None = None
    ) -> AsyncIterator[Sequence[ChangeTask]]:
        """Yield the tasks of a commit from a position on.

        Raises:
            MissingVersionError: It is no longer there.
            TableError: It cannot be read correctly.
        """
        if until is not None:
            admitted, self._admitted = self._admitted, None
            if admitted is not None and admitted[:2] == (version, start):
                tasks = admitted[2]
                if tasks[-1].position + 1 == until:
                    yield tasks
                    return
        found, plan = await self.expect(version)
        async for tasks in self._tasks(found, plan, start):
            yield tasks

    async def expect(self, version: int) -> tuple[CommitBody, CommitPlan]:
        """Return a commit and its plan.

        Raises:
            MissingVersionError: It is no longer there.
            TableError: It cannot be read correctly.
        """
        plan, found = await self._window.plan(version), await self._window.commit(version)
        if plan is None or found is None:
            raise MissingVersionError(
                f"The commit of version {version} no longer exists: the log was cleaned up.",
                remedy="Start from a snapshot, or raise delta.logRetentionDuration.",
            )
        return found, plan

    async def _tasks(
        self, found: CommitBody, plan: CommitPlan, position: int
    ) -> AsyncIterator[list[ChangeTask]]:
        """Yield the tasks of a commit from a position on."""
        if not plan.passes:
            return
        planner = TaskPlanner(plan, self._paths, self._conditioned)
        tasks = self._file_tasks(found, plan, planner, position)
        if not plan.is_compared:
            async for some in tasks:
                yield await self._former.complete(some)
            return
        candidates = [task async for some in tasks for task in await self._former.complete(some)]
        yield compare_tasks(candidates, planner.bounds, plan, self._key)

    async def _file_tasks(
        self, found: CommitBody, plan: CommitPlan, planner: TaskPlanner, position: int
    ) -> AsyncIterator[list[ChangeTask]]:
        """Yield a task for each file."""
        # Reading never resumes in the middle of a commit that must stay whole.
        marks = _Marks()
        if found.body is None and not plan.is_whole:
            marks = self._marks.setdefault(plan.version, marks)
        mark, first, byte = marks.before(position)
        for number in range(first, plan.passes):
            planner.begin_pass(number, mark)
            async for lines, done in self._window.reader.actions(found, byte):
                tasks = planner.feed(lines)
                marks.note(planner.position, number, done)
                if requested := [task for task in tasks if task.position >= position]:
                    yield requested
            planner.end_pass()
            mark, byte = planner.position, 0
            marks.note(mark, number + 1, byte)


def compare_tasks(
    tasks: list[ChangeTask],
    bounds: Sequence[FileBounds | None],
    plan: CommitPlan,
    key: Sequence[str],
) -> list[ChangeTask]:
    """Return one task that compares the rows of all; the tasks themselves if a side has none."""
    is_one_sided = len({task.change_type for task in tasks}) < 2
    if is_one_sided and plan.before == plan.after:
        return tasks
    known = [each for each in bounds if each is not None]
    whole = known if len(known) == len(tasks) else []
    task = exact_task(tasks, whole, before=plan.before, after=plan.after, key=key)
    if plan.are_updates:
        task = replace(task, payload=replace(rewritten_files(task), are_updates=True))
    return [task]


@dataclass(kw_only=True)
class DeltaCommit(DeltaStep):
    """The plan of one commit."""

    commits: CommitTasks
    plan: CommitPlan

    async def size_bytes(self) -> int:
        """Return the bytes of its files, according to the log."""
        return self.plan.size_bytes

    async def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[ChangeTask]]:
        """Yield the tasks from a position on."""
        async for tasks in self.commits.tasks(self.version, start, until):
            yield self.zone.apply(tasks)

    async def fit(self, start: int, limit: ReadLimit) -> int | None:
        """Return the position before which tasks fit the limit, at least one; None if all do."""
        files, size, position = 0, 0, start
        admitted: list[ChangeTask] = []
        async for tasks in self.commits.tasks(self.version, start):
            for task in tasks:
                files += 1
                size += task.size_bytes
                if files > 1 and (files > limit.max_files or size > limit.max_bytes):
                    if len(admitted) == files - 1:
                        self.commits.admit(self.version, start, admitted)
                    return position
                if files <= MAX_ADMITTED_TASKS:
                    admitted.append(task)
                position = task.position + 1
        return None

    async def schemas(self, start: int) -> AsyncIterator[tuple[int, Version, pa.Schema]]:
        """Yield where rows of another schema begin: that before the commit, or after it."""
        plan = self.plan
        if plan.kind is ChangeSourceKind.NONE:
            return
        if plan.kind is ChangeSourceKind.CDC or plan.is_compared or plan.before == plan.after:
            yield start, plan.version, find_rows_schema(plan.after)
            return
        was_deleted: bool | None = None
        async for tasks in self.commits.tasks(plan.version, start):
            for task in tasks:
                is_deleted = task.change_type is ChangeType.DELETE
                if is_deleted is not was_deleted:
                    was_deleted = is_deleted
                    version = Version(plan.version - 1) if is_deleted else plan.version
                    yield task.position, version, find_rows_schema(data_file(task).schema)


# Old writers omit `extendedFileMetadata`. The file was live in the version before.

_Values = tuple[tuple[str, str | None], ...]


class FormerValues:
    """Looks up partition values in the version before a commit.

    Args:
        reader: The table's log.
        paths: Resolves the files it names.
    """

    def __init__(self, reader: LogReader, paths: DataPaths) -> None:
        self._reader = reader
        self._paths = paths
        self._found: dict[Version, dict[str, _Values]] = {}

    def forget_before(self, version: int) -> None:
        """Drop what only versions before `version` need."""
        for old in [known for known in self._found if known < version]:
            del self._found[old]

    async def complete(self, tasks: list[ChangeTask]) -> list[ChangeTask]:
        """Return tasks of one commit, each with its partition values if known.

        If the version before can no longer be rebuilt, tasks are unchanged: reading them raises the
        error.
        """
        lacking = {data_file(task).url for task in tasks if _lacks_values(task)}
        if not lacking:
            return tasks
        version = tasks[0].version
        known = self._found.setdefault(version, {})
        if not lacking <= known.keys():
            known |= await self._read_values(VERSIONS.version_before(version), lacking)
        return [_with_values(task, known) if _lacks_values(task) else task for task in tasks]

    async def _read_values(self, version: Version, urls: set[str]) -> dict[str, _Values]:
        found: dict[str, _Values] = {}
        try:
            snapshot = await self._reader.open(version)
            async for files in read_live_files(self._reader, snapshot):
                for file in files:
                    url = self._paths.resolve(file.path)
                    if url in urls:
                        found[url] = file.partition_values
        except TableError:
            # Reading the tasks raises an error that names the commit.
            return found
        return found


def _lacks_values(task: ChangeTask) -> bool:
    file = data_file(task)
    is_removed = task.change_type is ChangeType.DELETE
    return is_removed and bool(file.schema.partition_columns) and not file.partition_values


def _with_values(task: ChangeTask, known: dict[str, _Values]) -> ChangeTask:
    file = data_file(task)
    values: Sequence[tuple[str, str | None]] = known.get(file.url, ())
    return replace(task, payload=replace(file, partition_values=tuple(values)))
