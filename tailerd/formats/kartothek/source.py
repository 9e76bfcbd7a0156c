"""A dataset's table as a change source: its versions are the observed states."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeTask, TaskGroup
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import ConsecutiveVersions, Offset, Phase, Version
from tailerd.changefeed.points import StartWord, parse_point, parse_start, show_ms, to_ms
from tailerd.errors import (
    RESET_OR_ON_GAP,
    RESET_PIPELINE,
    MissingDataFileError,
    MissingVersionError,
    TableRecreatedError,
    UsageError,
)
from tailerd.formats.base import Backlog, OpenRequest, SchemaStep, TableIdentity
from tailerd.formats.kartothek.commit_plan import (
    Comparison,
    FileTask,
    commit_tasks,
    snapshot_tasks,
)
from tailerd.formats.kartothek.dataset import DatasetAddress
from tailerd.formats.kartothek.history import DatasetHistory
from tailerd.formats.kartothek.partition_files import (
    FORMAT,
    DatasetFile,
    PartitionFile,
    RewrittenPartitions,
)
from tailerd.formats.kartothek.reader import KartothekTaskReader, collected
from tailerd.formats.kartothek.state import ObservedState, origin_of
from tailerd.formats.kartothek.table_schema import folder_of
from tailerd.formats.plain_schema import checked, decode_schema
from tailerd.formats.source import ReadsTasks, ahead_bytes
from tailerd.storage.links import RealPlaces

_PLANS_IN_MEMORY = 4
_BEGUN = "/"
"""In a mark, separates the `Comparison` of a partly delivered commit."""
_SIZES_AT_ONCE = 256


class KartothekSource(ReadsTasks, ConsecutiveVersions):
    """Changes of one table of a dataset; see `formats.base.ChangeSource`.

    Args:
        name: The table's place, as the user gave it.
        history: Of the dataset, open.
        request: Which changes are requested, and of which columns.
        places: Real paths that its files may resolve to; None in a bucket.
    """

    def __init__(
        self,
        name: str,
        address: DatasetAddress,
        history: DatasetHistory,
        reader: KartothekTaskReader,
        request: OpenRequest,
        *,
        places: RealPlaces | None,
    ) -> None:
        super().__init__(name, reader, request)
        self._address = address
        self._history = history
        self._places = places
        self._identity = tuple(request.identity)
        self._comparison = Comparison.NONE
        if request.changes is ChangeMode.AUTO:
            self._comparison = Comparison.ALL if self._identity else Comparison.PARTITIONS
        self._table_id = history.newest.table_id
        self._plans: dict[tuple[int, Phase, Comparison], list[FileTask]] = {}
        self._store = request.stores.locate(name)[0]

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        return self._table_id

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's id and a hash of its schema in `version`, as far as it is known."""
        state = await self._history.state(version)
        if state is None:
            return TableIdentity(table_id=self._history.newest.table_id)
        return TableIdentity(table_id=state.table_id, schema_id=state.schema_id)

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        """Return the start of a version's commit, or of its snapshot."""
        return await self._named(Offset(table_id="", version=version, phase=phase))

    async def initial_offset(self, start: str) -> Offset:
        """Return where to begin: `snapshot`, `latest`, a version, or a time.

        Raises:
            MissingVersionError: The version is not in the ledger, or more than one ahead.
            UsageError: The text is none of these, or the time is in the future.
        """
        point = parse_start(start)
        await self._history.look()
        newest = await self._history.keep()
        match point:
            case StartWord.SNAPSHOT:
                return await self.offset_at(Version(newest.number), Phase.SNAPSHOT)
            case StartWord.LATEST:
                return await self.offset_at(Version(newest.number + 1))
            case int(number):
                return await self._at_version(Version(number))
            case time:
                return await self._at_time(time)

    async def _at_version(self, version: Version) -> Offset:
        newest = self._history.newest.number
        if version > newest + 1:
            raise MissingVersionError(
                f"Version {version} is ahead of {self._name}: the newest is {newest}.",
                remedy=f"Start at {newest + 1} at most, to wait for the next commit.",
            )
        if version <= newest:
            self._require_followed(version)
        return await self.offset_at(version)

    def _require_followed(self, version: int) -> None:
        """Make sure that the changes of a version are known: the state before it must exist."""
        if not self._history.is_durable:
            raise MissingVersionError(
                f"The changes of version {version} of {self._name} are not known: a Kartothek"
                " dataset has no history, and there is no ledger.",
                remedy="Use --from snapshot or --from latest; a daemon keeps a ledger in its state,"
                " a Spark program in the folder that the option `ledger` names.",
            )
        if version < self._oldest_followed:
            raise self._gap(version)

    @property
    def _oldest_followed(self) -> int:
        first = self._history.first_number
        # State 0 needs no state before it.
        return first if first == 0 else first + 1

    def _gap(self, version: int) -> MissingVersionError:
        return MissingVersionError(
            f"The changes of version {version} of {self._name} are no longer in the ledger, whose"
            f" oldest state is {self._history.first_number}: a dataset has no history except what"
            " was observed and kept.",
            remedy=RESET_OR_ON_GAP,
        )

    async def _at_time(self, time: datetime.datetime) -> Offset:
        wanted, newest = to_ms(time, round_up=True), self._history.newest
        later = [each for each in newest.commits if each.timestamp_ms >= wanted]
        if not later:
            raise UsageError(
                f"There is no commit at or after {time.isoformat()}: the newest, version"
                f" {newest.number}, is of {show_ms(newest.timestamp_ms)}.",
                remedy="Use --from latest to wait for the next one.",
            )
        self._require_followed(later[-1].number)
        followed = (each.number for each in later if each.number >= self._oldest_followed)
        return await self.offset_at(Version(next(followed)))

    async def end_version(self, end: str) -> Version:
        """Return the last version to read up to `end`: a version, or the last at or before a time.

        Raises:
            UsageError, MissingVersionError: There is no such version.
        """
        match parse_point(end):
            case int(version):
                return Version(version)
            case time:
                until = to_ms(time)
        commits = self._history.newest.commits
        before = [each.number for each in commits if each.timestamp_ms <= until]
        if not before:
            raise MissingVersionError(
                f"No state of {self._name} was observed at or before {time.isoformat()}.",
                remedy="Give a later time, or a version.",
            )
        return Version(before[-1])

    def hear(self, version: int | None) -> None:
        """Do nothing: each poll requests the metadata file, whose name has no version."""

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` if nothing is new.

        Afterwards every state up to that offset is in the ledger.

        Raises:
            TableRecreatedError: `start` is of another dataset or ledger, or this one was dropped.
            MissingVersionError: The ledger lacks a state, or a file was deleted as garbage.
            TableError: The dataset is not supported.
        """
        await self._history.look()
        await self._history.keep()
        await self._check_known(start)
        at, files, size = start, limit.max_files, limit.max_bytes
        while at.version <= self._history.newest.number:
            tasks = (await self._tasks(at))[at.position :]
            taken, files, size = await self._fitting(tasks, files, size, is_first=at == start)
            if taken < len(tasks):
                return await self._named(at.at(at.position + taken))
            at = at.after_version(self)
        return start if at == start else await self._named(at)

    async def _named(self, offset: Offset) -> Offset:
        """Return an offset with the table's identity at it, and a mark of the state before it."""
        before = await self._history.state(offset.last_version(self))
        known = self._history.newest if before is None else before
        mark = "" if before is None else before.mark
        if offset.position and offset.phase is Phase.FOLLOW:
            mark = f"{mark}{_BEGUN}{self._comparison_at(offset)}"
        return replace(offset, table_id=known.table_id, mark=mark)

    async def _fitting(
        self, tasks: Sequence[FileTask], files: int, size: int, *, is_first: bool
    ) -> tuple[int, int, int]:
        """Return how many tasks fit the limits, and what is left of the limits."""
        for number, task in enumerate(tasks):
            is_needed = is_first and number == 0
            if files <= 0 and not is_needed:
                return number, files, size
            if number % _SIZES_AT_ONCE == 0:
                await self._ask_sizes(tasks[number : number + min(_SIZES_AT_ONCE, max(files, 1))])
            needed = sum((await self._sizes(task)).values())
            if needed > size and not is_needed:
                return number, files, size
            files, size = files - len(task.keys), size - needed
        return len(tasks), files, size

    async def _check_known(self, offset: Offset) -> None:
        """Make sure that an offset is of this ledger."""
        newest = self._history.newest
        if origin_of(offset.table_id) != newest.origin:
            raise TableRecreatedError(
                f"The offset belongs to {offset.table_id}, and what was observed of {self._name}"
                f" is {newest.table_id}: the dataset was dropped and created again, or another"
                " ledger is used.",
                remedy=RESET_PIPELINE,
            )
        before = await self._history.state(offset.last_version(self))
        mark = offset.mark.partition(_BEGUN)[0]
        is_other = before is not None and mark and before.mark != mark
        if is_other or offset.version > newest.number + 1:
            raise MissingVersionError(
                f"The offset of {self._name} is at version {offset.version}, after a state that the"
                f" ledger does not have, whose newest is {newest.number}: it was restored from an"
                " older copy.",
                remedy=RESET_OR_ON_GAP,
            )

    async def _tasks(self, at: Offset) -> list[FileTask]:
        """Return all tasks of a version's commit, or of its snapshot."""
        key = (int(at.version), at.phase, self._comparison_at(at))
        if key not in self._plans:
            found = await self._planned(at)
            while len(self._plans) >= _PLANS_IN_MEMORY:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = found
        return self._plans[key]

    async def _planned(self, at: Offset) -> list[FileTask]:
        after = await self._state(at.version)
        if at.phase is Phase.SNAPSHOT:
            return snapshot_tasks(after)
        before = await self._history.state(at.version - 1)
        if before is None and at.version > 0:
            raise self._gap(at.version)
        return commit_tasks(before, after, self._comparison_at(at))

    def _comparison_at(self, at: Offset) -> Comparison:
        """Return the comparison; a partly delivered commit keeps the one it began with."""
        _, separator, begun = at.mark.partition(_BEGUN)
        is_inside = separator and at.position and at.phase is Phase.FOLLOW
        return Comparison(begun) if is_inside else self._comparison

    async def _state(self, version: int) -> ObservedState:
        state = await self._history.state(version)
        if state is None:
            raise self._gap(version)
        return state

    async def _ask_sizes(self, tasks: Sequence[FileTask]) -> None:
        """Request the sizes of many files concurrently into the cache."""
        await self._history.sizes.known([key for task in tasks for key in task.keys])

    async def _sizes(self, task: FileTask) -> dict[str, int]:
        """Return the sizes of a task's files.

        Raises:
            FilesCollectedError: One was deleted as garbage.
            MissingDataFileError: One that the current metadata references is missing.
        """
        keys = task.keys
        sizes = await self._history.sizes.known(keys)
        gone = next((key for key in keys if key not in sizes), None)
        if gone is None:
            return sizes
        url = self._url(gone)
        if gone in self._history.newest.keys:
            raise MissingDataFileError(
                f"The data file {url} does not exist, although the dataset's metadata names it.",
                remedy="It was not deleted by garbage collection: restore it.",
            )
        raise collected(url)

    def _url(self, key: str) -> str:
        return self._store.url_of(self._address.path(key))

    def _place(self, key: str) -> str:
        """Return where a file's rows are read: its link, if it has one."""
        spool = self._history.spool
        is_linked = spool is not None and spool.size_bytes(key) is not None
        return str(spool.path(key)) if spool is not None and is_linked else self._url(key)

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end) in order.

        Raises:
            TableError: A version cannot be read.
        """
        await self._check_known(start)
        at = start
        while at.is_before(end):
            is_last = (at.version, at.phase) == (end.version, end.phase)
            reached = end if is_last else await self._named(at.after_version(self))
            yield await self._group(at, reached, end.position if is_last else None)
            at = reached

    async def _group(self, at: Offset, reached: Offset, until: int | None) -> TaskGroup:
        wanted = (await self._tasks(at))[at.position : until]
        await self._check_places(wanted)
        await self._ask_sizes(wanted)
        state = await self._state(at.version)
        commit = next((each for each in state.commits if each.number == at.version), None)
        is_commit = commit is not None and at.phase is Phase.FOLLOW
        return TaskGroup(
            start=at,
            end=reached,
            version=at.version,
            timestamp_us=state.timestamp_ms * 1000,
            change_source=_kind(at, wanted),
            tasks=tuple(
                [
                    await self._change_task(at, at.position + number, state, task)
                    for number, task in enumerate(wanted)
                ]
            ),
            operation=commit.operation if commit is not None and is_commit else "",
            files_added=commit.files_added if commit is not None and is_commit else 0,
            bytes_added=max(commit.bytes_added, 0) if commit is not None and is_commit else 0,
            files_removed=commit.files_removed if commit is not None and is_commit else 0,
            bytes_removed=max(commit.bytes_removed, 0) if commit is not None and is_commit else 0,
        )

    async def _change_task(
        self, at: Offset, position: int, state: ObservedState, task: FileTask
    ) -> ChangeTask:
        sizes = await self._sizes(task)
        return ChangeTask(
            version=at.version,
            timestamp_us=state.timestamp_ms * 1000,
            position=position,
            change_source=_kind(at, [task]),
            change_type=task.change,
            size_bytes=sum(sizes.values()),
            format=FORMAT,
            payload=self._payload(task),
            table_id=state.table_id,
        )

    def _payload(self, task: FileTask) -> PartitionFile | RewrittenPartitions:
        removed, added = (
            tuple(DatasetFile(self._place(key), folder_of(key)) for key in keys)
            for keys in (task.removed, task.added)
        )
        if task.change is not None:
            return PartitionFile(file=[*removed, *added][0], schema=task.schema)
        return RewrittenPartitions(
            removed=removed,
            added=added,
            schema=task.schema,
            groups=task.groups,
            key=self._identity,
        )

    async def _check_places(self, tasks: Iterable[FileTask]) -> None:
        """Make sure that no file is outside the store through a symbolic link."""
        if self._places is not None:
            paths = [self._address.path(key) for task in tasks for key in task.keys]
            await asyncio.to_thread(self._places.check, paths)

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        """Yield where in [start, end) rows of another schema begin, the first rows included."""
        at, last = start, b""
        while at.is_before(end):
            if await self._history.state(at.version) is None:
                return
            is_last = (at.version, at.phase) == (end.version, end.phase)
            tasks = await self._tasks(at)
            until = end.position if is_last else len(tasks)
            for position in range(at.position, until):
                schema = tasks[position].schema
                if schema != last:
                    last = schema
                    yield SchemaStep(
                        offset=at.at(position), version=at.version, schema=decode_schema(schema)
                    )
            at = end if is_last else await self._named(at.after_version(self))

    @property
    def run_bytes(self) -> int:
        """Bytes of small files that one `read_run` should cover."""
        return ahead_bytes(self._store)

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the newest state is from `start`, with one poll of the metadata file."""
        await self._history.look()
        newest = self._history.newest
        pending = [each for each in newest.commits if each.number >= start.version]
        return Backlog(
            head_version=Version(newest.number),
            versions=max(0, newest.number - start.version + 1),
            head_timestamp_ms=newest.timestamp_ms,
            oldest_undelivered_timestamp_ms=pending[0].timestamp_ms if pending else None,
        )

    async def commit(self, end: Offset) -> None:
        """Delete states that no delivery from `end` on needs."""
        needed = end.version if end.phase is Phase.SNAPSHOT else end.version - 1
        for key in [each for each in self._plans if each[0] < end.version]:
            del self._plans[key]
        await self._history.forget_before(needed)

    async def arrow_schema(self) -> pa.Schema:
        """Return the newest state's columns."""
        return checked(decode_schema(self._history.newest.schema), self._columns)

    async def schema_at(self, version: Version, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns of a version, as far as the ledger has it.

        Raises:
            MissingVersionError: The ledger no longer has it, or not yet.
            UsageError: There is no such column.
        """
        state = await self._history.state(version)
        if state is None:
            raise self._gap(version)
        return checked(decode_schema(state.schema), columns)


def _kind(at: Offset, tasks: Sequence[FileTask]) -> ChangeSourceKind:
    if at.phase is Phase.SNAPSHOT:
        return ChangeSourceKind.SNAPSHOT
    if any(task.change is None for task in tasks):
        return ChangeSourceKind.ROWS
    return ChangeSourceKind.FILES if tasks else ChangeSourceKind.NONE
