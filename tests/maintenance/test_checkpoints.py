"""A checkpoint holds what a naive replay of the JSON commits holds, action by action."""

from __future__ import annotations

import asyncio
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailerd.errors import (
    CorruptLogError,
    MissingVersionError,
    UnsupportedFeatureError,
)
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import CheckpointResult, LogWriter
from tailerd.formats.delta.protocol.last_checkpoint import compute_checksum, parse_last_checkpoint
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import (
    CHECKPOINT_KINDS,
    HEAD,
    CheckpointKind,
    assert_described,
    assert_is,
    domain,
    live_files,
    stats,
    write_checkpoint,
    write_history,
)
from tests.formats.delta.log_bodies import add, remove, vector
from tests.maintenance.written import (
    assert_same,
    checkpoint_actions,
    checkpoint_of,
    expected,
    state_of,
)
from tests.tables.builder import START_MS, TableBuilder
from tests.tables.naive_log import Action

DAY = 86_400_000
NOW = START_MS + DAY


def write(
    table: Path, version: int | None = None, *, now_ms: int = NOW, reader: LogReader | None = None
) -> CheckpointResult:
    async def job() -> CheckpointResult:
        log = reader or LogReader(LocalStore(), str(table))
        snapshot = await log.open(version)
        return await LogWriter(log, clock=SimClock(now_ms)).write_checkpoint(snapshot)

    return asyncio.run(job())


def hide_commits(table: TableBuilder, until: int) -> None:
    """Take away the commits that a checkpoint of `until` stands for, and older checkpoints."""
    for version in range(until + 1):
        table.commit_path(version).unlink(missing_ok=True)
        if version < until:
            for path in table.log.glob(f"{version:020}.checkpoint*"):
                path.unlink()


@pytest.mark.parametrize("policy", ["classic", "v2"])
@pytest.mark.parametrize("below", CHECKPOINT_KINDS)
@pytest.mark.parametrize("version", [4, HEAD])
def test_a_checkpoint_holds_what_the_commits_say(
    tmp_path: Path, below: CheckpointKind, version: int, policy: str
) -> None:
    table = write_history(tmp_path)
    if below != "none":
        write_checkpoint(table, below, 2)
    table.commit(table.metadata(configuration={"delta.checkpointPolicy": policy}))
    state = table.state(version) if version != HEAD else table.state()
    result = write(tmp_path, state.version)
    assert result.outcome == "written"
    found = state_of(checkpoint_actions(table.log, state.version), state.version)
    wanted = expected(state, now_ms=NOW)
    if below == "classic-no-stats":
        wanted.adds = {k: {**v, "stats": ""} for k, v in wanted.adds.items()}
        found.adds = {k: {**v, "stats": ""} for k, v in found.adds.items()}
    if below == "classic-struct-stats":
        for body in (*wanted.adds.values(), *found.adds.values()):
            if body.get("stats") == "garbage":
                continue
            body["stats"] = json.loads(body.get("stats", "{}")).get("numRecords")
    assert_same(found, wanted)
    suffix = (
        "json"
        if policy == "v2" and version == HEAD
        else checkpoint_of(table.log, state.version).suffix[1:]
    )
    assert checkpoint_of(table.log, state.version).name.endswith(suffix)


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_a_table_is_read_from_its_checkpoint_alone(tmp_path: Path, policy: str) -> None:
    table = write_history(tmp_path)
    table.change_metadata(properties={"delta.checkpointPolicy": policy})
    state = table.state()
    result = write(tmp_path)
    hide_commits(table, table.version)

    async def read() -> None:
        reader = LogReader(LocalStore(), str(tmp_path))
        snapshot = await reader.open()
        assert_is(snapshot, state)
        assert_described(await live_files(reader, snapshot), state)

    asyncio.run(read())
    assert result.add_files == len(state.adds)


