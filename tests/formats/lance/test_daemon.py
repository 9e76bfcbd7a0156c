"""Lance tables through `tailerd run`, `verify`, `validate`, `offsets` and the other commands."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.formats.delivering import Change, changes, delivered, run_once
from tests.formats.lance.test_gaps import rows, written
from tests.integration.daemon.running import (
    daemon,
    eventually,
    file_table,
    page,
    run_to_end,
    write_config,
)
from tests.tables.lance_writer import LanceWriter


def test_a_table_is_delivered_goes_on_and_verifies(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t", stable_ids=True)
    writer.append(rows(1, 2))
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    run_once(config)
    writer.dataset.update({"name": "'x'"}, where="id = 2")
    writer.delete("id = 1")
    run_once(config)
    writer.clean_up_before(3)
    writer.append(rows(3))
    run_once(config)
    assert changes(delivered(tmp_path / "out")) == Counter(
        [
            *(("insert", 1, 1), ("insert", 2, 1), ("delete", 1, 3), ("insert", 3, 4)),
            *(("update_preimage", 2, 2), ("update_postimage", 2, 2)),
        ]
    )
    verified = run_to_end("verify", "orders", "--config", config, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    verdict = json.loads(verified.stdout)
    assert (verdict["version"], verdict["rows"], verdict["is_equal"]) == (4, 2, True)
    validated = run_to_end("validate", config, "--json")
    assert '"head_version": 4' in validated.stdout, validated.stdout + validated.stderr


def test_the_daemon_hears_of_a_commit_and_delivers_it_soon(tmp_path: Path) -> None:
    writer = written(tmp_path / "t", 1)
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    with daemon(config) as process:
        eventually(lambda: len(delivered(tmp_path / "out")) == 2, 60)
        for number in (7, 8):
            time.sleep(0.3)
            began = time.monotonic()
            writer.append(rows(number))
            eventually(
                lambda: ("insert", number, number - 5) in changes(delivered(tmp_path / "out")),  # noqa: B023
                20,
            )
            assert time.monotonic() - began < 5
        eventually(lambda: _shown(config)["size"].get("files") == 3, 20)
        shown = _shown(config)
        assert (shown["format"], shown["size"]["rows"]) == ("lance", 4)
        assert shown["capabilities"]["pairs_updates"] is True
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def _shown(config: Path) -> dict[str, Any]:
    [shown] = json.loads(page(config, "/status"))["tables"]
    return {**shown, "size": shown.get("size") or {}}


@pytest.mark.full
@pytest.mark.parametrize("on_gap", ["stop", "snapshot", "net"])
def test_versions_that_are_gone_are_met_as_the_policy_says(tmp_path: Path, on_gap: str) -> None:
    writer = written(tmp_path / "t", 1)
    table = file_table(tmp_path / "t", tmp_path / "out", on_gap=on_gap)
    config = write_config(tmp_path, orders=table)
    run_once(config)
    for number in (2, 3, 4):
        writer.append(rows(number))
    writer.dataset.cleanup_old_versions(versions=[2, 3])
    said = run_once(config, 3 if on_gap == "stop" else 0)
    before: Counter[Change] = Counter([("insert", 0, 1), ("insert", 1, 1)])
    more: dict[str, Counter[Change]] = {
        "stop": Counter[Change](),
        "snapshot": Counter(("insert", number, 4) for number in range(5)),
        "net": Counter(("insert", number, 4) for number in (2, 3, 4)),
    }
    assert changes(delivered(tmp_path / "out")) == before + more[on_gap]
    assert "missing_version" in said


@pytest.mark.full
def test_a_table_made_again_is_another_history(tmp_path: Path) -> None:
    written(tmp_path / "t", 3)
    table = file_table(tmp_path / "t", tmp_path / "out")
    config = write_config(tmp_path, orders=table)
    run_once(config)
    shutil.rmtree(tmp_path / "t")
    written(tmp_path / "t", 5)
    assert "table_recreated" in run_once(config, 3)
    config = write_config(tmp_path, orders={**table, "on_gap": "snapshot"})
    run_once(config)
    assert len(list((tmp_path / "out").glob("replaced-*"))) == 1
    assert changes(delivered(tmp_path / "out")) == Counter(
        [
            *[("insert", 0, 3), ("insert", 1, 3), ("insert", 2, 3), ("insert", 3, 3)],
            *[("insert", number, 5) for number in range(6)],
        ]
    )


@pytest.mark.full
def test_commands_show_a_table(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t", stable_ids=True)
    writer.append(rows(1, 2, 3))
    writer.delete("id = 2")
    writer.dataset.add_columns({"x": "id + 1"})
    writer.dataset.optimize.compact_files()
    shown = json.loads(run_to_end("inspect", tmp_path / "t", "--json").stdout)
    assert (shown["format"], shown["version"], shown["num_rows"]) == ("lance", 4 + 1, 2)
    assert shown["reader_flags"] == ["stable row ids"]
    assert list(shown["schema"]) == ["id", "name", "x"]
    files = run_to_end("inspect", tmp_path / "t", "--files", "--version", "2", "--json").stdout
    [file] = map(json.loads, files.splitlines())
    assert file["deleted_rows"] == 1
    history = run_to_end("history", tmp_path / "t", "--json").stdout
    found = [json.loads(line) for line in history.splitlines()]
    assert [each["changes"] for each in found] == ["files", "vectors", "rows", "none", "none"]
    assert [each["operation"] for each in found] == [
        *("overwrite", "delete", "merge", "reserve fragments", "rewrite"),
    ]
