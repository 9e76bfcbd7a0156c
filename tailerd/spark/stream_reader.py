"""`spark.readStream.format("tailerd")`: the snapshot, then every commit, in bounded micro-batches.

Spark keeps the offsets in the query's checkpoint. Planning is deterministic, so a repeated
micro-batch reads the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tailerd.changefeed.change_batch import with_change_columns
from tailerd.changefeed.limits import ReadLimit as AdmissionLimit
from tailerd.changefeed.offset import Offset, Version, whole_before
from tailerd.errors import (
    MissingVersionError,
    SchemaChangedError,
    TableError,
    TableRecreatedError,
    UsageError,
)
from tailerd.formats.base import ChangeSource, SchemaStep
from tailerd.spark.arrow_schema import conform, declared_schema, spark_schema
from tailerd.spark.change_range import (
    UNLIMITED,
    clamp_offset,
    ending_offset,
    starting_offset,
    tasks_between,
)
from tailerd.spark.options import ReadOptions
from tailerd.spark.partitions import pack, read_partition
from tailerd.spark.progress import DELIVERED_VERSION, HEAD_VERSION, LAG_VERSIONS, OLDEST_MS
from tailerd.spark.source_loop import SourceLoop, end_quietly
from tailerd.spark.spark_offset import (
    OffsetFields,
    batch_start,
    check_continues,
    check_repeats,
    end_fields,
    initial_fields,
    list_fields,
    planned_changes,
    planned_with,
    read_offset,
)
from tailerd.spark.table_source import FollowedTable
from tailerd.spark.worker_edge import all_errors_travel, worker_stores

_T = TypeVar("_T")
_HINTS = {
    MissingVersionError: (
        "Its rows are lost to this query. Start one with a new checkpointLocation, which begins"
        " with the table's rows, and raise delta.logRetentionDuration."
    ),
    TableRecreatedError: (
        "Give the path of the table the checkpoint was begun with, or start the query with a new"
        " checkpointLocation."
    ),
}

WAIT_SECONDS = 1.0
"""How long an idle `latestOffset` waits for a commit before it returns that nothing is new."""

HEAD_SECONDS = 2.0
"""How old a report of the head may be while the query has not reached that head."""


@all_errors_travel
class TailerdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One table followed by one query. Runs on the driver; executors get a pickled copy."""

    def __init__(
        self, options: ReadOptions, schema: StructType, schema_version: Version | None
    ) -> None:
        """Initialize with the schema of a version, or with None a user-defined one."""
        if options.end and not options.end.isdigit():
            raise UsageError(
                "The option endingTimestamp is for batch reads, because a stream cannot know which"
                " commit will be the last before it.",
                remedy="Give endingVersion.",
            )
        self._options = options
        self._schema = schema
        self._schema_version = schema_version
        self._target = declared_schema(schema)
        self._follower: _Follower | None = None

    def __getstate__(self) -> dict[str, object]:
        # Executors read tasks; the loop and the table stay on the driver.
        return {**self.__dict__, "_follower": None}

    def initialOffset(self) -> OffsetFields:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins."""
        return initial_fields(self._driver().initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return `maxFilesPerTrigger`; `maxBytesPerTrigger` applies in addition."""
        return ReadMaxFiles(self._options.limit.max_files)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, str | int | bool], limit: ReadLimit
    ) -> OffsetFields:
        """Return the end of the next micro-batch; wait a moment when nothing is new.

        Raises:
            SchemaChangedError: The next rows have another schema; all before them are delivered.
            OffsetError: `start` is within a commit that was planned with other `changes`.
        """
        changes, begin = self._options.changes, read_offset(start)
        check_continues(begin, planned_changes(start), changes)
        end = self._driver().latest(begin, self._admission(limit))
        return end_fields(start, end, self._schema_version, changes)

    def reportLatestOffset(self) -> OffsetFields | None:  # noqa: N802 - Spark's name
        """Return the head of the table and the age of the backlog, for Spark's reports."""
        return self._driver().head()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the head: this query ends there."""
        self._driver().end_at_head()

    def partitions(
        self, start: Mapping[str, str | int | bool], end: Mapping[str, str | int | bool]
    ) -> Sequence[InputPartition]:
        """Return the partitions of one micro-batch.

        Raises:
            OffsetError: It was planned with other `changes`, which yield other rows.
        """
        begin, until = batch_start(start, end), read_offset(end)
        check_repeats(begin, until, planned_changes(end), self._options.changes)
        return self._driver().partitions(begin, until, planned_with(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's change rows; on an executor."""
        stores = worker_stores(self._options.storage)
        may_drop = self._schema_version is None
        return read_partition(partition, self._target, stores, may_drop=may_drop)

    def commit(self, end: Mapping[str, str | int | bool]) -> None:
        """Note that everything before `end` is delivered."""
        self._driver().commit(read_offset(end))

    def stop(self) -> None:
        """Free the table and the thread."""
        end_quietly()
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _driver(self) -> _Follower:
        if self._follower is None:
            boundary = SchemaBoundary(self._schema, self._schema_version)
            self._follower = _Follower(self._options, boundary)
        return self._follower

    def _admission(self, limit: ReadLimit) -> AdmissionLimit:
        match limit:
            case ReadMaxFiles(max_files=files):
                return replace(self._options.limit, max_files=files)
            case ReadMaxBytes(max_bytes=size):
                return replace(self._options.limit, max_bytes=size)
            case ReadAllAvailable():
                return UNLIMITED
            case _:
                raise UsageError(
                    f"The read limit {type(limit).__name__} is unknown to format tailerd.",
                    remedy="Limit by maxFilesPerTrigger or maxBytesPerTrigger.",
                )


