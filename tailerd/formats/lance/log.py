"""A Lance table's versions as a `TableLog`, and opening it for its changes."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import xxhash

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeTask
from tailerd.changefeed.offset import Offset, Version, first_commit
from tailerd.errors import (
    MissingVersionError,
    NotATableError,
    TableRecreatedError,
    UnsupportedFeatureError,
)
from tailerd.formats.base import Backlog, OpenRequest, TableIdentity
from tailerd.formats.comparing_source import open_log
from tailerd.formats.lance.origin import TableOrigin
from tailerd.formats.lance.payload import (
    FORMAT,
)
from tailerd.formats.lance.planner import Comparison, LancePlanner, PlannedTask
from tailerd.formats.lance.protocol.columns import columns_schema
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.protocol.transactions import Operation
from tailerd.formats.lance.protocol.version_names import FIRST, LanceVersions
from tailerd.formats.lance.reader import LanceTaskReader
from tailerd.formats.lance.table_files import TableFiles
from tailerd.formats.lance.version_log import VersionLog, missing_version, staged_warning
from tailerd.formats.plain_schema import require_columns
from tailerd.formats.table_log import (
    ListedStep,
    PlanCache,
    TableLog,
    version_ahead,
)
from tailerd.formats.versioned_source import VersionedSource
from tailerd.remedies import RESET_PIPELINE
from tailerd.state.ledger import open_ledger
from tailerd.storage.table_location import TableLocation

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(kw_only=True)
class LanceStep(ListedStep[PlannedTask]):
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


class LanceLog(LanceVersions, TableLog):
    """The versions of one table.

    Args:
        name: The table's location, as the user gave it.
        versions: Polled once.
        origin: Its id.
        comparison: How updates of a commit are found.
        links: Real paths that its files may resolve to; None in a bucket.
    """

    def __init__(
        self,
        location: TableLocation,
        versions: VersionLog,
        origin: TableOrigin,
        planner: LancePlanner,
        *,
        comparison: Comparison,
    ) -> None:
        self.location = location
        self._versions = versions
        self._origin = origin
        self._planner = planner
        self._comparison = comparison
        self._plans: PlanCache[LanceStep] = PlanCache()

    @property
    def table_id(self) -> str:
        """Identity of the table."""
        return self._origin.table_id

    @property
    def newest(self) -> Version:
        """The newest version, as of the last poll."""
        return self._versions.head

    # ------------------------------------------------------------------ points

    async def refresh(self) -> Version:
        """Poll, and return the newest version; the table's id is durable afterwards."""
        await self._versions.refresh()
        await self._origin.note(await self._newest_manifest())
        return self.newest

    async def _newest_manifest(self) -> Manifest:
        return await self._versions.manifest(self.newest, lambda: "which was the newest")

    async def locate_version(self, version: Version) -> Version:
        """Return a version whose changes can be read, or the next one.

        Raises:
            MissingVersionError: It was cleaned up, or is more than one ahead.
        """
        if version > self.next_version(self.newest):
            raise version_ahead(self.name, version, self.newest)
        if version < FIRST:
            raise MissingVersionError(
                f"There is no version {version} of {self.name}: they count from {FIRST}.",
                remedy=RESET_PIPELINE,
            )
        if version <= self.newest:
            await self._sides(version)
        return version

    async def find_first_since(self, time: datetime.datetime) -> Version | None:
        """Return the first version at or after a time; None if there is none.

        Raises:
            MissingVersionError: It, or the one before it, was cleaned up.
        """
        versions = list(self._versions.versions)
        index = await self._first_index(versions, _micros(time))
        if index == len(versions):
            return None
        await self._sides(versions[index])
        return versions[index]

    async def find_last_until(self, time: datetime.datetime) -> Version:
        """Return the last version at or before a time.

        Raises:
            MissingVersionError: There is none.
        """
        versions = list(self._versions.versions)
        index = await self._first_index(versions, _micros(time) + 1)
        if index == 0:
            raise MissingVersionError(
                f"There is no version of {self.name} at or before {time.isoformat()}.",
                remedy="Give a later time, or a version.",
            )
        return versions[index - 1]

    async def _first_index(self, versions: Sequence[Version], time_us: int) -> int:
        """Return the index of the first version at or after a time; `len(versions)` if none."""
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            found = await self._versions.find(versions[middle])
            if found is None or found.timestamp_us < time_us:
                low = middle + 1
            else:
                high = middle
        return low

    # ------------------------------------------------------------------ offsets

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's id, and a hash of its schema in `version` if that exists."""
        found = await self._versions.find(version) if version >= FIRST else None
        schema = "" if found is None else xxhash.xxh3_64_hexdigest(b"".join(found.fields))
        return TableIdentity(table_id=self.table_id, schema_id=schema)

    async def identify(self, offset: Offset, end: Offset | None = None) -> Offset:
        """Return an offset with the identity of the version before it."""
        before = await self._find_before(offset)
        mark = "" if before is None else before.identity
        return replace(offset, table_id=self.table_id, mark=mark)

    async def _find_before(self, offset: Offset) -> Manifest | None:
        last = offset.last_version(self)
        return await self._versions.find(last) if last >= FIRST else None

    async def check(self, offset: Offset) -> None:
        """Make sure that an offset is of this table.

        Raises:
            TableRecreatedError: It is not.
        """
        last = offset.last_version(self)
        before = await self._find_before(offset)
        token = offset.mark.partition("/")[0]
        is_other = token != before.identity if before is not None and token else False
        # A version that was cleaned up cannot be attributed to a table: that is a gap.
        is_cleaned_up = before is None and last >= FIRST
        is_found = before is not None and bool(token)
        is_unknown = not (is_found or is_cleaned_up) and offset.table_id != self.table_id
        if is_other or is_unknown or last > self.newest:
            raise TableRecreatedError(
                f"The offset at version {offset.version} is not one of {self.name}: its version"
                f" {last} had another transaction, or was never there. The table was dropped and"
                " created again, or restored from an older copy.",
                remedy=RESET_PIPELINE,
            )

    # ------------------------------------------------------------------ steps

    def notify(self, version: int | None) -> None:
        """Note that the table may have changed since the last poll, or that a version exists."""
        self._versions.note_version(version)

    async def advance(self, start: Offset, walk: Callable[[], Awaitable[Offset]]) -> Offset:
        """Poll, and return how far a step may go; see `TableLog.advance`."""
        await self._poll(start)
        end = await walk()
        if end != start:
            await self._origin.note(await self._before(end))
        return end

    async def _poll(self, start: Offset) -> None:
        try:
            await self._versions.refresh()
        except NotATableError as error:
            raise TableRecreatedError(
                f"The table at {self.name} was dropped: it has no versions any more.",
                remedy=RESET_PIPELINE,
            ) from error
        await self.check(start)

    async def find_head(self, start: Offset) -> Version | None:
        """Poll, and return the newest version; None if it is before `start`."""
        await self._poll(start)
        return self.newest if self.newest >= start.version else None

    async def _before(self, at: Offset) -> Manifest:
        version = at.last_version(self)
        return await self._versions.manifest(version, lambda: "which is the last delivered version")

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> LanceStep | None:
        """Return the plan of a version's commit; a partly delivered one keeps its comparison.

        Raises:
            MissingVersionError: The version, or the one before it, was cleaned up.
        """
        if end is None:
            if at.version > self.newest:
                return None
            await self._versions.fetch_ahead(at.version)
        comparison = Comparison(state) if state else self._comparison
        manifest = await self._manifest(at.version)

        async def make_plan() -> LanceStep:
            before, after = await self._sides(at.version)
            planned = await self._planner.commit(before, after, comparison)
            step = self._step(after, planned, kind=_kind(planned))
            return replace(step, is_whole=False, resume_state=comparison.value)

        key = at.version, comparison, manifest.identity
        step = await self._plans.find(key, at.version, make_plan)
        if end is not None:
            step.operation = (await self._versions.operation(manifest)).word
        return step

    async def snapshot(self, at: Offset, state: str, end: Offset | None = None) -> LanceStep:
        """Return the plan of a version's snapshot."""
        manifest = await self._manifest(at.version)

        async def make_plan() -> LanceStep:
            planned = self._planner.snapshot(manifest)
            step = self._step(manifest, planned, kind=ChangeSourceKind.SNAPSHOT)
            return replace(step, is_whole=False, is_alone=True)

        key = at.version, "snapshot", manifest.identity
        return await self._plans.find(key, at.version, make_plan)

    def _step(
        self, manifest: Manifest, planned: Sequence[PlannedTask], *, kind: ChangeSourceKind
    ) -> LanceStep:
        version = Version(manifest.version)
        return LanceStep(
            version=version,
            timestamp_us=manifest.timestamp_us,
            kind=kind,
            table_id=self.table_id,
            following=self.next_version(version),
            max_files=sum(len(task.files) for task in planned),
            planned=planned,
        )

    async def _manifest(self, version: Version) -> Manifest:
        return await self._versions.manifest(version, lambda: "and its changes with it")

    async def _sides(self, version: Version) -> tuple[Manifest | None, Manifest]:
        """Return the versions before and after a commit; None before the first.

        Raises:
            MissingVersionError: One was cleaned up.
        """
        after = await self._manifest(version)
        if version == FIRST:
            return None, after
        before = await self._versions.find(version - 1)
        if before is None and await self._versions.operation(after) is not Operation.CLONE:
            why = f"without which the changes of version {version} are not known"
            raise missing_version(self.name, version - 1, why)
        return before, after

    async def check_difference(self, start: Offset, end: Offset) -> None:
        """Make sure that the version before `start` can be read.

        Raises:
            MissingVersionError: It was cleaned up.
        """
        if start.last_version(self) >= FIRST:
            await self._before(start)

    async def difference(self, start: Offset, end: Offset) -> LanceStep:
        """Return the plan of the difference of the versions before two offsets."""
        before = await self._before(start) if start.version > FIRST else None
        after = await self._before(end)

        async def make_plan() -> LanceStep:
            planned = await self._planner.net(before, after)
            step = self._step(after, planned, kind=ChangeSourceKind.NET)
            return replace(step, operation=(await self._versions.operation(after)).word)

        key = start.version, None if before is None else before.identity, after.identity
        return await self._plans.find(key, start.version, make_plan)

    # ------------------------------------------------------------------ the rest

    async def schema(self, version: Version | None, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of a version; None: of the newest.

        Raises:
            MissingVersionError: It was cleaned up.
            UsageError: There is no such column.
            UnsupportedFeatureError: A column's type is not supported.
        """
        manifest = await self._manifest(self.newest if version is None else version)
        named = columns_schema(self._versions.columns(manifest), columns)
        # A missing name raises an error that lists the existing ones.
        return require_columns(named, columns) if columns is not None else named

    async def column_names(self, version: Version | None) -> Sequence[str]:
        """Return the names of a version's columns, also of those with unsupported types."""
        manifest = await self._manifest(self.newest if version is None else version)
        return [each.name for each in self._versions.columns(manifest)]

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the newest version is from `start`, with one poll."""
        await self._versions.refresh()
        head = self.newest
        newest = await self._versions.find(head)
        first = Version(first_commit(start))
        oldest = await self._versions.find(first) if first <= head else None
        return Backlog(
            head_version=head,
            versions=max(0, head - start.version + 1),
            head_timestamp_ms=0 if newest is None else newest.timestamp_us // 1000,
            oldest_undelivered_timestamp_ms=None if oldest is None else oldest.timestamp_us // 1000,
        )

    async def forget(self, end: Offset) -> None:
        """Drop plans that no delivery from `end` on needs."""
        self._plans.forget_before(end.version)


async def open_source(
    location: TableLocation, request: OpenRequest, reader: LanceTaskReader
) -> VersionedSource:
    """Open a table at its newest version.

    Raises:
        NotATableError, TableError: It cannot be read.
        UnsupportedFeatureError: Change files are requested, or the location is a branch.
    """
    if request.changes is ChangeMode.CDF:
        raise UnsupportedFeatureError(
            f"{location.name} is a Lance table, which has no change data feed.",
            remedy="Leave `changes` out.",
        )
    _refuse_branch(location)
    versions = VersionLog(location.store, location.root, location.name, clock=request.clock)
    await versions.refresh()
    if versions.staged is not None and request.on_warning is not None:
        request.on_warning(staged_warning(versions, location.name))
    head = await versions.manifest(versions.head, lambda: "which was the newest")
    columns = versions.columns(head)
    columns_schema(columns, request.columns(each.name for each in columns))
    log = LanceLog(
        location,
        versions,
        await TableOrigin.open(versions, open_ledger(request.ledger, location.stores)),
        LancePlanner(
            versions,
            TableFiles(location),
            location.url,
            columns=request.columns,
            key=request.identity,
        ),
        comparison=_comparison(request),
    )
    return open_log(log, reader, request)


def _comparison(request: OpenRequest) -> Comparison:
    if request.changes is ChangeMode.FILES:
        return Comparison.NONE
    return Comparison.KEY if request.identity else Comparison.ROW_IDS


def _refuse_branch(location: TableLocation) -> None:
    if "/tree/" in location.root:
        table, _, branch = location.root.rpartition("/tree/")
        raise UnsupportedFeatureError(
            f"{location.name} is the branch {branch!r} of the table {table}, and branches are not"
            " read in this release.",
            remedy="Name the table's own folder; or clone the branch to a separate table.",
        )


def _micros(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1)


def _kind(tasks: Sequence[PlannedTask]) -> ChangeSourceKind:
    kinds = {task.kind for task in tasks}
    order = (ChangeSourceKind.ROWS, ChangeSourceKind.VECTORS, ChangeSourceKind.FILES)
    return next((each for each in order if each in kinds), ChangeSourceKind.NONE)
