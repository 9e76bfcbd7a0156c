"""Shorthand for streams in tests, and one cluster for the tests that need one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.spark.cluster import Cluster
from tests.spark_session import require_java


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_java()
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start(workers=2)
        yield cluster
    finally:
        cluster.stop()


class Stream:
    """A streaming query into JSON lines, a file for each micro-batch, restarted at will."""

    def __init__(self, spark: SparkSession, table: Path, folder: Path, **options: str) -> None:
        self._spark = spark
        self._table = table
        self._options = options
        self._checkpoint = folder / "checkpoint"
        self.out = folder / "out"

    def changes(self) -> DataFrame:
        return (
            self._spark.readStream.format("tailerd").options(**self._options).load(str(self._table))
        )

    def start(self, **trigger: Any) -> StreamingQuery:
        self.out.mkdir(exist_ok=True)
        writer = (
            self.changes()
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self._checkpoint))
        )
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch whole, in place of what an earlier try left."""
        lines = [json.dumps(row.asDict(), default=str) for row in rows.collect()]
        if lines:
            written = self.out / f".{batch_id}.tmp"
            written.write_text("".join(f"{line}\n" for line in lines))
            written.rename(self.out / f"{batch_id:010}.jsonl")

    def run_to_head(self) -> StreamingQuery:
        query = self.start(availableNow=True)
        query.awaitTermination(60)
        assert not query.isActive
        return query

    def rows(self) -> list[dict[str, Any]]:
        """Every row in the sink, in the order of the files."""
        return [json.loads(line) for file in self.files() for line in file.open()]

    def files(self) -> list[Path]:
        return sorted(self.out.glob("*.jsonl"))

    def batches(self) -> list[set[int]]:
        """The versions in each micro-batch that had rows."""
        return [
            {json.loads(line)["_commit_version"] for line in file.open()} for file in self.files()
        ]