class _Follower:
    """The driver's side: a table that stays open between micro-batches."""

    def __init__(self, options: ReadOptions, boundary: SchemaBoundary) -> None:
        self._options = options
        self._boundary = boundary
        self._loop = SourceLoop()
        self._table = self._loop.call(FollowedTable.open(options))
        self._end = self._loop.call(ending_offset(self._table.source, options))
        self._initial: Offset | None = None
        self._planned: Offset | None = None
        self._reported: tuple[Offset, OffsetFields] | None = None
        self._reported_at = float("-inf")
        self._ends_at_head = False

    def initial(self) -> Offset:
        if self._initial is None:
            self._initial = self._loop.call(
                starting_offset(
                    self._table.source, self._options, snapshot_by_default=True, end=self._end
                )
            )
        return self._initial

    def latest(self, start: Offset, limit: AdmissionLimit) -> Offset:
        wait = 0.0 if self._ends_at_head else WAIT_SECONDS
        if self._is_finished(start):
            # Commits after the end do not matter to this query; that the table is the same does.
            self._call(tasks_between(self._table.source, start, start))
            time.sleep(wait)
            self._planned = start
            return start
        found = self._call(self._table.latest(start, limit, wait))
        end = clamp_offset(found, start=start, end=self._end)
        if end is self._end:
            # `_end` has the table id of the query's start; another process expects the id that
            # the table has at this version.
            end = self._loop.call(self._table.source.offset_at(end.version))
        self._planned = self._call(self._boundary.reach(self._table.source, start, end))
        return self._planned

    def head(self) -> OffsetFields | None:
        """Return the head as an offset, and the commit time of the oldest unplanned commit."""
        if self._planned is None:
            return None
        if self._is_finished(self._planned):
            return self._head_fields(self._planned, 0)
        if self._reported is not None:
            planned, fields = self._reported
            # Without a wakeup the log has not changed.
            if self._table.is_idle and planned == self._planned:
                return fields
            # Each check is a listing: one for each micro-batch would make the cost of catching up
            # quadratic in the length of the log.
            is_recent = time.monotonic() - self._reported_at < HEAD_SECONDS
            if is_recent and self._planned.is_before(read_offset(fields)):
                return fields
        backlog = self._loop.call(self._table.backlog(self._planned))
        next_version = self._table.source.next_version(backlog.head_version)
        head = Offset(table_id=self._planned.table_id, version=next_version)
        end = clamp_offset(head, start=self._planned, end=self._end)
        fields = self._head_fields(end, backlog.versions if self._planned.is_before(end) else 0)
        if backlog.oldest_undelivered_timestamp_ms is not None:
            fields[OLDEST_MS] = backlog.oldest_undelivered_timestamp_ms
        self._reported, self._reported_at = (self._planned, fields), time.monotonic()
        return fields

    def _head_fields(self, end: Offset, versions: int) -> OffsetFields:
        """Return the end of what can be planned, as an offset, with the backlog before it."""
        assert self._planned is not None
        source = self._table.source
        fields = list_fields(end)
        fields[HEAD_VERSION], fields[LAG_VERSIONS] = end.last_version(source), versions
        delivered = whole_before(source, self._planned) if versions else end.last_version(source)
        first = -1 if self._initial is None else self._initial.version
        if delivered is not None and delivered >= first:
            fields[DELIVERED_VERSION] = delivered
        return fields

    def end_at_head(self) -> None:
        head = self._loop.call(self._table.source.initial_offset("latest"))
        if self._end is None or head.is_before(self._end):
            self._end = head
        self._ends_at_head = True

    def partitions(
        self, start: Offset, end: Offset, schema_version: int | None
    ) -> Sequence[InputPartition]:
        if not start.is_before(end):
            return []
        source = self._table.source
        self._call(self._boundary.require(source, start, end, schema_version))
        return pack(self._call(tasks_between(source, start, end)))

    def commit(self, end: Offset) -> None:
        self._loop.call(self._table.source.commit(end))

    def close(self) -> None:
        self._loop.call(self._table.aclose())
        self._loop.close()

    def _call(self, work: Coroutine[None, None, _T]) -> _T:
        """Run work with offsets of the checkpoint; errors of these offsets name a remedy there."""
        try:
            return self._loop.call(work)
        except (MissingVersionError, TableRecreatedError) as error:
            if error.retryable:
                raise
            is_gone = isinstance(error, MissingVersionError)
            kind = MissingVersionError if is_gone else TableRecreatedError
            raise error.restate(error.message, remedy=_HINTS[kind]) from error

    def _is_finished(self, start: Offset) -> bool:
        return self._end is not None and not start.is_before(self._end)


