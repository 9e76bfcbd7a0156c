"""An array as a change source: its versions are the times of its commits, in milliseconds."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_task import TaskGroup
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.points import StartWord, parse_point, parse_start, show_ms, to_ms
from tailerd.clock import Clock
from tailerd.errors import (
    RESET_OR_ON_GAP,
    RESET_PIPELINE,
    MissingVersionError,
    NotATableError,
    TableRecreatedError,
    UsageError,
)
from tailerd.formats.base import Backlog, OpenRequest, SchemaStep, TableIdentity
from tailerd.formats.plain_schema import checked
from tailerd.formats.source import ReadsTasks
from tailerd.formats.tiledb.array_log import ArrayLog, commits_changed
from tailerd.formats.tiledb.known_commits import KnownCommits, Mark, read_mark
from tailerd.formats.tiledb.protocol.names import TimedName
from tailerd.formats.tiledb.protocol.timeline import (
    NONE_MS,
    LateCommits,
    Timeline,
    commits_digest,
    late_commits,
    vanished,
)
from tailerd.formats.tiledb.reader import TileDBTaskReader
from tailerd.formats.tiledb.task_plan import TaskPlan


class TileDBSource(ReadsTasks):
    """Changes of one array; see `formats.base.ChangeSource`. Open it with `begin`.

    An offset of version v is after everything before v: the next rows are the difference of the
    state at v - 1 and that of the next version, whichever that is.

    Args:
        name: The array's place, as the user gave it.
        request: Which columns are read, and how files are accessed.
        known: The commits known at saved offsets; None: late commits are not detected.
        stops_at_late: Whether a late commit is an error.
    """

    def __init__(
        self,
        name: str,
        log: ArrayLog,
        plan: TaskPlan,
        reader: TileDBTaskReader,
        request: OpenRequest,
        *,
        known: KnownCommits | None,
        clock: Clock,
        stops_at_late: bool,
    ) -> None:
        super().__init__(name, reader, request)
        self._log = log
        self._plan = plan
        self._known = known
        self._clock = clock
        self._stops_at_late = stops_at_late
        self._table_id = log.schemas[0].identity
        self._timeline = plan.timeline

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

    async def identity(self, version: Version) -> TableIdentity:
        """Return the array's id, and a hash of its schema in a version."""
        if version < 0:
            return TableIdentity(table_id=self._table_id)
        return TableIdentity(
            table_id=self._table_id, schema_id=await self._plan.schema_id(int(version))
        )

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        """Return the start of a version's commit, or of its snapshot."""
        mark = "" if self._known is None else (await self._mark()).to_text()
        return Offset(table_id=self._table_id, version=version, phase=phase, mark=mark)

    async def _mark(self) -> Mark:
        assert self._known is not None
        return await self._known.keep(self._timeline.commits)

    async def initial_offset(self, start: str) -> Offset:
        """Return where to begin: `snapshot`, `latest`, a version, or a time.

        A version may be any time that a merged fragment kept.

        Raises:
            MissingVersionError: There is no such commit, or no longer.
            UsageError: The text is none of these, or the time is in the future.
        """
        point = parse_start(start)
        await self._look()
        head = self._timeline.head
        match point:
            case StartWord.SNAPSHOT:
                if head == NONE_MS:
                    return await self.offset_at(Version(0))
                return await self.offset_at(Version(head), Phase.SNAPSHOT)
            case StartWord.LATEST:
                return await self.offset_at(Version(head + 1))
            case int(number):
                return await self.offset_at(self._existing(number))
            case time:
                return await self._at_time(time)

    def _existing(self, number: int) -> Version:
        timeline = self._timeline
        if number in timeline.versions:
            return self._whole(number)
        merged = (each for each in timeline.fragments if each.is_merged)
        is_kept = any(m.first_ms <= number < m.last_ms for m in merged)
        if number == timeline.head + 1 or (is_kept and timeline.hiding(number) is None):
            return Version(number)
        raise MissingVersionError(
            f"The array {self._name} has no commit of {number}"
            + self._why_gone(number)
            + f"; the newest is {timeline.head}.",
            remedy="`tailerd history` shows the versions there are; a time means the first commit"
            " at or after it.",
        )

    def _why_gone(self, number: int) -> str:
        merged = self._timeline.hiding(number)
        if merged is None:
            return ""
        return (
            f" any more: it was merged into {merged.text} and vacuumed, without the times of its"
            " cells"
        )

    def _whole(self, version: int) -> Version:
        """Return where the changes of a version begin: for a merged fragment, its first time."""
        merged = self._timeline.hiding(version - 1)
        return Version(version if merged is None else merged.first_ms)

    async def _at_time(self, time: datetime.datetime) -> Offset:
        wanted = to_ms(time, round_up=True)
        found = self._timeline.after(wanted - 1)
        if found is None:
            raise UsageError(
                f"There is no commit at or after {time.isoformat()}: the newest is of"
                f" {show_ms(max(self._timeline.head, 0))}.",
                remedy="Use --from latest to wait for the next one.",
            )
        return await self.offset_at(self._whole(found))

    async def end_version(self, end: str) -> Version:
        """Return the last version to read up to `end`: a version, or the last at or before a time.

        Raises:
            UsageError, MissingVersionError: There is no such version.
        """
        match parse_point(end):
            case int(version):
                return Version(version)
            case time:
                found = self._timeline.before(to_ms(time) + 1)
        if found == NONE_MS:
            raise MissingVersionError(
                f"The array {self._name} has no commit at or before {time.isoformat()}.",
                remedy="Give a later time, or a version.",
            )
        return Version(found)

    def hear(self, version: int | None) -> None:
        """Do nothing: each poll lists the commits, because a late one may have any time."""

    async def _look(self) -> Timeline:
        """List the commits.

        Raises:
            TableRecreatedError: The array was dropped, or replaced by another.
        """
        try:
            self._timeline = await self._log.look(self._clock.now_ms())
        except NotATableError as error:
            raise TableRecreatedError(
                f"The array {self._name} was dropped: its schema no longer exists.",
                remedy="Where it was created again, reset the pipeline with `tailerd offsets reset"
                " NAME --to snapshot`, or set on_gap.",
            ) from error
        if self._log.schemas[0].identity != self._table_id:
            raise self._recreated(self._table_id)
        self._plan.timeline = self._timeline
        return self._timeline

    def _recreated(self, table_id: str) -> TableRecreatedError:
        return TableRecreatedError(
            f"The offset belongs to the array {table_id}, and at {self._name} is"
            f" {self._log.schemas[0].identity}: it was dropped and created again.",
            remedy=RESET_PIPELINE,
        )

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` if nothing is new.

        Late commits are a step of their own, before anything newer.

        Raises:
            TableRecreatedError: `start` is of another array.
            MissingVersionError: History was merged or rewritten so that the changes cannot be
                determined; or there is a late commit, and the pipeline is configured to stop.
            TableError: The array cannot be read.
        """
        timeline = await self._look()
        await self._check(start)
        late = await self._late(start, start)
        if late.times_ms:
            return await self._named(start.at(start.position + len(late.times_ms)))
        at, files, size = start, limit.max_files, limit.max_bytes
        if at.phase is Phase.SNAPSHOT:
            at, files, size = await self._within_snapshot(at, files, size)
            if at.phase is Phase.SNAPSHOT:
                return at
        for version in timeline.between(int(at.version) - 1, timeline.head):
            writes = timeline.writes_between(int(at.version) - 1, version)
            needed = await self._log.fragment_bytes(writes)
            is_needed = at == start
            if not is_needed and (files < max(1, len(writes)) or size < needed):
                break
            files, size = files - max(1, len(writes)), size - needed
            at = Offset(table_id=self._table_id, version=Version(version + 1))
        return start if at == start else await self._named(at)

    async def _within_snapshot(self, at: Offset, files: int, size: int) -> tuple[Offset, int, int]:
        """Return how far the limits reach in a snapshot, and the rest of the limits."""
        shares = await self._plan.shares(int(at.version), _shares_of(at))
        each = await self._plan.snapshot_bytes(int(at.version)) // max(1, len(shares))
        left = len(shares) - at.position
        most = min(files, size // each if each else left)
        taken = max(1, min(left, most))
        if taken < left:
            named = await self._named(at.at(at.position + taken))
            mark = f"{named.mark.partition('/')[0]}/{len(shares)}"
            return replace(named, mark=mark), 0, 0
        end = Offset(table_id=self._table_id, version=Version(at.version + 1))
        return end, files - taken, size - taken * each

    async def _named(self, offset: Offset) -> Offset:
        mark = "" if self._known is None else (await self._mark()).to_text()
        return replace(offset, table_id=self._table_id, mark=mark)

    async def _check(self, offset: Offset) -> None:
        """Make sure that the changes after an offset can be determined."""
        if offset.table_id != self._table_id:
            raise self._recreated(offset.table_id)
        delivered = int(offset.version) - (offset.phase is Phase.FOLLOW)
        merged = self._timeline.hiding(delivered)
        if merged is not None:
            raise MissingVersionError(
                f"The array {self._name} can no longer be read as it was at {delivered}: what was"
                f" written then was merged into {merged.text} and vacuumed, without the times of"
                " its cells.",
                remedy=RESET_OR_ON_GAP,
            )
        gap = self._timeline.before(int(offset.version) + 1)
        if offset.phase is Phase.SNAPSHOT and gap == NONE_MS:
            raise MissingVersionError(
                f"The array {self._name} no longer has version {offset.version}.",
                remedy=RESET_OR_ON_GAP,
            )
        mark = read_mark(offset.mark)
        if self._known is None or mark is None:
            return
        gone = vanished(await self._known.of(mark), self._timeline)
        if gone:
            raise MissingVersionError(
                f"The history of {self._name} was rewritten: {len(gone)} commits no longer exist"
                f" and are in no merged fragment, such as {gone[0]}.",
                remedy=RESET_OR_ON_GAP,
            )

    async def _late(self, start: Offset, end: Offset) -> LateCommits:
        """Return the late commits of a delivery; for an empty one, the current late commits."""
        nothing = LateCommits((), ())
        first, last = read_mark(start.mark), read_mark(end.mark)
        if self._known is None or first is None or start.phase is Phase.SNAPSHOT:
            return nothing
        if end is start or last is None:
            now = {*self._timeline.commits.fragments, *self._timeline.commits.deletes}
        else:
            now = set(await self._known.of(last))
        known = await self._known.of(first)
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
                f"The commit {late.names[0]} of {self._name} came late: {delivered} was delivered"
                f" already, and {why}.",
                remedy=f"{RESET_OR_ON_GAP} `format_options: {{on_late: apply}}` delivers late"
                " commits.",
            )
        return late

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end) in order.

        Raises:
            TableError: A version cannot be read.
        """
        await self._check(start)
        self._plan.seen = await self._seen(end)
        at = start
        if start.is_before(end):
            late = await self._late(start, end)
            if late.times_ms:
                is_last = start.version == end.version
                reached = (
                    end
                    if is_last
                    else replace(start, position=start.position + len(late.times_ms), mark=end.mark)
                )
                known = await self._known_of(start)
                yield await self._plan.late_group(start, reached, late, known)
                at = reached
        if at.phase is Phase.SNAPSHOT and at.is_before(end):
            is_last = end.phase is Phase.SNAPSHOT and end.version == at.version
            next_offset = Offset(
                table_id=self._table_id, version=Version(at.version + 1), mark=end.mark
            )
            reached = end if is_last else min(next_offset, end, key=lambda each: each.order)
            yield await self._plan.snapshot_group(
                at, reached, _shares_of(at), end.position if is_last else None
            )
            at = reached
        while at.is_before(end):
            version = self._timeline.after(int(at.version) - 1)
            if version is None or version >= end.version:
                break
            next_offset = Offset(
                table_id=self._table_id, version=Version(version + 1), mark=end.mark
            )
            following = self._timeline.after(version)
            is_last = following is None or following >= end.version
            reached = end if is_last and end.position == 0 else next_offset
            yield await self._plan.step_group(at, reached, version)
            at = reached

    async def _seen(self, end: Offset) -> tuple[int, str]:
        """Return the time up to which rows before an offset read commits, and their digest.

        Raises:
            LogChangedError: There is a commit that was not known at the offset.
        """
        if self._known is None or read_mark(end.mark) is None:
            return 0, ""
        until = int(end.version) - (end.phase is Phase.FOLLOW)
        commits = self._timeline.commits
        now = {*commits.fragments, *commits.deletes}
        if late_commits(await self._known_of(end), now, until).times_ms:
            raise commits_changed(self._name)
        return until, commits_digest(commits, until)

    async def _known_of(self, offset: Offset) -> frozenset[TimedName]:
        mark = read_mark(offset.mark)
        assert self._known is not None
        assert mark is not None
        return frozenset(await self._known.of(mark))

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        """Yield where in [start, end) rows of another schema begin, the first rows included."""
        at, last = start, None
        while at.is_before(end):
            is_snapshot = at.phase is Phase.SNAPSHOT
            found = int(at.version) if is_snapshot else self._timeline.after(int(at.version) - 1)
            if found is None or (found >= end.version and not is_snapshot):
                return
            schema = await self._plan.schema(found)
            if schema != last:
                last = schema
                yield SchemaStep(offset=at, version=Version(found), schema=schema)
            at = Offset(table_id=self._table_id, version=Version(found + 1))

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the newest version is from `start`, with one poll."""
        timeline = await self._look()
        pending = timeline.between(int(start.version) - 1, timeline.head)
        return Backlog(
            head_version=Version(timeline.head),
            versions=len(pending),
            head_timestamp_ms=max(timeline.head, 0),
            oldest_undelivered_timestamp_ms=pending[0] if pending else None,
        )

    async def commit(self, end: Offset) -> None:
        """Drop state that only offsets before `end` need."""
        mark = read_mark(end.mark)
        if self._known is not None and mark is not None:
            await self._known.forget_before(mark)

    async def arrow_schema(self) -> pa.Schema:
        """Return the newest version's columns."""
        return checked(await self._plan.schema(max(self._timeline.head, 0)), self._columns)

    async def schema_at(self, version: Version, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns of a version.

        Raises:
            MissingVersionError: There is no state at that time.
            UsageError: There is no such column.
        """
        if self._timeline.before(version + 1) == NONE_MS or self._timeline.hiding(int(version)):
            raise MissingVersionError(
                f"The array {self._name} has no version {version}.", remedy=RESET_OR_ON_GAP
            )
        return checked(await self._plan.schema(int(version)), columns)


def _shares_of(offset: Offset) -> int | None:
    """Return the number of shares of a partly delivered snapshot; None at its start."""
    mark = offset.mark.partition("/")[2]
    return int(mark) if offset.position and mark.isdigit() else None
