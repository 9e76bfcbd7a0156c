"""Reads tables for an operator: commits of the log, one commit's rows, one key's history.

Reads the table itself, concurrently with its pipeline and without its offset. One query at a time,
each bounded in rows, bytes and seconds, so that deliveries are hardly affected. Rows pass the same
mask as everywhere: masked columns are neither shown nor searched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import TaskGroup
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import BEFORE_ALL, Version
from tailerd.clock import Clock
from tailerd.errors import ExplorerBusyError, MissingVersionError, UsageError
from tailerd.formats.base import ChangeSource
from tailerd.formats.growth import (
    COMMITS,
    Growth,
    TableSize,
    assess_growth,
    list_commits,
    trace_back,
)
from tailerd.formats.inspection import TableInspection
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.column_mask import ColumnMask
from tailerd.pipeline.newest_rows import shown_texts

PAGE_COMMITS = 50
MAX_COMMITS = 2000
PAGE_ROWS = 100
MAX_PARTS = 100
MAX_ANSWER_BYTES = 2 * 1024 * 1024
HISTORY_SECONDS = 8.0
"""How long one query reads; it returns the rows found until then, marked as partial."""
WAIT_SECONDS = 10.0
MAX_SECONDS = 40.0
"""Longest duration of one query, including opening the table."""
_LIMIT = BatchLimit(max_rows=2_000, max_bytes=8 * 1024 * 1024, working_bytes=64 * 1024 * 1024)

Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A table's log to inspect, and notes that are added while it is read."""

    inspection: TableInspection
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPage:
    """Some commits of a log, newest first; `notes` list those that could not be shown."""

    commits: list[Row]
    has_more: bool
    notes: list[str]


@dataclass(slots=True, kw_only=True)
class OpenedCommit:
    """One commit: its operation, how its rows are found, and some of them.

    Attributes:
        parts: The files, or parts of files, that are read for its rows.
        before, next: The adjacent versions, if they are known to exist.
        rows: As `tail --format jsonl` prints them, in order, without masked columns.
        has_more: Whether rows follow.
    """

    version: int
    timestamp_ms: int | None = None
    operation: str = ""
    change_source: str = ""
    files_added: int = 0
    bytes_added: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    parts: list[Row] = field(default_factory=list)
    part_count: int = 0
    before: int | None = None
    next: int | None = None
    rows: list[Row] = field(default_factory=list)
    has_more: bool = False
    masked: list[str] = field(default_factory=list)

    def describe(self, group: TaskGroup) -> None:
        """Add a plan's figures of the commit; a large one comes in several groups."""
        self.timestamp_ms = group.timestamp_us // 1000
        self.operation, self.change_source = group.operation, group.change_source.value
        self.files_added, self.bytes_added = group.files_added, group.bytes_added
        self.files_removed, self.bytes_removed = group.files_removed, group.bytes_removed
        self.part_count += len(group.tasks)
        for task in group.tasks[: MAX_PARTS - len(self.parts)]:
            self.parts.append(
                {
                    "change": None if task.change_type is None else task.change_type.value,
                    "rows": task.num_records,
                    "size_bytes": task.size_bytes,
                }
            )


@dataclass(slots=True, kw_only=True)
class KeyHistory:
    """Changes of the rows that have a value in a column.

    Attributes:
        rows: Newest first, also within a commit.
        first, last: Versions that were searched; None: none.
        next_before: Where a query of earlier commits continues; None if nothing is left.
    """

    rows: list[Row] = field(default_factory=list)
    first: int | None = None
    last: int | None = None
    next_before: int | None = None


