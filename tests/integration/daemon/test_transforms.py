"""Pipelines that deliver chosen columns, rows and values, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon.running import file_table, run_to_end, write_config
from tests.tables.builder import TableBuilder

SECRET, KEY = "Zaphod-Beeblebrox", "deep-thought-42"
FIELDS = [("id", "long"), ("name", "string"), ("region", "string")]


def make_table(folder: Path) -> TableBuilder:
    table = TableBuilder(folder, fields=FIELDS, start_ms=None)
    table.append(
        [
            {"id": 1, "name": SECRET, "region": "EU"},
            {"id": 2, "name": "Ford", "region": "US"},
            {"id": 3, "name": "Trillian", "region": "EU"},
        ]
    )
    return table


def governed(tmp_path: Path, **fields: Any) -> Path:
    orders = {
        **file_table(tmp_path / "table", tmp_path / "out"),
        "from": "0",
        "identity": ["id"],
        "where": "region = 'EU'",
        "mask": {"name": "hash"},
        "mask_key": KEY,
        **fields,
    }
    return write_config(tmp_path, orders=orders)


def rows(tmp_path: Path) -> list[tuple[str, int]]:
    lines = [line for file in sorted((tmp_path / "out").glob("*.jsonl")) for line in file.open()]
    return [(row["_change_type"], row["id"]) for row in map(json.loads, lines)]


def test_an_update_out_of_the_condition_is_a_delete_and_the_sink_equals_the_view(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path / "table")
    config = governed(tmp_path)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    [add] = table.state(table.version).adds.values()
    moved = table.data_file(
        [
            {"id": 1, "name": SECRET, "region": "US"},
            {"id": 2, "name": "Ford", "region": "EU"},
            {"id": 3, "name": "Tricia", "region": "EU"},
        ]
    )
    table.commit(table.remove({"add": add}), moved)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert rows(tmp_path)[:2] == [("insert", 1), ("insert", 3)]
    assert sorted(rows(tmp_path)[2:]) == [
        ("delete", 1),
        ("insert", 2),
        ("update_postimage", 3),
        ("update_preimage", 3),
    ]
    done = run_to_end("verify", "orders", "--config", config)
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "equal")


def test_a_changed_mask_stops_the_pipeline_until_it_is_accepted(tmp_path: Path) -> None:
    table = make_table(tmp_path / "table")
    assert run_to_end("run", "--config", governed(tmp_path), "--once").returncode == 0
    config = governed(tmp_path, mask={"name": "redact"})
    table.append([{"id": 4, "name": "Marvin", "region": "EU"}])
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 1
    assert "error[transforms_changed]" in done.stderr
    assert "offsets accept orders" in done.stderr
    assert len(rows(tmp_path)) == 2
    assert run_to_end("offsets", "accept", "orders", "--config", config).returncode == 0
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert rows(tmp_path)[2:] == [("insert", 4)]
    assert '"name":"***"' in "".join(f.read_text() for f in (tmp_path / "out").glob("*.jsonl"))


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.full)])
def test_a_dropped_column_stops_the_pipeline_before_its_commit(tmp_path: Path, engine: str) -> None:
    table = TableBuilder(tmp_path / "table", fields=FIELDS, mapping="name", start_ms=None)
    table.append([{"id": 1, "name": SECRET, "region": "EU"}])
    config = governed(tmp_path, engine=engine)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    table.append([{"id": 2, "name": "Ford", "region": "EU"}])
    table.change_metadata(fields=[each for each in table.fields if each["name"] != "region"])
    table.append([{"id": 3, "name": "Trillian"}])
    for _ in range(2):
        done = run_to_end("run", "--config", config, "--once")
        assert done.returncode == 3
        assert "error[transforms_mismatch]: orders: Version 2 of " in done.stderr
        assert "does not fit `where`: There is no column 'region'." in done.stderr
        assert f"`tailerd offsets accept orders --config {config}`" in done.stderr
        assert rows(tmp_path) == [("insert", 1), ("insert", 2)]
    config = governed(tmp_path, engine=engine, where="name <> 'Marvin'")
    assert run_to_end("offsets", "accept", "orders", "--config", config).returncode == 0
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert rows(tmp_path)[2:] == [("insert", 3)]


def test_a_reset_delivers_all_rows_in_the_new_form(tmp_path: Path) -> None:
    make_table(tmp_path / "table")
    assert run_to_end("run", "--config", governed(tmp_path), "--once").returncode == 0
    config = governed(tmp_path, where="region = 'US'")
    reset = run_to_end("offsets", "reset", "orders", "--to", "snapshot", "--config", config)
    assert reset.returncode == 0
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert ("insert", 2) in rows(tmp_path)


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.full)])
def test_a_run_leaves_no_masked_value_and_no_key_behind(tmp_path: Path, engine: str) -> None:
    make_table(tmp_path / "table")
    config = governed(tmp_path, engine=engine)
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0
    assert len(rows(tmp_path)) == 2
    places = {
        str(file): file.read_bytes()
        for file in tmp_path.rglob("*")
        if file.is_file() and file != config and tmp_path / "table" not in file.parents
    }
    places |= {"output": done.stdout.encode(), "errors": done.stderr.encode()}
    for word in (SECRET, KEY):
        assert [place for place, found in places.items() if word.encode() in found] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"where": "regin = 'EU'"}, "tables.orders.where: The condition cannot be used"),
        ({"columns": ["nam"]}, "tables.orders.columns: columns names 'nam'"),
        ({"mask": {"name": "md5"}}, "tables.orders.mask: The mask of 'name' is 'md5'"),
        ({"mask": {"id": "redact"}}, "tables.orders.mask: The mask 'redact' of 'id'"),
        ({"rename": {"name": "id"}}, "tables.orders.rename: Two columns"),
    ],
)
def test_validate_names_the_field_and_its_place(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    make_table(tmp_path / "table")
    config = governed(tmp_path, **fields)
    done = run_to_end("validate", config)
    assert done.returncode == 2
    assert message in done.stderr
    assert f"{config.name}:" in done.stderr
