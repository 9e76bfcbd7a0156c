"""deltalake reads a table rightly from what maintenance wrote alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.maintenance.tables import STRUCT_STATS, grow, hide, living_table, maintain
from tests.maintenance.written import checkpoint_of
from tests.tables.builder import TableBuilder


def list_rows(folder: Path) -> list[tuple[Any, ...]]:
    # Not through its Arrow datasets, which refuse tables with V2 checkpoints.
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(folder)))
    found = pa.table(query.execute("SELECT id, name, day FROM t")).to_pylist()
    return sorted((row["id"], row["name"], str(row["day"])) for row in found)


def expected(table: TableBuilder) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"], str(row["day"])) for row in table.rows())


@pytest.mark.parametrize("properties", [{}, STRUCT_STATS], ids=["json-stats", "struct-stats"])
@pytest.mark.parametrize("layout", ["v1", "v2-json", "v2-parquet"])
def test_deltalake_reads_the_table_from_our_checkpoint_alone(
    tmp_path: Path, layout: str, properties: dict[str, str]
) -> None:
    table = living_table(tmp_path, is_v2=layout != "v1", **properties)
    rows, state = expected(table), table.state()
    maintain(tmp_path, manifest="parquet" if layout == "v2-parquet" else "json")
    hide(table, 0, table.version)
    read = deltalake.DeltaTable(str(tmp_path))
    assert read.version() == table.version
    assert list_rows(tmp_path) == rows
    assert len(read.file_uris()) == len(state.adds)
    assert read.transaction_version("app") == 7
    assert sum(read.get_add_actions(flatten=True)["size_bytes"].to_pylist()) == sum(
        action["size"] for action in state.adds.values()
    )


def test_deltalake_reads_and_goes_on_after_sidecars_that_were_named_again(tmp_path: Path) -> None:
    table = living_table(tmp_path, is_v2=True)
    maintain(tmp_path)
    first = {path.name for path in (table.log / "_sidecars").iterdir()}
    for version in (20, 22):
        grow(table, version)
    maintain(tmp_path)
    lines = checkpoint_of(table.log, table.version).read_text().splitlines()
    named = {json.loads(line)["sidecar"]["path"] for line in lines if '"sidecar"' in line}
    assert first & named
    rows = expected(table)
    hide(table, 0, table.version)
    assert list_rows(tmp_path) == rows


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_deltalake_reads_row_groups_that_were_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", 1)
    table = living_table(tmp_path)
    if first == "ours":
        maintain(tmp_path)
    else:
        deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    table.append([{"id": 200, "name": "new", "day": "2020-02-01"}])
    maintain(tmp_path)
    rows = expected(table)
    hide(table, 0, table.version)
    assert list_rows(tmp_path) == rows


def test_deltalake_reads_a_table_whose_commits_are_compacted(tmp_path: Path) -> None:
    table = living_table(tmp_path)
    maintain(tmp_path, checkpoint=False, compaction=(0, 6))
    assert list_rows(tmp_path) == expected(table)


def test_deltalake_appends_and_checkpoints_on_top_of_ours(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, start_ms=None)
    table.append([{"id": 1, "name": "a"}])
    table.append([{"id": 2, "name": "b"}])
    maintain(tmp_path)
    hide(table, 0, 0)
    other = deltalake.DeltaTable(str(tmp_path))
    deltalake.write_deltalake(other, other.to_pyarrow_table().slice(0, 1), mode="append")
    other = deltalake.DeltaTable(str(tmp_path))
    other.create_checkpoint()
    table.commit_path(2).unlink()
    assert sorted(deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()["id"].to_pylist()) in (
        [1, 1, 2],
        [1, 2, 2],
    )
