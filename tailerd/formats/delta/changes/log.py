"""A Delta table as a change source.

Protocol: PROTOCOL.md#change-data-files, #reader-requirements-for-addcdcfile
"""

from __future__ import annotations

import asyncio
import datetime
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind
from tailerd.changefeed.offset import ConsecutiveVersions, Offset, Phase, Version
from tailerd.changefeed.points import to_ms
from tailerd.clock import SystemClock
from tailerd.errors import MissingVersionError, TableRecreatedError
from tailerd.formats.base import Backlog, OpenRequest, TableIdentity
from tailerd.formats.comparing_source import open_log
from tailerd.formats.delta.changes.commit_cache import CommitCache
from tailerd.formats.delta.changes.commit_tasks import CommitTasks, DeltaCommit
from tailerd.formats.delta.changes.delta_step import (
    DeltaDifference,
    DeltaSnapshot,
    find_rows_schema,
)
from tailerd.formats.delta.changes.feed_check import FeedCheck
from tailerd.formats.delta.changes.log_continuity import LogContinuityCheck
from tailerd.formats.delta.changes.net_changes import NetChanges
from tailerd.formats.delta.changes.net_plan import NetPlanFile
from tailerd.formats.delta.changes.partition_zone import PartitionZone
from tailerd.formats.delta.changes.read import rows_schema
from tailerd.formats.delta.changes.snapshot_files import (
    LoggedFiles,
    SnapshotFiles,
    Spool,
    retry_if_log_cleaned_up,
)
from tailerd.formats.delta.changes.task_reader import DeltaTaskReader
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import GAP_PATIENCE_SECONDS, LogReader
from tailerd.formats.delta.log.time_travel import TimeAxis
from tailerd.formats.delta.protocol.data_file import schema_id
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind
from tailerd.formats.delta.protocol.log_segment import LogSegment
from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.formats.delta.protocol.table_properties import retention_seconds
from tailerd.formats.delta.protocol.type_widening import widened_floats
from tailerd.formats.table_log import TableLog, ahead_bytes, version_ahead
from tailerd.formats.versioned_source import VersionedSource
from tailerd.remedies import RESET_PIPELINE
from tailerd.storage.table_location import TableLocation

_READER = DeltaTaskReader()


