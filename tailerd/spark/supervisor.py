"""`tailerd run` on Spark: one session, one supervised streaming query per table.

Queries start in sequence, each when the previous one has reported: every Python source is a
separate process on the driver, and many at once time out. A query with a retryable error, for
instance the death of Spark's Java process, is restarted from its checkpoint; one whose table cannot
be read correctly stays down and the others continue. When the table's schema changes, the query
ends before the first rows with the new schema, and a new query continues there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.backoff import Attempts, RetryPolicy
from tailerd.changefeed.change_batch import CHANGE_TYPE, COMMIT_VERSION
from tailerd.changefeed.change_task import ChangeType
from tailerd.config import TableConfig
from tailerd.errors import (
    BugError,
    EngineError,
    MissingVersionError,
    SchemaChangedError,
    TailerdError,
)
from tailerd.pipeline.policies import give_up
from tailerd.registry import AUTO
from tailerd.sinks.stream.config import StreamSinkConfig
from tailerd.spark.checkpoints import delivered_until, stream_checkpoint
from tailerd.spark.claim import SparkClaim, beginning
from tailerd.spark.engine import SparkEngine
from tailerd.spark.progress import (
    ENGINE,
    FIRST_VERSION,
    LAST_VERSION,
    OBSERVED,
    BatchReport,
    emit_start,
    list_events,
)
from tailerd.spark.query_checkpoint import check_checkpoint, make_private, with_checkpoint
from tailerd.spark.query_errors import parse_error
from tailerd.spark.query_listener import QueryListener
from tailerd.telemetry import events


class SparkPipeline:
    """One table's query: started, observed, restarted.

    Its checkpoint is `<state>/spark/<table>`. Once asked to stop, it ends within
    `config.shutdown_timeout` seconds.

    Attributes:
        error: Why it failed; None while it runs and when it ended well.
    """

    def __init__(
        self, engine: SparkEngine, name: str, table: TableConfig, claim: SparkClaim | None = None
    ) -> None:
        self.error: TailerdError | None = None
        self._engine = engine
        self._name = name
        self._table = table
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._query = QueryRun(engine, f"table {name}", self._start, self._report_events)
        retries = RetryPolicy(max_attempts=table.max_attempts, max_seconds=engine.retry_seconds)
        self._attempts = Attempts(retries, self._loop.time)
        self._schema_version: int | None = None
        self._schemas_tried: set[int] = set()
        self._last_end = ""
        self._checkpoint = stream_checkpoint(engine.config, name)

    def stop(self) -> None:
        """Ask `run` to let the running micro-batch finish and return."""
        self._query.stop.set()

    async def run(self) -> None:
        """Keep the query running; a permanent failure is in `error`."""
        self._engine.telemetry.emit(
            events.PipelineStarted(
                table=self._name,
                source=self._table.path,
                sink=self._table.sink.kind,
                engine=ENGINE,
                guarantee=self._table.sink.guarantee(),
            )
        )
        stop = self._query.stop
        while not stop.is_set():
            failure = await self._claim_name() or await self._query.run()
            if failure is None:
                break
            if isinstance(failure, SchemaChangedError) and self._accept_schema(failure):
                continue
            if isinstance(failure, MissingVersionError) and self._drops_adopted_schema(failure):
                continue
            # An error of an option does not concern the saved offset.
            if not failure.where:
                failure = with_checkpoint(failure, self._checkpoint)
            if not self._may_retry(failure):
                failure = give_up(failure, self._attempts)
                self._engine.telemetry.emit(
                    events.PipelineFailed(
                        table=self._name,
                        engine=ENGINE,
                        error_code=failure.code,
                        error=str(failure),
                    )
                )
                self.error = failure
                return
            await self._wait_before_retry(failure)
        self._engine.telemetry.emit(
            events.PipelineStopped(
                table=self._name, engine=ENGINE, is_complete=self._engine.once and not stop.is_set()
            )
        )

    async def _claim_name(self) -> TailerdError | None:
        """Claim the table's name in the state; return why that failed."""
        if self._claim is not None:
            try:
                done = await asyncio.to_thread(delivered_until, self._checkpoint)
                known = await self._claim.enter(has_offset=done is not None)
                self._table = beginning(self._table, known)
            except TailerdError as error:
                return error
            self._claim = None
        return None

    def _report_events(self, report: BatchReport) -> None:
        """Pass a report on as events; called from Spark's callback thread."""
        for event in list_events(report, self._name, self._table.sink.kind):
            self._engine.telemetry.emit(event)
        self._loop.call_soon_threadsafe(self._note_progress, report.end)

    def _note_progress(self, end: str) -> None:
        if end != self._last_end:
            self._last_end = end
            self._attempts.reset()
            self._schemas_tried.clear()

    def _start(self, spark: SparkSession) -> StreamingQuery:
        emit_start(self._engine.telemetry, self._name, partial(delivered_until, self._checkpoint))
        return start_query(
            spark,
            self._name,
            self._table,
            self._checkpoint,
            once=self._engine.once,
            schema_version=self._schema_version,
        )

    def _may_retry(self, failure: TailerdError) -> bool:
        failure.address(self._engine.config.reader(self._name))
        self._attempts.count()
        return failure.retryable and not self._attempts.are_exhausted

    def _accept_schema(self, failure: SchemaChangedError) -> bool:
        """Let the next query use the schema that the failure names, unless it was tried already."""
        version = failure.schema_version
        if version is None or version in self._schemas_tried:
            return False
        self._schema_version = version
        self._schemas_tried.add(version)
        self._engine.telemetry.emit(
            events.SchemaAdopted(
                table=self._name, engine=ENGINE, version=version, reason=failure.message
            )
        )
        return True

    def _drops_adopted_schema(self, failure: MissingVersionError) -> bool:
        """Let the next query use the newest schema, if the log may have lost the adopted one."""
        if failure.retryable or self._schema_version is None:
            return False
        self._schema_version = None
        return True

    async def _wait_before_retry(self, failure: TailerdError) -> None:
        wait = self._attempts.wait_seconds()
        self._engine.telemetry.emit(
            events.RetryScheduled(
                table=self._name,
                engine=ENGINE,
                attempt=self._attempts.failed,
                wait_seconds=wait,
                error_code=failure.code,
                error=str(failure),
            )
        )
        await wait_for_first(self._query.stop, seconds=wait)


