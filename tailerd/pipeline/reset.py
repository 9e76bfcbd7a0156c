"""Plan a reset: where the pipeline starts next, and the commits that it skips."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Phase, Version
from tailerd.errors import StorageError, TableError, TableRecreatedError
from tailerd.formats.base import ChangeSource
from tailerd.pipeline.identity import PipelineOffsets

REASON = "reset"
"""In the record of a gap: an operator moved the offset."""
_COUNT_SECONDS = 10.0
_COUNTED = (ChangeSourceKind.FILES, ChangeSourceKind.SNAPSHOT)
"""Changes whose rows are all rows of their files; of others the files have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Commits that are never delivered.

    Attributes:
        first, last: The versions of the first and the last of them.
        versions: Their number.
        min_rows, max_rows: Bounds of their change rows, from the log's statistics; without an upper
            bound where statistics are missing or the commits could not be read in time.
    """

    first: Version
    last: Version
    versions: int
    min_rows: int
    max_rows: int | None

    def __str__(self) -> str:
        """Return them as part of a sentence: versions 3 to 5 (3 versions, 120 rows)."""
        if self.versions == 1:
            return f"version {self.last} ({self._rows()})"
        return f"versions {self.first} to {self.last} ({self.versions:,} versions, {self._rows()})"

    def _rows(self) -> str:
        if self.max_rows == self.min_rows:
            return f"{self.min_rows:,} row{'' if self.min_rows == 1 else 's'}"
        if self.max_rows is not None:
            return f"at most {self.max_rows:,} rows"
        return f"at least {self.min_rows:,} rows" if self.min_rows else "an unknown number of rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A move of a pipeline's offset.

    Attributes:
        offset: Where the pipeline starts next.
        gap: The gap to record: changes between two deliveries are missing, or come as a snapshot.
        skipped: The commits that never arrive; None if there are none, or a snapshot has their
            rows.
    """

    offset: Offset
    gap: Gap | None = None
    skipped: Skipped | None = None


async def plan_reset(
    to: str, *, table: str, source: ChangeSource, offsets: PipelineOffsets
) -> Reset:
    """Return the effect of a reset to a starting point; changes nothing.

    Args:
        to: As `ChangeSource.initial_offset` reads it.
        table: Configured name of the table.
        source: Newly opened.
        offsets: Of the pipeline, which does not run or is only read.

    Raises:
        TailerdError: The starting point does not exist, or the table or the offset cannot be read.
    """
    end = await source.initial_offset(to)
    start = await offsets.load_delivered()
    if start is None:
        return Reset(offset=end)
    is_same = await _is_same_table(source, start)
    # A table that was replaced within its log has another id, perhaps since the same version.
    is_other = start.table_id != end.table_id
    is_replaced = is_other and end.last_version(source) >= start.last_version(source)
    if is_same and not (is_replaced or start.is_before(end)):
        return Reset(offset=end)
    # A table that was created again is not delivered at all yet.
    first = start if is_same else await source.offset_at(source.next_version(BEFORE_ALL))
    skipped = await _count_skipped(source, first, end)
    if is_same and not is_replaced and skipped is None and end.phase is Phase.FOLLOW:
        return Reset(offset=end)
    gap = Gap(table=table, start=start, end=end, reason=REASON)
    return Reset(offset=end, gap=gap, skipped=skipped)


async def _is_same_table(source: ChangeSource, start: Offset) -> bool:
    try:
        await source.latest_offset(start, ReadLimit(max_files=1, max_bytes=1))
    except TableRecreatedError:
        return False
    except TableError:
        # The commit at the offset is lost or damaged, which may be why it is moved.
        identity = await source.identity(start.last_version(source))
        return identity.table_id == start.table_id
    return True


async def _count_skipped(source: ChangeSource, start: Offset, end: Offset) -> Skipped | None:
    """Return the commits in [start, end); None if there are none, or `end` is a snapshot."""
    if end.phase is Phase.SNAPSHOT or not start.is_before(end):
        return None
    versions = (await source.backlog(start)).versions - (await source.backlog(end)).versions
    if versions <= 0:
        return None
    least, most = 0, 0
    is_complete = True
    try:
        async with asyncio.timeout(_COUNT_SECONDS):
            async for group in source.plan(start, end):
                for task in group.tasks:
                    least += _count_rows(task) or 0
                    is_complete = is_complete and task.num_records is not None
                    most += task.num_records or 0
    except (TimeoutError, TableError, StorageError):
        is_complete = False
    return Skipped(
        first=start.version,
        last=end.last_version(source),
        versions=versions,
        min_rows=least,
        max_rows=most if is_complete else None,
    )


def _count_rows(task: ChangeTask) -> int | None:
    """Return the number of a task's change rows; None if it is not known before they are read."""
    is_counted = task.change_source in _COUNTED and task.change_type is not None
    return task.num_records if is_counted else None
