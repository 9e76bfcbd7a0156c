"""Data files that VACUUM removed while the log still names them, under every `on_gap`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.cli import run
from tests.integration.daemon.running import delivered_ids, file_table, write_config
from tests.tables.builder import CDF, TableBuilder
from tests.tables.naive_log import Action

pytestmark = pytest.mark.attack


def vacuum(table: TableBuilder, *actions: Action) -> None:
    for action in actions:
        (table.folder / next(iter(action.values()))["path"]).unlink()


def replaced(table: TableBuilder, add: Action, *ids: int) -> Action:
    """Replace a file by one with these rows, as OPTIMIZE or UPDATE does; return the new one."""
    fresh = table.data_file([{"id": number} for number in ids])
    table.commit(table.remove(add), fresh)
    return fresh


def delivering(tmp_path: Path, engine: str, on_gap: str, **options: object) -> list[str]:
    out = tmp_path / "out"
    section = file_table(tmp_path / "t", out, on_gap=on_gap, engine=engine, **options)
    config = write_config(tmp_path, orders=section)
    return ["run", "--config", str(config), "--once"]


def make_table(tmp_path: Path, **options: object) -> TableBuilder:
    table = TableBuilder(tmp_path / "t", fields=[("id", "long")], **options)  # type: ignore[arg-type]
    table.append([{"id": 1}])
    return table


def list_rows(out: Path) -> list[tuple[str, int]]:
    lines = [
        line for path in sorted(out.glob("**/*.jsonl")) for line in path.read_text().splitlines()
    ]
    rows = [json.loads(line) for line in lines]
    return sorted((row["_change_type"], row["id"]) for row in rows)


@pytest.mark.parametrize(
    ("on_gap", "ids"),
    [("snapshot", [1, 1, 2, 3, 4]), ("latest", [1, 4]), ("net", [1, 2, 3, 4])],
)
def test_files_added_and_removed_since_are_crossed(
    tmp_path: Path, engine: str, on_gap: str, ids: list[int]
) -> None:
    table, once = make_table(tmp_path), delivering(tmp_path, engine, on_gap)
    assert run(once) == 0
    [add] = table.append([{"id": 2}]).adds
    replaced(table, add, 2, 3)
    vacuum(table, add)
    assert run(once) == 0
    table.append([{"id": 4}])
    assert run(once) == 0
    assert sorted(delivered_ids(tmp_path / "out")) == ids
    records = list((tmp_path / "out").glob("*.gap.json"))
    assert len(records) == (0 if on_gap == "net" else 1)
    if records:
        assert json.loads(records[0].read_text())["reason"] == "missing_data_file"


def test_a_removed_file_is_a_gap_that_a_difference_cannot_cross(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_table(tmp_path)
    [add] = table.append([{"id": 2}, {"id": 3}]).adds
    once = delivering(tmp_path, engine, "net")
    assert run(once) == 0
    replaced(table, add, 2)
    vacuum(table, add)
    for _ in range(2):
        assert run(once) == 3
        assert "missing_data_file" in capsys.readouterr().err
    assert run(delivering(tmp_path, engine, "snapshot")) == 0
    assert sorted(delivered_ids(tmp_path / "out")) == [1, 1, 2, 2, 3]


def test_a_missing_change_file_is_crossed(tmp_path: Path, engine: str) -> None:
    table = make_table(tmp_path, properties=CDF)
    once = delivering(tmp_path, engine, "latest")
    assert run(once) == 0
    change = table.cdc_file([{"id": 2, "_change_type": "insert"}])
    table.commit(table.data_file([{"id": 2}]), change)
    vacuum(table, change)
    assert run(once) == 0
    table.append([{"id": 4}])
    assert run(once) == 0
    assert sorted(delivered_ids(tmp_path / "out")) == [1, 4]


@pytest.mark.parametrize("on_gap", ["stop", "snapshot", "latest", "net"])
def test_a_file_that_the_table_still_has_is_lost_and_no_gap(
    tmp_path: Path, engine: str, on_gap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table, once = make_table(tmp_path), delivering(tmp_path, engine, on_gap)
    assert run(once) == 0
    [add] = table.append([{"id": 2}]).adds
    table.append([{"id": 3}])
    vacuum(table, add)
    assert run(once) == 3
    assert "missing_data_file" in capsys.readouterr().err
    assert delivered_ids(tmp_path / "out") == [1]


@pytest.mark.parametrize("on_gap", ["snapshot", "latest"])
def test_skipping_a_commit_has_precedence(tmp_path: Path, engine: str, on_gap: str) -> None:
    table = make_table(tmp_path)
    once = delivering(tmp_path, engine, on_gap, on_corrupt_commit="skip-and-record")
    assert run(once) == 0
    [add] = table.append([{"id": 2}]).adds
    table.commit(table.remove(add))
    table.append([{"id": 4}])
    vacuum(table, add)
    assert run(once) == 0
    assert sorted(delivered_ids(tmp_path / "out")) == [1, 4]
    assert not list((tmp_path / "out").glob("*.gap.json"))


def test_a_snapshot_whose_files_vacuum_removed_begins_again(tmp_path: Path, engine: str) -> None:
    table = make_table(tmp_path)
    adds = [table.append([{"id": number}]).adds[0] for number in (2, 3)]
    once = delivering(
        tmp_path, engine, "snapshot", **{"from": "snapshot", "max_files_per_batch": 1}
    )
    vacuum(table, adds[0])
    assert run(once) == 3
    table.commit(table.remove(adds[0]), table.data_file([{"id": 2}, {"id": 4}]))
    assert run(once) == 0
    found = set(delivered_ids(tmp_path / "out"))
    assert found == {1, 2, 3, 4}


@pytest.mark.parametrize("on_gap", ["snapshot", "latest", "net"])
@pytest.mark.parametrize("is_head", [False, True], ids=["older commit", "newest commit"])
def test_verify_is_equal_after_missing_files(
    tmp_path: Path, on_gap: str, is_head: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    table, once = make_table(tmp_path), delivering(tmp_path, "arrow", on_gap)
    assert run(once) == 0
    [add] = table.append([{"id": 2}]).adds
    replaced(table, add, 2, 3)
    if not is_head:
        table.append([{"id": 5}])
    vacuum(table, add)
    assert run(once) == 0
    table.append([{"id": 4}])
    assert run(once) == 0
    capsys.readouterr()
    assert run(["verify", "orders", *once[1:3]]) == 0
    assert capsys.readouterr().out.startswith("equal: ")
