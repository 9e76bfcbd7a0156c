"""An engine without Java: queries that do as a test says, everything around them the real thing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.config import Config
from tailerd.spark.engine import SparkEngine
from tailerd.spark.query_listener import QueryListener
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import Event

_T = TypeVar("_T")


class QueryDouble:
    """What supervisors ask of Spark's query."""

    def __init__(self, run_id: str = "run") -> None:
        self.runId = run_id
        self.isActive = True
        self.status = {"isTriggerActive": False, "isDataAvailable": False}
        self.failure: str | None = None

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> str | None:
        return self.failure

    @property
    def query(self) -> StreamingQuery:
        return cast(StreamingQuery, self)


class EngineDouble:
    """Runs blocking calls in threads as `SparkEngine` does, those about sessions in one."""

    def __init__(self, folder: Path, shutdown_timeout: str = "1s") -> None:
        self.events: list[Event] = []
        tables = {"orders": {"path": str(folder), "sink": {"kind": "console"}}}
        self.retry_seconds: float | None = None
        self.config = Config.model_validate(
            {"state": str(folder), "shutdown_timeout": shutdown_timeout, "tables": tables}
        )
        self.telemetry = Telemetry([self.events.append])
        self.once = False
        self.hints = None
        self.listener = QueryListener()
        self.starting = asyncio.Lock()
        self._threads = ThreadPoolExecutor(4)
        self._session_thread = ThreadPoolExecutor(1)

    async def session(self) -> SparkSession:
        return cast(SparkSession, None)

    async def blocking(self, work: Callable[[], _T], *, in_session_thread: bool = False) -> _T:
        threads = self._session_thread if in_session_thread else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    @property
    def engine(self) -> SparkEngine:
        return cast(SparkEngine, self)

    @property
    def observed(self) -> list[str]:
        """Ids of the runs that somebody is told of."""
        return list(self.listener._observers)
