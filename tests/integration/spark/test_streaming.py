"""`spark.readStream.format("tailerd")`: limits, snapshot then follow, restarts, faults."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.errors import (
    SchemaChangedError,
    TableRecreatedError,
    TailerdError,
    UsageError,
)
from tailerd.spark.query_errors import parse_error
from tests.integration.spark.conftest import Stream
from tests.tables.builder import CDF, TableBuilder
from tests.waiting import eventually

pytestmark = pytest.mark.spark


def _table(folder: Path, commits: int) -> TableBuilder:
    table = TableBuilder(folder / "table")
    for _ in range(commits):
        _append(table)
    return table


def _append(table: TableBuilder, files: int = 1) -> None:
    version = table.version + 1
    actions = [
        table.data_file([{"id": version * 100 + n, "name": f"v{version}"}]) for n in range(files)
    ]
    if version:
        table.commit(*actions)
    else:
        table.create(*actions)


def _ids(stream: Stream) -> list[int]:
    return [row["id"] for row in stream.rows()]


def _failure(stream: Stream) -> TailerdError:
    query = stream.start(availableNow=True)
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(60)
    return parse_error(str(raised.value))


@pytest.mark.full
def test_catching_up_keeps_to_the_limit_of_files(spark: SparkSession, tmp_path: Path) -> None:
    table = _table(tmp_path, 7)
    stream = Stream(spark, table.folder, tmp_path, startingVersion="0", maxFilesPerTrigger="3")
    stream.run_to_head()
    assert stream.batches() == [{0, 1, 2}, {3, 4, 5}, {6}]
    assert _ids(stream) == [version * 100 for version in range(7)]


@pytest.mark.full
def test_catching_up_keeps_to_the_limit_of_bytes(spark: SparkSession, tmp_path: Path) -> None:
    table = _table(tmp_path, 3)
    stream = Stream(spark, table.folder, tmp_path, startingVersion="0", maxBytesPerTrigger="1b")
    stream.run_to_head()
    assert stream.batches() == [{0}, {1}, {2}]


@pytest.mark.full
def test_a_commit_of_many_files_comes_in_several_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path, 1)
    _append(table, files=5)
    stream = Stream(spark, table.folder, tmp_path, startingVersion="1", maxFilesPerTrigger="2")
    stream.run_to_head()
    assert stream.batches() == [{1}, {1}, {1}]
    assert sorted(_ids(stream)) == [100, 101, 102, 103, 104]


@pytest.mark.full
def test_a_commit_with_change_files_is_never_split(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "table", properties=CDF)
    table.append([{"id": 1, "name": "a"}])
    cdc = [table.cdc_file([{"id": n, "name": "b", "_change_type": "insert"}]) for n in range(4)]
    table.commit(*cdc, table.data_file([{"id": n, "name": "b"} for n in range(4)]))
    stream = Stream(spark, table.folder, tmp_path, startingVersion="1", maxFilesPerTrigger="1")
    stream.run_to_head()
    assert stream.batches() == [{1}]
    assert sorted(_ids(stream)) == [0, 1, 2, 3]


def test_a_snapshot_is_followed_without_hole_or_overlap_across_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path, 5)
    stream = Stream(spark, table.folder, tmp_path, maxFilesPerTrigger="2")
    stream.run_to_head()
    assert Counter(row["_commit_version"] for row in stream.rows()) == {4: 5}
    for _ in range(3):
        _append(table)
        _append(table)
        stream.run_to_head()
    assert sorted(_ids(stream)) == [version * 100 for version in range(11)]
    later = {row["_commit_version"]: row["id"] for row in stream.rows() if row["id"] > 400}
    assert later == {version: version * 100 for version in range(5, 11)}


@pytest.mark.full
def test_a_query_stopped_at_any_moment_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path, 6)
    stream = Stream(spark, table.folder, tmp_path, maxFilesPerTrigger="1")
    for wait in (0.3, 0.9, 1.7, 2.6):
        query = stream.start()
        time.sleep(wait)
        _append(table)
        query.stop()
    stream.run_to_head()
    assert sorted(_ids(stream)) == [version * 100 for version in range(10)]


def test_a_query_that_died_writing_its_first_offsets_starts_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path, 2)
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.b2f1c0de-0000-4000-8000-000000000000.tmp").write_text("v1\n")
    stream = Stream(spark, table.folder, tmp_path)
    stream.run_to_head()
    assert sorted(_ids(stream)) == [0, 100]


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"startingVersion": "latest"}], ids=str)
def test_the_first_batch_is_repeated_as_it_was_although_the_table_has_moved_on(
    spark: SparkSession, tmp_path: Path, options: dict[str, str]
) -> None:
    table = _table(tmp_path, 4)
    stream = Stream(spark, table.folder, tmp_path, maxFilesPerTrigger="1", **options)
    stream.run_to_head()
    before = stream.rows()
    # As if the query had died in its first batch.
    for log, first in (("commits", 0), ("offsets", 1)):
        for file in (tmp_path / "checkpoint" / log).iterdir():
            if int(file.name.removeprefix(".").removesuffix(".crc")) >= first:
                file.unlink()
    _append(table)
    stream.run_to_head()
    again = stream.rows()
    assert again[: len(before)] == before
    assert [row["id"] for row in again[len(before) :]] == [400]


@pytest.mark.full
def test_a_commit_arrives_while_the_query_waits(spark: SparkSession, tmp_path: Path) -> None:
    table = _table(tmp_path, 1)
    stream = Stream(spark, table.folder, tmp_path, startingVersion="latest")
    query = stream.start()
    try:
        eventually(lambda: query.lastProgress is not None)
        time.sleep(1.5)
        _append(table)
        eventually(lambda: _ids(stream) == [100])
        eventually(lambda: _reported_head(query) == 2)
    finally:
        query.stop()


def _reported_head(query: StreamingQuery) -> int:
    progress = query.lastProgress
    assert progress is not None
    return int(json.loads(progress.sources[0].latestOffset)["version"])


def test_available_now_ends_at_the_head_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path, 2)
    stream = Stream(spark, table.folder, tmp_path, startingVersion="1")
    stream.run_to_head()
    assert _ids(stream) == [100]
    stream.run_to_head()
    assert _ids(stream) == [100]
    _append(table)
    stream.run_to_head()
    assert _ids(stream) == [100, 200]


@pytest.mark.full
def test_a_stream_ends_at_its_ending_version(spark: SparkSession, tmp_path: Path) -> None:
    table = _table(tmp_path, 5)
    stream = Stream(spark, table.folder, tmp_path, startingVersion="1", endingVersion="2")
    stream.run_to_head()
    _append(table)
    stream.run_to_head()
    assert _ids(stream) == [100, 200]


@pytest.mark.full
def test_without_a_snapshot_and_a_start_a_stream_begins_with_the_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path, 3)
    stream = Stream(spark, table.folder, tmp_path, snapshot="false")
    stream.run_to_head()
    assert [row["_commit_version"] for row in stream.rows()] == [0, 1, 2]


@pytest.mark.full
def test_an_added_column_stops_the_query_and_the_next_start_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path, 2)
    stream = Stream(spark, table.folder, tmp_path, startingVersion="0")
    query = stream.start()
    try:
        eventually(lambda: len(stream.rows()) == 2)
        table.change_metadata(fields=[("id", "long"), ("name", "string"), ("note", "string")])
        table.append([{"id": 300, "name": "v3", "note": "new"}])
        with pytest.raises(PySparkException) as raised:
            query.awaitTermination(30)
    finally:
        query.stop()
    error = parse_error(str(raised.value))
    assert type(error) is SchemaChangedError
    assert "Version 3" in str(error)
    assert "column note" in str(error)
    assert "again from its checkpoint" in str(error)
    assert (error.schema_version, error.version) == (3, 3)
    stream.run_to_head()
    assert [(row["id"], row.get("note")) for row in stream.rows()] == [
        (0, None),
        (100, None),
        (300, "new"),
    ]


@pytest.mark.full
def test_a_checkpoint_of_another_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = _table(tmp_path, 2)
    Stream(spark, table.folder, tmp_path).run_to_head()
    other = TableBuilder(tmp_path / "other", table_id="00000000-0000-4000-8000-000000000002")
    other.append([{"id": 1, "name": "x"}])
    error = _failure(Stream(spark, other.folder, tmp_path))
    assert type(error) is TableRecreatedError
    assert "start the query with a new checkpointLocation" in str(error)


@pytest.mark.full
def test_an_end_that_a_stream_cannot_know_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = _table(tmp_path, 1)
    error = _failure(Stream(spark, table.folder, tmp_path, endingTimestamp="2024-01-01"))
    assert type(error) is UsageError
    assert "endingTimestamp" in str(error)
