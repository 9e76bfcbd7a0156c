"""Deliveries that are cancelled while Spark's own task writes them, with others in the same job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from pyspark.sql import SparkSession

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.pipeline.remote_rows import RemoteWork
from tailerd.spark.engine import SparkEngine
from tailerd.spark.task_runner import SparkTaskRunner
from tailerd.storage.stores import StoreSettings
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.attack]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Writing:
    """A writer that appends to a file for a while."""

    path: Path
    seconds: float

    def __call__(self, batches: Iterator[ChangeBatch]) -> str:
        assert list(batches) == []
        until = time.monotonic() + self.seconds
        while True:
            with self.path.open("a") as file:
                file.write("x")
            if time.monotonic() > until:
                return self.path.name
            time.sleep(0.02)


def writing(path: Path, seconds: float) -> RemoteWork:
    writer = Writing(path, seconds)
    return RemoteWork(table=path.name, runs=(), key=(), limit=DEFAULT_BATCH_LIMIT, writer=writer)


class Engine:
    """The session of this process."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    async def session(self) -> SparkSession:
        return self._spark

    async def blocking(self, work: Callable[[], _T]) -> _T:
        return await asyncio.to_thread(work)


def make_runner(spark: SparkSession) -> SparkTaskRunner:
    return SparkTaskRunner(cast(SparkEngine, cast(Any, Engine(spark))), StoreSettings)


async def test_nothing_is_written_after_a_cancelled_delivery_has_returned(
    spark: SparkSession, tmp_path: Path
) -> None:
    runner = make_runner(spark)
    await runner.run(writing(tmp_path / "first", 0))
    running = asyncio.create_task(runner.run(writing(tmp_path / "cancelled", 30)))
    other = asyncio.create_task(runner.run(writing(tmp_path / "other", 3)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (tmp_path / "cancelled").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    running.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - began < 15
    size = (tmp_path / "cancelled").stat().st_size
    assert (await other).written == "other"
    assert (tmp_path / "cancelled").stat().st_size == size


async def test_a_delivery_gets_its_result_before_its_job_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.spark.task_runner._JOBS_AT_ONCE", 1)
    runner = make_runner(spark)
    first = asyncio.create_task(runner.run(writing(tmp_path / "first", 0)))
    await asyncio.sleep(0)
    # The slow one is the last item of the second task.
    names = ["a", "b", "c", "slow"]
    slow_seconds = 4
    works = [writing(tmp_path / name, slow_seconds if name == "slow" else 0) for name in names]
    running = [asyncio.create_task(runner.run(work)) for work in works]
    await first
    for each, name in zip(running[:3], names, strict=False):
        assert (await each).written == name
    assert not running[3].done()
    assert (await running[3]).written == "slow"