def start_query(
    spark: SparkSession,
    name: str,
    table: TableConfig,
    checkpoint: Path,
    *,
    once: bool,
    schema_version: int | None = None,
) -> StreamingQuery:
    """Start the query of a table; blocks for seconds.

    Args:
        schema_version: The version whose schema it has; None for the newest.

    Raises:
        TailerdError: As raised by the query's Python process.
    """
    sink = table.sink
    if not isinstance(sink, StreamSinkConfig):
        raise BugError(f"A sink of kind {sink.kind} is not one of Spark's own.")
    check_checkpoint(checkpoint)
    try:
        options = read_options(table)
        if schema_version is not None:
            options["schemaVersion"] = str(schema_version)
        changes = spark.readStream.format("tailerd").options(**options).load()
        writer = _count_changes(changes).writeStream.format(sink.format).outputMode("append")
        writer = writer.options(**sink.options).queryName(name)
        writer = writer.option("checkpointLocation", str(checkpoint))
        make_private(checkpoint)
        return (writer.trigger(availableNow=True) if once else writer).start()
    except PySparkException as error:
        raise parse_error(str(error)) from error


def _view_options(table: TableConfig) -> dict[str, str]:
    """Return the options that say which columns, rows and values are read."""
    settings = {name: value for name, value in table.view_settings().items() if value}
    if table.mask_key is not None:
        settings["maskKey"] = table.mask_key.get_secret_value()
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }


def read_options(table: TableConfig) -> dict[str, str]:
    """Return the options of `format("tailerd")` for a table's configuration."""
    options = {
        "path": table.path,
        "changes": table.changes,
        "maxFilesPerTrigger": str(table.max_files_per_batch),
        "maxBytesPerTrigger": str(table.max_bytes_per_batch),
        "allowedPaths": json.dumps(table.allowed_paths),
    }
    if table.poll_interval is not None:
        options["pollInterval"] = str(table.poll_interval)
    if table.format != AUTO:
        options["tableFormat"] = table.format
    if table.partition_timezone is not None:
        options["partitionTimezone"] = table.partition_timezone
    if table.format_options:
        options["formatOptions"] = json.dumps(table.format_options)
    if table.pairing_columns:
        options["identity"] = ",".join(table.pairing_columns)
    if table.ledger is not None:
        options["ledger"] = table.ledger
    options |= _view_options(table)
    if table.start == "snapshot":
        return {**options, "snapshot": "true"}
    if table.start == "latest" or table.start.isdigit():
        return {**options, "startingVersion": table.start}
    return {**options, "startingTimestamp": table.start}


def _count_changes(changes: DataFrame) -> DataFrame:
    """Count rows by change type on the way, for progress reports."""
    kind, version = sql.col(CHANGE_TYPE), sql.col(COMMIT_VERSION)
    counters = [sql.count_if(kind == each.value).alias(each.value) for each in ChangeType]
    first, last = sql.min(version).alias(FIRST_VERSION), sql.max(version).alias(LAST_VERSION)
    return changes.observe(OBSERVED, first, last, *counters)


