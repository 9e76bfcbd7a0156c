"""A Lance table as a change source."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pyarrow as pa
import xxhash

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeTask, TaskGroup
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version, first_commit
from tailerd.changefeed.points import StartWord, parse_point, parse_start, show_ms
from tailerd.errors import (
    RESET_OR_ON_GAP,
    MissingVersionError,
    NotATableError,
    TableRecreatedError,
    UsageError,
)
from tailerd.formats.base import Backlog, OpenRequest, SchemaStep, TableIdentity
from tailerd.formats.lance.origin import TableOrigin
from tailerd.formats.lance.payload import (
    FORMAT,
    ChangedColumns,
    ComparedFragments,
    Payload,
    schema_of,
)
from tailerd.formats.lance.planner import Comparison, LancePlanner, PlannedTask
from tailerd.formats.lance.protocol.columns import columns_schema
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.protocol.transactions import Operation
from tailerd.formats.lance.protocol.version_names import FIRST, LanceVersions
from tailerd.formats.lance.reader import LanceTaskReader
from tailerd.formats.lance.version_log import VersionLog, missing_version
from tailerd.formats.net_steps import NetStepPlan
from tailerd.formats.plain_schema import checked, encode_schema
from tailerd.formats.source import ReadsTasks
from tailerd.storage.links import RealPlaces

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PLANS_IN_MEMORY = 4
_BEGUN = "/"
"""In a mark, separates the `Comparison` of a partly delivered commit, or the kind of a step."""


class LanceSource(ReadsTasks, LanceVersions):
    """Changes of one table; see `formats.base.ChangeSource`.

    Args:
        name: The table's place, as the user gave it.
        log: Its versions, already polled once.
        origin: Its id.
        request: Which changes are requested, and of which columns.
        places: Real paths that its files may resolve to; None in a bucket.
    """

    def __init__(
        self,
        name: str,
        log: VersionLog,
        origin: TableOrigin,
        planner: LancePlanner,
        reader: LanceTaskReader,
        request: OpenRequest,
        *,
        comparison: Comparison,
        places: RealPlaces | None,
    ) -> None:
        super().__init__(name, reader, request)
        self._log = log
        self._origin = origin
        self._planner = planner
        self._net = NetStepPlan(
            self,
            self._check_difference,
            always=request.changes is ChangeMode.NET,
            above=request.net_above,
        )
        self._comparison = comparison
        self._places = places
        self._plans: dict[tuple[int, Phase, Comparison, int], list[PlannedTask]] = {}

    @property
    def table_id(self) -> str:
        """Identity of the table."""
        return self._origin.table_id

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's id, and a hash of its schema in `version` if that exists."""
        found = await self._log.find(version) if version >= FIRST else None
        schema = "" if found is None else xxhash.xxh3_64_hexdigest(b"".join(found.fields))
        return TableIdentity(table_id=self.table_id, schema_id=schema)

    # ------------------------------------------------------------------ points

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        """Return the start of a version's commit, or of its snapshot."""
        return await self._named(Offset(table_id="", version=version, phase=phase))

    async def _named(self, offset: Offset) -> Offset:
        """Return an offset with the table's id, and a mark of the version before it."""
        last = offset.last_version(self)
        before = await self._log.find(last) if last >= FIRST else None
        mark = "" if before is None else before.identity
        if offset.position and offset.phase is Phase.FOLLOW:
            mark = f"{mark}{_BEGUN}{self._comparison_at(offset)}"
        return replace(offset, table_id=self.table_id, mark=mark)

    async def initial_offset(self, start: str) -> Offset:
        """Return where to begin: `snapshot`, `latest`, a version, or a time.

        Raises:
            MissingVersionError: The version was cleaned up, or is more than one ahead.
            UsageError: The text is none of these, or the time is in the future.
        """
        point = parse_start(start)
        await self._log.look()
        head = self._log.head
        await self._origin.note(await self._log.manifest(head, lambda: "which was the newest"))
        match point:
            case StartWord.SNAPSHOT:
                return await self.offset_at(head, Phase.SNAPSHOT)
            case StartWord.LATEST:
                return await self.offset_at(self.next_version(head))
            case int(number):
                return await self._at_version(Version(number))
            case time:
                return await self._at_time(time)

    async def _at_version(self, version: Version) -> Offset:
        head = self._log.head
        if version > head + 1:
            raise MissingVersionError(
                f"Version {version} is ahead of {self._name}: the newest is {head}.",
                remedy=f"Start at {head + 1} at most, to wait for the next commit.",
            )
        if version < FIRST:
            raise MissingVersionError(
                f"There is no version {version} of {self._name}: they count from {FIRST}.",
                remedy="Use --from snapshot, or a later version.",
            )
        if version <= head:
            await self._sides(version)
        return await self.offset_at(version)

    async def _at_time(self, time: datetime.datetime) -> Offset:
        wanted = _micros(time)
        versions = list(self._log.versions)
        place = await self._first_place(versions, wanted)
        if place == len(versions):
            head = await self._log.manifest(versions[-1], lambda: "which was the newest")
            raise UsageError(
                f"There is no commit at or after {time.isoformat()}: the newest, version"
                f" {head.version}, is of {show_ms(head.timestamp_us // 1000)}.",
                remedy="Use --from latest to wait for the next one.",
            )
        version = versions[place]
        await self._sides(version)
        return await self.offset_at(version)

    async def _first_place(self, versions: Sequence[Version], time_us: int) -> int:
        """Return the place of the first version at or after a time; `len(versions)` if none."""
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            found = await self._log.find(versions[middle])
            if found is None or found.timestamp_us < time_us:
                low = middle + 1
            else:
                high = middle
        return low

    async def end_version(self, end: str) -> Version:
        """Return the last version to read up to `end`: a version, or the last at or before a time.

        Raises:
            UsageError, MissingVersionError: There is no such version.
        """
        match parse_point(end):
            case int(version):
                return Version(version)
            case time:
                after_us = _micros(time) + 1
        versions = list(self._log.versions)
        place = await self._first_place(versions, after_us)
        if place == 0:
            raise MissingVersionError(
                f"There is no version of {self._name} at or before {time.isoformat()}.",
                remedy="Give a later time, or a version.",
            )
        return versions[place - 1]

    def hear(self, version: int | None) -> None:
        """Note that the table may have changed since the last poll, or that a version exists."""
        self._log.note_version(version)

    # ------------------------------------------------------------------ steps

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` if nothing is new.

        Raises:
            TableRecreatedError: `start` is of another table, or this one was dropped.
            MissingVersionError: A version that is needed was cleaned up.
            TableError: A commit cannot be read.
        """
        try:
            await self._log.look()
        except NotATableError as error:
            raise TableRecreatedError(
                f"The table at {self._name} was dropped: it has no versions any more.",
                remedy=RESET_OR_ON_GAP,
            ) from error
        await self._check_known(start)
        net_end = await self._net_end(start)
        if net_end is not None:
            return net_end
        at, files, size = start, limit.max_files, limit.max_bytes
        while at.version <= self._log.head:
            await self._log.fetch_ahead(
                range(int(at.version), min(int(at.version) + limit.max_files, self._log.head + 1))
            )
            tasks = (await self._tasks(at))[at.position :]
            taken, files, size = _fitting(tasks, files, size, is_first=at == start)
            if taken < len(tasks):
                return await self._named(at.at(at.position + taken))
            at = await self._named(at.after_version(self))
        if at != start:
            await self._origin.note(await self._before(at))
        return at

    async def _before(self, at: Offset) -> Manifest:
        version = at.last_version(self)
        return await self._log.manifest(version, lambda: "which is the last delivered version")

    async def _check_known(self, offset: Offset) -> None:
        """Make sure that an offset is of this table.

        Raises:
            TableRecreatedError: It is not.
        """
        last = offset.last_version(self)
        before = await self._log.find(last) if last >= FIRST else None
        mark = offset.mark.partition(_BEGUN)[0]
        is_other = mark != before.identity if before is not None and mark else False
        # A version that was cleaned up cannot be attributed to a table: that is a gap.
        is_cleaned_up = before is None and last >= FIRST
        is_found = before is not None and bool(mark)
        is_unknown = not (is_found or is_cleaned_up) and offset.table_id != self.table_id
        if is_other or is_unknown or last > self._log.head:
            raise TableRecreatedError(
                f"The offset at version {offset.version} is not one of {self._name}: its version"
                f" {last} had another transaction, or was never there. The table was dropped and"
                " created again, or restored from an older copy.",
                remedy=RESET_OR_ON_GAP,
            )

    # ------------------------------------------------------------------ differences in one step

    async def _net_end(self, start: Offset) -> Offset | None:
        """Return the end of a step that is one difference; None if it is not."""
        last, head = self._net.begun(start), Version(self._log.head)
        if last is None and head >= start.version:
            is_net = self._net.is_net(start) or await self._net.is_far(start, head)
            last = head if is_net else None
        if last is None:
            return None
        return await self._named(Offset(table_id="", version=self.next_version(last)))

    async def _check_difference(self, start: Offset, end: Offset) -> None:
        if start.last_version(self) >= FIRST:
            await self._before(start)

    def pinned(self, start: Offset, end: Offset) -> Offset:
        """Return `start` with the mark of the step to `end`, if that is one difference."""
        return self._net.pinned(start, end)

    def is_net(self, start: Offset) -> bool:
        """Return whether the step that begins at `start`, as pinned, is one difference."""
        return self._net.is_net(start)

    async def over_gap(self, start: Offset) -> Offset:
        """Return `start` with the mark of one difference to the newest version.

        Raises:
            TableRecreatedError: The version before `start` is of another table.
            MissingVersionError: It was cleaned up, or `start` is inside a commit.
        """
        await self._log.list()
        await self._check_known(start)
        return await self._net.over_gap(start, Version(self._log.head))

    async def _tasks(self, at: Offset) -> list[PlannedTask]:
        """Return all tasks of a version's commit, or of its snapshot."""
        comparison = self._comparison_at(at)
        after = await self._manifest(at.version)
        key = (int(at.version), at.phase, comparison, hash(after.identity))
        if key not in self._plans:
            if at.phase is Phase.SNAPSHOT:
                found = self._planner.snapshot(after)
            else:
                before, after = await self._sides(at.version)
                found = await self._planner.commit(before, after, comparison)
            while len(self._plans) >= _PLANS_IN_MEMORY:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = found
        return self._plans[key]

    def _comparison_at(self, at: Offset) -> Comparison:
        """Return the comparison; a partly delivered commit keeps the one it began with."""
        _, separator, begun = at.mark.partition(_BEGUN)
        is_inside = separator and at.position and at.phase is Phase.FOLLOW
        return Comparison(begun) if is_inside else self._comparison

    async def _manifest(self, version: Version) -> Manifest:
        return await self._log.manifest(version, lambda: "and its changes with it")

    async def _sides(self, version: Version) -> tuple[Manifest | None, Manifest]:
        """Return the versions before and after a commit; None before the first.

        Raises:
            MissingVersionError: One was cleaned up.
        """
        after = await self._manifest(version)
        if version == FIRST:
            return None, after
        before = await self._log.find(version - 1)
        if before is None and await self._log.operation(after) is not Operation.CLONE:
            why = f"without which the changes of version {version} are not known"
            raise missing_version(self._name, version - 1, why)
        return before, after

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end) in order.

        Raises:
            TableError: A version cannot be read.
        """
        await self._check_known(start)
        at = start
        while at.is_before(end):
            if self._net.is_net(at):
                yield await self._net_group(at, end)
                return
            is_last = (at.version, at.phase) == (end.version, end.phase)
            reached = end if is_last else await self._named(at.after_version(self))
            tasks = (await self._tasks(at))[at.position : end.position if is_last else None]
            yield await self._group(at, reached, await self._manifest(at.version), tasks)
            at = reached

    async def _net_group(self, at: Offset, end: Offset) -> TaskGroup:
        """Return the difference of the versions before two offsets, as one step."""
        before = None
        if at.version > FIRST:
            before = await self._before(at)
        after = await self._before(end)
        tasks = await self._planner.net(before, after)
        return await self._group(at, end, after, tasks, kind=ChangeSourceKind.NET)

    async def _group(
        self,
        at: Offset,
        reached: Offset,
        manifest: Manifest,
        tasks: Sequence[PlannedTask],
        *,
        kind: ChangeSourceKind | None = None,
    ) -> TaskGroup:
        if self._places is not None:
            urls = [url for task in tasks for url in _urls(task.payload)]
            await asyncio.to_thread(self._places.check, urls)
        operation = ""
        if at.phase is Phase.FOLLOW:
            operation = (await self._log.operation(manifest)).word
        version = Version(manifest.version)
        return TaskGroup(
            start=at,
            end=reached,
            version=version,
            timestamp_us=manifest.timestamp_us,
            change_source=kind or _kind(at, tasks),
            tasks=tuple(
                ChangeTask(
                    version=version,
                    timestamp_us=manifest.timestamp_us,
                    position=at.position + number,
                    change_source=task.kind,
                    change_type=task.change,
                    size_bytes=task.size_bytes,
                    format=FORMAT,
                    payload=task.payload,
                    num_records=task.rows,
                    table_id=self.table_id,
                )
                for number, task in enumerate(tasks)
            ),
            operation=operation,
        )

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        """Yield where in [start, end) rows of another schema begin, the first rows included."""
        at, last = start, b""
        while at.is_before(end):
            if self._net.is_net(at):
                schema = columns_schema(self._log.columns(await self._before(end)), self._columns)
                if encode_schema(schema) != last:
                    version = end.last_version(self)
                    yield SchemaStep(offset=at, version=version, schema=schema)
                return
            if await self._log.find(at.version) is None:
                return
            is_last = (at.version, at.phase) == (end.version, end.phase)
            tasks = await self._tasks(at)
            until = end.position if is_last else len(tasks)
            for position in range(at.position, until):
                encoded = tasks[position].payload.schema
                if encoded != last:
                    last = encoded
                    yield SchemaStep(
                        offset=at.at(position),
                        version=at.version,
                        schema=schema_of(tasks[position].payload),
                    )
            at = end if is_last else await self._named(at.after_version(self))

    # ------------------------------------------------------------------ rows and the rest

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the newest version is from `start`, with one poll."""
        await self._log.look()
        head = self._log.head
        newest = await self._log.find(head)
        first = Version(first_commit(start))
        oldest = await self._log.find(first) if first <= head else None
        return Backlog(
            head_version=head,
            versions=max(0, head - start.version + 1),
            head_timestamp_ms=0 if newest is None else newest.timestamp_us // 1000,
            oldest_undelivered_timestamp_ms=None if oldest is None else oldest.timestamp_us // 1000,
        )

    async def commit(self, end: Offset) -> None:
        """Drop plans that no delivery from `end` on needs."""
        for key in [each for each in self._plans if each[0] < end.version]:
            del self._plans[key]

    async def arrow_schema(self) -> pa.Schema:
        """Return the newest version's columns."""
        return await self.schema_at(self._log.head, self._columns)

    async def schema_at(self, version: Version, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns of a version.

        Raises:
            MissingVersionError: It was cleaned up.
            UsageError: There is no such column.
            UnsupportedFeatureError: A column's type is not supported.
        """
        found = self._log.columns(await self._manifest(version))
        named = columns_schema(found, columns)
        # A missing name raises an error that lists the existing ones.
        return checked(named, columns) if columns is not None else named


def _fitting(
    tasks: Sequence[PlannedTask], files: int, size: int, *, is_first: bool
) -> tuple[int, int, int]:
    """Return how many tasks fit the limits, and what is left of the limits."""
    for number, task in enumerate(tasks):
        is_needed = is_first and number == 0
        if (files <= 0 or task.size_bytes > size) and not is_needed:
            return number, files, size
        files, size = files - len(_urls(task.payload)), size - task.size_bytes
    return len(tasks), files, size


def _micros(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1)


def _urls(payload: Payload) -> list[str]:
    match payload:
        case ChangedColumns():
            return [*payload.before.files, *payload.after.files]
        case ComparedFragments():
            return [url for each in (*payload.removed, *payload.added) for url in each.files]
        case _:
            return list(payload.files)


def _kind(at: Offset, tasks: Sequence[PlannedTask]) -> ChangeSourceKind:
    if at.phase is Phase.SNAPSHOT:
        return ChangeSourceKind.SNAPSHOT
    kinds = {task.kind for task in tasks}
    order = (ChangeSourceKind.ROWS, ChangeSourceKind.VECTORS, ChangeSourceKind.FILES)
    return next((each for each in order if each in kinds), ChangeSourceKind.NONE)
