"""Datasets through `tailerd run`, `verify`, `validate` and `offsets`, by the file sink."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.formats.delivering import changes, delivered, run_once
from tests.integration.daemon.running import (
    daemon,
    eventually,
    file_table,
    page,
    run_to_end,
    write_config,
)
from tests.tables.dataset_writer import DatasetWriter, Rows


def rows(*ids: int) -> Rows:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def test_a_dataset_is_delivered_goes_on_and_verifies(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "store")
    [first] = writer.commit(rows(1, 2))
    table = file_table(writer.location, tmp_path / "out", format="kartothek")
    config = write_config(tmp_path, orders=table)
    run_once(config)
    writer.commit(rows(3), without=lambda label: label == first)
    run_once(config)
    writer.commit(rows(4))
    run_once(config)
    expected = Counter(
        [
            ("insert", 1, 0),
            ("insert", 2, 0),
            ("delete", 1, 1),
            ("delete", 2, 1),
            ("insert", 3, 1),
            ("insert", 4, 2),
        ]
    )
    assert changes(delivered(tmp_path / "out")) == expected
    verified = run_to_end("verify", "orders", "--config", config, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    verdict = json.loads(verified.stdout)
    assert (verdict["version"], verdict["rows"], verdict["is_equal"]) == (2, 2, True)
    validated = run_to_end("validate", config, "--json")
    assert '"head_version": 2' in validated.stdout, validated.stdout + validated.stderr
    kept = sorted(path.name for path in (tmp_path / "state/ledger/orders").iterdir())
    assert kept == [f"{2:020d}.entry"], "what is delivered is forgotten"


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
    reset = run_to_end("offsets", "reset", "orders", "--to", "latest", "--config", config)
    assert reset.returncode == 0, reset.stderr
    writer.commit(rows(3))
    run_once(config)
    found = changes(delivered(tmp_path / "out"))
    assert found == Counter([("insert", 1, 0), ("insert", 3, 2)])
    again = run_to_end("offsets", "reset", "orders", "--to", "0", "--config", config)
    assert again.returncode == 3, again.stderr


def test_the_daemon_hears_of_a_commit_and_delivers_it_soon(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "store")
    writer.commit(rows(1))
    config = write_config(tmp_path, orders=file_table(writer.location, tmp_path / "out"))
    with daemon(config) as process:
        _wait_for(tmp_path / "out", 1)
        for number in (2, 3):
            time.sleep(0.3)
            began = time.monotonic()
            writer.commit(rows(number))
            _wait_for(tmp_path / "out", number)
            assert time.monotonic() - began < 5
        eventually(lambda: _shown(config).get("size", {}).get("files") == 3, 20)
        shown = _shown(config)
        assert (shown["format"], shown["size"]["rows"]) == ("kartothek", 3)
        assert shown["capabilities"]["ordering"] == "observed"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def _shown(config: Path) -> dict[str, Any]:
    [shown] = json.loads(page(config, "/status"))["tables"]
    return {**shown, "size": shown.get("size") or {}}


def _wait_for(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(delivered(folder)) < count:
        assert time.monotonic() < deadline, "the rows did not come"
        time.sleep(0.005)