_ANSWER_TIMEOUT_SECONDS = 120.0
_BATCH_SECONDS = 10.0
"""How long a first micro-batch delays the start of the next query: its workers start too, and many
at once time out."""
_POLL_SECONDS = 1.0
_LAST_REPORT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A query that was started, and the listener that reports on it."""

    query: StreamingQuery
    run_id: str
    listener: QueryListener

    def forget(self) -> None:
        self.listener.forget(self.run_id)


class QueryRun:
    """Runs a query, repeatedly but one run at a time. Implements `QueryObserver`.

    Once asked to stop, `run` returns within `config.shutdown_timeout` seconds.

    Attributes:
        stop: Ask `run` to let the running micro-batch finish and return.
    """

    def __init__(
        self,
        engine: SparkEngine,
        what: str,
        start: Callable[[SparkSession], StreamingQuery],
        on_report: Callable[[BatchReport], None],
    ) -> None:
        """Initialize.

        Args:
            engine: The session.
            what: The query, for errors.
            start: Starts it, blocking.
            on_report: Called with every micro-batch, in Spark's callback thread.
        """
        self.stop = asyncio.Event()
        self._engine = engine
        self._what = what
        self._start_query = start
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._answered = asyncio.Event()
        self._woken = asyncio.Event()
        self._giving_up: asyncio.Task[None] | None = None

    async def run(self) -> TailerdError | None:
        """Run the query once; return why it failed, or None if it was stopped."""
        self._answered.clear()
        self._woken.clear()
        begun: list[_Begun] = []
        try:
            async with self._engine.starting:
                if self.stop.is_set():
                    return None
                await self._start(begun)
                await self._until_answered(begun[0].query)
            return await self._until_ended(begun[0].query)
        except TailerdError as error:
            return error
        except asyncio.CancelledError:
            self._giving_up = asyncio.ensure_future(self._give_up(begun))
            raise
        finally:
            for each in begun:
                each.forget()

    def on_answer(self) -> None:
        """Note that the query is alive; called in the event loop."""
        self._answered.set()

    def on_progress(self, report: BatchReport) -> None:
        """Pass a report on; called from Spark's callback thread."""
        self._on_report(report)
        self._loop.call_soon_threadsafe(self._answered.set)

    def on_idle(self) -> None:
        """Note that the query is alive."""
        self._loop.call_soon_threadsafe(self._answered.set)

    def on_end(self) -> None:
        """Wake the coroutine that waits for the query."""
        self._loop.call_soon_threadsafe(self._woken.set)

    async def _start(self, begun: list[_Begun]) -> None:
        """Start the query and put it in `begun`, also if the caller was cancelled meanwhile."""
        engine = self._engine
        spark = await engine.session()

        def start() -> None:
            query = self._start_query(spark)
            found = _Begun(query=query, run_id=str(query.runId), listener=engine.listener)
            begun.append(found)
            found.listener.observe(found.run_id, self)

        await engine.blocking(start, in_session_thread=True)

    async def _give_up(self, begun: list[_Begun]) -> None:
        """End a query whose run was cancelled, even one that is only being started."""

        def end() -> None:
            for each in begun:
                each.forget()
                each.query.stop()

        # In the thread that starts queries, so that it runs after this start and before the next.
        with suppress(TailerdError):
            # On an error Java is gone, and the query with it.
            await self._engine.blocking(end, in_session_thread=True)

    async def _until_answered(self, query: StreamingQuery) -> None:
        deadline = self._loop.time() + _ANSWER_TIMEOUT_SECONDS
        begun_at: float | None = None
        while not self._answered.is_set() and not self.stop.is_set():
            if self._woken.is_set() or not await self._engine.blocking(lambda: query.isActive):
                return
            now = self._loop.time()
            if await self._engine.blocking(lambda: _has_batch(query)):
                begun_at = now if begun_at is None else begun_at
                if now - begun_at > _BATCH_SECONDS:
                    return
            elif now > deadline:
                await self._engine.blocking(query.stop)
                raise EngineError(
                    f"The query of {self._what} did not answer within"
                    f" {_ANSWER_TIMEOUT_SECONDS:.0f} seconds, perhaps because the machine is busy."
                )
            await wait_for_first(self._answered, self._woken, self.stop, seconds=_POLL_SECONDS)

    async def _until_ended(self, query: StreamingQuery) -> TailerdError | None:
        engine = self._engine
        while await engine.blocking(lambda: query.isActive):
            if self.stop.is_set():
                await self._end(query)
                await wait_for_first(self._woken, seconds=_LAST_REPORT_SECONDS)
                return None
            await wait_for_first(self._woken, self.stop, seconds=_POLL_SECONDS)
            # Java may end without a report: then the next call fails, after this short wait.
        # Reports come through a queue, the last of them before the report of the end.
        await wait_for_first(self._woken, seconds=_LAST_REPORT_SECONDS)
        failure = await engine.blocking(query.exception)
        return None if failure is None else parse_error(str(failure))

    async def _end(self, query: StreamingQuery) -> None:
        """Let a quick micro-batch finish; a longer one is repeated by Spark at the next start."""
        engine = self._engine
        patience = engine.config.shutdown_timeout / 2
        deadline = self._loop.time() + patience
        while self._loop.time() < deadline:
            if not await engine.blocking(lambda: _has_batch(query)):
                break
            await asyncio.sleep(0.05)
        try:
            async with asyncio.timeout(max(1.0, patience)):
                await engine.blocking(query.stop)
        except TimeoutError:
            # Stopping the session ends the query too.
            return


def _has_batch(query: StreamingQuery) -> bool:
    """Return whether a micro-batch runs: it is reported only when it is done, however late.

    Blocking. Its range is known by then, from the sources or from the checkpoint.
    """
    status = query.status
    return bool(status["isTriggerActive"] and status["isDataAvailable"])


async def wait_for_first(*events: asyncio.Event, seconds: float) -> None:
    """Wait until one of the events is set or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
