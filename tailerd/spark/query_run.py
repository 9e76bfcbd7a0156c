"""Runs one streaming query: waits for its first report, supervises it, returns its error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.errors import EngineError, TailerdError
from tailerd.spark.engine import SparkEngine
from tailerd.spark.progress import BatchReport
from tailerd.spark.query_errors import error_of
from tailerd.spark.query_listener import QueryListener

_ANSWER_TIMEOUT_SECONDS = 120.0
_BATCH_SECONDS = 10.0
"""How long a first micro-batch delays the start of the next query: its workers start too, and many
at once time out."""
_LOOK_SECONDS = 1.0
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

    def answered(self) -> None:
        """Note that the query is alive; called in the event loop."""
        self._answered.set()

    def reported(self, report: BatchReport) -> None:
        """Pass a report on; called from Spark's callback thread."""
        self._on_report(report)
        self._loop.call_soon_threadsafe(self._answered.set)

    def idled(self) -> None:
        """Note that the query is alive."""
        self._loop.call_soon_threadsafe(self._answered.set)

    def terminated(self) -> None:
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
            await first_of(self._answered, self._woken, self.stop, seconds=_LOOK_SECONDS)

    async def _until_ended(self, query: StreamingQuery) -> TailerdError | None:
        engine = self._engine
        while await engine.blocking(lambda: query.isActive):
            if self.stop.is_set():
                await self._end(query)
                await first_of(self._woken, seconds=_LAST_REPORT_SECONDS)
                return None
            await first_of(self._woken, self.stop, seconds=_LOOK_SECONDS)
            # Java may end without a report: then the next call fails, after this short wait.
        # Reports come through a queue, the last of them before the report of the end.
        await first_of(self._woken, seconds=_LAST_REPORT_SECONDS)
        failure = await engine.blocking(query.exception)
        return None if failure is None else error_of(str(failure))

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


async def first_of(*events: asyncio.Event, seconds: float) -> None:
    """Wait until one of the events is set or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
