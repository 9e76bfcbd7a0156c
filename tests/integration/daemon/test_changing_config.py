"""A configuration that changes under a running daemon, and tables that are found."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.daemon.running import (
    address,
    daemon,
    delivered_ids,
    file_table,
    page,
    read_log,
    run_to_end,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.waiting import eventually


def make_table(folder: Path, *ids: int) -> TableBuilder:
    builder = TableBuilder(folder, table_id=folder.name)
    builder.create()
    for number in ids:
        builder.append([{"id": number}])
    return builder


def change(config: Path, **fields: Any) -> None:
    """Replace top-level fields of the file, as an editor does."""
    content = {**yaml.safe_load(config.read_text()), **fields}
    fresh = config.with_name("fresh")
    fresh.write_text(yaml.safe_dump(content, sort_keys=False))
    fresh.replace(config)


def started(config: Path, table: str) -> int:
    lines = [json.loads(line) for line in read_log(config).splitlines()]
    return sum(
        line["event"] == "Pipeline starting" and line.get("table") == table for line in lines
    )


def is_ready(config: Path) -> bool:
    return bool(json.loads(page(config, "/status"))["ready"])


def statuses(config: Path) -> dict[str, dict[str, Any]]:
    return {t["table"]: t for t in json.loads(page(config, "/status"))["tables"]}


@pytest.mark.parametrize("is_watching", [False, True], ids=["SIGHUP", "--watch-config"])
def test_tables_come_go_and_change_without_touching_the_others(
    tmp_path: Path, is_watching: bool
) -> None:
    for name in ("same", "altered", "gone", "new"):
        make_table(tmp_path / name, 1)
    tables = {
        name: file_table(tmp_path / name, tmp_path / f"{name}_out")
        for name in ("same", "altered", "gone")
    }
    config = write_config(tmp_path, **tables)
    with daemon(config, *(["--watch-config"] if is_watching else [])) as process:
        eventually(lambda: all((tmp_path / f"{n}_out").exists() for n in tables))
        eventually(lambda: is_ready(config))
        altered = file_table(tmp_path / "altered", tmp_path / "altered_out", poll_interval="1s")
        added = file_table(tmp_path / "new", tmp_path / "new_out")
        change(config, tables={"same": tables["same"], "altered": altered, "new": added})
        if not is_watching:
            process.send_signal(signal.SIGHUP)
        eventually(lambda: delivered_ids(tmp_path / "new_out") == [1])
        eventually(lambda: set(statuses(config)) == {"same", "altered", "new"})
        assert (started(config, "same"), started(config, "altered")) == (1, 2)
        metrics = page(config, "/metrics")
        assert 'tailerd_pipeline_state{engine="arrow",table="gone"}' not in metrics
        assert 'tailerd_pipeline_state{engine="arrow",table="new"} 1.0' in metrics
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tables": {"orders": {"pth": "x"}}}, "is not a known field"),
        ({"state": "/elsewhere"}, "state cannot change while the daemon runs"),
    ],
    ids=["a misspelt field", "another state folder"],
)
def test_a_file_that_is_wrong_is_reported_and_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    builder, out = make_table(tmp_path / "t", 1), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    good = config.read_text()
    with daemon(config) as process:
        eventually(lambda: out.exists() and delivered_ids(out) == [1])
        change(config, **fields)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: words in read_log(config))
        builder.append([{"id": 2}])
        eventually(lambda: delivered_ids(out) == [1, 2])
        assert started(config, "orders") == 1
        config.write_text(good)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "Configuration reloaded" in read_log(config))
        assert started(config, "orders") == 1


def discovering(tmp_path: Path, **tables: dict[str, object]) -> Path:
    config = write_config(tmp_path, **tables)
    template = {"from": "snapshot", "sink": {"kind": "file", "path": f"{tmp_path}/out/{{name}}"}}
    group = {"path": f"{tmp_path}/lake/*", "every": "200ms", "template": template}
    change(config, discover={"lake": group})
    return config


@pytest.mark.full
def test_tables_are_found_come_and_go(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    make_table(lake / "a", 1)
    make_table(lake / "b b", 2)
    (lake / "no-table").mkdir()
    (lake / "file").write_text("")
    config = discovering(tmp_path)
    with daemon(config) as process:
        eventually(lambda: delivered_ids(out / "a") == [1] and delivered_ids(out / "b-b") == [2])
        make_table(lake / "c", 3)
        eventually(lambda: delivered_ids(out / "c") == [3])
        shutil.move(lake / "a", tmp_path / "away")
        eventually(lambda: set(statuses(config)) == {"b-b", "c"})
        assert "its folder no longer exists" in read_log(config)
        eventually(lambda: is_ready(config))
        shutil.move(tmp_path / "away", lake / "a")
        eventually(lambda: "a" in statuses(config))
        eventually(lambda: statuses(config)["a"]["state"] == "running")
        assert (started(config, "c"), delivered_ids(out / "a")) == (1, [1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.full
def test_a_daemon_waits_for_the_first_table_of_a_pattern(tmp_path: Path) -> None:
    config = discovering(tmp_path)
    with daemon(config):
        eventually(lambda: "http://" in read_log(config))
        make_table(tmp_path / "lake/late", 1)
        eventually(lambda: delivered_ids(tmp_path / "out/late") == [1])


@pytest.mark.full
def test_a_daemon_is_not_ready_before_the_tables_of_its_patterns_are(tmp_path: Path) -> None:
    make_table(tmp_path / "lake/whole", 1)
    (tmp_path / "lake/broken/_delta_log").mkdir(parents=True)
    config = discovering(tmp_path)
    with daemon(config):
        address(config)
        # From the first answer on: one of its tables never will be ready.
        for _ in range(50):
            with pytest.raises(urllib.error.HTTPError, match="503"):
                page(config, "/readyz")
        eventually(lambda: delivered_ids(tmp_path / "out/whole") == [1])


@pytest.mark.full
def test_validate_shows_what_is_found_and_what_cannot_be_a_table(tmp_path: Path) -> None:
    make_table(tmp_path / "lake/orders", 1)
    make_table(tmp_path / "lake/Known", 1)
    make_table(tmp_path / "lake/ORDERS", 1)
    config = discovering(
        tmp_path, known=file_table(tmp_path / "lake/Known", tmp_path / "known_out")
    )
    done = run_to_end("validate", config, "--json")
    assert done.returncode == 0, done.stderr
    reports = {r["table"]: r for r in map(json.loads, done.stdout.splitlines())}
    assert {name: r["discovered_by"] for name, r in reports.items()} == {
        "known": None,
        "ORDERS": "lake",
    }
    assert "lake/orders" in done.stderr
    assert "the name 'orders'" in done.stderr
    human = run_to_end("validate", config)
    assert "ORDERS (found by discover.lake)" in human.stdout
