"""The builder's tables are right: another implementation reads them as the builder says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables import delta_schema
from tests.tables.builder import CDF, START_MS, TableBuilder
from tests.tables.checkpoints import Layout, Stats, hint_checksum
from tests.tables.vectors import z85

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a"},
    {"id": 2, "name": None},
    {"id": 3, "name": "ü"},
]


def peer_rows(table: TableBuilder) -> list[dict[str, Any]]:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table.folder))
    batches = query.execute("select * from t").read_all()
    return sorted(pa.table(batches).to_pylist(), key=lambda row: str(row["id"]))


def test_rows_come_back(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append(ROWS[:2])
    table.append(ROWS[2:])
    assert table.version == 1
    assert peer_rows(table) == table.rows() == ROWS
    assert table.rows(0) == ROWS[:2]


def test_partitions_and_odd_names_come_back(tmp_path: Path) -> None:
    values = ["x", "a b", "50%", "ü/1", "=&?#", None]
    rows = [{"id": i, "name": "n", "part": value} for i, value in enumerate(values)]
    table = TableBuilder(
        tmp_path,
        fields=[("id", "long"), ("name", "string"), ("part", "string")],
        partition_by=["part"],
    )
    assert len(table.append(rows).adds) == len(values)
    assert peer_rows(table) == rows


@pytest.mark.parametrize("storage", ["u", "i"])
def test_deleted_rows_are_gone(tmp_path: Path, storage: str) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    [add] = table.append(ROWS).adds
    [marked] = table.delete_rows(add, [1], storage=storage).adds
    assert peer_rows(table) == [ROWS[0], ROWS[2]]
    table.delete_rows(marked, [0, 1], storage=storage)
    assert peer_rows(table) == table.rows() == [ROWS[2]]


def test_several_vectors_share_a_file_in_a_sub_folder(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    adds = [*table.append(ROWS).adds, *table.append(ROWS).adds]
    file = table.vector_file(prefix="ab")
    changes = []
    for add, position in zip(adds, (0, 2), strict=True):
        marked = {"add": {**add["add"], "deletionVector": file.add([position])}}
        changes += [table.remove(add), marked]
    table.commit(*changes)
    assert [row["id"] for row in peer_rows(table)] == [1, 2, 2, 3]


def test_change_files_are_a_change_feed(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    [add] = table.append(ROWS).adds
    changed = {"id": 1, "name": "z"}
    [new] = table.data_files([changed, *ROWS[1:]])
    before, after = "update_preimage", "update_postimage"
    cdc = table.cdc_file([{**ROWS[0], "_change_type": before}, {**changed, "_change_type": after}])
    table.commit(table.remove(add), new, cdc, operation="UPDATE")
    feed = pa.table(deltalake.DeltaTable(table.folder).load_cdf(starting_version=1).read_all())
    assert sorted(feed.column("_change_type").to_pylist()) == [after, before]
    assert sorted(feed.column("name").to_pylist()) == ["a", "z"]


@pytest.mark.parametrize("stats", ["json", "struct", "both", "none"])
@pytest.mark.parametrize(
    ("layout", "parts", "sidecars"),
    [
        ("v1", 1, 0),
        ("v1", 3, 0),
        ("v2-classic", 1, 0),
        ("v2-parquet", 1, 0),
        ("v2-parquet", 1, 2),
        ("v2-json", 1, 0),
        ("v2-json", 1, 2),
    ],
)
def test_checkpoints_hold_the_table(
    tmp_path: Path, layout: Layout, parts: int, sidecars: int, stats: Stats
) -> None:
    features = ["v2Checkpoint"] if layout != "v1" else None
    table = TableBuilder(tmp_path, reader_features=features)
    adds = [table.append([row]).adds[0] for row in ROWS]
    table.commit(table.remove(adds[0]), {"txn": {"appId": "app", "version": 7}})
    files = table.checkpoint(layout=layout, parts=parts, sidecars=sidecars, stats=stats)
    assert len(files) == (parts if layout == "v1" else 1 + sidecars)
    for version in range(4):
        table.commit_path(version).unlink()
    table.append([{"id": 9, "name": "new"}])
    assert [row["id"] for row in peer_rows(table)] == [2, 3, 9]


def test_a_compaction_keeps_removes_and_the_last_of_each(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    adds = [table.append([row]).adds[0] for row in ROWS]
    table.commit(table.remove(adds[0]))
    lines = [json.loads(line) for line in table.compact(1, 3).read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["remove", "add", "add"]


def test_the_checksum_counts_and_can_lie(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append(ROWS)
    truth = json.loads(table.checksum().read_text())
    assert truth["numFiles"] == 1
    assert json.loads(table.checksum(numFiles=7).read_text()) == {**truth, "numFiles": 7}


def test_column_mapping_reaches_all_depths(tmp_path: Path) -> None:
    point = delta_schema.struct(delta_schema.field("x", "long"))
    table = TableBuilder(
        tmp_path,
        fields=[
            ("id", "long"),
            ("points", delta_schema.array(point)),
            ("by_name", delta_schema.map_of("string", point)),
        ],
        mapping="id",
    )
    rows = [{"id": 1, "points": [{"x": 1}, {"x": 2}], "by_name": {"k": {"x": 3}}}]
    [add] = table.append(rows).adds
    schema = pq.read_schema(table.folder / add["add"]["path"])
    assert schema.names == ["col-0001", "col-0002", "col-0004"]
    assert schema.field(0).metadata[b"PARQUET:field_id"] == b"1"
    assert schema.field(1).type.value_type.field(0).name == "col-0003"
    assert table.metadata()["metaData"]["configuration"]["delta.columnMapping.maxColumnId"] == "5"
    table.rename_column("id", "key")
    assert table.field_named("key")["metadata"][delta_schema.PHYSICAL_NAME] == "col-0001"


def test_times_are_what_the_test_says(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties={"delta.enableInCommitTimestamps": "true"})
    first = table.append(ROWS)
    second = table.append(ROWS, mtime_ms=5)
    assert [first.mtime_ms, second.mtime_ms] == [START_MS, 5]
    assert second.path.stat().st_mtime_ns == 5_000_000
    assert second.actions[0]["commitInfo"]["inCommitTimestamp"] == 505


def test_the_hint_checksum_follows_the_protocol() -> None:
    hint = {"k0": "'v 0'", "a": 1, "checksum": "<anything>", "c": {"b": None, "a": [True, 1]}}
    canonical = '"a"=1,"c"+"a"+0=true,"c"+"a"+1=1,"c"+"b"=null,"k0"="%27v%200%27"'
    assert hint_checksum(hint) == hashlib.md5(canonical.encode()).hexdigest()


def test_z85_follows_its_specification() -> None:
    assert z85(bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])) == "HelloWorld"
