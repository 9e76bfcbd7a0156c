"""A version checksum says what a replay finds, from a snapshot that is carried from commit on."""

from __future__ import annotations

import asyncio
import bisect
import json
import tempfile
from pathlib import Path
from typing import Any

import deltalake
import pytest
from hypothesis import HealthCheck, given, settings

from tailerd.errors import CorruptLogError, MissingVersionError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.protocol import file_index
from tailerd.storage.local import LocalStore
from tests.formats.delta.histories import write_history
from tests.formats.delta.log_bodies import add, remove, vector
from tests.maintenance.delta_spark import DeltaSpark
from tests.maintenance.tables import living_table
from tests.maintenance.test_random_histories import histories, legal
from tests.property.test_log_replay import write
from tests.tables.builder import IN_COMMIT_TIMESTAMPS, TableBuilder
from tests.tables.naive_log import NaiveState

DELETED_BINS = [0, 1, 10, 100, 1000, 10**4, 10**5, 10**6, 10**7, 2**31 - 1]


def naive_checksum(state: NaiveState) -> dict[str, Any]:
    """Return what the protocol's table of fields says of a state, but the histogram of sizes."""
    vectors = [add["deletionVector"]["cardinality"] for add in state.adds.values()
               if add.get("deletionVector")]  # fmt: skip
    deleted = [0] * 10
    for action in state.adds.values():
        count = (action.get("deletionVector") or {}).get("cardinality", 0)
        deleted[bisect.bisect_right(DELETED_BINS, count) - 1] += 1
    domains = [body for body in state.domains.values() if not body.get("removed")]
    return {
        "tableSizeBytes": sum(action["size"] for action in state.adds.values()),
        "numFiles": len(state.adds),
        "numDeletedRecordsOpt": sum(vectors),
        "numDeletionVectorsOpt": len(vectors),
        "deletedRecordCountsHistogramOpt": {"deletedRecordCounts": deleted},
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": sorted(state.transactions.values(), key=lambda body: body["appId"]),
        "domainMetadata": sorted(domains, key=lambda body: body["domain"]),
        "metadata": state.metadata,
        "protocol": state.protocol,
    }


def check(path: Path, state: NaiveState) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    histogram = found.pop("fileSizeHistogram")
    bounds = histogram["sortedBinBoundaries"]
    assert (bounds[0], bounds[1], bounds[-1], len(bounds)) == (0, 8192, 2**38, 95)
    assert bounds == sorted(bounds)
    counts, sizes = [0] * 95, [0] * 95
    for action in state.adds.values():
        at = bisect.bisect_right(bounds, action["size"]) - 1
        counts[at] += 1
        sizes[at] += action["size"]
    assert (histogram["fileCounts"], histogram["totalBytes"]) == (counts, sizes)
    found["setTransactions"].sort(key=lambda body: body["appId"])
    found["domainMetadata"].sort(key=lambda body: body["domain"])
    found["metadata"].setdefault("format", {})
    expected = naive_checksum(state)
    rest = {key: value for key, value in found.items() if key not in expected}
    assert {key: found.get(key) for key in expected} == expected
    return rest


async def write_each(table: TableBuilder) -> None:
    """Write a checksum of each version from one snapshot that is carried on."""
    reader = LogReader(LocalStore(), str(table.folder))
    writer = LogWriter(reader)
    snapshot = await reader.open(0)
    for version in range(table.version + 1):
        if version:
            file = await reader.commit_file(version)
            assert file is not None
            snapshot = snapshot.advance((await reader.read_commit(file)).commit)
        result = await writer.write_checksum(snapshot)
        assert result.outcome == "written"


def test_the_checksum_of_every_version_is_complete(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    asyncio.run(write_each(table))
    for version in range(table.version + 1):
        assert check(table.log / f"{version:020}.crc", table.state(version)) == {}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories)
