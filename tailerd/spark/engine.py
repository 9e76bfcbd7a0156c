"""The process's Spark session: opened on first use, and reopened when its Java process dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from tailerd.config import Config
from tailerd.errors import EngineError
from tailerd.spark.datasource import TailerdDataSource, configure_source
from tailerd.spark.query_errors import parse_error
from tailerd.spark.query_listener import QueryListener
from tailerd.spark.session import forget_session, local_session
from tailerd.storage.stores import StoreSettings
from tailerd.telemetry import Telemetry, events

_T = TypeVar("_T")
_THREADS = 32
_CLOSE_SECONDS = 1.0


class SparkEngine:
    """The session, and the resources that all its queries share.

    Attributes:
        retry_seconds: How long queries retry without progress; None: without end.
        storage: How queries reach their tables; cannot change while they run.
        listener: Passes Spark's reports to the queries' supervisors.
        starting: Held while a query starts: every Python source is a separate process on the
            driver, and many at once time out.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        *,
        once: bool,
        retry_seconds: float | None = None,
        storage: StoreSettings | None = None,
    ) -> None:
        self.config = config
        self.retry_seconds = retry_seconds
        self.storage = storage or StoreSettings.from_environment()
        self.telemetry = telemetry
        self.once = once
        self.listener = QueryListener()
        self.starting = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tailerd-spark")
        self._session_thread = ThreadPoolExecutor(1, thread_name_prefix="tailerd-spark-session")
        self._spark: SparkSession | None = None

    async def session(self) -> SparkSession:
        """Return the live session, opening one if there is none: 4 to 10 seconds.

        Raises:
            ConfigError: Spark cannot start.
            EngineError: Java died while it started.
        """
        async with self._opening:
            if self._spark is None:
                settings = self.config.spark

                def open_session() -> SparkSession:
                    spark = local_session("tailerd", settings.master, settings.conf)
                    spark.dataSource.register(configure_source(TailerdDataSource, self.storage))
                    self.listener = QueryListener()
                    spark.streams.addListener(self.listener)
                    return spark

                began = time.monotonic()
                self.telemetry.emit(events.EngineLaunched(engine="spark"))
                self._spark = await self.blocking(open_session, in_session_thread=True)
                self.telemetry.emit(
                    events.EngineStarted(
                        engine="spark", duration_seconds=round(time.monotonic() - began, 3)
                    )
                )
            return self._spark

    async def blocking(self, work: Callable[[], _T], *, in_session_thread: bool = False) -> _T:
        """Run a call into the JVM in a thread.

        Formats registered in Python are known only to threads whose active session has them: that
        is the thread which made the session, so queries are started there.

        Raises:
            EngineError: The JVM does not answer. The next `session` is a new one.
        """
        threads = self._session_thread if in_session_thread else self._threads
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except Py4JJavaError as error:
            raise parse_error(str(error)) from error
        except (Py4JError, ConnectionError) as error:
            raise await self._lost(error) from error

    async def _lost(self, error: Exception) -> EngineError:
        """Drop a session whose Java process has ended; keep it if the process is alive."""
        status = await asyncio.get_running_loop().run_in_executor(
            self._session_thread, forget_session
        )
        if status is None:
            return EngineError(
                f"Spark's Java process does not answer: {error}.",
                remedy="Check its messages on stderr; no offset is lost.",
            )
        self._spark = None
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return EngineError(
            f"Spark's Java process ended {how}, and another is started.",
            remedy="Its messages on stderr may say why; no offset is lost.",
        )

    async def close(self) -> None:
        """End the session, within the time for a shutdown; the Java process ends with this one."""
        spark, self._spark = self._spark, None
        if spark is not None:
            with suppress(TimeoutError, EngineError):
                async with asyncio.timeout(self.config.shutdown_timeout + _CLOSE_SECONDS):
                    await self.blocking(lambda: spark.streams.removeListener(self.listener))
                    await self.blocking(spark.stop)
        for threads in (self._threads, self._session_thread):
            threads.shutdown(wait=False, cancel_futures=True)
