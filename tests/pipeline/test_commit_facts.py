"""What is shown of a commit comes from the plan that delivered it, measured or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd.formats.delta.demo import DemoTable
from tailerd.telemetry import Telemetry, events
from tailerd.telemetry.history import HistoryBoard
from tests.doubles.sim_clock import SimClock
from tests.integration.daemon.running import (
    address,
    daemon,
    file_table,
    page,
    write_config,
)
from tests.pipeline.test_growth_tracker import Kept
from tests.tables.builder import CDF, TableBuilder
from tests.waiting import eventually

pytestmark = pytest.mark.attack


ROWS: list[dict[str, object]] = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def all_facts(folder: Path) -> list[dict[str, object]]:
    """Return what the commits of a log did, newest last, by a naive reading."""
    found = []
    for path in sorted((folder / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        sums: dict[str, object] = {"version": int(path.stem), "operation": ""}
        for action in actions:
            if "commitInfo" in action:
                sums["operation"] = action["commitInfo"].get("operation", "")
        for kind, noun in (("add", "added"), ("remove", "removed")):
            sizes = [action[kind].get("size", 0) for action in actions if kind in action]
            sums |= {f"files_{noun}": len(sizes), f"bytes_{noun}": sum(sizes)}
        found.append(sums)
    return found


def shown(config: Path, table: str = "orders") -> list[dict[str, Any]]:
    commits: list[dict[str, Any]] = json.loads(page(config, f"/tables/{table}"))["history"][
        "commits"
    ]
    return commits


@pytest.mark.full
@pytest.mark.parametrize("growth", [False, True], ids=["never", "in-its-own-time"])
def test_a_delivered_commit_has_its_facts_whenever_the_table_is_measured(
    growth: bool, tmp_path: Path
) -> None:
    table = DemoTable(tmp_path / "orders", 1)
    table.create()
    for _ in range(6):
        table.change()
    config = write_config(
        tmp_path, orders={**file_table(table.folder, tmp_path / "out"), "from": 1}
    )
    config.write_text(
        yaml.safe_dump({**yaml.safe_load(config.read_text()), "table_metrics": growth})
    )
    with daemon(config):
        eventually(lambda: json.loads(page(config, "/status"))["tables"][0]["lag_versions"] == 0)
        assert address(config)
        expected = all_facts(table.folder)[1:]
        got = shown(config)
        assert [{name: each.get(name) for name in expected[0]} for each in got] == expected
        assert {each["mode"] for each in got} <= {"cdc", "files", "none"}
        assert all(each["delivered_ms"] and each["timestamp_ms"] for each in got)
        # The newest too, at once.
        table.change()
        newest = all_facts(table.folder)[-1]
        eventually(lambda: shown(config)[-1]["version"] == newest["version"])
        assert {name: shown(config)[-1].get(name) for name in newest} == newest


def test_a_measurement_that_comes_too_late_takes_nothing_away() -> None:
    board = HistoryBoard(SimClock())
    board.handle(
        events.CommitsDelivered(
            table="orders",
            engine="arrow",
            commits={"files": 1},
            details=(
                events.DeliveredCommit(
                    version=7,
                    timestamp_ms=70,
                    mode="files",
                    operation="UPDATE",
                    files_added=1,
                    bytes_added=10,
                    files_removed=2,
                    bytes_removed=20,
                ),
            ),
        )
    )
    before = board.to_json("orders")
    board.handle(
        events.CommitObserved(
            table="orders",
            version=6,
            timestamp_ms=60,
            operation="WRITE",
            files_added=9,
            bytes_added=9,
            files_removed=9,
            bytes_removed=9,
            rows_added=9,
            rows_removed=9,
        )
    )
    assert board.to_json("orders") == before


async def test_commits_delivered_before_the_first_measurement_are_seen_all_the_same(
    tmp_path: Path,
) -> None:
    # As on the Spark engine, which tells offsets only.
    table = TableBuilder(tmp_path / "t", properties=CDF)
    for _ in range(3):
        table.append(ROWS)
    kept = Kept()
    board = HistoryBoard(kept.clock)
    kept.keeper._telemetry = Telemetry([kept.notify, board.handle])
    kept.start(tmp_path / "t")
    for version in (1, 3):
        kept.save(table.table_id, version)
    async with kept.running():
        await kept.pass_time(5)
    versions = [each.version for each in kept.past if isinstance(each, events.CommitObserved)]
    assert versions == [1, 2]
    commits = board.to_json("orders")["commits"]
    assert isinstance(commits, list)
    assert [each["operation"] for each in commits] == ["WRITE"] * 2


async def test_what_lies_too_far_back_is_not_read_for_it(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t")
    for _ in range(300):
        table.commit()
    kept = Kept()
    kept.start(tmp_path / "t")
    for version in (1, 300):
        kept.save(table.table_id, version)
    async with kept.running():
        await kept.pass_time(5)
    assert [each for each in kept.past if isinstance(each, events.CommitObserved)] == []
