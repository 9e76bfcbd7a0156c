"""`tailerd run` on Spark: one session, one supervised streaming query per table.

Queries start one after another, each when the one before has answered: every Python source is a
process of its own on the driver, and many at once time out. A query that dies of something that
may pass is started again from its checkpoint; one that cannot be served truthfully stays down and
the others go on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.backoff import Backoff
from tailerd.config import Config, TableConfig
from tailerd.errors import EngineError, SchemaChangedError, TailerdError
from tailerd.spark.progress import ENGINE, BatchReport, events_of
from tailerd.spark.queries import start_query
from tailerd.spark.query_errors import error_of
from tailerd.spark.query_listener import QueryListener
from tailerd.spark.session import local_session
from tailerd.telemetry import Telemetry, events

_T = TypeVar("_T")
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

    Checkpoints are kept in `<state>/spark/<table>`. Once `stop` is set, queries end within
    `config.shutdown_timeout` seconds.

    Raises:
        ConfigError: Spark cannot start.
        TailerdError: A table's pipeline ended with it; raised when all others have ended too.
    """
    with (
        ThreadPoolExecutor(len(tables) + 2, thread_name_prefix="tailerd-spark") as threads,
        ThreadPoolExecutor(1, thread_name_prefix="tailerd-spark-session") as session_thread,
    ):
        engine = _Engine(config, telemetry, stop, once, threads, session_thread)
        await engine.open()
        try:
            await engine.run(tables)
        finally:
            await engine.close()


class _Engine:
    """The session and what all its queries share."""

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        stop: asyncio.Event,
        once: bool,
        threads: ThreadPoolExecutor,
        session_thread: ThreadPoolExecutor,
    ) -> None:
        self.config = config
        self.telemetry = telemetry
        self.stop = stop
        self.once = once
        self.listener = QueryListener()
        self.starting = asyncio.Lock()
        self._threads = threads
        self._session_thread = session_thread
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            raise EngineError("The Spark session is not open.")
        return self._spark

    async def blocking(self, work: Callable[[], _T], *, in_session_thread: bool = False) -> _T:
        """Run a call into the JVM in a thread.

        Formats registered in Python are known only to threads whose active session has them: that
        is the thread which made the session, so queries are started there.

        Raises:
            EngineError: The JVM does not answer.
        """
        threads = self._session_thread if in_session_thread else self._threads
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except Py4JJavaError as error:
            raise error_of(str(error)) from error
        except (Py4JError, ConnectionError) as error:
            raise EngineError(
                f"Spark's Java process does not answer: {error}.",
                hint="Look at its messages on stderr; offsets are safe in the checkpoints.",
            ) from error

    async def open(self) -> None:
        settings = self.config.spark
        self._spark = await self.blocking(
            lambda: local_session("tailerd", settings.master, settings.conf),
            in_session_thread=True,
        )
        await self.blocking(lambda: self.spark.streams.addListener(self.listener))

    async def run(self, tables: Mapping[str, TableConfig]) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_Pipeline(self, name, table).run())
                for name, table in tables.items()
            ]
        failures = [failure for task in tasks if (failure := task.result()) is not None]
        if failures:
            raise failures[0]

    async def close(self) -> None:
        spark, self._spark = self._spark, None
        if spark is None:
            return
        try:
            async with asyncio.timeout(self.config.shutdown_timeout + _LOOK_SECONDS):
                await self.blocking(lambda: spark.streams.removeListener(self.listener))
                await self.blocking(spark.stop)
        except (TimeoutError, EngineError):
            # The process is ending, and the Java process ends with it.
            return