# A query has one schema. Rows of versions up to the one it was taken from may lack columns or be
# narrower: those become null or are widened. Rows of later versions must have the same columns and
# types, otherwise the micro-batch ends before them, and the query resumes after a restart.

LOOK_AHEAD_VERSIONS = 1000
"""How many versions after a boundary are searched for the newest schema that its rows fit."""


class SchemaBoundary:
    """Compares rows' schemas with the schema a query has.

    Args:
        schema: The schema of the query.
        version: The version it was taken from; None for a user-defined schema, which all rows fit
            that can be cast to it.
    """

    def __init__(self, schema: StructType, version: Version | None) -> None:
        self._types = {field.name: field.dataType for field in schema}
        self._target = declared_schema(schema)
        self._version = version
        self._misfits: dict[bytes, str] = {}
        self._same: dict[bytes, bool] = {}

    async def reach(self, source: ChangeSource, start: Offset, end: Offset) -> Offset:
        """Return `end`, or the offset before it where the schema ends.

        Raises:
            SchemaChangedError: The schema ends at `start`.
            TableError: A commit cannot be read correctly.
        """
        async for step in source.schema_steps(start, end):
            if not self._fits(step):
                if not start.is_before(step.offset):
                    raise await self._describe_change(source, step)
                return step.offset
        return end

    async def require(
        self, source: ChangeSource, start: Offset, end: Offset, planned_with: int | None
    ) -> None:
        """Check a micro-batch that was planned before, perhaps for a query with another schema.

        Args:
            planned_with: The version of that schema.

        Raises:
            SchemaChangedError: Rows between the two do not fit this query's schema.
        """
        async for step in source.schema_steps(start, end):
            if self._misfit(step.schema):
                raise await self._describe_change(source, step, planned_with)

    def _fits(self, step: SchemaStep) -> bool:
        if self._version is None or step.version <= self._version:
            return not self._misfit(step.schema)
        key = _key(step.schema)
        if key not in self._same:
            fields = spark_schema(step.schema).fields
            self._same[key] = self._types == {f.name: f.dataType for f in fields}
        return self._same[key]

    def _misfit(self, schema: pa.Schema) -> str:
        key = _key(schema)
        if key not in self._misfits:
            self._misfits[key] = misfit(schema, self._target, may_drop=self._version is None)
        return self._misfits[key]

    async def _describe_change(
        self, source: ChangeSource, step: SchemaStep, planned_with: int | None = None
    ) -> SchemaChangedError:
        detail = self._misfit(step.schema) or self._difference(step.schema)
        problem = f"Version {step.offset.version} has another schema than this query. {detail}"
        if self._version is None:
            return SchemaChangedError(
                problem,
                version=step.offset.version,
                remedy=(
                    "Start the query again from its checkpoint to take the newest types, with"
                    " .schema(...) types that hold both, or leave the column out."
                ),
            )
        version = planned_with
        if version is None or version == self._version:
            version = await _newest_fitting(source, step)
        changed = SchemaChangedError(
            problem,
            version=step.offset.version,
            remedy=(
                "All rows before it are delivered. Start the query again from its checkpoint with"
                f' .option("schemaVersion", {version}): it continues there with the new schema.'
            ),
        )
        changed.schema_version = version
        return changed

    def _difference(self, schema: pa.Schema) -> str:
        rows = {f.name: f.dataType for f in spark_schema(schema).fields}
        reported = [f"{name} no longer exists" for name in self._types if name not in rows]
        reported += [
            f"{name} is {kind.simpleString()} there and {self._types[name].simpleString()} here"
            for name, kind in rows.items()
            if name in self._types and self._types[name] != kind
        ]
        return f"The column {', the column '.join(reported)}."


