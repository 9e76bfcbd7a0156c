"""An array's versions as a `TableLog`: the times of its commits, in milliseconds.

An offset of version v is after everything before v: the next rows are the difference of the state
at v - 1 and that of the next version, whichever that is.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.points import to_ms
from tailerd.clock import Clock, SystemClock
from tailerd.errors import (
    ConfigError,
    MissingVersionError,
    NotATableError,
    TableRecreatedError,
    UnsupportedFeatureError,
)
from tailerd.formats.base import Backlog, OpenRequest, TableIdentity
from tailerd.formats.comparing_source import open_log
from tailerd.formats.plain_schema import require_columns
from tailerd.formats.table_log import StepPlan, TableLog
from tailerd.formats.tiledb.array_log import ArrayLog, commits_changed
from tailerd.formats.tiledb.known_commits import KnownCommits, read_mark
from tailerd.formats.tiledb.protocol.names import TimedName
from tailerd.formats.tiledb.protocol.timeline import (
    NONE_MS,
    LateCommits,
    Timeline,
    commits_digest,
    find_vanished,
    late_commits,
)
from tailerd.formats.tiledb.reader import TileDBTaskReader
from tailerd.formats.tiledb.scan import decode_payload
from tailerd.formats.tiledb.task_plan import Range, TaskPlan, open_plan, operation
from tailerd.formats.versioned_source import VersionedSource
from tailerd.remedies import RESET_PIPELINE, RESTART
from tailerd.state.ledger import open_ledger
from tailerd.storage.table_location import TableLocation

_ON_LATE = ("apply", "stop")
_NOT_LATE = LateCommits((), ())


@dataclass(kw_only=True)
class _TileStep(StepPlan):
    """A step of an array.

    Attributes:
        seen: `TileScan.seen_ms` and `TileScan.seen` of tasks.
    """

    plan: TaskPlan
    seen: tuple[int, str]

    async def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[ChangeTask]]:
        """Yield the tasks from a position on."""
        seen_ms, seen = self.seen
        yield [
            replace(task, payload=replace(decode_payload(task), seen_ms=seen_ms, seen=seen))
            for task in await self._plan_tasks(start)
            if task.position >= start
        ]

    async def _plan_tasks(self, start: int) -> Sequence[ChangeTask]:
        raise NotImplementedError

    async def schemas(self, start: int) -> AsyncIterator[tuple[int, Version, pa.Schema]]:
        """Yield the schema of the version, for all rows."""
        yield start, self.version, await self.plan.schema(int(self.version))


@dataclass(kw_only=True)
class _Snapshot(_TileStep):
    """All cells, in shares.

    Attributes:
        share_bytes: Bytes to read for each share.
    """

    shares: Sequence[tuple[Range, ...]]
    share_bytes: int

    async def _plan_tasks(self, start: int) -> Sequence[ChangeTask]:
        return await self.plan.snapshot_tasks(int(self.version), self.shares)

    async def fit(self, start: int, limit: ReadLimit) -> int | None:
        """Return the first share that does not fit the limit; None if all do."""
        left = len(self.shares) - start
        most = limit.max_bytes // self.share_bytes if self.share_bytes else left
        count = max(1, min(limit.max_files, most))
        return start + count if count < left else None


@dataclass(kw_only=True)
class _Commit(_TileStep):
    """The difference of two states.

    Attributes:
        after: The time of the first.
    """

    log: ArrayLog
    after: int

    async def size_bytes(self) -> int:
        """Return the bytes of the fragments written in between."""
        writes = self.plan.timeline.writes_between(self.after, int(self.version))
        return await self.log.fragment_bytes(writes)

    async def _plan_tasks(self, start: int) -> Sequence[ChangeTask]:
        task = await self.plan.step_task(self.after, int(self.version), start)
        self.bytes_added = task.size_bytes
        return [task]


@dataclass(kw_only=True)
class _Late(_TileStep):
    """Commits that appeared below an offset."""

    start: Offset
    late: LateCommits
    known: frozenset[TimedName]

    async def _plan_tasks(self, start: int) -> Sequence[ChangeTask]:
        return await self.plan.late_tasks(self.start, self.late, self.known)


class TileDBLog(TableLog):
    """The versions of one array.

    Args:
        location: The array.
        known: The commits known at saved offsets; None: late commits are not detected.
        stops_at_late: Whether a late commit is an error.
    """

    def __init__(
        self,
        location: TableLocation,
        log: ArrayLog,
        plan: TaskPlan,
        *,
        known: KnownCommits | None,
        clock: Clock,
        stops_at_late: bool,
    ) -> None:
        self.location = location
        self._log = log
        self._plan = plan
        self._known = known
        self._clock = clock
        self._stops_at_late = stops_at_late
        self._table_id = log.schemas[0].identity
        self._timeline = plan.timeline
        self._token: tuple[Timeline, str] | None = None
        self._seen: tuple[Timeline, Offset, tuple[int, str]] | None = None

    @property
    def table_id(self) -> str:
        """Identity of the array when it was opened."""
        return self._table_id

    def version_before(self, version: Version) -> Version:
        """Return the last version below `version`; `BEFORE_ALL` if there is none."""
        return Version(self._timeline.before(version))

    def next_version(self, version: Version) -> Version:
        """Return the first version above `version`; the next millisecond if there is none yet."""
        found = self._timeline.after(version)
        return Version(version + 1 if found is None else found)

    # ------------------------------------------------------------------ points

    async def refresh(self) -> Version | None:
        """List the commits, and return the newest version; None before the first."""
        head = (await self._refresh()).head
        return None if head == NONE_MS else Version(head)

    async def _refresh(self) -> Timeline:
        """List the commits.

        Raises:
            TableRecreatedError: The array was dropped, or replaced by another.
        """
        try:
            self._timeline = await self._log.refresh(self._clock.now_ms())
        except NotATableError as error:
            raise TableRecreatedError(
                f"The array {self.name} was dropped: its schema no longer exists.",
                remedy=f"If it was created again, {RESTART}.",
            ) from error
        if self._log.schemas[0].identity != self._table_id:
            raise self._recreated_error(self._table_id)
        self._plan.timeline = self._timeline
        return self._timeline

    def _recreated_error(self, table_id: str) -> TableRecreatedError:
        return TableRecreatedError(
            f"The offset belongs to the array {table_id}, and at {self.name} is"
            f" {self._log.schemas[0].identity}: it was dropped and created again.",
            remedy=RESET_PIPELINE,
        )

    async def locate_version(self, version: Version) -> Version:
        """Return where the changes of a time begin, which may be any that a merged fragment kept.

        Raises:
            MissingVersionError: There is no such commit, or no longer.
        """
        timeline = self._timeline
        if version in timeline.versions:
            return self._find_begin(version)
        merged = (each for each in timeline.fragments if each.is_merged)
        is_kept = any(m.first_ms <= version < m.last_ms for m in merged)
        if version == timeline.head + 1 or (is_kept and timeline.hiding(version) is None):
            return version
        why = ""
        if (hiding := timeline.hiding(version)) is not None:
            why = (
                f" any more: it was merged into {hiding.text} and vacuumed, without the times of"
                " its cells"
            )
        raise MissingVersionError(
            f"The array {self.name} has no commit of {version}{why}; the newest is"
            f" {timeline.head}.",
            remedy="`tailerd history` shows the versions there are; a time means the first commit"
            " at or after it.",
        )

    def _find_begin(self, version: int) -> Version:
        """Return where the changes of a version begin: for a merged fragment, its first time."""
        merged = self._timeline.hiding(version - 1)
        return Version(version if merged is None else merged.first_ms)

    async def find_first_since(self, time: datetime.datetime) -> Version | None:
        """Return where the changes of the first commit at or after a time begin; None for none."""
        found = self._timeline.after(to_ms(time, round_up=True) - 1)
        return None if found is None else self._find_begin(found)

    async def find_last_until(self, time: datetime.datetime) -> Version:
        """Return the last version at or before a time.

        Raises:
            MissingVersionError: There is none.
        """
        found = self._timeline.before(to_ms(time) + 1)
        if found == NONE_MS:
            raise MissingVersionError(
                f"The array {self.name} has no commit at or before {time.isoformat()}.",
                remedy="Give a later time, or a version.",
            )
        return Version(found)

    # ------------------------------------------------------------------ offsets

    async def identity(self, version: Version) -> TableIdentity:
        """Return the array's id, and a hash of its schema in a version."""
        if version < 0:
            return TableIdentity(table_id=self._table_id)
        return TableIdentity(
            table_id=self._table_id, schema_id=await self._plan.schema_id(int(version))
        )

    async def identify(self, offset: Offset, end: Offset | None = None) -> Offset:
        """Return an offset with a reference to the commits known now, or at the end of its step."""
        token = await self._current_token() if end is None else end.mark.partition("/")[0]
        return replace(offset, table_id=self._table_id, mark=token)

    async def _current_token(self) -> str:
        if self._known is None:
            return ""
        if self._token is None or self._token[0] is not self._timeline:
            mark = await self._known.keep(self._timeline.commits)
            self._token = self._timeline, mark.to_text()
        return self._token[1]

    async def check(self, offset: Offset) -> None:
        """Make sure that the changes after an offset can be determined.

        Raises:
            TableRecreatedError: It is of another array.
            MissingVersionError: History was merged or rewritten so that they cannot.
        """
        if offset.table_id != self._table_id:
            raise self._recreated_error(offset.table_id)
        delivered = int(offset.version) - (offset.phase is Phase.FOLLOW)
        merged = self._timeline.hiding(delivered)
        if merged is not None:
            raise MissingVersionError(
                f"The array {self.name} can no longer be read in its state of {delivered}: the"
                f" cells of that time were merged into {merged.text} and vacuumed, without the"
                " times of its cells.",
                remedy=RESET_PIPELINE,
            )
        gap = self._timeline.before(int(offset.version) + 1)
        if offset.phase is Phase.SNAPSHOT and gap == NONE_MS:
            raise MissingVersionError(
                f"The array {self.name} no longer has version {offset.version}.",
                remedy=RESET_PIPELINE,
            )
        known = await self._find_known(offset)
        if known is None:
            return
        gone = find_vanished(known, self._timeline)
        if gone:
            raise MissingVersionError(
                f"The history of {self.name} was rewritten: {len(gone)} commits no longer exist"
                f" and are in no merged fragment, such as {gone[0]}.",
                remedy=RESET_PIPELINE,
            )

    async def _find_known(self, offset: Offset) -> frozenset[TimedName] | None:
        """Return the commits that were known at an offset; None if they were not recorded."""
        mark = None if self._known is None else read_mark(offset.mark)
        return None if self._known is None or mark is None else await self._known.read_names(mark)

    # ------------------------------------------------------------------ steps

    async def advance(self, start: Offset, walk: Callable[[], Awaitable[Offset]]) -> Offset:
        """List the commits, and return how far a step may go; see `TableLog.advance`."""
        await self._refresh()
        await self.check(start)
        return await walk()

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> StepPlan | None:
        """Return the plan of the commits that came late, else of the next version.

        Raises:
            MissingVersionError: A commit came late, and the pipeline is configured to stop, or its
                changes cannot be determined.
            LogChangedError: There is a commit that was not known at the end of the planned step.
        """
        seen = (0, "") if end is None else await self._find_seen(end)
        late = await self._find_late(at, end)
        if late.times_ms:
            return _Late(
                version=Version(self._timeline.before(int(at.version))),
                timestamp_us=late.times_ms[-1] * 1000,
                kind=ChangeSourceKind.LATE,
                table_id=self._table_id,
                following=at.version,
                following_position=at.position + len(late.times_ms),
                is_alone=True,
                operation="late",
                plan=self._plan,
                seen=seen,
                start=at,
                late=late,
                known=await self._find_known(at) or frozenset(),
            )
        after = int(at.version) - 1
        version = self._timeline.after(after)
        if version is None or (end is not None and version >= end.version):
            return None
        writes = self._timeline.writes_between(after, version)
        deletes = self._timeline.deletes_between(after, version)
        return _Commit(
            version=Version(version),
            timestamp_us=version * 1000,
            kind=ChangeSourceKind.ROWS,
            table_id=self._table_id,
            following=self._find_following(version, end),
            max_files=max(1, len(writes)),
            operation=operation(has_writes=bool(writes), has_deletes=bool(deletes)),
            files_added=len(writes),
            plan=self._plan,
            seen=seen,
            log=self._log,
            after=after,
        )

    async def snapshot(self, at: Offset, state: str, end: Offset | None = None) -> StepPlan:
        """Return the plan of all cells; a partly delivered one keeps its number of shares."""
        version = int(at.version)
        shares = await self._plan.shares(version, int(state) if state.isdigit() else None)
        return _Snapshot(
            version=at.version,
            timestamp_us=version * 1000,
            kind=ChangeSourceKind.SNAPSHOT,
            table_id=self._table_id,
            following=self._find_following(version, end),
            is_whole=False,
            is_alone=True,
            resume_state=str(len(shares)),
            plan=self._plan,
            seen=(0, "") if end is None else await self._find_seen(end),
            shares=shares,
            share_bytes=await self._plan.snapshot_bytes(version) // len(shares),
        )

    def _find_following(self, version: int, end: Offset | None) -> Version:
        """Return the version of the offset after a version: the next millisecond.

        A later commit may still get any time after it. In a planned step without another version it
        is the end of the step.
        """
        if end is not None and end.is_commit_start:
            following = self._timeline.after(version)
            if following is None or following >= end.version:
                return end.version
        return Version(version + 1)

    async def _find_late(self, start: Offset, end: Offset | None) -> LateCommits:
        """Return the late commits of a planned step; without an end, the present ones."""
        until = None if end is None else end.mark.partition("/")[0]
        if end is None and self._token is not None and self._token[0] is self._timeline:
            until = self._token[1]
        if start.phase is Phase.SNAPSHOT or start.mark.partition("/")[0] == until:
            return _NOT_LATE
        known = await self._find_known(start)
        if known is None:
            return _NOT_LATE
        now = None if end is None else await self._find_known(end)
        if now is None:
            now = frozenset((*self._timeline.commits.fragments, *self._timeline.commits.deletes))
        delivered = int(start.version) - 1
        late = late_commits(known, now, delivered)
        same = {each.last_ms for each in known} & set(late.times_ms)
        if late.times_ms and (same or self._stops_at_late):
            why = (
                "another commit of the same millisecond was delivered already"
                if same
                else "`on_late: stop` is set"
            )
            raise MissingVersionError(
                f"The commit {late.names[0]} of {self.name} came late: {delivered} was delivered"
                f" already, and {why}.",
                remedy=f"{RESET_PIPELINE} `format_options: {{on_late: apply}}` delivers late"
                " commits.",
            )
        return late

    async def _find_seen(self, end: Offset) -> tuple[int, str]:
        """Return the time up to which rows before an offset read commits, and their digest.

        Raises:
            LogChangedError: There is a commit that was not known at the offset.
        """
        if self._seen is not None and self._seen[0] is self._timeline and self._seen[1] == end:
            return self._seen[2]
        found = 0, ""
        known = await self._find_known(end)
        if known is not None:
            until = int(end.version) - (end.phase is Phase.FOLLOW)
            commits = self._timeline.commits
            now = {*commits.fragments, *commits.deletes}
            if late_commits(known, now, until).times_ms:
                raise commits_changed(self.name)
            found = until, commits_digest(commits, until)
        self._seen = self._timeline, end, found
        return found

    # ------------------------------------------------------------------ the rest

    async def schema(self, version: Version | None, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of a version; None: of the newest.

        Raises:
            MissingVersionError: There is no state at that time.
            UsageError: There is no such column.
        """
        if version is None:
            return require_columns(await self._plan.schema(max(self._timeline.head, 0)), columns)
        if self._timeline.before(version + 1) == NONE_MS or self._timeline.hiding(int(version)):
            raise MissingVersionError(
                f"The array {self.name} has no version {version}.", remedy=RESET_PIPELINE
            )
        return require_columns(await self._plan.schema(int(version)), columns)

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the newest version is from `start`, with one poll."""
        timeline = await self._refresh()
        pending = timeline.versions_between(int(start.version) - 1, timeline.head)
        return Backlog(
            head_version=Version(timeline.head),
            versions=len(pending),
            head_timestamp_ms=max(timeline.head, 0),
            oldest_undelivered_timestamp_ms=pending[0] if pending else None,
        )

    async def forget(self, end: Offset) -> None:
        """Drop the records of commits that only offsets before `end` need."""
        mark = None if self._known is None else read_mark(end.mark)
        if self._known is not None and mark is not None:
            await self._known.forget_before(mark)


async def open_source(
    location: TableLocation, request: OpenRequest, reader: TileDBTaskReader
) -> VersionedSource:
    """Open an array at its newest version.

    Raises:
        NotATableError: There is no array.
        UnsupportedFeatureError: It is a group, or has an unsupported feature; or change files, raw
            files or net changes are requested.
        TableError: It cannot be read.
        ConfigError: The option is wrong.
        MissingExtraError: TileDB's library is not installed.
    """
    stops_at_late = _stops_at_late(location.name, request)
    clock = request.clock or SystemClock()
    log = ArrayLog(location.store, location.root, location.name)
    plan = await open_plan(location, log, clock.now_ms())
    await plan.shape(max(plan.timeline.head, 0))
    known = None
    if request.ledger is not None:
        known = KnownCommits(open_ledger(request.ledger, location.stores), log.schemas[0].identity)
    found = TileDBLog(location, log, plan, known=known, clock=clock, stops_at_late=stops_at_late)
    return open_log(found, reader, request)


def _stops_at_late(name: str, request: OpenRequest) -> bool:
    """Return whether the option `on_late` is to stop, after checking the request.

    Raises:
        UnsupportedFeatureError: Other changes than `auto` are requested.
        ConfigError: The option has another value.
    """
    if not request.changes.is_exact:
        raise UnsupportedFeatureError(
            f"{name} is a TileDB array, whose changes are the differences of its states.",
            remedy="Leave `changes` out.",
        )
    on_late = request.options.get("on_late") or "apply"
    if on_late not in _ON_LATE:
        raise ConfigError(
            f"The option on_late of {name} is {on_late!r}.", remedy="Say apply or stop."
        )
    return on_late == "stop"