class _Pipeline:
    """One table's query: started, observed, restarted. Implements `QueryObserver`."""

    def __init__(self, engine: _Engine, name: str, table: TableConfig) -> None:
        self._engine = engine
        self._name = name
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._answered = asyncio.Event()
        self._woken = asyncio.Event()
        self._attempt = 0
        self._schema_changed_at: str | None = None
        self._last_end = ""

    async def run(self) -> TailerdError | None:
        """Keep the query alive; return the error that ended it for good, if any."""
        self._engine.telemetry.emit(
            events.PipelineStarted(
                table=self._name,
                source=self._table.path,
                sink=self._table.sink.kind,
                engine=ENGINE,
            )
        )
        stop = self._engine.stop
        while not stop.is_set():
            failure = await self._run_query()
            if failure is None:
                break
            if not self._may_retry(failure):
                self._engine.telemetry.emit(
                    events.PipelineFailed(
                        table=self._name,
                        engine=ENGINE,
                        error_code=failure.code,
                        hint=str(failure),
                    )
                )
                return failure
            await self._wait_before_retry(failure)
        self._engine.telemetry.emit(
            events.PipelineStopped(
                table=self._name, engine=ENGINE, is_complete=self._engine.once and not stop.is_set()
            )
        )
        return None

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

    async def _run_query(self) -> TailerdError | None:
        """Run the query once; return why it died, or None when it ended as asked."""
        self._answered.clear()
        self._woken.clear()
        try:
            async with self._engine.starting:
                if self._engine.stop.is_set():
                    return None
                query = await self._start()
                await self._until_answered(query)
            return await self._until_ended(query)
        except TailerdError as error:
            return error

    async def _start(self) -> StreamingQuery:
        engine = self._engine

        def start() -> StreamingQuery:
            checkpoint = Path(engine.config.state).absolute() / "spark" / self._name
            query = start_query(engine.spark, self._name, self._table, checkpoint, once=engine.once)
            engine.listener.observe(str(query.runId), self)
            return query

        return await engine.blocking(start, in_session_thread=True)

    async def _until_answered(self, query: StreamingQuery) -> None:
        deadline = self._loop.time() + _ANSWER_TIMEOUT_SECONDS
        while not self._answered.is_set() and not self._engine.stop.is_set():
            if self._woken.is_set() or not await self._engine.blocking(lambda: query.isActive):
                return
            if self._loop.time() > deadline:
                await self._engine.blocking(query.stop)
                raise EngineError(
                    f"The query of table {self._name} did not answer within"
                    f" {_ANSWER_TIMEOUT_SECONDS:.0f} seconds, perhaps because the machine is busy."
                )
            await _first_of(self._answered, self._woken, self._engine.stop, seconds=_LOOK_SECONDS)

    async def _until_ended(self, query: StreamingQuery) -> TailerdError | None:
        engine = self._engine
        run_id = str(query.runId)
        try:
            while await engine.blocking(lambda: query.isActive):
                if engine.stop.is_set():
                    await self._stop(query)
                    await _first_of(self._woken, seconds=_LAST_REPORT_SECONDS)
                    return None
                await _first_of(self._woken, engine.stop, seconds=_LOOK_SECONDS)
                # Java may be gone without a word: then asking fails, and the wait was short.
            # Reports come through a queue, the last of them before the word of the end.
            await _first_of(self._woken, seconds=_LAST_REPORT_SECONDS)
            failure = await engine.blocking(query.exception)
            return None if failure is None else error_of(str(failure))
        finally:
            engine.listener.forget(run_id)

    async def _stop(self, query: StreamingQuery) -> None:
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
        if isinstance(failure, SchemaChangedError):
            # A new query has the new schema. If it fails at the same place, no schema fits.
            is_new = self._schema_changed_at != self._last_end
            self._schema_changed_at = self._last_end
            return is_new
        limit = self._table.max_attempts or (_ATTEMPTS_ONCE if self._engine.once else None)
        return failure.retryable and (limit is None or self._attempt < limit)

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
        await _first_of(self._engine.stop, seconds=wait)


async def _first_of(*events: asyncio.Event, seconds: float) -> None:
    """Wait until one of the events is set or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
