"""The snapshots of a branch as a `TableLog`, and opening a table for its changes.

Order is ancestry. An offset's mark is the id of the snapshot before it: if that is no ancestor of
the head any more, the table was rolled back or replaced.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import xxhash

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeTask
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Version
from tailerd.changefeed.points import to_ms
from tailerd.errors import (
    MissingVersionError,
    NotATableError,
    TableRecreatedError,
    UnsupportedFeatureError,
)
from tailerd.formats.base import Backlog, OpenRequest, TableIdentity
from tailerd.formats.comparing_source import open_log
from tailerd.formats.iceberg.columns import parse_columns, rows_schema
from tailerd.formats.iceberg.metadata import Commit, Snapshot, TableState
from tailerd.formats.iceberg.payload import FORMAT
from tailerd.formats.iceberg.planner import Comparison, IcebergPlanner, PlannedTask
from tailerd.formats.iceberg.reader import IcebergTaskReader
from tailerd.formats.iceberg.table_files import TableFiles, open_files
from tailerd.formats.plain_schema import require_columns
from tailerd.formats.table_log import (
    ListedStep,
    PlanCache,
    TableLog,
    ahead_bytes,
    version_ahead,
)
from tailerd.formats.versioned_source import VersionedSource
from tailerd.remedies import RESET_PIPELINE
from tailerd.storage.table_location import TableLocation


@dataclass(kw_only=True)
class IcebergStep(ListedStep[PlannedTask]):
    """The plan of a commit, a snapshot or a difference."""

    async def size_bytes(self) -> int:
        """Return the bytes of all tasks."""
        return sum(task.size_bytes for task in self.planned)

    async def make_tasks(self, planned: Sequence[PlannedTask], start: int) -> Sequence[ChangeTask]:
        """Return the tasks at the positions from `start` on."""
        return [
            ChangeTask(
                version=self.version,
                timestamp_us=self.timestamp_us,
                position=position,
                change_source=task.kind,
                change_type=task.change,
                size_bytes=task.size_bytes,
                format=FORMAT,
                payload=task.payload,
                num_records=task.rows,
                table_id=self.table_id,
            )
            for position, task in enumerate(planned, start)
        ]

    def local_files(self, tasks: Sequence[ChangeTask]) -> Iterable[str]:
        """Return the data files of tasks."""
        return (url.removeprefix("file://") for url in ListedStep.local_files(self, tasks))


class IcebergLog(TableLog):
    """The commits of one table's branch.

    Args:
        files: The table's metadata, polled once.
        comparison: How removed and added rows are treated.
    """

    def __init__(
        self,
        location: TableLocation,
        files: TableFiles,
        planner: IcebergPlanner,
        *,
        comparison: Comparison,
    ) -> None:
        self.location = location
        self._files = files
        self._planner = planner
        self._comparison = comparison
        self._table_id = files.state.table_id
        self.run_bytes = ahead_bytes(location)
        self._plans: PlanCache[IcebergStep] = PlanCache()

    @property
    def _state(self) -> TableState:
        return self._files.state

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        return self._table_id

    @property
    def newest(self) -> Version | None:
        """The newest version, as of the last poll."""
        head = self._state.head
        return None if head is None else head.version

    def version_before(self, version: Version) -> Version:
        """Return the last version below `version`; `BEFORE_ALL` if there is none."""
        found = self._last_below(version)
        return BEFORE_ALL if found is None else found.version

    def next_version(self, version: Version) -> Version:
        """Return the first version above `version`; one more than it if there is none yet."""
        found = self._first_from(version + 1)
        return Version(version + 1) if found is None else found.version

    def _last_below(self, version: int) -> Commit | None:
        commits = reversed(self._files.numbered(version).commits)
        return next((each for each in commits if each.version < version), None)

    def _first_from(self, version: int) -> Commit | None:
        commits = self._files.numbered(version).commits
        return next((each for each in commits if each.version >= version), None)

    # ------------------------------------------------------------------ points

    async def refresh(self) -> Version | None:
        """Poll, and return the newest version; None before the first."""
        await self._files.refresh()
        return self.newest

    async def locate_version(self, version: Version) -> Version:
        """Return a version whose changes can be read, or the next one.

        Raises:
            MissingVersionError: It expired, is none of the branch, or is more than one ahead.
        """
        commits = self._state.commits
        head = BEFORE_ALL if self.newest is None else self.newest
        if version > head:
            if version > max(self.next_version(head), head + 1):
                raise version_ahead(self.name, version, head)
            return version
        found = self._files.numbered(version).at(version)
        if found is None:
            raise MissingVersionError(
                f"{self.name} has no version {version}. Its history goes from"
                f" {commits[0].version} to {head}. The version expired, was rolled back, or is on"
                " another branch.",
                remedy=f"{RESET_PIPELINE} `tailerd history` shows the versions.",
            )
        await self._require_changes(found)
        return version

    async def _require_changes(self, commit: Commit) -> None:
        """Make sure that a commit's changes are known.

        Raises:
            MissingVersionError: They are not.
        """
        if not commit.has_parent:
            raise self._planner.gap(commit)
        if commit.parent is None:
            await self._planner.commit_files(commit)

    async def find_first_since(self, time: datetime.datetime) -> Version | None:
        """Return the first version at or after a time; None if there is none.

        Raises:
            MissingVersionError: Its changes are no longer known.
        """
        expected = to_ms(time, round_up=True)
        later = (each for each in self._state.commits if each.snapshot.timestamp_ms >= expected)
        if (found := next(later, None)) is None:
            return None
        await self._require_changes(found)
        return found.version

    async def find_last_until(self, time: datetime.datetime) -> Version:
        """Return the last version at or before a time.

        Raises:
            MissingVersionError: There is none.
        """
        until = to_ms(time)
        before = [each for each in self._state.commits if each.snapshot.timestamp_ms <= until]
        if not before:
            raise MissingVersionError(
                f"There is no version of {self.name} at or before {time.isoformat()}.",
                remedy="Give a later time, or a version.",
            )
        return before[-1].version

    # ------------------------------------------------------------------ offsets

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's id, and a hash of its schema in `version` if that exists."""
        found = self._files.numbered(version).at(version)
        schema = ""
        if found is not None:
            text = self._state.schema_text(found.snapshot)
            schema = xxhash.xxh3_64_hexdigest(text.encode())
        return TableIdentity(table_id=self._state.table_id, schema_id=schema)

    async def identify(self, offset: Offset, end: Offset | None = None) -> Offset:
        """Return an offset with the id of the snapshot before it."""
        before = self._before(offset)
        mark = "" if before is None else str(before.snapshot.snapshot_id)
        return replace(offset, table_id=self._state.table_id, mark=mark)

    def _before(self, offset: Offset) -> Commit | None:
        """Return the commit before an offset; None before the first."""
        if offset.is_commit_start:
            return self._last_below(offset.version)
        return self._files.numbered(offset.version).at(offset.version)

    async def check(self, offset: Offset) -> None:
        """Make sure that an offset is of this table, and that its snapshot is an ancestor.

        Raises:
            TableRecreatedError: It is of another table.
            MissingVersionError: The snapshot expired, or the table was rolled back or replaced.
        """
        if offset.table_id != self._state.table_id:
            raise TableRecreatedError(
                f"The offset belongs to the table {offset.table_id}, and at {self.name} is"
                f" {self._state.table_id}: it was dropped and created again.",
                remedy=RESET_PIPELINE,
            )
        token = offset.mark.partition("/")[0]
        before = self._before(offset)
        if not token:
            # Nothing was before it, or it was made from a version alone.
            return
        found = self._state.find(int(token))
        if found is not None and before is not None and found.version == before.version:
            return
        raise self._explain(offset, token, found)

    def _explain(self, offset: Offset, token: str, found: Commit | None) -> MissingVersionError:
        """Return why an offset's snapshot is not the one before it."""
        if found is not None:
            return self._rewritten(
                offset,
                f"snapshot {token}",
                f"which is version {found.version} now: commits of the same millisecond expired",
            )
        if self._state.has_snapshot(int(token)):
            return self._rewritten(
                offset,
                f"snapshot {token}",
                "which is no ancestor of the current one: the table was rolled back, replaced, or"
                " set to another snapshot",
            )
        return MissingVersionError(
            f"The offset of {self.name} at version {offset.version} is after snapshot {token},"
            " which is no longer in the table's metadata: it expired, or the table was rolled back"
            " before it.",
            remedy=f"{RESET_PIPELINE} Expire snapshots later than the slowest pipeline delivers.",
        )

    def _rewritten(self, offset: Offset, token: str, why: str) -> MissingVersionError:
        return MissingVersionError(
            f"The offset of {self.name} at version {offset.version} is after {token}, {why}.",
            remedy=RESET_PIPELINE,
        )

    # ------------------------------------------------------------------ steps

    async def advance(self, start: Offset, walk: Callable[[], Awaitable[Offset]]) -> Offset:
        """Poll, and return how far a step may go; see `TableLog.advance`."""
        await self._poll(start)
        return await walk()

    async def _poll(self, start: Offset) -> None:
        try:
            await self._files.refresh()
        except NotATableError as error:
            raise TableRecreatedError(
                f"The table at {self.name} was dropped: it has no metadata any more.",
                remedy=RESET_PIPELINE,
            ) from error
        await self.check(start)

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> IcebergStep | None:
        """Return the plan of the first commit at or after an offset.

        Raises:
            MissingVersionError: The snapshot before it expired.
        """
        found = self._first_from(at.version)
        if found is None:
            return None
        reached = Offset(table_id="", version=found.version, position=at.position)
        if end is not None and not reached.is_before(end):
            return None
        commit = found
        comparison = Comparison(state) if state else self._comparison

        async def make_plan() -> IcebergStep:
            files, planned = await self._planner.commit(commit, comparison)
            step = self._step(commit, planned, _kind(planned))
            added, removed = files.data(files.added), files.data(files.removed)
            step.resume_state = comparison.value
            step.operation = commit.snapshot.operation
            step.files_added, step.files_removed = len(added), len(removed)
            step.bytes_added = sum(each.size_bytes for each in added)
            step.bytes_removed = sum(each.size_bytes for each in removed)
            return step

        key = commit.snapshot.snapshot_id, comparison
        step = await self._plans.find(key, commit.version, make_plan)
        return replace(step, following=self._following(commit.version, end))

    async def snapshot(self, at: Offset, state: str, end: Offset | None = None) -> IcebergStep:
        """Return the plan of a version's snapshot.

        Raises:
            MissingVersionError: It expired.
        """
        commit = self._commit(at.version)

        async def make_plan() -> IcebergStep:
            planned = await self._planner.snapshot(commit.snapshot)
            step = self._step(commit, planned, ChangeSourceKind.SNAPSHOT)
            step.is_alone = True
            return step

        key = commit.snapshot.snapshot_id, "snapshot"
        step = await self._plans.find(key, commit.version, make_plan)
        return replace(step, following=self._following(commit.version, end))

    def _step(
        self, commit: Commit, planned: Sequence[PlannedTask], kind: ChangeSourceKind
    ) -> IcebergStep:
        return IcebergStep(
            version=commit.version,
            timestamp_us=commit.timestamp_us,
            kind=kind,
            table_id=self._state.table_id,
            following=self.next_version(commit.version),
            max_files=sum(len(task.files) for task in planned),
            is_whole=False,
            planned=planned,
        )

    def _following(self, version: Version, end: Offset | None) -> Version:
        """Return the version of the offset after a version.

        In a planned step without another commit that is the end of the step.
        """
        following = self._first_from(version + 1)
        is_last = following is None or (end is not None and following.version >= end.version)
        if end is not None and is_last and end.is_commit_start and end.version > version:
            return end.version
        return Version(version + 1) if following is None else following.version

    def _commit(self, version: int) -> Commit:
        found = self._files.numbered(version).at(version)
        if found is None:
            raise MissingVersionError(
                f"Version {version} of {self.name} is no longer in the table's history: it expired,"
                " or the table was rolled back.",
                remedy=f"{RESET_PIPELINE} Expire snapshots later than the slowest pipeline"
                " delivers.",
            )
        return found

    async def find_head(self, start: Offset) -> Version | None:
        """Poll, and return the newest version; None if it is before `start`."""
        await self._poll(start)
        newest = self.newest
        return newest if newest is not None and newest >= start.version else None

    async def check_difference(self, start: Offset, end: Offset) -> None:
        """Make sure that the version before `start` can be read.

        Raises:
            MissingVersionError: It expired.
        """
        await self.check(start)

    async def difference(self, start: Offset, end: Offset) -> IcebergStep:
        """Return the plan of the difference of the versions before two offsets."""
        before, after = self._last_below(start.version), self._last_below(end.version)
        if after is None:
            raise MissingVersionError(
                f"{self.name} has no version before {end.version}.", remedy=RESET_PIPELINE
            )
        last = after

        async def make_plan() -> IcebergStep:
            old = None if before is None else before.snapshot
            planned = await self._planner.net(old, last.snapshot)
            return self._step(last, planned, ChangeSourceKind.NET)

        first = 0 if before is None else before.snapshot.snapshot_id
        key = first, last.snapshot.snapshot_id, "net"
        step = await self._plans.find(key, start.version, make_plan)
        return replace(step, following=self._following(last.version, end))

    # ------------------------------------------------------------------ the rest

    async def schema(self, version: Version | None, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of a version; None: of the newest.

        Raises:
            MissingVersionError: It expired.
            UsageError: There is no such column.
            UnsupportedFeatureError: A column's type is not supported.
        """
        schema = self._planner.whole_schema(self._snapshot(version))
        if columns is not None:
            names = pa.schema([pa.field(each.name, pa.null()) for each in parse_columns(schema)])
            require_columns(names, columns)
        return rows_schema(schema, columns)

    def _snapshot(self, version: Version | None) -> Snapshot | None:
        if version is not None:
            return self._commit(version).snapshot
        return None if self._state.head is None else self._state.head.snapshot

    async def column_names(self, version: Version | None) -> Sequence[str]:
        """Return the names of a version's columns, also of those with unsupported types."""
        schema = self._planner.whole_schema(self._snapshot(version))
        return [each.name for each in parse_columns(schema)]

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the newest version is from `start`, with one poll."""
        await self._files.refresh()
        state = self._files.numbered(start.version)
        head = state.head
        pending = [each for each in state.commits if each.version >= start.version]
        return Backlog(
            head_version=BEFORE_ALL if head is None else head.version,
            versions=len(pending),
            head_timestamp_ms=0 if head is None else head.snapshot.timestamp_ms,
            oldest_undelivered_timestamp_ms=pending[0].snapshot.timestamp_ms if pending else None,
        )

    async def forget(self, end: Offset) -> None:
        """Drop plans that no delivery from `end` on needs."""
        self._plans.forget_before(end.version)


async def open_source(
    location: TableLocation, request: OpenRequest, reader: IcebergTaskReader
) -> VersionedSource:
    """Open a table at its newest version.

    Raises:
        NotATableError, TableError: It cannot be read.
        UnsupportedFeatureError: Change files are requested, or a column is not supported.
        MissingExtraError: fastavro is not installed.
    """
    if request.changes is ChangeMode.CDF:
        raise UnsupportedFeatureError(
            f"{location.name} is an Iceberg table, which has no change data feed.",
            remedy="Leave `changes` out.",
        )
    files, location = await open_files(location, request.options, request.memory_bytes)
    state = files.state
    planner = IcebergPlanner(files, location.name, request)
    planner.schema(None if state.head is None else state.head.snapshot)
    is_raw = request.changes is ChangeMode.FILES
    comparison = Comparison.NONE if is_raw else Comparison.ROWS
    log = IcebergLog(location, files, planner, comparison=comparison)
    return open_log(log, reader, request)


def _kind(tasks: Sequence[PlannedTask]) -> ChangeSourceKind:
    kinds = {task.kind for task in tasks}
    order = (ChangeSourceKind.ROWS, ChangeSourceKind.VECTORS, ChangeSourceKind.FILES)
    return next((each for each in order if each in kinds), ChangeSourceKind.NONE)
