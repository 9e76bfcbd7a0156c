"""Row changes of tables in Python: `tailerd.changes`, `tailerd.follow`, `tailerd.table`.

Contract:

- **Rows** are those of `tailerd tail`: the table's columns by their logical names, in schema order,
  then `_change_type` (insert, update_preimage, update_postimage, delete), `_commit_version` (int64)
  and `_commit_timestamp` (microseconds, UTC).
- **Order.** Commits in order. Within a commit that is read from whole files all deletes come before
  the inserts, except for the pairs of a key; rows of change files keep their order. Both images of
  an update are adjacent. A batch has rows of one commit.
- **since** is inclusive: a version, or a time, which means the first commit at or after it.
  `"snapshot"` first returns every row of the newest version as `insert` with that version, then
  later commits; `"latest"` only later commits. **until** is inclusive too; without it the last
  version is the newest one at the moment of reading.
- **Schema.** A batch has the columns of its version: they change with the table's. Methods that
  make one table of all batches (`to_arrow`, `to_pandas`, `to_polars`, `to_duckdb`) fill added
  columns of older rows with null and use the wider types, and raise `SchemaChangedError` if no
  type fits both.
- **Offsets** are short texts that `follow` returns with each batch. Resuming from one loses no row;
  rows of an incomplete step are repeated.
- **Errors** derive from `tailerd.TailerdError`; `code`, `remedy` and `retryable` say what to do.
  Rows before an error are valid.

Nothing is written except a `ledger`, and no daemon is needed. Objects may be used from any thread,
each iteration from one at a time; also while an event loop runs, as in notebooks.
"""

from __future__ import annotations

import datetime as dt
import importlib
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import pyarrow as pa

from tailerd.changefeed.change_batch import with_change_columns
from tailerd.changefeed.change_task import ChangeMode, ChangeModeName
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.points import format_point
from tailerd.clock import SystemClock
from tailerd.errors import SchemaChangedError, UsageError
from tailerd.formats.base import ChangeSource, OpenRequest, TableFormat
from tailerd.formats.detect import find_table, open_table
from tailerd.formats.inspection import CommitDescription, TableDescription, TableInspection
from tailerd.formats.part_request import PartRequest
from tailerd.formats.parts import require_part
from tailerd.formats.statistics import TableSize
from tailerd.html_table import ROWS_SHOWN, html_table
from tailerd.loop_thread import LoopThread
from tailerd.pipeline.table_reading import Reading, resolve_range, watch_table
from tailerd.records.schema_changes import SchemaChange as SchemaChange
from tailerd.records.schema_changes import SchemaTracker
from tailerd.registry import AUTO
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation, locate_table
from tailerd.transforms.options import MASK_KEY, ViewOptions, make_view
from tailerd.transforms.view import View

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

Point = int | str | dt.datetime
"""A version, a time (`datetime`, or text such as 2026-11-21T09:30:00 or -2h), or a word."""

