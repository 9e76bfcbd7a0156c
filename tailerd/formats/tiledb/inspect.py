"""The inspector of arrays: versions from the names of commits, rows from TileDB's own counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import parse_point, to_ms
from tailerd.clock import SystemClock
from tailerd.errors import MissingVersionError, UsageError
from tailerd.formats.inspection import CommitDescription, FileDescription, TableDescription
from tailerd.formats.part_request import PartRequest
from tailerd.formats.tiledb.array_log import ArrayLog
from tailerd.formats.tiledb.cells import count_cells
from tailerd.formats.tiledb.columns import ArrayShape
from tailerd.formats.tiledb.library import open_array
from tailerd.formats.tiledb.protocol.names import TimedName
from tailerd.formats.tiledb.protocol.timeline import NONE_MS, Timeline
from tailerd.formats.tiledb.task_plan import TaskPlan, open_plan, operation


@dataclass(frozen=True, slots=True)
class _Opened:
    log: ArrayLog
    plan: TaskPlan
    timeline: Timeline


class TileDBInspection:
    """Inspects one array; read-only."""

    def __init__(self, request: PartRequest) -> None:
        self._location = request.location
        self._opened: _Opened | None = None

    async def _open(self) -> _Opened:
        if self._opened is None:
            location = self._location
            log = ArrayLog(location.store, location.root, location.url)
            plan = await open_plan(location, log, SystemClock().now_ms())
            self._opened = _Opened(log, plan, plan.timeline)
        return self._opened

    async def version_at(self, timestamp: str) -> Version:
        """Return the newest version not later than a timestamp.

        Raises:
            UsageError: The text is not a timestamp, or before the first commit.
        """
        point = parse_point(timestamp)
        if isinstance(point, int):
            return Version(point)
        found = (await self._open()).timeline.before(to_ms(point) + 1)
        if found == NONE_MS:
            raise UsageError(f"There is no commit at or before {timestamp}.")
        return Version(found)

    async def _version(self, version: Version | None) -> int:
        timeline = (await self._open()).timeline
        if version is None:
            return timeline.head
        is_there = timeline.before(int(version) + 1) != NONE_MS and version <= timeline.head
        if not is_there or timeline.hiding(int(version)):
            raise MissingVersionError(
                f"The array {self._location.url} does not have version {version}, or no longer has"
                " it.",
                remedy="`tailerd history` shows the versions there are.",
            )
        return int(version)

    async def describe(self, version: Version | None = None) -> TableDescription:
        """Describe a version, the newest by default: any time at which the array can be read.

        Raises:
            NotATableError, MissingVersionError: It does not exist.
            TableError, StorageError: It cannot be read.
        """
        at = await self._version(version)
        found = await self._open()
        shape = await found.plan.shape(max(at, 0))
        columns = tuple((field.name, str(field.type)) for field in shape.schema)
        fragments = found.timeline.writes_between(NONE_MS, at)
        deletes = found.timeline.deletes_between(NONE_MS, at)
        rows = await asyncio.to_thread(self._count, max(at, 0))
        kind = _kind(shape)
        return TableDescription(
            table_id=found.log.schemas[0].identity,
            version=Version(max(at, 0)),
            timestamp_ms=None if at == NONE_MS else at,
            num_files=len(fragments),
            size_bytes=await found.log.fragment_bytes(fragments),
            num_rows=rows,
            columns=columns,
            schema=dict(columns),
            facts={
                "kind": kind,
                "dimensions": shape.keys,
                "deletes": len(deletes),
                "schemas": len(found.log.schemas),
                "merged_without_times": len(found.timeline.blind),
                "array_metadata": "not tailed",
            },
            shown={
                "kind": kind,
                "dimensions": ", ".join(shape.keys),
                "deletes": len(deletes),
                "array metadata": "not tailed",
            },
        )

    def _count(self, time_ms: int) -> int:
        location = self._location
        with open_array(location.url, location.stores, 0, time_ms) as array:
            return count_cells(array)

    async def files(
        self, version: Version | None = None
    ) -> AsyncIterator[Sequence[FileDescription]]:
        """Yield the fragments that a version is read from.

        Raises:
            As `describe`.
        """
        at = await self._version(version)
        found = await self._open()
        for fragment in found.timeline.writes_between(NONE_MS, at):
            yield [
                FileDescription(
                    path=fragment.text,
                    size_bytes=await found.log.fragment_bytes([fragment]),
                    partition_values={},
                    modification_time_ms=fragment.last_ms,
                    num_rows=None,
                )
            ]

    async def history(self, limit: int) -> AsyncIterator[CommitDescription]:
        """Yield the newest `limit` commits, oldest first.

        Raises:
            NotATableError: There is no array.
            TableError, StorageError: It cannot be read.
        """
        found = await self._open()
        for version in found.timeline.versions[-limit:]:
            writes = [w for w in found.timeline.fragments if w.last_ms == version]
            deletes = found.timeline.deletes_between(version - 1, version)
            size = await found.log.fragment_bytes(writes)
            yield CommitDescription(
                version=Version(version),
                timestamp_ms=version,
                operation=_word(writes, has_deletes=bool(deletes)),
                files_added=len(writes),
                files_removed=0,
                bytes_added=size,
                bytes_removed=0,
                change_files=len(deletes),
                change_bytes=0,
                changes="rows",
            )


def _word(writes: Sequence[TimedName], *, has_deletes: bool) -> str:
    if any(each.is_merged for each in writes):
        return "merged"
    return operation(has_writes=bool(writes), has_deletes=has_deletes)


def _kind(shape: ArrayShape) -> str:
    if not shape.is_sparse:
        return "dense"
    return "sparse with duplicates" if shape.allows_duplicates else "sparse"
