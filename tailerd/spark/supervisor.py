"""`tailerd run` on Spark: one session, one supervised streaming query per table.

Queries start one after another, each when the previous one has reported: every Python source is a
separate process on the driver, and many at once time out. A query with a retryable error, for
instance the death of Spark's Java process, is restarted from its checkpoint; one whose table cannot
be read correctly stays down and the others continue. When the table's schema changes, the query
ends before the first rows with the new schema, and a new query continues there.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.backoff import ATTEMPTS_ONCE, Backoff
from tailerd.config import TableConfig
from tailerd.errors import MissingVersionError, SchemaChangedError, TailerdError
from tailerd.spark.checkpoint_offsets import delivered_until
from tailerd.spark.claim import SparkClaim, beginning
from tailerd.spark.engine import SparkEngine
from tailerd.spark.progress import ENGINE, BatchReport, emit_start, events_of
from tailerd.spark.queries import start_query
from tailerd.spark.query_checkpoint import with_checkpoint
from tailerd.spark.query_run import QueryRun, first_of
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
        self._query = QueryRun(engine, f"table {name}", self._start, self._reported)
        self._attempt = 0
        self._schema_version: int | None = None
        self._schemas_tried: set[int] = set()
        self._last_end = ""
        self._checkpoint = Path(engine.config.state).absolute() / "spark" / name

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
            failure = await self._claimed() or await self._query.run()
            if failure is None:
                break
            if isinstance(failure, SchemaChangedError) and self._takes_schema_of(failure):
                continue
            if isinstance(failure, MissingVersionError) and self._drops_adopted_schema(failure):
                continue
            # An error of an option does not concern the saved offset.
            if not failure.where:
                failure = with_checkpoint(failure, self._checkpoint)
            if not self._may_retry(failure):
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

    async def _claimed(self) -> TailerdError | None:
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

    def _reported(self, report: BatchReport) -> None:
        """Pass a report on as events; called from Spark's callback thread."""
        for event in events_of(report, self._name, self._table.sink.kind):
            self._engine.telemetry.emit(event)
        self._loop.call_soon_threadsafe(self._progressed, report.end)

    def _progressed(self, end: str) -> None:
        if end != self._last_end:
            self._last_end = end
            self._attempt = 0
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
        limit = self._table.max_attempts or (ATTEMPTS_ONCE if self._engine.once else None)
        return failure.retryable and (limit is None or self._attempt < limit)

    def _takes_schema_of(self, failure: SchemaChangedError) -> bool:
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
        wait = Backoff().wait_seconds(self._attempt, random.Random())
        self._attempt += 1
        self._engine.telemetry.emit(
            events.RetryScheduled(
                table=self._name,
                engine=ENGINE,
                attempt=self._attempt,
                wait_seconds=wait,
                error_code=failure.code,
                error=str(failure),
            )
        )
        await first_of(self._query.stop, seconds=wait)