@pytest.mark.parametrize("forms", ["dict", "arrays"])
def test_checksums_of_a_random_history_are_the_naive_ones(forms: str, history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if forms == "arrays":
            patch.setattr(file_index, "FOLD_AT_LEAST", 1)
            patch.setattr(file_index, "BULK_COMMIT", 2)
        table = TableBuilder(Path(folder), reader_features=["deletionVectors"])
        for version, (actions, changed, protocol) in enumerate(history):
            write(table, version, (legal(table, actions), changed, protocol))
        asyncio.run(write_each(table))
        for version in range(table.version + 1):
            check(table.log / f"{version:020}.crc", table.state(version))


def test_sizes_and_deleted_rows_fall_into_their_bins(tmp_path: Path) -> None:
    sizes = [0, 1, 8191, 8192, 8193, 2**20, 2**40, 12 * 2**20]
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    table.create(*(add(f"s{size}", size=size) for size in sizes))
    vectors = [
        add(f"v{count}", **vector(f"{count}", cardinality=count))
        for count in (1, 9, 10, 99, 10**7, 2**31 - 2, 2**31 - 1)
    ]
    table.commit(*vectors, remove(f"s{sizes[0]}"))
    asyncio.run(write_each(table))
    check(table.log / f"{1:020}.crc", table.state())


def test_transaction_and_time_of_the_commit_are_told(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path,
        reader_features=[],
        writer_features=["inCommitTimestamp"],
        properties=IN_COMMIT_TIMESTAMPS,
    )
    table.create(add("a"))
    lines = table.commit_path(0).read_text().splitlines()
    info = json.loads(lines[0])
    info["commitInfo"]["txnId"] = "the transaction"
    table.commit_path(0).write_text("\n".join([json.dumps(info), *lines[1:]]) + "\n")
    asyncio.run(write_each(table))
    found = json.loads((table.log / f"{0:020}.crc").read_text())
    assert found["txnId"] == "the transaction"
    assert found["inCommitTimestampOpt"] == info["commitInfo"]["inCommitTimestamp"]
    assert "numDeletionVectorsOpt" not in found


def test_a_commit_without_the_time_it_must_have_gets_no_checksum(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path,
        reader_features=[],
        writer_features=["inCommitTimestamp"],
        properties=IN_COMMIT_TIMESTAMPS,
    )
    table.create(add("a"), commit_info=False)
    with pytest.raises(CorruptLogError, match="no inCommitTimestamp"):
        asyncio.run(write_each(table))
    assert not list(table.log.glob("*.crc"))


async def test_a_checksum_that_is_there_stays(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    path = table.checksum(numFiles=99)
    before = path.read_bytes()
    reader = LogReader(LocalStore(), str(tmp_path), on_mismatch=lambda _: None)
    result = await LogWriter(reader).write_checksum(await reader.open())
    assert result.outcome == "already_there"
    assert path.read_bytes() == before


async def test_a_version_without_its_commit_gets_no_checksum(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.checkpoint()
    reader = LogReader(LocalStore(), str(tmp_path))
    snapshot = await reader.open()
    table.commit_path(table.version).unlink()
    with pytest.raises(MissingVersionError, match="no checksum"):
        await LogWriter(reader).write_checksum(snapshot)


def damaged(body: bytes) -> dict[str, bytes]:
    """What a power cut may leave of a file that nobody waited for."""
    return {
        "empty": b"",
        "zeros": bytes(len(body)),
        "cut short": body[:-1],
        "zeros at the end": body[:1024] + bytes(len(body) - 1024),
        "zeros at the beginning": bytes(1024) + body[1024:],
    }


async def checksum_of_living_table(folder: Path) -> tuple[TableBuilder, Path]:
    table = living_table(folder)
    reader = LogReader(LocalStore(), str(folder))
    assert (await LogWriter(reader).write_checksum(await reader.open())).outcome == "written"
    return table, table.log / f"{table.version:020}.crc"


@pytest.mark.parametrize("damage", damaged(bytes(2000)))
async def test_a_checksum_that_a_power_cut_damaged_is_passed_over_and_stays(
    tmp_path: Path, damage: str
) -> None:
    table, path = await checksum_of_living_table(tmp_path)
    path.write_bytes(damaged(path.read_bytes())[damage])
    reader = LogReader(LocalStore(), str(tmp_path))
    snapshot = await reader.open()
    assert snapshot.num_files == len(table.state().adds)
    assert (await LogWriter(reader).write_checksum(snapshot)).outcome == "already_there"
    found = deltalake.DeltaTable(tmp_path)
    assert (found.version(), len(found.file_uris())) == (table.version, snapshot.num_files)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["empty", "zeros at the end"])
def test_delta_spark_passes_over_a_damaged_checksum_too(
    delta_spark: DeltaSpark, tmp_path: Path, damage: str
) -> None:
    table, path = asyncio.run(checksum_of_living_table(tmp_path))
    path.write_bytes(damaged(path.read_bytes())[damage])
    seen = delta_spark.ask("snapshot", path=str(tmp_path))
    assert (seen["version"], seen["files"]) == (table.version, len(table.state().adds))