class DeltaLog(ConsecutiveVersions, TableLog):
    """The commits of one table.

    Args:
        location: The table.
        reader: Its log.
        state, head_version: The newest version when it was opened.
        request: Which changes are requested.
        spool: Keeps the file list of a snapshot across restarts; see `OpenRequest.scratch`.
        zone: Of partition timestamps without one.
    """

    commit_facts = frozenset({"operations", "application_ids", "user_metadata"})

    def __init__(
        self,
        location: TableLocation,
        reader: LogReader,
        state: TableState,
        head_version: int,
        request: OpenRequest,
        *,
        spool: Spool | None,
        zone: PartitionZone,
    ) -> None:
        self.location = location
        self._reader = reader
        self._head_state = state
        self._head_version = head_version
        self._paths = DataPaths(reader.url, location.allowed)
        self.run_bytes = ahead_bytes(location)
        self._window = CommitCache(
            reader,
            ChangeMode.AUTO if request.changes is ChangeMode.NET else request.changes,
            feed_check=FeedCheck(reader, self._paths, location.stores),
        )
        self._commits = CommitTasks(self._window, self._paths, request)
        plan_file = NetPlanFile(spool, self._paths)
        self._differences = NetChanges(reader, self._paths, request.identity, plan_file)
        self._snapshot: SnapshotFiles | None = None
        self._spool = spool
        self._zone = zone
        self._table_ids = {state.metadata.id}
        self.guard = LogContinuityCheck(
            location.name,
            self._table_ids,
            self._window,
            request.clock or SystemClock(),
            head_version,
        )
        self._identity: tuple[int, TableIdentity] | None = None

    def begin(self, version: int, state: TableState, segment: LogSegment) -> None:
        """Begin with the newest version that was read."""
        self._window.timeline.restart(version, state)
        for file in segment.ascending_commits[-1:]:
            if file.kind is LogFileKind.COMMIT:
                self._window.note_newest(file)

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        return self._head_state.metadata.id

    @property
    def newest(self) -> Version | None:
        """The newest version that was seen."""
        newest = self._window.newest
        return None if newest is None else Version(newest.version)

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's id and a hash of the schema in `version`, if they are known."""
        if self._identity is None or self._identity[0] != version:
            state = await self._window.state_at(max(version, 0))
            # The state before the oldest commit of a log may be lost.
            named = state or await self._window.state_at(version + 1) or self._head_state
            found = TableIdentity(
                table_id=named.metadata.id,
                schema_id="" if state is None or version < 0 else schema_id(state.schema),
            )
            self._identity = version, found
        return self._identity[1]

    async def identify(self, offset: Offset, end: Offset | None = None) -> Offset:
        """Return an offset with the table's id in the version before it, unless it has one."""
        if offset.table_id:
            return replace(offset, mark="") if offset.mark else offset
        identity = await self.identity(offset.last_version(self))
        return replace(offset, table_id=identity.table_id, mark="")

    async def check(self, offset: Offset) -> None:
        """Make sure that an offset is of this log; record its id as known.

        Raises:
            TableRecreatedError: It is of another one.
        """
        if offset.table_id in self._table_ids:
            return
        identity = await self.identity(offset.last_version(self))
        if offset.table_id != identity.table_id:
            raise TableRecreatedError(
                f"The offset belongs to table {offset.table_id}, and the log of {self.name} now"
                f" has table {identity.table_id} there: it was dropped and created again.",
                remedy=RESET_PIPELINE,
            )
        self._table_ids.add(offset.table_id)

    # ------------------------------------------------------------------ points

    async def refresh(self) -> Version:
        """Return the version that was the newest when the table was opened."""
        return Version(self._head_version)

    async def prepare_snapshot(self, start: Offset) -> None:
        """Spool the file list of a snapshot: a saved offset inside it requires the list.

        Raises:
            LogCleanedUpError: The version was removed while it was listed: open the table again.
        """
        if self._spool is not None:
            with retry_if_log_cleaned_up():
                await self._find_snapshot(start, is_new=True)

    async def locate_version(self, version: Version) -> Version:
        """Return a version whose commit is in the log, or the next one.

        Raises:
            MissingVersionError: It is not in the log, or more than one ahead of it.
        """
        listing = await self.guard.list_around(version)
        if version not in listing.commits and (listing.earliest_commit or 0) < version < (
            listing.head_version or 0
        ):
            # Nothing was cleaned up here: the store may list the version late.
            await asyncio.sleep(GAP_PATIENCE_SECONDS)
            listing = await self.guard.list_around(version)
        head = max(self._head_version, listing.head_version or 0)
        if version > head + 1:
            raise version_ahead("the table", version, head)
        if version <= head and version not in listing.commits:
            earliest = (await self._reader.list_log()).earliest_commit
            raise MissingVersionError(
                f"The commit of version {version} is no longer in the log (the oldest is"
                f" {earliest}), because metadata cleanup removed it.",
                remedy=RESET_PIPELINE,
            )
        return version

    async def find_first_since(self, time: datetime.datetime) -> Version | None:
        """Return the first version whose commit is at or after a time; None if there is none."""
        axis = await TimeAxis.read(self._reader)
        found = await axis.first_from(to_ms(time, round_up=True))
        return None if found is None else Version(found)

    async def find_last_until(self, time: datetime.datetime) -> Version:
        """Return the last version whose commit is at or before a time.

        Raises:
            MissingVersionError: There is none.
        """
        axis = await TimeAxis.read(self._reader)
        return Version(await axis.last_until(to_ms(time)))

    # ------------------------------------------------------------------ steps

    def notify(self, version: int | None) -> None:
        """Note an event; if the version it names is not found, the log is listed."""
        self.guard.note_version(version)

    async def advance(self, start: Offset, walk: Callable[[], Awaitable[Offset]]) -> Offset:
        """Return how far a step may go; the log must continue without gap or replacement.

        Raises:
            TableRecreatedError: `start` belongs to another table, or the table was dropped.
            MissingVersionError: The next version is missing and later ones exist.
        """
        await self.check(start)
        if start.phase is Phase.SNAPSHOT:
            return await walk()
        end = await self.guard.reach(start, walk)
        if end != start:
            self._table_ids |= self._window.timeline.table_ids
        return end

    async def find_head(self, start: Offset) -> Version | None:
        """List the log, and return its newest version; None if there is nothing new."""
        await self.check(start)
        listing = await self.guard.list_around(start.version)
        if (listing.head_version or 0) < start.version:
            await self.guard.check_gap(start.version)
            return None
        return Version(listing.head_version or 0)

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> DeltaCommit | None:
        """Return the plan of a commit.

        Raises:
            MissingVersionError: A planned commit no longer exists.
            TableError: It cannot be read correctly.
        """
        plan = await self._window.plan(at.version)
        if plan is None:
            if end is None:
                return None
            _, plan = await self._commits.expect(at.version)
        return DeltaCommit(
            version=plan.version,
            timestamp_us=plan.timestamp_us,
            kind=plan.kind,
            table_id=plan.table_id,
            following=self.next_version(plan.version),
            max_files=plan.max_tasks,
            is_whole=plan.is_whole,
            operation=plan.operation,
            applications=plan.applications,
            user_metadata=plan.user_metadata,
            files_added=plan.added.files,
            bytes_added=plan.added.size_bytes,
            files_removed=plan.removed.files,
            bytes_removed=plan.removed.size_bytes,
            zone=self._zone,
            commits=self._commits,
            plan=plan,
        )

    async def snapshot(self, at: Offset, state: str, end: Offset | None = None) -> DeltaSnapshot:
        """Return the plan of a snapshot."""
        files = await self._find_snapshot(at)
        return DeltaSnapshot(
            version=at.version,
            timestamp_us=files.timestamp_ms * 1000,
            kind=ChangeSourceKind.SNAPSHOT,
            table_id=at.table_id,
            following=self.next_version(at.version),
            is_whole=False,
            is_alone=True,
            zone=self._zone,
            files=files,
            paths=self._paths,
        )

    async def _find_snapshot(self, at: Offset, *, is_new: bool = False) -> SnapshotFiles:
        """Return the files of a snapshot; reuses its spool unless `is_new`."""
        version = at.version
        if is_new or self._snapshot is None or self._snapshot.version != version:
            files: SnapshotFiles | None = None
            if self._spool is not None and not is_new:
                files = await self._spool.find(at.table_id, version)
            if files is None:
                files = await self._logged_files(version)
                if self._spool is not None:
                    files = await self._spool.write(at.table_id, files)
            self._snapshot = files
        return self._snapshot

    async def _logged_files(self, version: int) -> LoggedFiles:
        snapshot = await self._reader.open(version)
        if snapshot.state.metadata.id not in self._table_ids:
            await self.guard.require_same_table()
        time = await self._version_time_ms(version, snapshot.state)
        return LoggedFiles(self._reader, snapshot, time)

    async def _version_time_ms(self, version: int, state: TableState) -> int:
        listing = await self.guard.list_around(version)
        if version in listing.commits:
            found = await self._window.commit(version)
            if found is not None:
                return await self._window.time_ms(found, state)
        # Only the checkpoint of this version is left; its file time is the best estimate.
        checkpoints = listing.checkpoints.get(version)
        return checkpoints[0][0].mtime_ms if checkpoints else 0

    async def check_difference(self, start: Offset, end: Offset) -> None:
        """Make sure that [start, end), both at the start of a commit, has a difference.

        Raises:
            TableError: One of the two versions can no longer be read, or they have none.
        """
        await self._differences.check(start, end)

    async def difference(self, start: Offset, end: Offset) -> DeltaDifference:
        """Return the plan of a net change, which is read from the log with its tasks."""
        version = self.version_before(end.version)
        return DeltaDifference(
            version=version,
            timestamp_us=0,
            kind=ChangeSourceKind.NET,
            table_id=start.table_id,
            following=end.version,
            zone=self._zone,
            differences=self._differences,
            start=start,
            end=end,
            find_time_ms=functools.partial(self._version_time_ms, version),
        )

    async def has_live_file(self, url: str) -> bool:
        """Return whether the newest version has a data or deletion-vector file.

        Raises:
            TableError: The newest version cannot be read.
        """
        snapshot = await self._reader.open()
        async for files in read_live_files(self._reader, snapshot):
            for file in files:
                if self._paths.resolve(file.path) == url:
                    return True
                vector = file.deletion_vector
                if vector is not None and self._paths.vector(vector).url == url:
                    return True
        return False

    # ------------------------------------------------------------------ the rest

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the head is from `start`: one listing, unless the head is fresh."""
        head = await self.guard.known_head()
        if head is not None and start.phase is Phase.FOLLOW and head >= start.version - 1:
            found = await self._window.commit(start.version) if head >= start.version else None
            return self._backlog(start, head, self._window.newest, found.file if found else None)
        listing = await self.guard.list_around(start.version)
        head = max(listing.head_version or 0, start.version - 1)
        pending = [version for version in listing.commits if version >= start.version]
        oldest_file = listing.commits[min(pending)] if pending else None
        return self._backlog(start, head, listing.commits.get(head), oldest_file)

    def _backlog(
        self, start: Offset, head: int, newest: LogFile | None, oldest: LogFile | None
    ) -> Backlog:
        state = self._window.timeline.newest or self._head_state
        return Backlog(
            head_version=Version(head),
            versions=max(0, head - start.version + 1),
            head_timestamp_ms=newest.mtime_ms if newest else 0,
            oldest_undelivered_timestamp_ms=None if oldest is None else oldest.mtime_ms,
            retention_seconds=retention_seconds(state.metadata.configuration),
        )

    async def forget(self, end: Offset) -> None:
        """Drop everything before `end` from caches, and the file list of a delivered snapshot."""
        self._window.forget_before(end.version)
        self._commits.forget_before(end.version)
        if end.phase is Phase.FOLLOW:
            self._snapshot = None
            if self._spool is not None:
                await self._spool.remove()

    async def schema(self, version: Version | None, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of a version, as far as the log still has it.

        Args:
            version: None for the newest that was read.

        Raises:
            TableError: The log no longer has it, or not yet.
        """
        schema = (await self._state(version)).schema
        return find_rows_schema(schema) if columns is None else rows_schema(schema, tuple(columns))

    async def column_names(self, version: Version | None) -> Sequence[str]:
        """Return the names of a version's columns, also of those with unsupported types."""
        schema = (await self._state(version)).schema
        return [field.name for field in parse_schema(schema.text).fields]

    async def _state(self, version: Version | None) -> TableState:
        timeline = self._window.timeline
        if version is None:
            is_older = timeline.end <= self._head_version
            return self._head_state if is_older else timeline.at(timeline.end)
        if timeline.knows(version):
            return timeline.at(version)
        return (await self._reader.open(version, with_files=False)).state

    async def widened_floats(self) -> frozenset[str]:
        """Return the columns in which floats became doubles, as of the newest version."""
        return widened_floats(parse_schema(self._head_state.schema.text))


