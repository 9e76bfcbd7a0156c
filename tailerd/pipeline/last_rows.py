"""Reads the last change rows of a table, from its head backwards: for `tail -n`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import BEFORE_ALL, Offset
from tailerd.errors import MissingVersionError, TableError
from tailerd.formats.base import ChangeSource
from tailerd.pipeline.change_stream import ChangeStream

HELD_BYTES = 64 * 1024 * 1024
"""Rows that take more memory are counted first, and read again to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRows:
    """Which rows before an offset to read.

    Attributes:
        rows: Maximum number of rows.
        commits: Maximum number of commits that are read for them.
        is_exact: So many rows, also from the middle of a commit; a commit that cannot be read is an
            error. Otherwise only whole commits, except for the newest, and as far as they can be
            read.
    """

    rows: int
    commits: int
    is_exact: bool

    async def read(
        self, source: ChangeSource, end: Offset, limit: BatchLimit
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Yield the last rows before `end`, the start of a commit, in their order.

        Reads one commit after the other, the newest first, until the rows are enough.

        Raises:
            TableError: A commit cannot be read, if `is_exact`. A commit that was cleaned up is the
                end, unless it is the newest.
        """
        start, count, size = end, 0, 0
        held: deque[Sequence[ChangeBatch]] = deque()
        for _ in range(self.commits):
            version = source.version_before(start.version)
            if version == BEFORE_ALL or count >= self.rows:
                break
            try:
                at = await source.offset_at(version)
                found, last = await _read_commit(source, at, start, limit, self.rows - count)
            except TableError as error:
                is_end = isinstance(error, MissingVersionError) and start is not end
                if is_end or not self.is_exact:
                    break
                raise
            if not self.is_exact and count and count + found > self.rows:
                break
            start, count = at, count + found
            held.appendleft(last)
            size += sum(batch.size_bytes for batch in last)
            if size > HELD_BYTES:
                held.clear()
        if size <= HELD_BYTES:
            for last in held:
                for batch in last:
                    yield batch
            return
        skipped = max(0, count - self.rows)
        async with aclosing(ChangeStream(source, start, end, limit=limit).batches()) as batches:
            async for batch in batches:
                if batch.num_rows > skipped:
                    yield batch.slice(skipped, batch.num_rows - skipped)
                skipped = max(0, skipped - batch.num_rows)


async def _read_commit(
    source: ChangeSource, start: Offset, end: Offset, limit: BatchLimit, most: int
) -> tuple[int, Sequence[ChangeBatch]]:
    """Return the number of a commit's rows, and at most the last `most` of them.

    If those take more than `HELD_BYTES`, not all of them are returned.
    """
    last: deque[ChangeBatch] = deque()
    count = rows = size = 0
    async with aclosing(ChangeStream(source, start, end, limit=limit).batches()) as batches:
        async for batch in batches:
            count += batch.num_rows
            if size > HELD_BYTES:
                continue
            last.append(batch)
            rows, size = rows + batch.num_rows, size + batch.size_bytes
            while rows - last[0].num_rows >= most:
                first = last.popleft()
                rows, size = rows - first.num_rows, size - first.size_bytes
    if rows > most:
        last[0] = last[0].slice(rows - most, last[0].num_rows - (rows - most))
    return count, last
