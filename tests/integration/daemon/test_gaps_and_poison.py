"""Gaps and damaged commits of real tables, through `tailerd run` and its file sink."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tailerd.cli import run
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    file_table,
    make_table,
    page,
    run_to_end,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.waiting import eventually


def clean_up(builder: TableBuilder, until: int) -> None:
    """Remove the commits before `until`, as metadata cleanup does behind a checkpoint."""
    builder.checkpoint()
    for version in range(until):
        (builder.folder / f"_delta_log/{version:020}.json").unlink()


@pytest.mark.full
@pytest.mark.parametrize(("on_gap", "ids"), [("snapshot", [1, 1, 2, 3, 4]), ("latest", [1, 4])])
def test_a_gap_is_crossed_and_shown(tmp_path: Path, on_gap: str, ids: list[int]) -> None:
    builder, out = make_table(tmp_path / "t", 1), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, on_gap=on_gap))
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    builder.append([{"id": 2}])
    builder.append([{"id": 3}])
    clean_up(builder, 3)
    with daemon(config):
        eventually(lambda: '"event": "Gap in the changes' in (tmp_path / "daemon.log").read_text())
        builder.append([{"id": 4}])
        eventually(lambda: sorted(delivered_ids(out)) == ids)
        (shown,) = json.loads(page(config, "/status"))["tables"]
        assert 'tailerd_gaps_total{error_code="missing_version",table="orders"} 1.0' in page(
            config, "/metrics"
        )
    assert shown["gaps"] == 1
    assert "Version 2" in shown["last_gap"]
    (record,) = out.glob("*.gap.json")
    assert json.loads(record.read_text())["from"]["version"] == 2


@pytest.mark.full
@pytest.mark.parametrize(("on_gap", "ids"), [("snapshot", [1, 1, 2, 3, 4]), ("latest", [1, 4])])
def test_a_gap_is_crossed_on_both_engines(
    tmp_path: Path, engine: str, on_gap: str, ids: list[int]
) -> None:
    builder, out = make_table(tmp_path / "t", 1), tmp_path / "out"
    options = {"on_gap": on_gap, "engine": engine}
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, **options))
    once = ["run", "--config", str(config), "--once"]
    assert run(once) == 0
    builder.append([{"id": 2}])
    builder.append([{"id": 3}])
    clean_up(builder, 3)
    assert run(once) == 0
    builder.append([{"id": 4}])
    assert run(once) == 0
    assert sorted(delivered_ids(out)) == ids
    (record,) = out.glob("*.gap.json")
    assert json.loads(record.read_text())["from"]["version"] == 2


@pytest.mark.full
@pytest.mark.parametrize("table_id", ["", "another"], ids=["restored from a copy", "made anew"])
def test_another_history_begins_anew_beside_what_it_replaces(tmp_path: Path, table_id: str) -> None:
    make_table(tmp_path / "t", 1, 2)
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, on_gap="snapshot"))
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    shutil.rmtree(tmp_path / "t")
    make_table(tmp_path / "t", 7, **({"table_id": table_id} if table_id else {}))
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert delivered_ids(out) == [7]
    (aside,) = out.glob("replaced-*")
    assert sorted(delivered_ids(aside)) == [1, 2]


@pytest.mark.full
def test_a_table_made_anew_is_an_error_by_default(tmp_path: Path) -> None:
    make_table(tmp_path / "t", 1, 2)
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    shutil.rmtree(tmp_path / "t")
    make_table(tmp_path / "t", 7, 8, 9, table_id="another")
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 3
    assert "error[table_recreated]" in done.stderr
    assert sorted(delivered_ids(tmp_path / "out")) == [1, 2]


@pytest.mark.full
@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_damaged_commit_is_left_out_and_recorded_on_both_engines(
    tmp_path: Path, engine: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    builder, out = make_table(tmp_path / "t", 1, 2), tmp_path / "out"
    before = set((tmp_path / "t").glob("*.parquet"))
    builder.append([{"id": 3}])
    (bad,) = set((tmp_path / "t").glob("*.parquet")) - before
    if damage == "missing":
        bad.unlink()
    else:
        bad.write_bytes(bad.read_bytes()[:-40])
    builder.append([{"id": 4}])
    options = {"from": "0", "on_corrupt_commit": "skip-and-record", "engine": engine}
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, **options))
    status = run(["run", "--config", str(config), "--once", "--log-format", "json"])
    reported = capsys.readouterr().err
    assert status == 0, reported
    assert delivered_ids(out) == [1, 2, 4]
    (path,) = (tmp_path / "state/corrupt_commits/orders").iterdir()
    record = json.loads(path.read_text())
    assert record["version"] == 3
    assert record["error_code"] in {"missing_data_file", "unreadable_data_file"}
    assert bad.name in record["message"]
    assert "Corrupt commit recorded" in reported