def test_the_hint_is_whole_and_names_the_checkpoint(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    result = write(tmp_path, 3)
    body = (table.log / "_last_checkpoint").read_bytes()
    hint = json.loads(body)
    assert parse_last_checkpoint(body) is not None
    path = checkpoint_of(table.log, 3)
    assert hint["version"] == 3
    assert hint["numOfAddFiles"] == len(table.state(3).adds) == result.add_files
    assert hint["size"] >= len(checkpoint_actions(table.log, 3))
    assert hint["sizeInBytes"] >= path.stat().st_size
    assert hint["checksum"] == compute_checksum(hint)
    assert result.is_hinted


def test_the_hint_never_goes_back(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    write(tmp_path, 6)
    before = (table.log / "_last_checkpoint").read_bytes()
    result = write(tmp_path, 3)
    assert (result.outcome, result.is_hinted) == ("written", False)
    assert (table.log / "_last_checkpoint").read_bytes() == before


def test_a_hint_that_names_nothing_is_replaced(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.last_checkpoint(99)
    assert write(tmp_path).is_hinted
    assert json.loads((table.log / "_last_checkpoint").read_text())["version"] == HEAD


def test_a_checkpoint_that_is_there_is_success(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.checkpoint()
    before = {path.name: path.stat().st_mtime_ns for path in table.log.iterdir()}
    assert write(tmp_path).outcome == "already_there"
    assert {path.name: path.stat().st_mtime_ns for path in table.log.iterdir()} == before


def tombstoned(folder: Path, **properties: str) -> TableBuilder:
    table = TableBuilder(folder, properties=properties, reader_features=["deletionVectors"])
    old, new = NOW - 8 * DAY, NOW - 6 * DAY
    table.create(*(add(name) for name in "abcdef"))
    table.commit(remove("a", deletionTimestamp=old), remove("b", deletionTimestamp=new))
    untimed = remove("c")
    del untimed["remove"]["deletionTimestamp"]
    table.commit(untimed, remove("never there", deletionTimestamp=new, size=3, tags={"x": "y"}))
    table.commit(remove("d", deletionTimestamp=new), add("b"))
    table.commit(add("d", **vector("v")), remove("e", deletionTimestamp=new, stats="{}"))
    return table


@pytest.mark.parametrize("below", [None, 1, 2, 3])
def test_removes_stay_until_they_expire(tmp_path: Path, below: int | None) -> None:
    table = tombstoned(tmp_path)
    if below is not None:
        table.checkpoint(below)
    write(tmp_path)
    found = state_of(checkpoint_actions(table.log, 4), 4)
    assert {path for path, _ in found.removes} == {"never there", "d", "e"}
    assert_same(found, expected(table.state(), now_ms=NOW))


def test_the_tables_own_retention_decides(tmp_path: Path) -> None:
    table = tombstoned(tmp_path, **{"delta.deletedFileRetentionDuration": "interval 30 days"})
    write(tmp_path)
    found = state_of(checkpoint_actions(table.log, 4), 4)
    assert {path for path, _ in found.removes} == {"a", "never there", "d", "e"}


def test_old_transactions_are_left_out_only_where_the_table_says_so(tmp_path: Path) -> None:
    actions: list[Action] = [
        {"txn": {"appId": "old", "version": 1, "lastUpdated": NOW - 2 * DAY}},
        {"txn": {"appId": "new", "version": 1, "lastUpdated": NOW}},
        {"txn": {"appId": "untimed", "version": 1}},
    ]
    for name, properties, kept in (
        ("without", {}, {"old", "new", "untimed"}),
        ("with", {"delta.setTransactionRetentionDuration": "1 day"}, {"new", "untimed"}),
    ):
        table = TableBuilder(tmp_path / name, properties=properties)
        table.create(*actions)
        write(tmp_path / name)
        found = state_of(checkpoint_actions(table.log, 0), 0)
        assert found.transactions.keys() == kept


FIELDS = [
    ("id", "long"),
    ("at", "timestamp"),
    ("day", "date"),
    ("price", "decimal(10,2)"),
    ("rate", "double"),
    ("name", "string"),
]
STATS = {
    "numRecords": 3,
    "minValues": {
        "id": 1,
        "at": "2020-01-01T00:00:00.123Z",
        "day": "2020-01-01",
        "price": 1.25,
        "rate": 0.5,
        "name": "a",
    },
    "maxValues": {"id": 2, "price": 12345678.5},
    "nullCount": {"id": 0, "name": 3},
    "tightBounds": True,
}


def typed(folder: Path, **properties: str) -> TableBuilder:
    table = TableBuilder(folder, fields=FIELDS, partition_by=["day"], properties=properties)
    day = {"day": "2020-01-01"}
    table.create(
        add("a", stats=json.dumps(STATS), partitionValues=day),
        add("b", partitionValues={"day": None}),
        add("c", stats="garbage", partitionValues=day),
    )
    return table


STRUCT = {"delta.checkpoint.writeStatsAsStruct": "true"}
NO_JSON = {"delta.checkpoint.writeStatsAsJson": "false"}


def test_statistics_are_columns_where_the_table_asks_for_them(tmp_path: Path) -> None:
    table = typed(tmp_path, **STRUCT, **NO_JSON)
    write(tmp_path)
    adds = {
        row["add"]["path"]: row["add"]
        for row in pq.read_table(checkpoint_of(table.log, 0)).to_pylist()
        if row["add"]
    }
    assert "stats" not in adds["a"]
    parsed = adds["a"]["stats_parsed"]
    assert parsed["numRecords"] == 3
    assert parsed["tightBounds"] is True
    assert parsed["minValues"] == {
        "id": 1,
        "at": datetime.datetime(2020, 1, 1, 0, 0, 0, 123_000, datetime.UTC),
        "price": Decimal("1.25"),
        "rate": 0.5,
        "name": "a",
    }
    assert parsed["maxValues"]["price"] == Decimal("12345678.50")
    assert parsed["nullCount"]["name"] == 3
    assert adds["a"]["partitionValues_parsed"] == {"day": datetime.date(2020, 1, 1)}
    assert adds["b"]["partitionValues_parsed"] == {"day": None}
    assert adds["b"]["stats_parsed"] is adds["c"]["stats_parsed"] is None


def test_statistics_survive_when_the_table_changes_its_mind(tmp_path: Path) -> None:
    table = typed(tmp_path, **STRUCT, **NO_JSON)
    write(tmp_path)
    table.change_metadata(
        properties=dict.fromkeys((*STRUCT, *NO_JSON)),
        fields=[*FIELDS, ("extra", "long")],
    )
    write(tmp_path)
    found = state_of(checkpoint_actions(table.log, 1), 1)
    stats = json.loads(found.adds["a", ""]["stats"])
    assert stats["minValues"].pop("at") == "2020-01-01T00:00:00.123000Z"
    wanted = json.loads(json.dumps(STATS))
    del wanted["minValues"]["at"], wanted["minValues"]["day"]
    assert stats == wanted
    assert "stats" not in found.adds["b", ""]
    assert "stats_parsed" not in found.adds["a", ""]
    table.change_metadata(properties=STRUCT)
    hide_commits(table, 1)
    write(tmp_path)
    again = state_of(checkpoint_actions(table.log, 2), 2).adds["a", ""]
    assert again["stats_parsed"]["minValues"]["price"] == Decimal("1.25")
    assert json.loads(again["stats"])["numRecords"] == 3


def test_a_partition_value_of_the_wrong_type_stops_the_checkpoint(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=FIELDS, partition_by=["id"], properties=STRUCT)
    table.create(add("a", partitionValues={"id": "no number"}))
    with pytest.raises(CorruptLogError, match="no number"):
        write(tmp_path)
    assert sorted(path.name for path in table.log.iterdir()) == [f"{0:020}.json"]


UNKNOWN: dict[str, Any] = {
    "future": "text",
    "futureNumber": 7,
    "futureObject": {"a": [1, 2], "b": None},
    "futureEmpty": {},
    "futureMixed": 1,
}


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_fields_of_later_protocols_are_kept(tmp_path: Path, policy: str) -> None:
    table = TableBuilder(
        tmp_path,
        reader_features=["v2Checkpoint", "deletionVectors"],
        properties={"delta.checkpointPolicy": policy},
    )
    protocol, metadata = table.protocol(), table.metadata()
    protocol["protocol"]["futureProtocol"] = "p"
    metadata["metaData"]["futureMetadata"] = {"x": 1}
    table.commit(
        protocol,
        metadata,
        {"txn": {"appId": "a", "version": 1, "futureTxn": True}},
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": False, "futureD": 1}},
        add("a", **UNKNOWN),
        add("b", futureMixed="text", tags={"k": "v", "n": None}, baseRowId=4,
            defaultRowCommitVersion=1, clusteringProvider="liquid"),
        remove("c", deletionTimestamp=NOW, futureRemove=[1, 2], size=4, partitionValues={"p": "1"},
            extendedFileMetadata=True, baseRowId=3, defaultRowCommitVersion=0),
    )  # fmt: skip
    for version in (0, 1):
        write(tmp_path)
        found = state_of(checkpoint_actions(table.log, version), version)
        assert found.protocol is not None
        assert found.protocol["futureProtocol"] == "p"
        assert found.metadata is not None
        assert found.metadata["futureMetadata"] == {"x": 1}
        assert found.transactions["a"]["futureTxn"] is True
        assert found.domains["d"]["futureD"] == 1
        kept = found.adds["a", ""]
        assert kept["future"] == "text"
        assert kept["futureNumber"] == 7
        assert kept["futureObject"] == {"a": [1, 2]}
        assert kept["futureEmpty"] == "{}"
        assert kept["futureMixed"] == "1"
        assert found.adds["b", ""]["futureMixed"] == "text"
        assert found.adds["b", ""]["tags"] == {"k": "v", "n": None}
        assert found.adds["b", ""]["clusteringProvider"] == "liquid"
        assert found.removes["c", ""]["futureRemove"] == [1, 2]
        assert found.removes["c", ""]["partitionValues"] == {"p": "1"}
        table.commit(add("d"))
        hide_commits(table, version)


@pytest.mark.parametrize("is_gone", [True, False], ids=["vanished", "changed"])
def test_a_commit_that_is_another_meanwhile_stops_the_checkpoint(
    tmp_path: Path, is_gone: bool
) -> None:
    table = write_history(tmp_path)
    error = MissingVersionError if is_gone else CorruptLogError
    text = "Version 4 is missing" if is_gone else "were found again"

    async def job() -> None:
        reader = LogReader(LocalStore(), str(tmp_path))
        snapshot = await reader.open()
        if is_gone:
            table.commit_path(4).unlink()
        else:
            table.commit(add("other"), version=HEAD)
        with pytest.raises(error, match=text):
            await LogWriter(reader, clock=SimClock(NOW)).write_checkpoint(snapshot)

    asyncio.run(job())
    assert not list(table.log.glob("*checkpoint*"))


@pytest.mark.parametrize("body", [b"", b"PAR1 and no more"])
def test_a_damaged_checkpoint_of_somebody_else_is_no_success(tmp_path: Path, body: bytes) -> None:
    table = write_history(tmp_path)

    table.change_metadata(properties={"delta.checkpointPolicy": "classic"})
    path = table.log / f"{HEAD + 1:020}.checkpoint.parquet"

    async def job() -> None:
        reader = LogReader(LocalStore(), str(tmp_path))
        snapshot = await reader.open()
        path.write_bytes(body)
        writer = LogWriter(reader, clock=SimClock(NOW))
        with pytest.raises(CorruptLogError, match="cannot be read"):
            await writer.write_checkpoint(snapshot)

    asyncio.run(job())
    assert path.read_bytes() == body


@pytest.mark.parametrize(
    ("reader_features", "writer_features", "reason"),
    [
        ([], ["somethingNew"], "somethingNew .unknown to this release."),
        ([], ["redirectWriterOnly"], "writers must use another table"),
        ([], ["coordinatedCommits-preview"], "its coordinator says"),
    ],
)
def test_a_table_whose_writers_must_know_more_is_left_alone(
    tmp_path: Path, reader_features: list[str], writer_features: list[str], reason: str
) -> None:
    table = TableBuilder(tmp_path, reader_features=reader_features, writer_features=writer_features)
    table.create(add("a"))
    with pytest.raises(UnsupportedFeatureError, match=reason):
        write(tmp_path)
    assert [path.name for path in table.log.iterdir()] == [f"{0:020}.json"]


def test_a_table_of_a_later_writer_version_is_left_alone(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.commit(table.protocol(minWriterVersion=8), table.metadata(), add("a"))
    with pytest.raises(UnsupportedFeatureError, match="writer version 8"):
        write(tmp_path)


def test_statistics_that_are_text_and_columns_agree(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=STRUCT)
    table.create(add("a", stats=stats(3)), domain("d", "1"))
    write(tmp_path)
    [found] = state_of(checkpoint_actions(table.log, 0), 0).adds.values()
    assert (found["stats"], found["stats_parsed"]["numRecords"]) == (stats(3), 3)
