"""Plans the tasks of commits: how far one step may go, and what it reads."""

from __future__ import annotations

import bisect
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from tailerd.changefeed.change_task import (
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
    TaskGroup,
)
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import BugError, MissingVersionError, TableError
from tailerd.formats.delta.changes.commit_cache import CommitCache
from tailerd.formats.delta.changes.former_values import FormerValues
from tailerd.formats.delta.log.log_reader import CommitBody
from tailerd.formats.delta.protocol.change_plan import CommitPlan, TaskPlanner
from tailerd.formats.delta.protocol.data_file import VERSIONS, TableSchema, data_file
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.rewritten_files import exact_task, rewritten_files
from tailerd.rows.groups import FileBounds

GROUP_TASKS = 10_000
"""Maximum number of tasks per group of one commit, so that memory stays bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchemaStep:
    """A `formats.base.SchemaStep` with the schema as in the log."""

    offset: Offset
    version: Version
    schema: TableSchema


@dataclass(slots=True)
class _Marks:
    """Places in a large commit at which reading can resume: task position, pass and byte."""

    places: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, 0, 0)])

    def before(self, position: int) -> tuple[int, int, int]:
        """Return the last mark at or before a position."""
        end = bisect.bisect_right(self.places, (position, sys.maxsize, sys.maxsize))
        return self.places[end - 1]

    def note(self, position: int, number: int, byte: int) -> None:
        """Record a place, if it is after the last."""
        if (position, number, byte) > self.places[-1]:
            self.places.append((position, number, byte))


class CommitTasks:
    """Plans the commits of one table.

    Args:
        window: Looks up commits.
        paths: Resolves the files they name.
        key: Key columns by which deletes and inserts are paired to updates; empty: no pairing.
    """

    def __init__(self, window: CommitCache, paths: DataPaths, key: Sequence[str] = ()) -> None:
        self._window = window
        self._paths = paths
        self._key = tuple(key)
        self._former = FormerValues(window.reader, paths)
        self._marks: dict[int, _Marks] = {}
        self._split_tasks: tuple[Offset, list[ChangeTask]] | None = None

    def forget_before(self, version: int) -> None:
        """Drop what only versions before `version` need."""
        self._former.forget_before(version)
        for old in [known for known in self._marks if known < version]:
            del self._marks[old]

    async def furthest(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return how far one step from `start` may go.

        Case A: a commit fits the rest of the limit: it is admitted whole.
        Case B: it does not fit, and something was admitted before: the step ends before it.
        Case C: it does not fit, is first, and must stay whole: it is admitted alone.
        Case D: it does not fit, is first, and may be split: as many of its tasks as fit.

        Raises:
            TableError: The first commit cannot be read correctly. At a later one the step ends
                before it.
        """
        end, files, size = start, limit.max_files, limit.max_bytes
        while (plan := await self._plan(end, is_first=end is start)) is not None:
            tasks, size_bytes = plan.max_tasks, plan.size_bytes
            if end.position == 0 and tasks <= files and size_bytes <= size:  # Case A
                end, files, size = _offset_after(end, plan), files - tasks, size - size_bytes
            elif end is not start:  # Case B
                break
            elif plan.is_whole:  # Case C
                return _offset_after(end, plan)
            else:
                return await self._split(end, limit)  # Case D
        return end

    async def _plan(self, at: Offset, *, is_first: bool) -> CommitPlan | None:
        try:
            return await self._window.plan(at.version)
        except TableError:
            if is_first:
                raise
            return None

    async def _split(self, start: Offset, limit: ReadLimit) -> Offset:
        files, size, position = 0, 0, start.position
        found, plan = await self._expect(start.version)
        admitted: list[ChangeTask] = []
        async for tasks in self._tasks(found, plan, start.position):
            for task in tasks:
                files += 1
                size += task.size_bytes
                if files > 1 and (files > limit.max_files or size > limit.max_bytes):
                    if len(admitted) == files - 1:
                        # The next `groups` call requests exactly these.
                        self._split_tasks = start, admitted
                    return _inside(start, position, plan)
                if files <= GROUP_TASKS:
                    admitted.append(task)
                position = task.position + 1
        return _offset_after(start, plan)

    async def groups(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end).

        A group whose end equals its start belongs to one delivery with the group after it.

        Raises:
            TableError: A commit cannot be read correctly.
        """
        kept, self._split_tasks = self._split_tasks, None
        if kept is not None and kept[0] == start:
            _, plan = await self._expect(start.version)
            if end == _inside(start, kept[1][-1].position + 1, plan):
                yield _group(start, end, plan, kept[1])
                return
        at = start
        while at.is_before(end):
            until = end.position if at.version == end.version else None
            found, plan = await self._expect(at.version)
            after = _offset_after(at, plan) if until is None else end
            ready: list[ChangeTask] = []
            async for found_tasks in self._tasks(found, plan, at.position):
                ready.extend(t for t in found_tasks if until is None or t.position < until)
                while len(ready) > GROUP_TASKS:
                    head = ready[:GROUP_TASKS]
                    del ready[:GROUP_TASKS]
                    reached = at
                    if not plan.is_whole:
                        reached = _inside(at, head[-1].position + 1, plan)
                    yield _group(at, reached, plan, head)
                    at = reached
                if until is not None and found_tasks and found_tasks[-1].position >= until:
                    break
            yield _group(at, after, plan, ready)
            at = after

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[TableSchemaStep]:
        """Yield a step for the first rows of [start, end), and for each schema change after that.

        Commits without rows yield none. Ends early at a version that does not exist.

        Raises:
            TableError: A commit cannot be read correctly.
        """
        at, last = start, None
        while at.is_before(end) and (plan := await self._window.plan(at.version)) is not None:
            async for step in self._steps_of(plan, at):
                if step.schema != last and step.offset.is_before(end):
                    last = step.schema
                    yield step
            at = _offset_after(at, plan)

    async def _steps_of(self, plan: CommitPlan, at: Offset) -> AsyncIterator[TableSchemaStep]:
        if plan.kind is ChangeSourceKind.NONE:
            return
        if plan.kind is ChangeSourceKind.CDC or plan.is_compared or plan.before == plan.after:
            yield TableSchemaStep(offset=at, version=plan.version, schema=plan.after)
            return
        found, plan = await self._expect(at.version)
        was_deleted: bool | None = None
        async for tasks in self._tasks(found, plan, at.position):
            for task in tasks:
                is_deleted = task.change_type is ChangeType.DELETE
                if is_deleted is not was_deleted:
                    was_deleted = is_deleted
                    version = Version(plan.version - 1) if is_deleted else plan.version
                    offset = _inside(at, task.position, plan)
                    yield TableSchemaStep(
                        offset=offset, version=version, schema=data_file(task).schema
                    )

    async def _expect(self, version: int) -> tuple[CommitBody, CommitPlan]:
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
        planner = TaskPlanner(plan, self._paths)
        tasks = self._file_tasks(found, plan, planner, position)
        if not plan.is_compared:
            async for some in tasks:
                yield await self._former.completed(some)
            return
        candidates = [task async for some in tasks for task in await self._former.completed(some)]
        yield compared(candidates, planner.bounds, plan, self._key)

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
                if wanted := [task for task in tasks if task.position >= position]:
                    yield wanted
            planner.end_pass()
            mark, byte = planner.position, 0
            marks.note(mark, number + 1, byte)


def compared(
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


def _offset_after(at: Offset, plan: CommitPlan) -> Offset:
    """Return the offset after a commit; `CREATE OR REPLACE TABLE` changes the table's id."""
    return replace(at.after_version(VERSIONS), table_id=plan.table_id)


def _inside(at: Offset, position: int, plan: CommitPlan) -> Offset:
    """Return an offset in the commit at `at`; before its first task it has the previous id."""
    return replace(at.at(position), table_id=plan.table_id) if position else at.at(0)


def _group(start: Offset, end: Offset, plan: CommitPlan, tasks: list[ChangeTask]) -> TaskGroup:
    if tasks and any(task.version != plan.version for task in tasks):
        raise BugError(f"Tasks of other versions came with version {plan.version}.")
    return TaskGroup(
        start=start,
        end=end,
        version=plan.version,
        timestamp_us=plan.timestamp_us,
        change_source=plan.kind,
        tasks=tuple(tasks),
        operation=plan.operation,
        files_added=plan.added.files,
        bytes_added=plan.added.size_bytes,
        files_removed=plan.removed.files,
        bytes_removed=plan.removed.size_bytes,
    )
