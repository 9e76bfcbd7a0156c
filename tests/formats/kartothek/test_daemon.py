"""Datasets through `tailerd run`, `verify`, `validate` and `offsets`, by the file sink."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.formats.delivering import changes, delivered, run_once
from tests.integration.daemon.running import (
    address,
    daemon,
    delivered_ids,
    file_table,
    run_to_end,
    write_config,
)
from tests.tables.dataset_writer import DatasetWriter, Rows
from tests.waiting import eventually


def rows(*ids: int) -> Rows:
    return [{"id": number, "name": f"n{number}"} for number in ids]


@pytest.mark.full
def test_looking_writes_nothing(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "store")
    writer.commit(rows(1))
    config = write_config(tmp_path, orders=file_table(writer.location, tmp_path / "out"))
    assert run_to_end("validate", config).returncode == 0
    assert not (tmp_path / "state/ledger").exists()
    run_once(config)
    writer.commit(rows(2))
    before = list((tmp_path / "state/ledger/orders").iterdir())
    for command in (("validate", config), ("verify", "orders", "--config", config)):
        assert run_to_end(*command).returncode == 0
    assert list((tmp_path / "state/ledger/orders").iterdir()) == before


@pytest.mark.full
def test_a_lost_ledger_is_a_gap_and_no_fresh_start(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "store")
    writer.commit(rows(1))
    table = file_table(writer.location, tmp_path / "out")
    config = write_config(tmp_path, orders=table)
    run_once(config)
    for entry in (tmp_path / "state/ledger/orders").iterdir():
        entry.unlink()
    writer.commit(rows(2))
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 3, done.stderr
    assert "table_recreated" in done.stderr
    assert len(delivered(tmp_path / "out")) == 1
    config = write_config(tmp_path, orders={**table, "on_gap": "snapshot"})
    run_once(config)
    found = changes(delivered(tmp_path / "out"))
    assert found == Counter([("insert", 1, 0), ("insert", 1, 0), ("insert", 2, 0)])


@pytest.mark.full
def test_rows_of_collected_files_are_a_gap(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "store")
    [first] = writer.commit(rows(1))
    table = file_table(writer.location, tmp_path / "out")
    config = write_config(tmp_path, orders=table)
    run_once(config)
    writer.commit(rows(2), without=lambda label: label == first)
    writer.collect_garbage()
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 3, done.stderr
    assert "garbage" in done.stderr
    config = write_config(tmp_path, orders={**table, "on_gap": "snapshot"})
    run_once(config)
    found = changes(delivered(tmp_path / "out"))
    assert found == Counter([("insert", 1, 0), ("insert", 2, 1)])


@pytest.mark.full
def test_offsets_are_reset_to_the_present_state(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "store")
    writer.commit(rows(1))
    config = write_config(tmp_path, orders=file_table(writer.location, tmp_path / "out"))
    run_once(config)
    writer.commit(rows(2))
    reset = run_to_end("offsets", "reset", "orders", "--to", "latest", "--yes", "--config", config)
    assert reset.returncode == 0, reset.stderr
    writer.commit(rows(3))
    run_once(config)
    found = changes(delivered(tmp_path / "out"))
    assert found == Counter([("insert", 1, 0), ("insert", 3, 2)])
    again = run_to_end("offsets", "reset", "orders", "--to", "0", "--config", config)
    assert again.returncode == 3, again.stderr


@pytest.mark.full
def test_the_ledger_keeps_what_the_slower_of_two_sinks_needs(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "store")
    writer.commit(rows(1))
    both = {
        name: {"sink": {"kind": "file", "path": str(tmp_path / name)}} for name in ("fast", "slow")
    }
    table: dict[str, object] = {
        "path": str(writer.location),
        "from": "snapshot",
        "sinks": both,
    }
    config = write_config(tmp_path, orders=table)
    run_once(config)
    with daemon(config):
        url = address(config)
        done = run_to_end("pause", "orders/slow", "--http", url)
        assert done.returncode == 0, done.stderr
        for number in (2, 3, 4):
            writer.commit(rows(number))
            eventually(lambda number=number: number in delivered_ids(tmp_path / "fast"))  # type: ignore[misc]
        assert sorted(delivered_ids(tmp_path / "slow")) == [1]
        assert run_to_end("resume", "orders/slow", "--http", url).returncode == 0
        eventually(lambda: 4 in delivered_ids(tmp_path / "slow"))
    assert changes(delivered(tmp_path / "slow")) == changes(delivered(tmp_path / "fast"))
    assert [path.name for path in (tmp_path / "state/ledger").iterdir()] == ["orders"]
    done = run_to_end("verify", "orders", "--config", config)
    assert done.returncode == 0, done.stdout
