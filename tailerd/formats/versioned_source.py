"""The change source of every format: offsets, limits and steps over the versions of a `TableLog`.

An offset's mark is a text of the log, by which it recognises the state before it. Inside a commit,
`/` and the plan's `resume_state` follow; at the start of a difference, `/net:` and the version at
which it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, TaskGroup
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Phase, Version
from tailerd.changefeed.points import StartWord, parse_point, parse_start, to_ms
from tailerd.clock import SystemClock
from tailerd.errors import (
    BugError,
    CorruptLogError,
    MissingVersionError,
    PathOutsideTableError,
    TableError,
    TransformsMismatchError,
    UsageError,
)
from tailerd.formats.base import (
    Backlog,
    OpenRequest,
    SchemaStep,
    SupportsFileLookup,
    SupportsWidenedFloats,
    TableIdentity,
    TaskReader,
)
from tailerd.formats.plain_schema import require_columns
from tailerd.formats.table_log import StepPlan, TableLog
from tailerd.formats.view_reader import ViewReader, hiding_values
from tailerd.remedies import CONFIG_FILE, PIPELINE
from tailerd.storage.links import AllowedPaths
from tailerd.transforms.view import View

GROUP_TASKS = 10_000
"""Maximum number of tasks in a group, so that memory stays bounded."""
CHECKED = 32
"""Maximum number of groups whose links are checked together: switching to a thread and back costs
more than the check of a few files."""
_STATE = "/"
_MOST_MICROSECONDS = 2**63
"""Arrow holds the time of a commit as 64 bits."""


class VersionedSource:
    """Changes of one table; see `formats.base.ChangeSource`. Created by `open_log`.

    Args:
        reader: Reads the tasks that the log plans.
        request: Which columns are read, and how files are accessed.
    """

    def __init__(self, log: TableLog, reader: TaskReader, request: OpenRequest) -> None:
        self._log = log
        self._view = request.view
        self._fitting: pa.Schema | None = None
        self._is_unchecked = request.is_resumed and request.view is not None
        self._skips = request.skips
        self._task_reader = reader if request.view is None else ViewReader(reader, request.view)
        self._stores = log.location.stores
        self._clock = request.clock or SystemClock()

    @property
    def name(self) -> str:
        """The table's location, as the user gave it."""
        return self._log.name

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        return self._log.table_id

    @property
    def log(self) -> TableLog:
        """The table's versions."""
        return self._log

    def version_before(self, version: Version) -> Version:
        """Return the last version below `version`; `BEFORE_ALL` if there is none."""
        return self._log.version_before(version)

    def next_version(self, version: Version) -> Version:
        """Return the first version above `version`, which may not exist yet."""
        return self._log.next_version(version)

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's identity in `version`, if it is known."""
        return await self._log.identity(version)

    def notify(self, version: int | None) -> None:
        """Note that the table may have changed since the last poll, or that a version exists."""
        self._log.notify(version)

    # ------------------------------------------------------------------ points

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        """Return the start of a version's commit, or of its snapshot."""
        return await self._log.identify(Offset(table_id="", version=version, phase=phase))

    async def initial_offset(self, start: str) -> Offset:
        """Return where to begin: `snapshot`, `latest`, a version, or a time.

        Raises:
            MissingVersionError: The version is not there, or more than one ahead of the head.
            UsageError: The text is none of these, or the time is in the future.
        """
        point = parse_start(start)
        newest = await self._log.refresh()
        head = BEFORE_ALL if newest is None else newest
        match point:
            case StartWord.SNAPSHOT if newest is not None:
                offset = await self.offset_at(newest, Phase.SNAPSHOT)
                await self._log.prepare_snapshot(offset)
                return offset
            case StartWord():
                return await self.offset_at(self.next_version(head))
            case int(number):
                return await self.offset_at(await self._log.locate_version(Version(number)))
            case time:
                found = await self._log.find_first_since(time)
                if found is None and to_ms(time) > self._clock.now_ms():
                    raise UsageError(
                        f"{time.isoformat()} is in the future.",
                        remedy="Start at latest to wait for the next commit.",
                    )
                # Nothing was committed since: the next commit is the first.
                return await self.offset_at(self.next_version(head) if found is None else found)

    async def end_version(self, end: str) -> Version:
        """Return the last version to read up to `end`: a version, or the last at or before a time.

        Raises:
            UsageError, MissingVersionError: There is no such version.
        """
        match parse_point(end):
            case int(version):
                return Version(version)
            case time:
                return await self._log.find_last_until(time)

    # ------------------------------------------------------------------ how far a step goes

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` if nothing is new.

        Raises:
            TableRecreatedError: `start` is of another table, or this one was dropped.
            MissingVersionError: A version that is needed is missing.
            TableError: The first commit cannot be read, or lacks a column that the view names.
        UsageError: No commit is pending, and the view does not fit the newest version.
        """
        with hiding_values(self._view):
            end = await self._log.advance(start, lambda: self._walk(start, limit))
        if end == start and self._is_unchecked:
            await self._check_newest()
        return end

    async def _walk(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return how far one step may go from the commits that exist.

        Case A: a commit fits within the remaining limit: it is admitted whole.
        Case B: it does not fit, and something was admitted before: the step ends before it.
        Case C: it does not fit, is first, and must stay whole: it is admitted alone.
        Case D: it does not fit, is first, and may be split: as many of its tasks as fit.

        Raises:
            TableError: The first commit cannot be read. At a later one the step ends before it.
        """
        at, files, size = start, limit.max_files, limit.max_bytes
        while (found := await self._measure_step(at, files, is_first=at is start)) is not None:
            step, needed = found
            if needed is not None and needed <= size:  # Case A
                at, files, size = await self._after(at, step), files - step.max_files, size - needed
            elif at is not start:  # Case B
                break
            elif step.is_whole:  # Case C
                return await self._after(at, step)
            else:  # Case D
                position = await step.fit(at.position, limit)
                if position is None:
                    return await self._after(at, step)
                return await self._inside(at, position, step)
        return at

    async def _measure_step(
        self, at: Offset, files: int, *, is_first: bool
    ) -> tuple[StepPlan, int | None] | None:
        """Return the next step and its bytes; None for these if it does not fit otherwise."""
        try:
            step = await self._step(at)
            if step is None:
                return None
            await self._check_view(step.version)
            is_entire = step.is_whole or not at.position
            is_fitting = is_entire and not step.is_alone and step.max_files <= files
            return step, await step.size_bytes() if is_fitting else None
        except TableError:
            if is_first:
                raise
            return None

    async def _step(self, at: Offset, end: Offset | None = None) -> StepPlan | None:
        """Return the plan of the commit or snapshot at an offset; `end` as for the log."""
        state = at.mark.partition(_STATE)[2] if at.position else ""
        if at.phase is Phase.SNAPSHOT:
            step: StepPlan | None = await self._log.snapshot(at, state, end)
        else:
            step = await self._log.commit(at, state, end)
        if step is not None and not -_MOST_MICROSECONDS <= step.timestamp_us < _MOST_MICROSECONDS:
            raise CorruptLogError(
                f"Version {step.version} of {self.name} has the time {step.timestamp_us // 1000} ms"
                " since 1970, which no timestamp can hold.",
                remedy="Correct it in the log, or read the table from a later version.",
            )
        return step

    async def _after(self, at: Offset, step: StepPlan, end: Offset | None = None) -> Offset:
        """Return the offset after a step; `end` itself if that is not further."""
        after = Offset(
            table_id=step.table_id, version=step.following, position=step.following_position
        )
        if end is not None and not after.is_before(end):
            return end
        return await self._log.identify(after, end)

    async def _inside(
        self, at: Offset, position: int, step: StepPlan, end: Offset | None = None
    ) -> Offset:
        """Return an offset in the step at `at`; before its first task it has the previous id."""
        if position == at.position:
            return at
        inside = replace(at, position=position, table_id=step.table_id)
        named = await self._log.identify(inside, end)
        mark = f"{named.mark}{_STATE}{step.resume_state}" if step.resume_state else named.mark
        return replace(named, mark=mark)

    # ------------------------------------------------------------------ plans

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end) in order.

        A group whose end equals its start belongs to one delivery with the group after it.

        Raises:
            TableError: A version cannot be read.
        """
        with hiding_values(self._view):
            await self._log.check(start)
            links = self._log.location.links
            async for planned in self._plan(start, end, 1 if links is None else CHECKED):
                count, error = len(planned), None
                if links is not None and any(group.tasks for _, group in planned):
                    count, error = await asyncio.to_thread(_count_inside, links, planned)
                for _, group in planned[:count]:
                    yield group
                if error is not None:
                    raise error

    async def _plan(
        self, start: Offset, end: Offset, most: int
    ) -> AsyncIterator[list[tuple[StepPlan, TaskGroup]]]:
        """Yield up to `most` groups at once, each with the step that it belongs to."""
        planned: list[tuple[StepPlan, TaskGroup]] = []
        tasks, error, at = 0, None, start
        try:
            while at.is_before(end) and (step := await self._step(at, end)) is not None:
                after = await self._after(at, step, end)
                async for group in self._groups(at, after, step, end):
                    planned.append((step, group))
                    tasks += len(group.tasks)
                    if len(planned) >= most or tasks >= GROUP_TASKS:
                        yield planned
                        planned, tasks = [], 0
                at = after
        except TableError as failed:
            error = failed
        if planned:
            yield planned
        if error is not None:
            raise error

    async def _groups(
        self, at: Offset, after: Offset, step: StepPlan, end: Offset
    ) -> AsyncIterator[TaskGroup]:
        if self._is_skipped(step):
            yield replace(self._group(at, after, step, ()), is_skipped=True)
            return
        is_inside = (after.version, after.phase) == (at.version, at.phase)
        until = after.position if is_inside and after is end else None
        ready: list[ChangeTask] = []
        async for tasks in step.tasks(at.position, until):
            ready.extend(t for t in tasks if until is None or t.position < until)
            while len(ready) > GROUP_TASKS:
                some = ready[:GROUP_TASKS]
                del ready[:GROUP_TASKS]
                reached = at
                if not step.is_whole:
                    reached = await self._inside(at, some[-1].position + 1, step, end)
                yield self._group(at, reached, step, some)
                at = reached
            if until is not None and tasks and tasks[-1].position >= until:
                break
        yield self._group(at, after, step, ready)

    def _is_skipped(self, step: StepPlan) -> bool:
        if self._skips is None or step.kind in (ChangeSourceKind.SNAPSHOT, ChangeSourceKind.NET):
            return False
        return self._skips.skips(step.operation, step.applications, step.user_metadata)

    def _group(
        self, at: Offset, reached: Offset, step: StepPlan, tasks: Sequence[ChangeTask]
    ) -> TaskGroup:
        if any(task.version != step.version for task in tasks):
            raise BugError(f"Tasks of other versions came with version {step.version}.")
        if self._view is not None:
            tasks = self._seen(self._view, tasks)
        return TaskGroup(
            start=at,
            end=reached,
            version=step.version,
            timestamp_us=step.timestamp_us,
            change_source=step.kind,
            tasks=tuple(tasks),
            operation=step.operation,
            files_added=step.files_added,
            bytes_added=step.bytes_added,
            files_removed=step.files_removed,
            bytes_removed=step.bytes_removed,
        )

    def _seen(self, view: View, tasks: Sequence[ChangeTask]) -> list[ChangeTask]:
        """Return tasks with the view, without those that have no row of it."""
        found = [replace(task, view=view) for task in tasks]
        if view.where is None:
            return found
        return [task for task in found if not self._task_reader.excludes(task, ())]

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        """Yield where in [start, end) rows of another schema begin, the first rows included."""
        at, last = start, None
        with hiding_values(self._view):
            while at.is_before(end):
                try:
                    step = await self._step(at, end)
                except MissingVersionError:
                    return
                if step is None:
                    return
                async for position, version, schema in step.schemas(at.position):
                    offset = await self._inside(at, position, step, end)
                    if not offset.is_before(end):
                        return
                    if self._view is not None:
                        schema = self._view.schema(schema)
                    if schema != last:
                        last = schema
                        yield SchemaStep(offset=offset, version=version, schema=schema)
                at = await self._after(at, step, end)

    # ------------------------------------------------------------------ rows and the rest

    def read(self, task: ChangeTask, limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read one task's rows; blocking, for worker threads and executors."""
        return self._task_reader.read(task, limit, stores=self._stores)

    @property
    def run_bytes(self) -> int:
        """Bytes of small files that one `read_run` should cover; 0 if that makes no difference."""
        return self._log.run_bytes

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read the rows of tasks in order; the reader may prefetch."""
        return self._task_reader.read_run(tasks, limit, stores=self._stores)

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the head is from `start`, with at most one poll."""
        return await self._log.backlog(start)

    async def commit(self, end: Offset) -> None:
        """Drop state that only offsets before `end` need: everything before it is delivered."""
        await self._log.forget(end)

    async def arrow_schema(self) -> pa.Schema:
        """Return the newest version's columns."""
        return await self._schema(None)

    async def schema_at(
        self, version: Version | None, columns: Sequence[str] | None = None
    ) -> pa.Schema:
        """Return the columns of a version.

        Raises:
            TableError: The version no longer exists.
            UsageError: It has no such column.
        """
        if self._view is None:
            return await self._log.schema(version, columns)
        # A key's columns need not be delivered.
        extra = tuple(dict.fromkeys((*self._view.extra, *(columns or ()))))
        view = replace(self._view, extra=extra)
        return require_columns(view.schema(await self._source_schema(view, version)), columns)

    async def _schema(self, version: Version | None) -> pa.Schema:
        if self._view is None:
            return await self._log.schema(version, None)
        return self._view.schema(await self._source_schema(self._view, version))

    async def _source_schema(self, view: View, version: Version | None) -> pa.Schema:
        try:
            return await self._log.schema(version, None)
        except TableError:
            # A column that is not read may have any type, and any name.
            names = await self._log.column_names(version)
            if (columns := view.source_columns(names)) is None:
                raise
            found = await self._log.schema(version, columns)
            known = {field.name: field for field in found}
            return pa.schema([known.get(name) or pa.field(name, pa.null()) for name in names])

    async def check_request(self) -> None:
        """Make sure that the view fits the newest version, and that commits can be skipped.

        Raises:
            UsageError: They do not.
        """
        unknown = [] if self._skips is None else self._skips.facts
        if unknown := [fact for fact in unknown if fact not in self._log.commit_facts]:
            raise UsageError(
                f"Commits of {self.name} cannot be skipped by {unknown[0]}: its log does not have"
                " that.",
                remedy="Skip them by operations, or leave `commits` out.",
            )
        if not self._is_unchecked:
            await self._check_newest()

    async def _check_newest(self) -> None:
        """Make sure that the view fits the newest version.

        Raises:
            UsageError: It does not.
        """
        if (error := await self._find_misfit(None)) is not None:
            raise error
        self._is_unchecked = False

    async def _check_view(self, version: Version) -> None:
        """Make sure that a version has what the view names, unless only later ones have it.

        Raises:
            TransformsMismatchError: It has not, and neither has the newest version.
        """
        error = await self._find_misfit(version)
        if error is None or await self._find_misfit(None) is None:
            return
        reason = error.message.splitlines()[-1]
        raise TransformsMismatchError(
            f"Version {version} of {self.name} does not fit `{error.where}`: {reason} Everything"
            " before it is delivered.",
            remedy=f"Correct `{error.where}`; a pipeline then goes on with this version after"
            f" `tailerd offsets accept {PIPELINE} --config {CONFIG_FILE}`.",
            version=version,
        ) from None

    async def _find_misfit(self, version: Version | None) -> UsageError | None:
        """Return why the view does not fit a version; None if it does."""
        if self._view is None:
            return None
        schema = await self._source_schema(self._view, version)
        if schema != self._fitting:
            try:
                self._view.check(schema)
            except UsageError as error:
                return error
            self._fitting = schema
        return None

    async def count_skipped(self, start: Offset, end: Offset) -> int | None:
        """Return the number of commits with row changes that are not delivered in [start, end).

        None if the log no longer has all of them.

        Raises:
            TableError: A commit cannot be read.
        """
        count, at = 0, start
        try:
            while self._skips is not None and at.is_before(end):
                if (step := await self._step(at, end)) is None:
                    break
                count += self._is_skipped(step) and step.kind is not ChangeSourceKind.NONE
                at = await self._after(at, step, end)
        except MissingVersionError:
            return None
        return count

    async def has_live_file(self, url: str) -> bool:
        """Return whether the newest version has a file; true if the log cannot look that up."""
        log = self._log
        return await log.has_live_file(url) if isinstance(log, SupportsFileLookup) else True

    async def widened_floats(self) -> frozenset[str]:
        """Return the columns in which floats became doubles, as of the head version."""
        log = self._log
        return await log.widened_floats() if isinstance(log, SupportsWidenedFloats) else frozenset()


def _count_inside(
    links: AllowedPaths, planned: Sequence[tuple[StepPlan, TaskGroup]]
) -> tuple[int, TableError | None]:
    """Return how many groups come before one with a file outside the table, and its error."""
    count = 0
    try:
        for step, group in planned:
            links.check(step.local_files(group.tasks))
            count += 1
    except PathOutsideTableError as error:
        return count, error
    return count, None
