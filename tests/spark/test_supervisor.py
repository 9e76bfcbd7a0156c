"""A supervised query's errors, without Spark: which end it for good, and what they advise."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.config import TableConfig
from tailerd.errors import MissingVersionError, SchemaChangedError
from tailerd.spark import query_run, supervisor
from tailerd.spark.datasource import TailerdDataSource
from tailerd.spark.supervisor import SparkPipeline
from tailerd.telemetry.events import PipelineFailed, SchemaAdopted
from tests.spark.engine_double import EngineDouble, QueryDouble
from tests.tables.builder import TableBuilder


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
    asked: list[int | None] = []

    def start(
        spark: SparkSession, *_: object, schema_version: int | None, **others: object
    ) -> StreamingQuery:
        asked.append(schema_version)
        if len(asked) == 1:
            changed = SchemaChangedError("Other columns.")
            changed.schema_version = 2
            raise changed
        options = {} if schema_version is None else {"schemaVersion": str(schema_version)}
        TailerdDataSource({"path": str(table.folder), **options}).schema()
        query = QueryDouble()
        query.stop()
        return query.query

    monkeypatch.setattr(supervisor, "start_query", start)
    monkeypatch.setattr(query_run, "_LAST_REPORT_SECONDS", 0.0)
    pipeline = SparkPipeline(engine.engine, "orders", _settings(table))
    await pipeline.run()
    assert asked == [None, 2, None]
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
