"""A supervised query's errors, without Spark: which end it for good, and what they advise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.config import TableConfig
from tailerd.errors import EngineError, MissingVersionError, SchemaChangedError
from tailerd.spark import supervisor
from tailerd.spark.datasource import TailerdDataSource
from tailerd.spark.supervisor import QueryRun, SparkPipeline
from tailerd.telemetry.events import PipelineFailed, SchemaAdopted
from tests.spark.engine_double import EngineDouble, QueryDouble
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """A table whose log has lost version 2, whose schema a query once took."""
    table = TableBuilder(tmp_path / "orders")
    for version in range(6):
        table.append([{"id": version, "name": "x"}])
    table.checkpoint(4)
    for version in range(4):
        table.commit_path(version).unlink()
    return table


def _settings(table: TableBuilder, **fields: object) -> TableConfig:
    fields = {"path": str(table.folder), "sink": {"kind": "console"}, **fields}
    return TableConfig.model_validate(fields)


async def test_an_adopted_schema_that_the_log_has_no_more_gives_way_to_the_newest(
    table: TableBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineDouble(tmp_path / "state")
    requested: list[int | None] = []

    def start(
        spark: SparkSession, *_: object, schema_version: int | None, **others: object
    ) -> StreamingQuery:
        requested.append(schema_version)
        if len(requested) == 1:
            changed = SchemaChangedError("Other columns.")
            changed.schema_version = 2
            raise changed
        options = {} if schema_version is None else {"schemaVersion": str(schema_version)}
        TailerdDataSource({"path": str(table.folder), **options}).schema()
        query = QueryDouble()
        query.stop()
        return query.query

    monkeypatch.setattr(supervisor, "start_query", start)
    monkeypatch.setattr(supervisor, "_LAST_REPORT_SECONDS", 0.0)
    pipeline = SparkPipeline(engine.engine, "orders", _settings(table))
    await pipeline.run()
    assert requested == [None, 2, None]
    assert pipeline.error is None
    assert [e.version for e in engine.events if isinstance(e, SchemaAdopted)] == [2]


@pytest.mark.parametrize("where", ["startingVersion", ""])
async def test_only_errors_about_kept_offsets_advise_to_remove_the_checkpoint(
    where: str, table: TableBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineDouble(tmp_path / "state")

    def start(*_: object, **__: object) -> StreamingQuery:
        raise MissingVersionError("Version 2 is gone.", where=where)

    monkeypatch.setattr(supervisor, "start_query", start)
    pipeline = SparkPipeline(engine.engine, "orders", _settings(table))
    await pipeline.run()
    [failed] = [e for e in engine.events if isinstance(e, PipelineFailed)]
    assert failed.error.startswith("Version 2 is gone.")
    assert ("rm -r" in failed.error) == (not where)


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "_BATCH_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "_LAST_REPORT_SECONDS", 0.02)


def _run(engine: EngineDouble, start: Callable[[], StreamingQuery]) -> QueryRun:
    def begin(_: SparkSession) -> StreamingQuery:
        return start()

    return QueryRun(engine.engine, "table orders", begin, lambda report: None)


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_true():  # noqa: ASYNC110 - threads change it
            await asyncio.sleep(0.01)


async def test_a_first_micro_batch_may_take_longer_than_the_time_to_answer(tmp_path: Path) -> None:
    engine, query = EngineDouble(tmp_path), QueryDouble()
    query.status = {"isTriggerActive": True, "isDataAvailable": True}
    running = asyncio.ensure_future(_run(engine, lambda: query.query).run())
    await _until(lambda: bool(engine.observed))
    await _until(lambda: not engine.starting.locked())
    await asyncio.sleep(0.3)
    assert query.isActive
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


async def test_the_next_query_waits_a_moment_for_the_first_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_BATCH_SECONDS", 5.0)
    engine, query = EngineDouble(tmp_path), QueryDouble()
    query.status = {"isTriggerActive": True, "isDataAvailable": True}
    run = _run(engine, lambda: query.query)
    running = asyncio.ensure_future(run.run())
    await asyncio.sleep(0.3)
    assert engine.starting.locked()
    run.on_idle()
    await _until(lambda: not engine.starting.locked())
    query.stop()
    await running


async def test_what_a_query_died_of_before_it_answered_is_returned(tmp_path: Path) -> None:
    engine, query = EngineDouble(tmp_path), QueryDouble()
    query.stop()
    query.failure = "tailerd.errors.StorageError: The disk is gone."
    error = await _run(engine, lambda: query.query).run()
    assert "The disk is gone" in str(error)
    assert engine.observed == []


async def test_a_query_that_is_given_up_while_it_is_started_ends_before_the_next(
    tmp_path: Path,
) -> None:
    engine, late, next_one = EngineDouble(tmp_path), QueryDouble("late"), QueryDouble("next")
    begun, may_go_on = threading.Event(), threading.Event()
    was_active: list[bool] = []

    def start_late() -> StreamingQuery:
        begun.set()
        may_go_on.wait(5)
        return late.query

    def start_next() -> StreamingQuery:
        was_active.append(late.isActive)
        return next_one.query

    given_up = asyncio.ensure_future(_run(engine, start_late).run())
    await asyncio.to_thread(begun.wait, 5)
    given_up.cancel()
    await asyncio.wait([given_up])
    running = asyncio.ensure_future(_run(engine, start_next).run())
    await asyncio.sleep(0.05)
    may_go_on.set()
    await _until(lambda: bool(was_active))
    assert was_active == [False]
    assert engine.observed == ["next"]
    next_one.stop()
    await running


async def test_a_query_that_is_given_up_while_it_runs_ends(tmp_path: Path) -> None:
    engine, query = EngineDouble(tmp_path), QueryDouble()
    query.status = {"isTriggerActive": True, "isDataAvailable": True}
    given_up = asyncio.ensure_future(_run(engine, lambda: query.query).run())
    await _until(lambda: bool(engine.observed))
    given_up.cancel()
    await asyncio.wait([given_up])
    await _until(lambda: not query.isActive)
    assert engine.observed == []
