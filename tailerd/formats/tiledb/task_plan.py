"""Plans tasks from an array's commits: steps between two versions, late commits, snapshots."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, ChangeType
from tailerd.changefeed.offset import Offset, Version
from tailerd.formats.plain_schema import encode_schema
from tailerd.formats.tiledb.array_log import ArrayLog
from tailerd.formats.tiledb.cells import measure_box
from tailerd.formats.tiledb.columns import ArrayShape, read_shape
from tailerd.formats.tiledb.library import open_array
from tailerd.formats.tiledb.protocol.names import TimedName
from tailerd.formats.tiledb.protocol.timeline import LateCommits, Timeline
from tailerd.formats.tiledb.scan import FORMAT, Part, TileScan
from tailerd.storage.table_location import TableLocation

SHARE_BYTES = 32 * 1024 * 1024
"""Target bytes of fragments to read at once: a share of a snapshot, or a range of a step."""
_SHAPES = 64
_MAX_SHARES = 100_000
_KINDS = {
    Part.SNAPSHOT: ChangeSourceKind.SNAPSHOT,
    Part.STEP: ChangeSourceKind.ROWS,
    Part.LATE: ChangeSourceKind.LATE,
}

Range = tuple[Any, Any]


class TaskPlan:
    """Plans the tasks of one array.

    Args:
        location: The array.
        timeline: Of the last poll.

    Attributes:
        timeline: To be replaced after each poll.
    """

    def __init__(
        self,
        location: TableLocation,
        log: ArrayLog,
        timeline: Timeline,
        *,
        table_id: str,
    ) -> None:
        self._location = location
        self._log = log
        self._table_id = table_id
        self.timeline = timeline
        self._shapes: OrderedDict[tuple[object, ...], ArrayShape] = OrderedDict()

    async def shape(self, time_ms: int) -> ArrayShape:
        """Return the columns at a time."""
        key = tuple(each.identity for each in self._log.schemas if each.time_ms <= time_ms)
        known = self._shapes.get(key)
        if known is None:
            known = await asyncio.to_thread(self._open_shape, time_ms)
            self._shapes[key] = known
            while len(self._shapes) > _SHAPES:
                self._shapes.popitem(last=False)
        return known

    def _open_shape(self, time_ms: int) -> ArrayShape:
        with open_array(self._location.url, self._location.stores, 0, time_ms) as array:
            return read_shape(array, self._location.url)

    async def schema(self, time_ms: int) -> pa.Schema:
        """Return the schema at a time."""
        return (await self.shape(time_ms)).schema

    async def schema_id(self, time_ms: int) -> str:
        """Return a hash of the schema at a time."""
        return xxhash.xxh3_64_hexdigest(encode_schema(await self.schema(time_ms)))

    # ------------------------------------------------------------------ snapshots

    async def snapshot_bytes(self, version: int) -> int:
        """Return the bytes of the fragments that a snapshot is read from."""
        return await self._log.fragment_bytes(self.timeline.writes_between(-1, version))

    async def shares(self, version: int, requested: int | None) -> list[tuple[Range, ...]]:
        """Return the ranges of the first dimension in which a snapshot is read, in order.

        Each share has one range; the share of a snapshot that is not divided may have none, which
        means all cells.

        Args:
            requested: The number of shares decided before; None to decide now.
        """
        count = requested or _count_shares(await self.snapshot_bytes(version))
        cut = await asyncio.to_thread(self._cut, [(0, version)], count)
        return [(each,) for each in cut] or [()]

    def _cut(self, windows: Sequence[tuple[int, int]], count: int) -> list[Range]:
        """Divide the first dimension of the cells at the given times into ranges, ascending.

        Returns:
            Empty if one is enough, or the dimension has texts or fractions.
        """
        boxes = []
        for first_ms, last_ms in windows if count > 1 else ():
            with open_array(self._location.url, self._location.stores, first_ms, last_ms) as array:
                box = measure_box(array)
                if array.schema.domain.dim(0).dtype.kind not in "iuM":
                    return []
            if box is not None:
                boxes.append(box[0])
        if not boxes:
            return []
        first = min(int(np.asarray(low).astype(np.int64)) for low, _ in boxes)
        last = max(int(np.asarray(high).astype(np.int64)) for _, high in boxes)
        count = min(count, last - first + 1)
        edges = [first + (last - first + 1) * number // count for number in range(count + 1)]
        kind = np.asarray(boxes[0][0]).dtype
        return [
            tuple(np.array([start, end - 1]).astype(kind))
            for start, end in itertools.pairwise(edges)
        ]

    async def snapshot_tasks(
        self, version: int, shares: Sequence[tuple[Range, ...]]
    ) -> list[ChangeTask]:
        """Return the tasks of a snapshot, one for each share."""
        every = self.timeline.deletes_between(-1, version)
        await self._check(self.timeline.writes_between(-1, version))
        scan = TileScan(
            url=self._location.url,
            part=Part.SNAPSHOT,
            after_ms=-1,
            until_ms=version,
            schema=encode_schema(await self.schema(version)),
            deletes=await self._log.read_deletes(every),
        )
        size = await self.snapshot_bytes(version) // len(shares)
        return [
            self._task(replace(scan, first_ranges=share), version, version, number, size)
            for number, share in enumerate(shares)
        ]

    # ------------------------------------------------------------------ steps

    async def step_task(self, after: int, version: int, position: int) -> ChangeTask:
        """Return the task of the difference of the states at two times."""
        writes = self.timeline.writes_between(after, version)
        deletes = self.timeline.deletes_between(after, version)
        await self._check(writes)
        size = await self._log.fragment_bytes(writes)
        written_bytes = None if deletes else size
        scan = TileScan(
            url=self._location.url,
            part=Part.STEP,
            after_ms=after,
            until_ms=version,
            schema=encode_schema(await self.schema(version)),
            has_writes=bool(writes),
            deletes=await self._log.read_deletes(deletes),
            first_ranges=await self._ranges(after, version, written_bytes),
        )
        return self._task(scan, version, version, position, size)

    async def _ranges(
        self, after: int, version: int, written_bytes: int | None
    ) -> tuple[Range, ...]:
        """Return the ranges in which a step is read, so that it fits into memory.

        Args:
            written_bytes: Of the fragments of a step without deletes; None if it has deletes.
        """
        if written_bytes is not None and (await self.shape(version)).is_sparse:
            size, windows = written_bytes, [(after + 1, version)]
        else:
            size = await self.snapshot_bytes(version)
            windows = [(0, time) for time in (after, version) if time >= 0]
        # Twice the size: the state before is read as well.
        return tuple(await asyncio.to_thread(self._cut, windows, _count_shares(2 * size)))

    async def late_tasks(
        self, start: Offset, late: LateCommits, known: Collection[object]
    ) -> list[ChangeTask]:
        """Return the tasks of late commits, one for each of their times.

        Their rows have the newest delivered version, so that versions ascend, but their own time.
        """
        head, delivered = self.timeline.before(int(start.version)), int(start.version) - 1
        tasks = []
        for position, time in enumerate(late.times_ms, start.position):
            scan = await self._late_scan(time, delivered, late, known)
            tasks.append(self._task(scan, head, time, position, 0))
        return tasks

    async def _late_scan(
        self, time: int, delivered: int, late: LateCommits, known: Collection[object]
    ) -> TileScan:
        shape = await self.shape(delivered)
        own = list(self.timeline.deletes_between(time - 1, time))
        later = [
            (name, record)
            for name, record in self.timeline.deletes_between(time, delivered)
            if name in known
        ]
        names = {each.text for each in (n for n, _ in own)}
        return TileScan(
            url=self._location.url,
            part=Part.LATE,
            after_ms=delivered,
            until_ms=time,
            schema=encode_schema(shape.schema),
            has_writes=any(each not in names for each in late.names),
            deletes=await self._log.read_deletes(own),
            later_deletes=await self._log.read_deletes(later),
            later_writes=_windows(time, delivered, late, known, is_dense=not shape.is_sparse),
        )

    # ------------------------------------------------------------------ both

    def _task(
        self, scan: TileScan, version: int, time_ms: int, position: int, size: int
    ) -> ChangeTask:
        is_snapshot = scan.part is Part.SNAPSHOT
        return ChangeTask(
            version=Version(version),
            timestamp_us=time_ms * 1000,
            position=position,
            change_source=_KINDS[scan.part],
            change_type=ChangeType.INSERT if is_snapshot else None,
            size_bytes=size,
            format=FORMAT,
            payload=scan,
            table_id=self._table_id,
        )

    async def _check(self, fragments: Collection[TimedName]) -> None:
        """Make sure that no fragment is outside the array through a symbolic link."""
        if self._location.links is not None:
            paths = [self._log.fragment_folder(each.text) for each in fragments]
            await asyncio.to_thread(self._location.links.check, paths)


async def open_plan(location: TableLocation, log: ArrayLog, now_ms: int) -> TaskPlan:
    """Return the plan of an array in its present state.

    Raises:
        NotATableError: There is no array.
        TableError, StorageError: It cannot be read.
    """
    return TaskPlan(location, log, await log.refresh(now_ms), table_id=log.schemas[0].identity)


def _windows(
    time: int, delivered: int, late: LateCommits, known: Collection[object], *, is_dense: bool
) -> tuple[tuple[int, int], ...]:
    """Return the time ranges of the writes that were delivered after a late commit.

    For a dense array one range for each write, because the box around several writes may have cells
    that none of them wrote.
    """
    if is_dense:
        writes = [each for each in known if isinstance(each, TimedName) and each.last_ms > time]
        return tuple(sorted({(max(w.first_ms, time + 1), w.last_ms) for w in writes}))
    found, first = [], time + 1
    for other in (each for each in late.times_ms if each > time):
        if first < other:
            found.append((first, other - 1))
        first = other + 1
    if first <= delivered:
        found.append((first, delivered))
    return tuple(found)


def operation(*, has_writes: bool, has_deletes: bool) -> str:
    """Return the operation of a commit in one to three words."""
    if has_writes and has_deletes:
        return "write and delete"
    return "delete" if has_deletes else "write"


def _count_shares(size_bytes: int) -> int:
    """Return the number of shares for a size."""
    return max(1, min(_MAX_SHARES, -(-size_bytes // SHARE_BYTES)))