def _key(schema: pa.Schema) -> bytes:
    """Return the identity of a schema; `==` would ignore the metadata of its fields."""
    return bytes(schema.serialize())


def misfit(schema: pa.Schema, target: pa.Schema, *, may_drop: bool) -> str:
    """Return why rows of a schema do not fit `target`; empty if they do."""
    rows = with_change_columns(schema)
    if may_drop:
        rows = pa.schema([field for field in rows if field.name in target.names])
    try:
        conform(pa.RecordBatch.from_pylist([], schema=rows), target, may_drop=may_drop)
    except SchemaChangedError as error:
        return error.message
    return ""


async def _newest_fitting(source: ChangeSource, first: SchemaStep) -> Version:
    """Return the newest version whose schema all rows from `first` up to it fit."""
    steps = [first]
    version = first.offset.version
    for _ in range(LOOK_AHEAD_VERSIONS):
        version = source.next_version(version)
    end = Offset(table_id=first.offset.table_id, version=version)
    # A later commit that cannot be read is reported when the stream reaches it.
    with suppress(TableError):
        async for step in source.schema_steps(first.offset, end):
            steps.append(step)
    return next(step.version for step in reversed(steps) if _holds(step, steps))


def _holds(step: SchemaStep, steps: Sequence[SchemaStep]) -> bool:
    target = declared_schema(spark_schema(step.schema))
    before = steps[: steps.index(step)]
    return not any(misfit(each.schema, target, may_drop=False) for each in before)
