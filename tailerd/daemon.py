"""From objects to running tasks: pipelines, watchers, the listener, signals, and the way out.

Shutdown has two phases. The first signal lets every pipeline finish what is in flight within
`shutdown_timeout`; then, or at a second signal, whatever still runs is cancelled. Either way an
offset is saved only for what was acknowledged, so nothing is lost: at most a delivery is repeated.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from tailerd.assembly import open_pipelines, open_watchers
from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.errors import BugError, TailerdError
from tailerd.pipeline.pipeline import Pipeline
from tailerd.pipeline.state_lock import state_lock
from tailerd.telemetry import Handler, Telemetry, events
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.watchers.hints import HintBoard
from tailerd.web.pages import Pages
from tailerd.web.server import WebServer

_SPARK_GRACE_SECONDS = 10.0
_STUCK_SECONDS = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Daemon:
    """Runs all tables of a configuration. `run` once.

    Attributes:
        interrupted_by: The first signal that asked it to stop, if any.
    """

    def __init__(
        self,
        config: Config,
        *,
        is_once: bool = False,
        handlers: Sequence[Handler] = (),
        on_stuck: Callable[[], None] | None = None,
    ) -> None:
        """Prepare.

        Args:
            config: What to run.
            is_once: End when every table has been delivered up to its present head.
            handlers: Hear every event, beside the metrics and the status page.
            on_stuck: Called when a thread that hangs in the storage or in a sink holds up the
                shutdown beyond its time; a process ends itself there.
        """
        self.interrupted_by: signal.Signals | None = None
        self._config = config
        self._is_once = is_once
        self._on_stuck = on_stuck
        self._clock = SystemClock()
        self._metrics = Metrics(self._clock)
        engines = [(name, config.engine_of(name)) for name in config.tables]
        self._status = StatusBoard(engines, self._clock)
        self._telemetry = Telemetry([*handlers, self._metrics.handle, self._status.handle])
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._spark_error: TailerdError | None = None

    def stop(self) -> None:
        """Begin the first phase of shutdown, or the second when the first has begun."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    async def run(self) -> None:
        """Run until every pipeline has ended or `stop` was called.

        Raises:
            ConfigError: The state folder or the listener's address is taken.
            TailerdError: Of the first table, in the order of the configuration, that failed.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(state_lock(Path(self._config.state)))
            stack.enter_context(self._signals())
            address = await self._listen(stack)
            self._telemetry.emit(events.DaemonStarted(path=address))
            failures = await self._run_pipelines()
        if failures:
            raise failures[0]

    async def _listen(self, stack: AsyncExitStack) -> str:
        address = self._config.http.address()
        if address is None:
            return ""
        pages = Pages(metrics=self._metrics, status=self._status)
        server = await stack.enter_async_context(WebServer(address, pages.routes()))
        return f"http://{server.address}"

    async def _run_pipelines(self) -> list[TailerdError]:
        config = self._config
        arrow = [name for name in config.tables if config.engine_of(name) == "arrow"]
        spark = [name for name in config.tables if config.engine_of(name) == "spark"]
        hints = HintBoard()
        executor = ThreadPoolExecutor(2 + (os.cpu_count() or 1), thread_name_prefix="tailerd-read")
        pipelines = open_pipelines(
            config,
            arrow,
            hints=hints,
            telemetry=self._telemetry,
            clock=self._clock,
            executor=executor,
            is_once=self._is_once,
        )
        watchers = open_watchers(
            [config.tables[name] for name in arrow], telemetry=self._telemetry, clock=self._clock
        )
        try:
            async with asyncio.TaskGroup() as group:
                own = [group.create_task(pipeline.run()) for pipeline in pipelines]
                sparks = [group.create_task(self._run_spark(spark))] if spark else []
                beside = [
                    group.create_task(hints.run(watchers)),
                    group.create_task(self._shut_down(pipelines, own, sparks)),
                ]
                await asyncio.wait([*own, *sparks])
                for task in beside:
                    task.cancel()
        except ExceptionGroup as error:
            raise BugError(
                f"A task beside the pipelines ended with {error.exceptions[0]!r}.",
                hint="Please report it.",
            ) from error
        finally:
            # A read that hangs in the storage must not keep the process.
            executor.shutdown(wait=False, cancel_futures=True)
        errors = [pipeline.error for pipeline in pipelines] + [self._spark_error]
        return [error for error in errors if error is not None]

    async def _run_spark(self, names: Sequence[str]) -> None:
        # Loads pyspark, which an Arrow-only daemon does without.
        from tailerd.spark.supervisor import run_supervised

        tables = {name: self._config.tables[name] for name in names}
        try:
            await run_supervised(self._config, tables, self._telemetry, self._stop, self._is_once)
        except TailerdError as error:
            self._spark_error = error

    async def _shut_down(
        self,
        pipelines: Sequence[Pipeline],
        own: Sequence[asyncio.Task[None]],
        sparks: Sequence[asyncio.Task[None]],
    ) -> None:
        await self._stop.wait()
        for pipeline in pipelines:
            pipeline.stop()
        await self._patience(self._config.shutdown_timeout)
        # In time or not: what still runs now is cancelled.
        for task in own:
            task.cancel()
        if sparks:
            # Spark keeps the same deadline by itself, then needs time to end its Java process.
            await self._patience(_SPARK_GRACE_SECONDS)
            for task in sparks:
                task.cancel()
        await asyncio.sleep(_STUCK_SECONDS)
        if self._on_stuck is not None:
            self._on_stuck()

    async def _patience(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_now.wait()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.interrupted_by is None:
            self.interrupted_by = number
        self._telemetry.emit(events.ShutdownRequested(hint=number.name))
        self.stop()
