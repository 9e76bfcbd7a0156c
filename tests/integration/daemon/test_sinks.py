"""Several sinks of one table: pipelines of their own, over one log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon.running import (
    address,
    daemon,
    delivered_ids,
    page,
    run_to_end,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

FIELDS = [("id", "long"), ("name", "string"), ("region", "string")]
ROWS = [
    {"id": 1, "name": "Arthur", "region": "EU"},
    {"id": 2, "name": "Ford", "region": "US"},
    {"id": 3, "name": "Trillian", "region": "EU"},
]


def two_sinks(tmp_path: Path, **fields: Any) -> Path:
    orders = {
        "path": str(tmp_path / "table"),
        "from": "snapshot",
        "identity": ["id"],
        "sinks": {
            "all": {"sink": {"kind": "file", "path": str(tmp_path / "all")}},
            "eu": {
                "where": "region = 'EU'",
                "columns": ["id", "name"],
                "mask": {"name": "partial"},
                "sink": {"kind": "file", "path": str(tmp_path / "eu")},
            },
        },
        **fields,
    }
    return write_config(tmp_path, orders=orders)


def make_table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "table", fields=FIELDS, start_ms=None)
    table.append(ROWS)
    return table


def states(config: Path) -> dict[str, str]:
    status = json.loads(page(config, "/status"))
    return {table["table"]: table["state"] for table in status["tables"]}


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.full)])
def test_each_sink_has_its_own_rows_offset_and_verdict(tmp_path: Path, engine: str) -> None:
    table = make_table(tmp_path)
    config = two_sinks(tmp_path, engine=engine)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    table.append([{"id": 4, "name": "Marvin", "region": "EU"}])
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert sorted(delivered_ids(tmp_path / "all")) == [1, 2, 3, 4]
    assert sorted(delivered_ids(tmp_path / "eu")) == [1, 3, 4]
    eu = "".join(path.read_text() for path in (tmp_path / "eu").glob("*.jsonl"))
    assert "Trillian" not in eu
    assert "region" not in eu
    files = sorted(path.name for path in (tmp_path / "state" / "offsets").glob("*.json"))
    assert files == ["orders%2Fall.json", "orders%2Feu.json"]
    shown = run_to_end("offsets", "orders", "--config", config, "--json").stdout.splitlines()
    assert [json.loads(line)["table"] for line in shown] == ["orders/all", "orders/eu"]
    done = run_to_end("verify", "orders", "--config", config)
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["equal", "equal"]


def test_a_command_that_needs_one_pipeline_lists_them(tmp_path: Path) -> None:
    make_table(tmp_path)
    config = two_sinks(tmp_path)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    done = run_to_end("offsets", "reset", "orders", "--to", "snapshot", "--config", config)
    assert done.returncode == 2
    assert "Name one of them: orders/all, orders/eu." in done.stderr
    done = run_to_end("offsets", "reset", "orders/eu", "--to", "snapshot", "--config", config)
    assert done.returncode == 0, done.stderr
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert sorted(delivered_ids(tmp_path / "all")) == [1, 2, 3]
    for command in ("history", "inspect"):
        assert run_to_end(command, "orders", "--config", config).returncode == 0


def test_a_sink_is_paused_alone_or_with_the_others(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    config = two_sinks(tmp_path)
    with daemon(config):
        url = address(config)
        eventually(lambda: set(states(config).values()) == {"running"})
        assert run_to_end("pause", "orders/eu", "--http", url).returncode == 0
        assert states(config) == {"orders/all": "running", "orders/eu": "paused"}
        table.append([{"id": 4, "name": "Marvin", "region": "EU"}])
        eventually(lambda: 4 in delivered_ids(tmp_path / "all"))
        assert 4 not in delivered_ids(tmp_path / "eu")
        assert page(config, "/tables/orders%2Feu")
        assert run_to_end("pause", "orders", "--http", url).returncode == 0
        assert set(states(config).values()) == {"paused"}
        assert run_to_end("resume", "orders", "--http", url).returncode == 0
        eventually(lambda: 4 in delivered_ids(tmp_path / "eu"))
        shown = run_to_end("status", "orders", "--http", url, "--json").stdout.splitlines()
        assert [json.loads(line)["state"] for line in shown] == ["running", "running"]


def test_a_failed_sink_leaves_the_others_alone(tmp_path: Path) -> None:
    make_table(tmp_path)
    (tmp_path / "eu").write_text("a file where a folder should be")
    done = run_to_end("run", "--config", two_sinks(tmp_path), "--once", "--retry-for", "1s")
    assert done.returncode != 0
    assert sorted(delivered_ids(tmp_path / "all")) == [1, 2, 3]


def test_a_table_with_two_sinks_is_maintained_and_cleaned_up_to_the_slower(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    config = two_sinks(tmp_path, maintenance={"checkpoint": {"every_commits": 1}})
    for number in range(4, 8):
        table.append([{"id": number, "name": "Marvin", "region": "EU"}])
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet"))
    done = run_to_end("maintain", "orders", "--config", config)
    assert done.returncode == 0, done.stderr
