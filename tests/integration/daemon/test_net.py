"""Several commits as one difference, as a configuration asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.daemon.running import file_table, run_to_end, write_config
from tests.tables.builder import TableBuilder
from tests.tables.dataset_writer import DatasetWriter


def delivered(out: Path) -> list[tuple[int, str, int]]:
    lines = [line for file in sorted(out.glob("*.jsonl")) for line in file.open()]
    rows = [json.loads(line) for line in lines]
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


def once(config: Path) -> None:
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fields", [{"changes": "net"}, {"net": {"above_versions": 3}}])
def test_a_backlog_comes_as_one_difference_and_is_verified(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    table = TableBuilder(tmp_path / "table")
    table.append([{"id": 0, "name": "a"}])
    config = write_config(tmp_path, orders=file_table(table.folder, tmp_path / "out", **fields))
    once(config)
    for number in range(1, 6):
        [add] = table.append([{"id": number, "name": "b"}]).adds
        if number % 2:
            table.commit(table.remove(add))
    once(config)
    rows = delivered(tmp_path / "out")
    assert rows[0] == (0, "insert", 0)
    assert sorted(rows[1:]) == [(table.version, "insert", 2), (table.version, "insert", 4)]
    done = run_to_end("verify", "orders", "--config", config)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_format_without_differences_refuses_them(tmp_path: Path) -> None:
    dataset = DatasetWriter(tmp_path / "store")
    dataset.commit([{"id": 1, "name": "a"}])
    table = file_table(dataset.location, tmp_path / "out", on_gap="net")
    done = run_to_end("run", "--config", write_config(tmp_path, orders=table), "--once")
    assert done.returncode == 3
    assert "cannot be given as one difference" in done.stderr
    assert "Leave `net` out" in done.stderr
