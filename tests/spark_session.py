"""A real Spark session for tests, and what is done where there is no Java."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from tailerd.java import java_home_or_version
from tailerd.spark.engine import SparkEngine
from tailerd.spark.session import local_session


def require_java() -> None:
    """Skip where there is no Java; in CI that is a failure."""
    found = java_home_or_version()
    if not found.is_usable:
        give_up(f"Spark cannot start: {found.reason}")


def spark_session(warehouse: Path) -> Iterator[SparkSession]:
    """Give the one session of this process."""
    require_java()
    session = local_session("tests", "local[2]", {"spark.sql.warehouse.dir": str(warehouse)})
    yield session
    session.stop()


def give_up(message: str) -> None:
    """Skip; in CI fail."""
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@contextmanager
def session_stays() -> Iterator[None]:
    """Let each daemon that runs in this process leave its session to the next, and to the tests."""

    async def close(engine: SparkEngine) -> None:
        spark, engine._spark = engine._spark, None
        if spark is not None:
            await engine.blocking(lambda: spark.streams.removeListener(engine.listener))
        for threads in (engine._threads, engine._session_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    with patch.object(SparkEngine, "close", close):
        yield
