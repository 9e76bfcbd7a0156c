"""One query from start to end, without Spark: what counts as an answer, and who ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.errors import EngineError
from tailerd.spark import query_run
from tailerd.spark.query_run import QueryRun
from tests.unit.spark.engine_double import EngineDouble, QueryDouble


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_run, "_ANSWER_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(query_run, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(query_run, "_LAST_REPORT_SECONDS", 0.02)


def _run(engine: EngineDouble, start: Callable[[], StreamingQuery]) -> QueryRun:
    def begin(_: SparkSession) -> StreamingQuery:
        return start()

    return QueryRun(engine.engine, "table orders", begin, lambda report: None)


async def test_a_first_micro_batch_may_take_longer_than_the_time_to_answer(tmp_path: Path) -> None:
    engine, query = EngineDouble(tmp_path), QueryDouble()
    query.status = {"isTriggerActive": True, "isDataAvailable": True}
    running = asyncio.ensure_future(_run(engine, lambda: query.query).run())
    await asyncio.sleep(0.5)
    assert query.isActive
    assert not engine.starting.locked()
    query.stop()
    assert await running is None
    assert engine.observed == []


@pytest.mark.parametrize("is_triggered", [False, True])
async def test_a_query_that_does_not_answer_is_ended_and_not_observed(
    is_triggered: bool, tmp_path: Path
) -> None:
    engine, query = EngineDouble(tmp_path), QueryDouble()
    query.status = {"isTriggerActive": is_triggered, "isDataAvailable": False}
    error = await _run(engine, lambda: query.query).run()
    assert isinstance(error, EngineError)
    assert "did not answer" in str(error)
    assert not query.isActive
    assert engine.observed == []


async def test_what_a_query_died_of_before_it_answered_is_returned(tmp_path: Path) -> None:
    engine, query = EngineDouble(tmp_path), QueryDouble()
    query.stop()
    query.failure = "tailerd.errors.StorageError: The disk is gone."
    error = await _run(engine, lambda: query.query).run()
    assert "The disk is gone" in str(error)
    assert engine.observed == []