async def open_source(
    location: TableLocation,
    request: OpenRequest,
    *,
    spool: Spool | None = None,
    zone: PartitionZone | None = None,
) -> VersionedSource:
    """Open a table for its changes; arguments as for `open_delta_log`."""
    return open_log(
        await open_delta_log(location, request, spool=spool, zone=zone), _READER, request
    )


async def open_delta_log(
    location: TableLocation,
    request: OpenRequest,
    *,
    spool: Spool | None = None,
    zone: PartitionZone | None = None,
) -> DeltaLog:
    """Open a table at its newest version.

    Args:
        request: Which changes to read.
        spool: Keeps the file list of a snapshot across restarts; see `OpenRequest.scratch`.
        zone: Of partition timestamps without one; without it they are UTC.

    Raises:
        NotATableError, TableError: The table cannot be read.
    """
    reader = LogReader(
        location.store,
        location.root,
        on_mismatch=request.on_warning,
        memory_bytes=request.memory_bytes,
    )
    head, segment = await reader.open_listed(with_files=False)
    head.state.check_rows()
    log = DeltaLog(
        location,
        reader,
        head.state,
        head.version,
        request,
        spool=spool,
        zone=zone or PartitionZone(location.name),
    )
    log.begin(head.version, head.state, segment)
    return log