_T = TypeVar("_T")
_BATCH = BatchLimit(max_rows=65_536, max_bytes=64 * 1024**2)
_STEP = ReadLimit(max_files=1000, max_bytes=256 * 1024**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    location: str
    changes: ChangeMode = ChangeMode.AUTO
    view: View | None = None
    key: tuple[str, ...] = ()
    ledger: LedgerLocation | None = None
    allowed_paths: tuple[str, ...] = ()
    table_format: str = AUTO
    options: Mapping[str, object] = field(default_factory=dict)
    stores: Stores = field(default_factory=Stores)

    def locate(self) -> TableLocation:
        return locate_table(self.location, self.allowed_paths, stores=self.stores)

    async def open(self) -> ChangeSource:
        location = self.locate()
        return await open_table(
            location,
            OpenRequest(
                changes=self.changes,
                view=self.view,
                identity=self.key,
                ledger=self.ledger,
                options=self.options,
            ),
            self.table_format,
        )

    async def inspection(self) -> TableInspection:
        found, request = await self.find_part()
        return require_part(found.inspector, found.name, "inspection")(request)

    async def find_part(self) -> tuple[TableFormat, PartRequest]:
        location = self.locate()
        found, location = await find_table(location, self.table_format, self.options)
        return found, PartRequest(location=location, ledger=self.ledger, options=self.options)


class Changes:
    """Rows of a table as Arrow batches; read again by every iteration.

    Made by `tailerd.changes` and `Table.snapshot`. Iterate with `for` or `async for`; each item is
    a `pyarrow.RecordBatch` of at most 65,536 rows. Memory is bounded by a few batches, except in
    methods that collect all rows.
    """

    def __init__(
        self,
        request: _Request,
        since: str,
        until: str | None,
        *,
        has_change_columns: bool = True,
        has_events: bool = False,
    ) -> None:
        self._request = request
        self._since, self._until = since, until
        self._has_change_columns, self._has_events = has_change_columns, has_events

    def __iter__(self) -> Iterator[pa.RecordBatch | SchemaChange]:
        """Yield the batches; with events, a `SchemaChange` before the first rows with its columns.

        Raises:
            TailerdError: The rows cannot be read.
        """
        with LoopThread() as loop:
            yield from loop.iterate(self.__aiter__())

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch | SchemaChange]:
        """Yield what `__iter__` does."""
        source = await self._request.open()
        at, last = await _range(source, self._since, self._until)
        reading, tracker = Reading(source=source, last=last, batch_limit=_BATCH), SchemaTracker()
        async with aclosing(reading.batches(at)) as batches:
            async for batch in batches:
                if self._has_events and (change := tracker.observe(batch.rows)) is not None:
                    yield change
                yield batch.rows.to_arrow() if self._has_change_columns else batch.rows.rows

    def _rows(self) -> Iterator[pa.RecordBatch]:
        return (each for each in self if not isinstance(each, SchemaChange))

    def schema(self) -> pa.Schema:
        """Return the columns of the table's newest version, with the change columns.

        Raises:
            TailerdError: The table cannot be opened.
        """

        async def ask() -> pa.Schema:
            return await (await self._request.open()).arrow_schema()

        found = _run(ask)
        return with_change_columns(found) if self._has_change_columns else found

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table; without rows it has the newest schema.

        Raises:
            SchemaChangedError: Rows of different versions do not fit one schema.
            TailerdError: The rows cannot be read.
        """
        tables = [pa.Table.from_batches([batch]) for batch in self._rows()]
        if not tables:
            return self.schema().empty_table()
        return _join_tables(tables, self._request.location)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame; options go to `pyarrow.Table.to_pandas`.

        Raises:
            UsageError: pandas is not installed.
            TailerdError: As `to_arrow`.
        """
        _library("pandas")
        frame: pd.DataFrame = self.to_arrow().to_pandas(**options)
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars DataFrame; errors as `to_pandas`."""
        polars = _library("polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> Any:
        """Return all rows as a DuckDB relation; errors as `to_pandas`.

        Args:
            connection: By default DuckDB's own of this process.
        """
        maker = _library("duckdb") if connection is None else connection
        return maker.from_arrow(self.to_arrow())

    def __repr__(self) -> str:
        until = "" if self._until is None else f", until={self._until!r}"
        return f"<tailerd.Changes of {self._request.location!r}, since={self._since!r}{until}>"

    def _repr_html_(self) -> str:
        """Return the first rows as an HTML table, for notebooks."""
        rows: list[dict[str, object]] = []
        names: list[str] = []
        for batch in self._rows():
            names = names or list(batch.schema.names)
            rows += batch.slice(0, ROWS_SHOWN + 1 - len(rows)).to_pylist()
            if len(rows) > ROWS_SHOWN:
                break
        return html_table(repr(self), names or self.schema().names, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedBatch:
    """Rows of one commit, and where to resume once they are handled.

    Attributes:
        rows: The batch, with change columns.
        schema_change: The columns of the rows, if they differ from those of earlier batches.
        offset: For `follow(..., offset=...)`. It is the end of a step for the step's last batch,
            and its beginning for earlier ones.
    """

    rows: pa.RecordBatch
    offset: str
    schema_change: SchemaChange | None = None


class Follower:
    """Batches of a table as they are committed, without an end; made by `tailerd.follow`."""

    def __init__(
        self, request: _Request, since: str, offset: str | None, poll_seconds: float
    ) -> None:
        self._request = request
        self._since = since
        self._offset = None if offset is None else Offset.from_json(offset)
        self._poll_seconds = poll_seconds

    def __iter__(self) -> Iterator[FollowedBatch]:
        """Yield batches; waits for commits. Ends when the caller leaves the iteration."""
        with LoopThread() as loop:
            yield from loop.iterate(self.__aiter__())

    async def __aiter__(self) -> AsyncIterator[FollowedBatch]:
        """Yield batches; waits for commits.

        Raises:
            TableRecreatedError: The offset is of another table.
            MissingVersionError: The next version is no longer in the log.
            TailerdError: The table cannot be read.
        """
        request, tracker = self._request, SchemaTracker()
        source = await request.open()
        at = self._offset or await source.initial_offset(self._since)
        reading = Reading(source=source, read_limit=_STEP, batch_limit=_BATCH)
        watching = watch_table(
            request.locate(),
            table_format=request.table_format,
            poll_seconds=self._poll_seconds,
        )
        async with watching as wakeup, aclosing(reading.batches(at, wakeup)) as batches:
            async for batch in batches:
                offset, change = batch.end or batch.start, tracker.observe(batch.rows)
                rows = batch.rows.to_arrow()
                yield FollowedBatch(rows=rows, offset=offset.to_json(), schema_change=change)


class Table:
    """One table: its versions, rows and growth. Made by `tailerd.table`."""

    def __init__(self, request: _Request) -> None:
        self._request = request

    @property
    def version(self) -> int:
        """The newest version; reads the log each time. Raises as `describe`."""
        return int(self.describe().version)

    def describe(self, version: int | None = None) -> TableDescription:
        """Return schema, properties, size and number of rows of a version, the newest by default.

        Raises:
            MissingVersionError: The version does not exist.
            TailerdError: The table cannot be opened.
        """

        async def ask() -> TableDescription:
            inspection = await self._request.inspection()
            return await inspection.describe(None if version is None else Version(version))

        return _run(ask)

    def schema(self) -> pa.Schema:
        """Return the columns of the newest version."""

        async def ask() -> pa.Schema:
            return await (await self._request.open()).arrow_schema()

        return _run(ask)

    def snapshot(self) -> Changes:
        """Return all rows of the newest version, without change columns."""
        return Changes(self._request, "snapshot", None, has_change_columns=False)

    def changes(self, *, since: Point, until: Point | None = None) -> Changes:
        """Return what `tailerd.changes` does for this table."""
        return Changes(
            self._request, format_point(since), None if until is None else format_point(until)
        )

    def history(self, limit: int = 50) -> list[dict[str, object]]:
        """Return the newest commits, oldest first, with the fields of `tailerd history --json`.

        Raises:
            TailerdError: The log cannot be read.
        """
        return [asdict(commit) for commit in self._commits(limit)]

    def growth(self, limit: int = 50) -> pa.Table:
        """Return how the newest commits changed the table: one row a commit, oldest first.

        Columns: `version`, `timestamp`, `operation`, `files` and `bytes`: added minus removed, null
        if the format does not count them.

        Raises:
            TailerdError: The log cannot be read.
        """
        commits = self._commits(limit)
        moment = pa.timestamp("ms", tz="UTC")
        return pa.table(
            {
                "version": pa.array([each.version for each in commits], pa.int64()),
                "timestamp": pa.array([each.timestamp_ms for each in commits], moment),
                "operation": pa.array([each.operation for each in commits], pa.string()),
                "files": pa.array([_net(each, "files") for each in commits], pa.int64()),
                "bytes": pa.array([_net(each, "bytes") for each in commits], pa.int64()),
            }
        )

    def _commits(self, limit: int) -> list[CommitDescription]:
        async def ask() -> list[CommitDescription]:
            inspection = await self._request.inspection()
            return [commit async for commit in inspection.history(limit)]

        return _run(ask)

    def size(self) -> TableSize:
        """Return files, bytes, rows and deletion vectors of the newest version, and of its log.

        Raises:
            UnsupportedFeatureError: The format has no statistics.
            TailerdError: The table cannot be opened.
        """

        async def ask() -> TableSize:
            found, request = await self._request.find_part()
            statistics = require_part(found.statistics, found.name, "statistics")(request)
            await statistics.open(SystemClock().monotonic(), first=None, next_up=None)
            return statistics.size()

        return _run(ask)

    def __repr__(self) -> str:
        return f"<tailerd.Table {self._request.location!r}>"


def changes(
    location: str,
    *,
    since: Point,
    until: Point | None = None,
    changes: ChangeModeName = "auto",
    key: Sequence[str] = (),
    table_format: str = AUTO,
    ledger: str | None = None,
    allowed_paths: Iterable[str] = (),
    partition_timezone: str | None = None,
    format_options: Mapping[str, str] | None = None,
    storage: Mapping[str, object] | None = None,
    events: bool = False,
    **view: Unpack[ViewOptions],
) -> Changes:
    """Return the row changes of a table between two points; nothing is read yet.

    Args:
        location: A path, or the URL of a prefix in a bucket.
        since, until: Inclusive; see the module's contract.
        changes: `auto`, `compare`, `cdf`, `files` or `net`, as `tail --changes`.
        key: Columns that identify a row: where rows are compared, a delete and an insert of one
            commit with the same values there are an update.
        table_format: Such as `delta`; `auto` recognises it.
        ledger: Folder or URL of the ledger of a table without history, such as a Kartothek dataset;
            without it, observed states are kept for one iteration only.
        allowed_paths: Locations outside the table that its log may name.
        partition_timezone: Zone of partition timestamps that have none; UTC by default.
        format_options: Options of the table's format, such as `{"branch": "audit"}` of Iceberg.
        storage: How buckets are reached, with the fields of the section `storage` of a
            configuration (`tailerd help s3`); by default as the environment says.
        events: Iterating also yields a `SchemaChange` before the first rows with other columns.
        view: Which columns, rows and values; see `ViewOptions`.

    Raises:
        UsageError: `changes` is not a mode, or a point is neither version nor time.
    """
    request = _request(
        location,
        changes=changes,
        key=key,
        table_format=table_format,
        ledger=ledger,
        allowed_paths=allowed_paths,
        partition_timezone=partition_timezone,
        format_options=format_options,
        storage=storage,
        **view,
    )
    end = None if until is None else format_point(until)
    return Changes(request, format_point(since), end, has_events=events)


def follow(
    location: str,
    *,
    since: Point = "latest",
    offset: str | None = None,
    changes: ChangeModeName = "auto",
    key: Sequence[str] = (),
    poll_seconds: float = 1.0,
    table_format: str = AUTO,
    ledger: str | None = None,
    allowed_paths: Iterable[str] = (),
    partition_timezone: str | None = None,
    format_options: Mapping[str, str] | None = None,
    storage: Mapping[str, object] | None = None,
    **view: Unpack[ViewOptions],
) -> Follower:
    """Return the row changes of a table as they are committed, without an end.

    Args:
        since: Where to begin without an offset; see the module's contract.
        offset: Where to resume: a `FollowedBatch.offset` that the caller kept; `since` is then not
            used.
        poll_seconds: Longest time between two polls; commits on a local disk are noticed at once.
        Others: As `changes`.

    Raises:
        UsageError: As `changes`.
        OffsetError: The offset cannot be read.
    """
    request = _request(
        location,
        changes=changes,
        key=key,
        table_format=table_format,
        ledger=ledger,
        allowed_paths=allowed_paths,
        partition_timezone=partition_timezone,
        format_options=format_options,
        storage=storage,
        **view,
    )
    return Follower(request, format_point(since), offset, poll_seconds)


def table(
    location: str,
    *,
    table_format: str = AUTO,
    key: Sequence[str] = (),
    ledger: str | None = None,
    allowed_paths: Iterable[str] = (),
    partition_timezone: str | None = None,
    format_options: Mapping[str, str] | None = None,
    storage: Mapping[str, object] | None = None,
    **view: Unpack[ViewOptions],
) -> Table:
    """Return a table to inspect; nothing is read yet. Arguments as `changes`."""
    return Table(
        _request(
            location,
            changes=ChangeMode.AUTO,
            key=key,
            table_format=table_format,
            ledger=ledger,
            allowed_paths=allowed_paths,
            partition_timezone=partition_timezone,
            format_options=format_options,
            storage=storage,
            **view,
        )
    )


def _request(
    location: str,
    *,
    changes: str,
    key: Sequence[str],
    table_format: str,
    ledger: str | None,
    allowed_paths: Iterable[str],
    partition_timezone: str | None,
    format_options: Mapping[str, str] | None,
    storage: Mapping[str, object] | None,
    **view: Unpack[ViewOptions],
) -> _Request:
    modes = [mode.value for mode in ChangeMode]
    if changes not in modes:
        raise UsageError(
            f"changes is {changes!r}, which is not a valid mode.",
            remedy=f"Use one of {', '.join(modes)}.",
        )
    key = (key,) if isinstance(key, str) else tuple(key)
    options: ViewOptions = {"mask_key": os.environ.get(MASK_KEY), **view}
    return _Request(
        location=str(location),
        changes=ChangeMode(changes),
        view=make_view(**options, key=key),
        key=key,
        ledger=None if ledger is None else LedgerLocation(ledger),
        allowed_paths=tuple(allowed_paths),
        table_format=table_format,
        options={**(format_options or {}), "partition_timezone": partition_timezone},
        stores=Stores() if storage is None else Stores.from_fields(storage),
    )


async def _range(
    source: ChangeSource, since: str, until: str | None
) -> tuple[Offset, Version | None]:
    await source.arrow_schema()
    at, end = await resolve_range(source, since, until)
    if end is not None:
        return at, end
    last = at.version if at.phase is Phase.SNAPSHOT else (await source.backlog(at)).head_version
    return at, last


def _join_tables(tables: Sequence[pa.Table], location: str) -> pa.Table:
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaChangedError(
            f"Rows of {location} do not fit one schema, because a column changed its type between"
            " two versions.",
            remedy="Iterate over the batches, or read the versions before and after it separately.",
        ) from error


def _net(commit: CommitDescription, what: str) -> int | None:
    counts = asdict(commit)
    added, removed = counts[f"{what}_added"], counts[f"{what}_removed"]
    return None if added is None or removed is None else int(added - removed)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{name} is not installed.", remedy=f"Install it: python -m pip install {name}."
        ) from error


def _run(ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    with LoopThread() as loop:
        return loop.run(ask())
