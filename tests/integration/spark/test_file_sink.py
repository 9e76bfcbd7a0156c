"""The file sink on Spark: exactly once, whatever is repeated, and the Arrow engine's bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailerd.errors import ConfigError, SinkError, UsageError
from tailerd.spark.query_errors import error_of
from tests.integration.spark.conftest import Stream
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.spark


def _stream(spark: SparkSession, tmp_path: Path, commits: int = 4) -> Stream:
    table = TableBuilder(tmp_path / "table")
    for version in range(commits):
        table.append([{"id": version * 10 + n, "name": f"n{n}"} for n in range(3)])
    return Stream(spark, table.folder, tmp_path, startingVersion="0", maxFilesPerTrigger="1")


@pytest.mark.full
def test_a_batch_that_spark_repeats_replaces_its_own_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = _stream(spark, tmp_path)
    stream.run_to_head()
    before = {file.name: file.read_bytes() for file in stream.files()}
    assert len(before) == 4
    # As if the driver had died between the sink's commit and Spark's own note of it.
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("3", ".3.crc"):
        (commits / name).unlink()
    # ... in the middle of renaming, with files of killed tasks left over.
    stream.files()[-1].write_bytes(b"half a fi")
    (stream.out / "batch-0000000003-00007.jsonl").write_bytes(b"{}")
    (stream.out / ".tailerd-abc.tmp").write_bytes(b"{}")

    stream.run_to_head()

    assert {file.name: file.read_bytes() for file in stream.out.iterdir()} == before


@pytest.mark.full
def test_a_failed_batch_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    stream = _stream(spark, tmp_path, commits=2)
    broken = next(p for p in (tmp_path / "table").glob("*.parquet") if "n0" not in p.name)
    body = broken.read_bytes()
    broken.write_bytes(b"this is no parquet")
    with pytest.raises(PySparkException):
        stream.start(availableNow=True).awaitTermination(60)
    assert not list(stream.out.glob(".*"))
    broken.write_bytes(body)
    stream.run_to_head()
    assert sorted(row["id"] for row in stream.rows()) == [0, 1, 2, 10, 11, 12]


@pytest.mark.full
def test_large_deliveries_go_on_in_another_file(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "table")
    table.append([{"id": n, "name": "x" * 1000} for n in range(200)])
    query = (
        spark.readStream.format("tailerd")
        .load(str(table.folder))
        .writeStream.format("tailerd")
        .option("path", str(tmp_path / "out"))
        .option("maxBytesPerFile", "10k")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files][:1] == ["batch-0000000000-00000.jsonl"]
    assert sum(len(file.read_text().splitlines()) for file in files) == 200


@pytest.mark.full
def test_parquet_files_have_the_tables_types(spark: SparkSession, tmp_path: Path) -> None:
    stream = _stream(spark, tmp_path)
    query = (
        stream.changes()
        .writeStream.format("tailerd")
        .options(path=str(tmp_path / "parquet"), output="parquet")
        .option("checkpointLocation", str(tmp_path / "parquet-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    files = sorted((tmp_path / "parquet").glob("*.parquet"))
    assert [file.name for file in files][:1] == ["batch-0000000000-00000.parquet"]
    rows = pq.read_table(tmp_path / "parquet")
    assert rows.num_rows == 12
    assert [str(field.type) for field in rows.schema] == [
        "int64",
        "string",
        "string",
        "int64",
        "timestamp[us, tz=UTC]",
    ]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"path": "/proc/nowhere/out"}, SinkError, "/proc/nowhere/out"),
        ({"path": "s3://bucket/out"}, ConfigError, "s3"),
        ({"output": "csv"}, UsageError, "jsonl, parquet"),
        ({"ouput": "jsonl"}, UsageError, "did you mean output?"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_option_of_the_sink_is_one_clear_error(
    spark: SparkSession,
    tmp_path: Path,
    options: dict[str, str],
    kind: type[Exception],
    said: str,
) -> None:
    stream = _stream(spark, tmp_path, commits=1)
    writer = stream.changes().writeStream.format("tailerd")
    writer = writer.options(**{"path": str(tmp_path / "out"), **options})
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    with pytest.raises(PySparkException) as raised:
        writer.start().awaitTermination(60)
    error = error_of(str(raised.value))
    assert isinstance(error, kind)
    assert said in str(error)
