"""The stream reader as Spark's driver calls it, without Spark: waiting, limits, ends."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.offset import Version
from tailerd.errors import (
    LogCleanedUpError,
    MissingVersionError,
    OffsetError,
    TableRecreatedError,
    UsageError,
)
from tailerd.spark import stream_reader
from tailerd.spark.options import ReadOptions
from tailerd.spark.partitions import ChangePartition
from tailerd.spark.stream_reader import WAIT_SECONDS, TailerdStreamReader
from tests.tables.builder import CDF, TableBuilder

SCHEMA = (
    StructType()
    .add("id", "long")
    .add("name", "string")
    .add("_change_type", "string")
    .add("_commit_version", "long")
    .add("_commit_timestamp", "timestamp")
)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path)
    for version in range(4):
        table.append([{"id": version, "name": "x"}])
    return table


def _reader(table: TableBuilder, **options: str) -> TailerdStreamReader:
    parsed = ReadOptions.parse({"path": str(table.folder), **options})
    return TailerdStreamReader(parsed, SCHEMA, Version(table.version))


@pytest.fixture
def reader(table: TableBuilder) -> Iterator[TailerdStreamReader]:
    reader = _reader(table, startingVersion="0", maxFilesPerTrigger="3")
    yield reader
    reader.stop()


def test_an_idle_look_waits_and_costs_no_cpu(reader: TailerdStreamReader) -> None:
    head = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    for _ in range(2):
        assert reader.latestOffset(head, ReadMaxFiles(3)) == head
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(4):
        assert reader.latestOffset(head, ReadMaxFiles(3)) == head
    # The poll below the watcher rings now and then, and ends a wait early.
    assert time.monotonic() - began >= 2 * WAIT_SECONDS
    assert time.process_time() - cpu < 0.4


def test_a_commit_ends_the_wait_at_once(table: TableBuilder, reader: TailerdStreamReader) -> None:
    head = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.latestOffset(head, ReadMaxFiles(3))
    written: list[float] = []

    def commit() -> None:
        time.sleep(0.3)
        table.append([{"id": 4, "name": "x"}])
        written.append(time.monotonic())

    writer = threading.Thread(target=commit)
    writer.start()
    found = reader.latestOffset(head, ReadMaxFiles(3))
    woke = time.monotonic()
    writer.join()
    assert found["version"] == 5
    assert woke - written[0] < 0.4


def test_limits_come_from_the_options_unless_spark_says_otherwise(
    reader: TailerdStreamReader,
) -> None:
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxFiles(3)
    assert reader.latestOffset(start, ReadMaxFiles(3))["version"] == 3
    assert reader.latestOffset(start, ReadMaxBytes(1))["version"] == 1
    assert reader.latestOffset(start, ReadAllAvailable())["version"] == 4
    with pytest.raises(UsageError, match="ReadMaxRows"):
        reader.latestOffset(start, ReadMaxRows(3))


def test_an_idle_report_costs_no_look_at_the_log(
    table: TableBuilder, reader: TailerdStreamReader
) -> None:
    head = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    while (found := reader.latestOffset(head, ReadMaxFiles(3))) != head:
        head = found
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["version"] == 4
    log = table.folder / "_delta_log"
    log.rename(table.folder / "elsewhere")
    try:
        assert reader.reportLatestOffset() == report
    finally:
        (table.folder / "elsewhere").rename(log)


def test_while_a_stream_is_behind_the_head_is_not_looked_for_in_each_micro_batch(
    table: TableBuilder, reader: TailerdStreamReader
) -> None:
    end = reader.latestOffset(reader.initialOffset(), ReadMaxFiles(1))
    report = reader.reportLatestOffset()
    assert report is not None
    assert (end["version"], report["version"]) == (1, 4)
    end = reader.latestOffset(end, ReadMaxFiles(1))
    log = table.folder / "_delta_log"
    log.rename(table.folder / "elsewhere")
    try:
        assert reader.reportLatestOffset() == report
    finally:
        (table.folder / "elsewhere").rename(log)
    table.append([{"id": 5, "name": "x"}])
    while (found := reader.latestOffset(end, ReadMaxFiles(9))) != end:
        end = found
    report = reader.reportLatestOffset()
    assert report is not None
    assert (end["version"], report["version"]) == (5, 5)


def test_a_commit_with_deletion_vectors_is_never_split(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    files = [table.data_file([{"id": n, "name": "x"}, {"id": -n, "name": "y"}]) for n in range(5)]
    commit = table.create(*files)
    actions = []
    for add in commit.adds:
        actions += [table.remove(add), table.with_vector(add, [1])]
    table.commit(*actions)
    reader = _reader(table, startingVersion="1")
    try:
        start = reader.initialOffset()
        for limit in (ReadMaxFiles(1), ReadMaxBytes(1)):
            end = reader.latestOffset(start, limit)
            assert (end["version"], end["position"]) == (2, 0)
    finally:
        reader.stop()


def test_the_head_is_reported_with_the_age_of_what_waits(
    table: TableBuilder, reader: TailerdStreamReader
) -> None:
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxFiles(2))
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["version"] == 4
    assert report["oldest_undelivered_timestamp_ms"] == table.time_of(2)


def test_a_copy_for_executors_reads_without_the_drivers_parts(
    reader: TailerdStreamReader,
) -> None:
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    partitions = reader.partitions(start, end)
    copy = pickle.loads(pickle.dumps(reader))
    rows = [row for part in partitions for batch in copy.read(part) for row in batch.to_pylist()]
    assert [row["_commit_version"] for row in rows] == [0, 1, 2, 3]
    assert list(copy.read(ChangePartition(()))) == []
    assert reader.partitions(end, end) == []


def test_available_now_does_not_wait_and_ends_at_the_head_it_saw(table: TableBuilder) -> None:
    reader = _reader(table, startingVersion="0")
    try:
        reader.prepareForTriggerAvailableNow()
        table.append([{"id": 4, "name": "late"}])
        end = reader.latestOffset(reader.initialOffset(), ReadMaxFiles(1000))
        assert end["version"] == 4
        began = time.monotonic()
        assert reader.latestOffset(end, ReadMaxFiles(1000)) == end
        assert time.monotonic() - began < WAIT_SECONDS / 2
    finally:
        reader.stop()


def test_an_ending_version_is_the_last_that_comes(table: TableBuilder) -> None:
    reader = _reader(table, startingVersion="1", endingVersion="2")
    try:
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert end["version"] == 3
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    finally:
        reader.stop()


def test_stopping_twice_is_fine(table: TableBuilder) -> None:
    reader = _reader(table)
    reader.initialOffset()
    reader.stop()
    reader.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "tailerd-source"]


def _updated(folder: Path) -> TableBuilder:
    """A table whose version 1 has two parts as files, and another two as change files."""
    table = TableBuilder(folder, properties=CDF)
    commit = table.append([{"id": 0, "name": "a"}])
    images = [
        table.cdc_file(
            [
                {"id": n, "name": "a", "_change_type": "update_preimage"},
                {"id": n, "name": "b", "_change_type": "update_postimage"},
            ]
        )
        for n in range(2)
    ]
    removed = [table.remove(add) for add in commit.adds]
    table.commit(*removed, table.data_file([{"id": 0, "name": "b"}]), *images)
    return table


def test_other_changes_do_not_go_on_within_a_commit_nor_repeat_a_batch(tmp_path: Path) -> None:
    table = _updated(tmp_path)
    before = _reader(table, startingVersion="1", changes="files")
    after = _reader(table, startingVersion="1", changes="auto")
    try:
        start = before.initialOffset()
        within = before.latestOffset(start, ReadMaxFiles(1))
        assert (within["version"], within["position"]) == (1, 1)
        with pytest.raises(OffsetError, match="changes back to files"):
            after.latestOffset(within, ReadMaxFiles(9))
        with pytest.raises(OffsetError, match="changes back to files"):
            after.partitions(after.initialOffset(), within)
        behind = before.latestOffset(within, ReadMaxFiles(9))
        assert (behind["version"], behind["position"]) == (2, 0)
        table.append([{"id": 4, "name": "x"}])
        assert after.latestOffset(behind, ReadMaxFiles(9))["version"] == 3
    finally:
        before.stop()
        after.stop()


def test_a_stream_at_its_end_neither_spins_nor_looks_at_what_is_behind(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "WAIT_SECONDS", 0.2)
    first = _reader(table, startingVersion="1", endingVersion="2")
    again = _reader(table, startingVersion="1", endingVersion="2")
    try:
        end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
        again.initialOffset()
        table.commit(table.protocol(minReaderVersion=9))
        began = time.monotonic()
        for reader in (first, again):
            assert reader.latestOffset(end, ReadAllAvailable()) == end
            report = reader.reportLatestOffset()
            assert report is not None
            assert report["version"] == 3
        assert time.monotonic() - began >= 0.4
    finally:
        first.stop()
        again.stop()


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_stream_at_its_end_is_still_of_its_table(
    is_available_now: bool, table: TableBuilder, tmp_path: Path
) -> None:
    before = _reader(table, startingVersion="0", endingVersion="1")
    other = TableBuilder(tmp_path / "other", table_id="00000000-0000-4000-8000-000000000002")
    other.append([{"id": 1, "name": "x"}])
    after = _reader(other, startingVersion="0", endingVersion="1")
    try:
        end = before.latestOffset(before.initialOffset(), ReadAllAvailable())
        if is_available_now:
            after.prepareForTriggerAvailableNow()
        with pytest.raises(TableRecreatedError, match="checkpoint was begun with"):
            after.latestOffset(end, ReadAllAvailable())
    finally:
        before.stop()
        after.stop()


def test_an_error_that_may_pass_stays_what_it_is(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = _reader(table)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxFiles(9))

        async def gone(*_: object) -> list[ChangeTask]:
            raise LogCleanedUpError("The checkpoint was replaced.", remedy="Look again.")

        monkeypatch.setattr(stream_reader, "tasks_between", gone)
        with pytest.raises(LogCleanedUpError, match=r"replaced\. Look again\."):
            reader.partitions(start, end)
    finally:
        reader.stop()


def test_a_snapshot_of_a_version_to_come_is_refused_by_the_options_name(
    table: TableBuilder,
) -> None:
    reader = _reader(table, startingVersion="4", snapshot="true")
    try:
        with pytest.raises(MissingVersionError, match=r"startingVersion=4 .* the newest is 3"):
            reader.initialOffset()
    finally:
        reader.stop()