class TableExplorer:
    """Answers an operator's questions about the rows of tables. Used from one event loop.

    Args:
        open_source: Opens a configured table for its changes; `UsageError` for a name unknown.
        open_log: Opens its log for inspection.
        mask: Names of masked columns.
        is_showing_rows: Whether rows may be seen at all.
        clock: As everywhere.
    """

    def __init__(
        self,
        *,
        open_source: Callable[[str], Awaitable[ChangeSource]],
        open_log: Callable[[str], Awaitable[OpenedLog]],
        mask: Sequence[str],
        is_showing_rows: bool,
        clock: Clock,
    ) -> None:
        self._open_source = open_source
        self._open_log = open_log
        self._mask = tuple(mask)
        self.is_showing_rows = is_showing_rows
        self._clock = clock
        self._turn = asyncio.Semaphore(1)

    @asynccontextmanager
    async def _take_turn(self) -> AsyncIterator[None]:
        """Wait for the previous query to end, and run within `MAX_SECONDS`.

        Raises:
            ExplorerBusyError: It takes too long.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turn.acquire()
        except TimeoutError as error:
            raise ExplorerBusyError("Another query of a table is still running.") from error
        try:
            async with asyncio.timeout(MAX_SECONDS):
                yield
        except TimeoutError as error:
            raise ExplorerBusyError(
                f"The query took more than {MAX_SECONDS:.0f} s and was cancelled."
            ) from error
        finally:
            self._turn.release()

    async def commits(self, table: str, skip: int) -> CommitPage:
        """Return commits of a table's log, newest first, after the newest `skip`.

        Raises:
            TailerdError: The log cannot be read.
        """
        requested = min(skip + PAGE_COMMITS, MAX_COMMITS)
        async with self._take_turn():
            log = await self._open_log(table)
            found = [asdict(commit) async for commit in log.inspection.history(requested)]
        newest = found[::-1]
        has_more = len(found) == requested and requested < MAX_COMMITS
        return CommitPage(commits=newest[skip:], has_more=has_more, notes=log.notes)

    async def growth(self, table: str, size: TableSize) -> Growth:
        """Return how a table grew until it had a size, from the newest commits of its log.

        Raises:
            UsageError: The log does not show it.
            TailerdError: The log cannot be read.
        """
        async with self._take_turn():
            log = await self._open_log(table)
            commits = await list_commits(log.inspection, size.version, COMMITS)
        return assess_growth(size, commits, trace_back(size, commits), self._clock.now_ms())

    async def commit(self, table: str, version: int, skip: int) -> OpenedCommit:
        """Return one commit with its rows after the first `skip`.

        Raises:
            UsageError: Rows are not shown.
            MissingVersionError: There is no such commit.
            TailerdError: It cannot be read.
        """
        self._check_rows()
        async with self._take_turn():
            source = await self._open_source(table)
            found = OpenedCommit(version=version)
            await self._describe(source, found)
            await self._read_rows(source, found, skip)
        return found

    async def _describe(self, source: ChangeSource, found: OpenedCommit) -> None:
        start = await source.offset_at(Version(found.version))
        head = (await source.backlog(start)).head_version
        if found.version > head:
            raise MissingVersionError(
                f"There is no version {found.version}: the newest is {head}.",
                remedy="Open an earlier one.",
            )
        before = source.version_before(start.version)
        found.before = None if before == BEFORE_ALL else before
        found.next = None if found.version >= head else source.next_version(start.version)
        async for group in source.plan(start, start.after_version(source)):
            found.describe(group)

    async def _read_rows(self, source: ChangeSource, found: OpenedCommit, skip: int) -> None:
        left, taken = skip, 0
        async for batch in _batches(source, Version(found.version)):
            mask = ColumnMask.from_names(self._mask, batch.rows.schema)
            found.masked = sorted({*found.masked, *mask.masked})
            begin = min(left, batch.num_rows)
            left -= begin
            room = PAGE_ROWS - len(found.rows)
            part = batch.slice(begin, min(room, batch.num_rows - begin))
            texts = await asyncio.to_thread(shown_texts, part, mask)
            found.rows += [json.loads(text) for text in texts]
            taken += sum(map(len, texts))
            if batch.num_rows - begin > part.num_rows or taken > MAX_ANSWER_BYTES:
                found.has_more = True
                return

    async def key_history(
        self, table: str, column: str, value: str, before: int | None
    ) -> KeyHistory:
        """Return changes of the rows with a value in a column, newest commit first.

        Searches commits backwards until a page is full, time is up, or the log ends.

        Args:
            before: The version to begin below; None begins with the newest.

        Raises:
            UsageError: Rows are not shown, there is no such column, or it cannot have the value.
            TailerdError: The table cannot be read.
        """
        self._check_rows()
        loop = asyncio.get_running_loop()
        found = KeyHistory()
        async with self._take_turn():
            ends_at = loop.time() + HISTORY_SECONDS
            source = await self._open_source(table)
            self._check_column(await source.arrow_schema(), column)
            at: Version | None = await self._newest(source, before)
            while at is not None and len(found.rows) < PAGE_ROWS and loop.time() < ends_at:
                rows = await self._matching(source, at, column, value)
                if rows is None:
                    # The log or the files of earlier commits are gone.
                    at = None
                    break
                found.rows += rows[::-1]
                found.first, found.last = at, at if found.last is None else found.last
                earlier = source.version_before(at)
                at = None if earlier == BEFORE_ALL else earlier
        found.next_before = None if at is None else source.next_version(at)
        return found

    async def _newest(self, source: ChangeSource, before: int | None) -> Version | None:
        if before is None:
            # The offset of what comes next: the version before it is the head.
            head = (await source.initial_offset("latest")).version
            earlier = source.version_before(head)
        else:
            earlier = source.version_before(Version(before))
        return None if earlier == BEFORE_ALL else earlier

    async def _matching(
        self, source: ChangeSource, version: Version, column: str, value: str
    ) -> list[Row] | None:
        """Return a commit's rows that match, in its order; None where it can no longer be read."""
        rows: list[Row] = []
        try:
            async for batch in _batches(source, version):
                if column in batch.rows.schema.names:
                    rows += await asyncio.to_thread(self._matches, batch, column, value)
                if len(rows) > PAGE_ROWS:
                    break
        except MissingVersionError:
            return None
        return rows

    def _matches(self, batch: ChangeBatch, column: str, value: str) -> list[Row]:
        values = batch.rows.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        rows = np.flatnonzero(
            pc.fill_null(pc.equal(values, _scalar(value, values.type, column)), False)
        )
        if not len(rows):
            return []
        mask = ColumnMask.from_names(self._mask, batch.rows.schema)
        texts = shown_texts(batch.take(rows[:PAGE_ROWS]), mask)
        return [json.loads(text) for text in texts]

    def _check_rows(self) -> None:
        if not self.is_showing_rows:
            raise UsageError(
                "Rows are not shown: the configuration does not allow it.",
                remedy="Set `web.rows` to more than 0.",
            )

    def _check_column(self, schema: pa.Schema, column: str) -> None:
        mask = ColumnMask.from_names(self._mask, schema)
        # Searching a partly masked column could reveal masked values.
        shown = [name for name in mask.shown if not mask.hides_part(name)]
        if column not in shown:
            raise UsageError(
                f"There is no column {column[:100]!r} that may be searched.",
                remedy=f"These may be: {', '.join(shown[:20])}.",
            )


async def _batches(source: ChangeSource, version: Version) -> AsyncIterator[ChangeBatch]:
    """Yield the rows of one commit."""
    start = await source.offset_at(version)
    stream = ChangeStream(source, start, start.after_version(source), limit=_LIMIT)
    async with aclosing(stream.batches()) as batches:
        async for batch in batches:
            yield batch


def _scalar(value: str, kind: pa.DataType, column: str) -> Any:
    """Return a text as a value of a column.

    Raises:
        UsageError: The column has no such values.
    """
    try:
        return pa.scalar(value, pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UsageError(
            f"{value[:100]!r} is not a valid value of {column}, which is {kind}.",
            remedy="Write it as the rows show it.",
        ) from error
