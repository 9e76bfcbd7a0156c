"""A Delta table as a change source.

Protocol: PROTOCOL.md#change-data-files, #reader-requirements-for-addcdcfile
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeMode, TaskGroup
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import ConsecutiveVersions, Offset, Phase, Version
from tailerd.changefeed.points import StartWord, parse_point, parse_start, to_ms
from tailerd.clock import SystemClock
from tailerd.errors import (
    RESET_PIPELINE,
    MissingVersionError,
    TableRecreatedError,
)
from tailerd.formats.base import Backlog, OpenRequest, SchemaStep, TableIdentity
from tailerd.formats.delta.changes.commit_cache import CommitCache
from tailerd.formats.delta.changes.commit_tasks import CommitTasks, TableSchemaStep
from tailerd.formats.delta.changes.feed_check import FeedCheck
from tailerd.formats.delta.changes.linked_files import LinkedFiles
from tailerd.formats.delta.changes.log_continuity import LogContinuityCheck
from tailerd.formats.delta.changes.net_changes import NetChanges
from tailerd.formats.delta.changes.net_plan import NetPlanFile
from tailerd.formats.delta.changes.partition_zone import PartitionZone
from tailerd.formats.delta.changes.read import rows_schema
from tailerd.formats.delta.changes.snapshot_files import (
    LoggedFiles,
    SnapshotFiles,
    retry_if_log_cleaned_up,
)
from tailerd.formats.delta.changes.snapshot_spool import Spool
from tailerd.formats.delta.changes.snapshot_tasks import SnapshotTasks
from tailerd.formats.delta.changes.task_reader import DeltaTaskReader
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import GAP_PATIENCE_SECONDS, LogReader
from tailerd.formats.delta.log.time_travel import TimeAxis, first_from
from tailerd.formats.delta.protocol.data_file import VERSIONS, schema_id
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind
from tailerd.formats.delta.protocol.log_segment import LogSegment
from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.formats.delta.protocol.table_properties import retention_seconds
from tailerd.formats.delta.protocol.type_widening import widened_floats
from tailerd.formats.net_steps import NetStepPlan
from tailerd.formats.placement import allowed_places
from tailerd.formats.source import ReadsTasks, ahead_bytes

_READER = DeltaTaskReader()
_rows_schema = functools.lru_cache(maxsize=256)(rows_schema)
"""Steps with the same schema share one object, so that comparison by identity succeeds."""


class DeltaChangeSource(ReadsTasks, ConsecutiveVersions):
    """Changes of one Delta table; see `formats.base.ChangeSource`.

    Created by `open`.
    """

    def __init__(
        self,
        name: str,
        reader: LogReader,
        state: TableState,
        head_version: int,
        request: OpenRequest,
        *,
        spool: Spool | None = None,
        partition_zone: PartitionZone | None = None,
    ) -> None:
        super().__init__(name, _READER, request)
        self._reader = reader
        self._head_state = state
        self._head_version = head_version
        places = allowed_places(request.allowed_paths)
        self._paths = DataPaths(reader.url, places)
        self._links = LinkedFiles(reader.url, places)
        is_net = request.changes is ChangeMode.NET
        self._window = CommitCache(
            reader,
            ChangeMode.AUTO if is_net else request.changes,
            feed_check=FeedCheck(reader, self._paths, request.stores),
        )
        self._commits = CommitTasks(self._window, self._paths, request.identity)
        plan_file = NetPlanFile(spool, self._paths)
        self._differences = NetChanges(reader, self._paths, request.identity, plan_file)
        self._net = NetStepPlan(
            VERSIONS, self._differences.check, always=is_net, above=request.net_above
        )
        self._snapshot: SnapshotTasks | None = None
        self._spool = spool
        self._partition_zone = partition_zone or PartitionZone(name)
        self._table_ids = {state.metadata.id}
        self._guard = LogContinuityCheck(
            name, self._table_ids, self._window, request.clock or SystemClock(), head_version
        )
        self._identity: tuple[int, TableIdentity] | None = None

    @classmethod
    async def open(
        cls,
        table: str,
        request: OpenRequest | None = None,
        *,
        spool: Spool | None = None,
        partition_zone: PartitionZone | None = None,
    ) -> DeltaChangeSource:
        """Open a table at its newest version.

        Args:
            table: A path or URL.
            request: Which changes to read; by default all in the log.
            spool: Keeps the file list of a snapshot across restarts; see `OpenRequest.scratch`.
            partition_zone: Of partition timestamps without a zone; without it they are UTC.

        Raises:
            NotATableError, TableError: The table cannot be read.
            ConfigError: No store serves this place.
        """
        request = request or OpenRequest()
        store, root = request.stores.locate_table(table, allowed_places(request.allowed_paths))
        store = request.wrap_store(store) if request.wrap_store else store
        reader = LogReader(
            store, root, on_mismatch=request.on_warning, memory_bytes=request.memory_bytes
        )
        head, segment = await reader.open_listed(with_files=False)
        head.state.check_rows()
        source = cls(
            table,
            reader,
            head.state,
            head.version,
            request,
            spool=spool,
            partition_zone=partition_zone,
        )
        source._begin(head.version, head.state, segment)
        return source

    def _begin(self, version: int, state: TableState, segment: LogSegment) -> None:
        self._window.timeline.restart(version, state)
        for file in segment.ascending_commits[-1:]:
            if file.kind is LogFileKind.COMMIT:
                self._window.note_newest(file)

    @property
    def url(self) -> str:
        """The table's place, absolute."""
        return self._reader.url

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        return self._head_state.metadata.id

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's id and a hash of the schema in `version`, as far as they are known."""
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

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        """Return the start of a version's commit, or of its snapshot, in this log."""
        offset = Offset(table_id=self.table_id, version=version, phase=phase)
        identity = await self.identity(offset.last_version(VERSIONS))
        return replace(offset, table_id=identity.table_id)

    async def initial_offset(self, start: str) -> Offset:
        """Return where to begin: `snapshot`, `latest`, a version, or a time.

        Raises:
            MissingVersionError: The version is not in the log, or more than one ahead of it.
            LogCleanedUpError: The head's snapshot was removed while it was listed: open the table
                again.
            UsageError: The text is none of these, or the time is in the future.
        """
        match parse_start(start):
            case StartWord.SNAPSHOT:
                if self._spool is not None:
                    # Before the offset can be saved: a saved snapshot offset requires the list.
                    with retry_if_log_cleaned_up():
                        head = await self.offset_at(Version(self._head_version), Phase.SNAPSHOT)
                        await self._snapshot_tasks(head, is_new=True)
                return await self.offset_at(Version(self._head_version), Phase.SNAPSHOT)
            case StartWord.LATEST:
                return await self.offset_at(Version(self._head_version + 1))
            case int(version):
                return await self._at_version(version)
            case time:
                return await self.offset_at(Version(await first_from(self._reader, time)))

    async def _at_version(self, version: int) -> Offset:
        listing = await self._guard.look_around(version)
        if version not in listing.commits and (listing.earliest_commit or 0) < version < (
            listing.head_version or 0
        ):
            # Nothing was cleaned up here: the store may list the version late.
            await asyncio.sleep(GAP_PATIENCE_SECONDS)
            listing = await self._guard.look_around(version)
        head = max(self._head_version, listing.head_version or 0)
        if version > head + 1:
            raise MissingVersionError(
                f"Version {version} is ahead of the table: the newest is {head}.",
                remedy=f"Start at {head + 1} at most, to wait for the next commit.",
            )
        if version <= head and version not in listing.commits:
            earliest = (await self._reader.list_log()).earliest_commit
            raise MissingVersionError(
                f"The commit of version {version} is no longer in the log (the oldest is"
                f" {earliest}), because metadata cleanup removed it.",
                remedy="Use --from snapshot, or a later version.",
            )
        return await self.offset_at(Version(version))

    async def end_version(self, end: str) -> Version:
        """Return the last version to read up to `end`: a version, or the last at or before a time.

        Raises:
            UsageError, MissingVersionError: There is no such version.
        """
        match parse_point(end):
            case int(version):
                return Version(version)
            case time:
                axis = await TimeAxis.of(self._reader)
                return Version(await axis.last_until(to_ms(time)))

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` if nothing is new.

        Raises:
            TableRecreatedError: `start` belongs to another table, or the table was dropped.
            MissingVersionError: The next version is missing and later ones exist.
            TableError: The next commit cannot be read correctly.
        """
        await self._check_identity(start)
        if start.phase is Phase.SNAPSHOT:
            return (await self._snapshot_tasks(start)).furthest(start, limit)
        if (begun := self._net.begun(start)) is not None:
            return replace(start, version=VERSIONS.next_version(begun), mark="")
        if self._net.is_net(start):
            return await self._head_offset(start)
        end = await self._guard.reach(
            start, functools.partial(self._commits.furthest, start, limit)
        )
        if end != start:
            self._table_ids |= self._window.timeline.table_ids
            if self._window.newest is not None:
                head = Version(self._window.newest.version)
                if await self._net.is_far(start, head):
                    return replace(start, version=VERSIONS.next_version(head))
        return end

    def pinned(self, start: Offset, end: Offset) -> Offset:
        """Return `start` with the mark of the step to `end`, if that is one difference."""
        return self._net.pinned(start, end)

    def is_net(self, start: Offset) -> bool:
        """Return whether the step that begins at `start`, as pinned, is one difference."""
        return self._net.is_net(start)

    async def over_gap(self, start: Offset) -> Offset:
        """Return `start` with the mark of one difference to the newest version.

        Raises:
            TableRecreatedError: `start` belongs to another table.
            TableError: One of the two versions can no longer be read, or they have no difference.
        """
        await self._check_identity(start)
        return await self._net.over_gap(start, Version(self._head_version))

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

    async def _head_offset(self, start: Offset) -> Offset:
        """Return the offset after the head; `start` if there is nothing new."""
        listing = await self._guard.look_around(start.version)
        if (listing.head_version or 0) < start.version:
            await self._guard.check_gap(start.version)
            return start
        return replace(start, version=Version((listing.head_version or 0) + 1))

    def hear(self, version: int | None) -> None:
        """Note an event; if the version it names is not found, the log is listed."""
        self._guard.note_version(version)

    async def _check_identity(self, offset: Offset) -> None:
        """Make sure that an offset is of this log; record its id as known."""
        if offset.table_id in self._table_ids:
            return
        identity = await self.identity(offset.last_version(VERSIONS))
        if offset.table_id != identity.table_id:
            raise TableRecreatedError(
                f"The offset belongs to table {offset.table_id}, and the log of {self._name} now"
                f" has table {identity.table_id} there: it was dropped and created again.",
                remedy=RESET_PIPELINE,
            )
        self._table_ids.add(offset.table_id)

    async def _snapshot_tasks(self, at: Offset, *, is_new: bool = False) -> SnapshotTasks:
        """Return the plan of a snapshot; reuses its spool unless `is_new`."""
        version = at.version
        if is_new or self._snapshot is None or self._snapshot.version != version:
            files: SnapshotFiles | None = None
            if self._spool is not None and not is_new:
                files = await self._spool.find(at.table_id, version)
            if files is None:
                files = await self._logged_files(version)
                if self._spool is not None:
                    files = await self._spool.write(at.table_id, files)
            self._snapshot = SnapshotTasks(files, self._paths)
        return self._snapshot

    async def _logged_files(self, version: int) -> LoggedFiles:
        snapshot = await self._reader.open(version)
        if snapshot.state.metadata.id not in self._table_ids:
            await self._guard.require_same_table()
        time = await self._version_time_ms(version, snapshot.state)
        return LoggedFiles(self._reader, snapshot, time)

    async def _version_time_ms(self, version: int, state: TableState) -> int:
        listing = await self._guard.look_around(version)
        if version in listing.commits:
            found = await self._window.commit(version)
            if found is not None:
                return await self._window.time_ms(found, state)
        # Only the checkpoint of this version is left; its file time is the best estimate.
        checkpoints = listing.checkpoints.get(version)
        return checkpoints[0][0].mtime_ms if checkpoints else 0

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end) in order.

        Raises:
            TableError: A commit cannot be read correctly.
        """
        await self._check_identity(start)
        if start.phase is Phase.SNAPSHOT:
            boundary = end if end.version == start.version else start.after_version(VERSIONS)
            tasks = await self._snapshot_tasks(start)
            group = await self._links.checked(await tasks.group(start, boundary))
            yield self._partition_zone.applied(group)
            start = boundary
        if self._net.is_net(start) and start.is_before(end):
            version = VERSIONS.version_before(end.version)
            time_ms = functools.partial(self._version_time_ms, version)
            group = await self._differences.group(start, end, time_ms)
            yield self._partition_zone.applied(await self._links.checked(group))
        elif start.phase is Phase.FOLLOW:
            async for group in self._commits.groups(start, end):
                yield self._partition_zone.applied(await self._links.checked(group))

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        """Yield where in [start, end) rows of another schema begin, the first rows included."""
        if start.phase is Phase.SNAPSHOT and start.is_before(end):
            schema = (await self._snapshot_tasks(start)).schema
            yield self._step(TableSchemaStep(offset=start, version=start.version, schema=schema))
            start = start.after_version(VERSIONS)
        if self._net.is_net(start):
            if start.is_before(end):
                version = VERSIONS.version_before(end.version)
                schema = await self._differences.schema(start, end)
                yield self._step(TableSchemaStep(offset=start, version=version, schema=schema))
            return
        async for step in self._commits.schema_steps(start, end):
            yield self._step(step)

    def _step(self, step: TableSchemaStep) -> SchemaStep:
        schema = _rows_schema(step.schema, None)
        return SchemaStep(offset=step.offset, version=step.version, schema=schema)

    @property
    def run_bytes(self) -> int:
        """Bytes of small files that one `read_run` should cover."""
        # The reader's own store may be wrapped.
        return ahead_bytes(self._stores.locate(self.url)[0])

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the head is from `start`: one listing, unless the head is fresh."""
        head = await self._guard.known_head()
        if head is not None and start.phase is Phase.FOLLOW and head >= start.version - 1:
            found = await self._window.commit(start.version) if head >= start.version else None
            return self._backlog(start, head, self._window.newest, found.file if found else None)
        listing = await self._guard.look_around(start.version)
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

    async def commit(self, end: Offset) -> None:
        """Note that everything before `end` is delivered, and drop it from caches."""
        self._window.forget_before(end.version)
        self._commits.forget_before(end.version)
        if end.phase is Phase.FOLLOW:
            self._snapshot = None
            if self._spool is not None:
                await self._spool.remove()

    async def arrow_schema(self) -> pa.Schema:
        """Return the newest version's columns, as seen when the table was opened."""
        return rows_schema(self._head_state.schema, self._columns)

    async def schema_at(self, version: Version, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns of a version, as far as the log still has it.

        Raises:
            TableError: The log no longer has it, or not yet.
        """
        snapshot = await self._reader.open(version, with_files=False)
        return rows_schema(snapshot.state.schema, None if columns is None else tuple(columns))

    async def widened_floats(self) -> frozenset[str]:
        """Return the columns in which floats became doubles, as of that version."""
        return widened_floats(parse_schema(self._head_state.schema.text))
