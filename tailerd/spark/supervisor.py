"""`tailerd run` on Spark: one session, one supervised streaming query per table.

Queries start one after another, each when the one before has answered: every Python source is a
process of its own on the driver, and many at once time out. A query that dies of something that
may pass, the death of Spark's own Java process for instance, is started again from its checkpoint;
one that cannot be served truthfully stays down and the others go on. Where the table's schema
changes, the query ends before the first rows that have the new one, and another takes over there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from tailerd.backoff import Backoff
from tailerd.config import Config, TableConfig
from tailerd.errors import EngineError, SchemaChangedError, TailerdError
from tailerd.spark.engine import SparkEngine
from tailerd.spark.progress import ENGINE, BatchReport, events_of
from tailerd.spark.queries import start_query
from tailerd.spark.query_checkpoint import with_checkpoint
from tailerd.spark.query_errors import error_of
from tailerd.spark.schema_boundary import named_version
from tailerd.telemetry import Telemetry, events

_ANSWER_TIMEOUT_SECONDS = 120.0
_LOOK_SECONDS = 1.0
_LAST_REPORT_SECONDS = 5.0
_ATTEMPTS_ONCE = 5


async def run_supervised(
    config: Config,
    tables: Mapping[str, TableConfig],
    telemetry: Telemetry,
    stop: asyncio.Event,
    once: bool,
) -> None:
    """Run the Spark pipelines of `tables` until `stop` is set, or with `once` to their heads.

    Raises:
        TailerdError: A table's pipeline ended with it; raised when all others have ended too.
    """
    engine = SparkEngine(config, telemetry, once=once)
    pipelines = [SparkPipeline(engine, name, table) for name, table in tables.items()]

    async def pass_on() -> None:
        await stop.wait()
        for pipeline in pipelines:
            pipeline.stop()

    passing_on = asyncio.ensure_future(pass_on())
    try:
        async with asyncio.TaskGroup() as group:
            for pipeline in pipelines:
                group.create_task(pipeline.run())
    finally:
        passing_on.cancel()
        await engine.close()
    failures = [pipeline.error for pipeline in pipelines if pipeline.error is not None]
    if failures:
        raise failures[0]


class SparkPipeline:
    """One table's query: started, observed, restarted. Implements `QueryObserver`.

    Its checkpoint is `<state>/spark/<table>`. Once asked to stop, it ends within
    `config.shutdown_timeout` seconds.

    Attributes:
        error: Why it failed; None while it runs and when it ended well.
    """

    def __init__(self, engine: SparkEngine, name: str, table: TableConfig) -> None:
        self.error: TailerdError | None = None
        self._engine = engine
        self._name = name
        self._table = table
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._answered = asyncio.Event()
        self._woken = asyncio.Event()
        self._attempt = 0
        self._schema_version: int | None = None
        self._schemas_tried: set[int] = set()
        self._last_end = ""
        self._checkpoint = Path(engine.config.state).absolute() / "spark" / name

    def stop(self) -> None:
        """Ask `run` to let the running micro-batch finish and return."""
        self._stop.set()

    async def run(self) -> None:
        """Keep the query alive; what ended it for good is in `error`."""
        self._engine.telemetry.emit(
            events.PipelineStarted(
                table=self._name,
                source=self._table.path,
                sink=self._table.sink.kind,
                engine=ENGINE,
                guarantee=self._table.sink.guarantee(),
            )
        )
        stop = self._stop
        while not stop.is_set():
            failure = await self._run_query()
            if failure is None:
                break
            if isinstance(failure, SchemaChangedError) and self._takes_schema_of(failure):
                continue
            failure = with_checkpoint(failure, self._checkpoint)
            if not self._may_retry(failure):
                self._engine.telemetry.emit(
                    events.PipelineFailed(
                        table=self._name,
                        engine=ENGINE,
                        error_code=failure.code,
                        hint=str(failure),
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

    def reported(self, report: BatchReport) -> None:
        """Pass a report on as events; called from Spark's callback thread."""
        for event in events_of(report, self._name, self._table.sink.kind):
            self._engine.telemetry.emit(event)
        self._loop.call_soon_threadsafe(self._progressed, report.end)

    def idled(self) -> None:
        """Note that the query lives."""
        self._loop.call_soon_threadsafe(self._answered.set)

    def terminated(self) -> None:
        """Wake the one that waits for the query."""
        self._loop.call_soon_threadsafe(self._woken.set)

    def _progressed(self, end: str) -> None:
        self._answered.set()
        if end != self._last_end:
            self._last_end = end
            self._attempt = 0
            self._schemas_tried.clear()

    async def _run_query(self) -> TailerdError | None:
        """Run the query once; return why it died, or None when it ended as asked."""
        self._answered.clear()
        self._woken.clear()
        try:
            async with self._engine.starting:
                if self._stop.is_set():
                    return None
                query = await self._start()
                await self._until_answered(query)
            return await self._until_ended(query)
        except TailerdError as error:
            return error

    async def _start(self) -> StreamingQuery:
        engine = self._engine
        spark = await engine.session()

        def start() -> StreamingQuery:
            query = start_query(
                spark,
                self._name,
                self._table,
                self._checkpoint,
                once=engine.once,
                schema_version=self._schema_version,
            )
            engine.listener.observe(str(query.runId), self)
            return query

        return await engine.blocking(start, in_session_thread=True)

    async def _until_answered(self, query: StreamingQuery) -> None:
        deadline = self._loop.time() + _ANSWER_TIMEOUT_SECONDS
        while not self._answered.is_set() and not self._stop.is_set():
            if self._woken.is_set() or not await self._engine.blocking(lambda: query.isActive):
                return
            if self._loop.time() > deadline:
                await self._engine.blocking(query.stop)
                raise EngineError(
                    f"The query of table {self._name} did not answer within"
                    f" {_ANSWER_TIMEOUT_SECONDS:.0f} seconds, perhaps because the machine is busy."
                )
            await _first_of(self._answered, self._woken, self._stop, seconds=_LOOK_SECONDS)

    async def _until_ended(self, query: StreamingQuery) -> TailerdError | None:
        engine = self._engine
        run_id = str(query.runId)
        try:
            while await engine.blocking(lambda: query.isActive):
                if self._stop.is_set():
                    await self._end(query)
                    await _first_of(self._woken, seconds=_LAST_REPORT_SECONDS)
                    return None
                await _first_of(self._woken, self._stop, seconds=_LOOK_SECONDS)
                # Java may be gone without a word: then asking fails, and the wait was short.
            # Reports come through a queue, the last of them before the word of the end.
            await _first_of(self._woken, seconds=_LAST_REPORT_SECONDS)
            failure = await engine.blocking(query.exception)
            return None if failure is None else error_of(str(failure))
        finally:
            engine.listener.forget(run_id)

    async def _end(self, query: StreamingQuery) -> None:
        """Let the running micro-batch finish if it is quick; else Spark repeats it next time."""
        engine = self._engine
        patience = engine.config.shutdown_timeout / 2
        deadline = self._loop.time() + patience
        while self._loop.time() < deadline:
            status = await engine.blocking(lambda: query.status)
            if not (status["isTriggerActive"] and status["isDataAvailable"]):
                break
            await asyncio.sleep(0.05)
        try:
            async with asyncio.timeout(max(1.0, patience)):
                await engine.blocking(query.stop)
        except TimeoutError:
            # Stopping the session ends the query too.
            return

    def _may_retry(self, failure: TailerdError) -> bool:
        limit = self._table.max_attempts or (_ATTEMPTS_ONCE if self._engine.once else None)
        return failure.retryable and (limit is None or self._attempt < limit)

    def _takes_schema_of(self, failure: SchemaChangedError) -> bool:
        """Let the next query have the schema the failed one asks for, unless it was tried here."""
        version = named_version(failure)
        if version is None or version in self._schemas_tried:
            return False
        self._schema_version = version
        self._schemas_tried.add(version)
        self._engine.telemetry.emit(
            events.SchemaAdopted(
                table=self._name, engine=ENGINE, version=version, hint=failure.message
            )
        )
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
                hint=str(failure),
            )
        )
        await _first_of(self._stop, seconds=wait)


async def _first_of(*events: asyncio.Event, seconds: float) -> None:
    """Wait until one of the events is set or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
