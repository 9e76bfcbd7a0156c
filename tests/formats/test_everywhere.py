"""Every format, also one that only the registry knows, through commands and the daemon."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tailerd.formats.detect import table_format
from tests.formats.conftest import Table, WrittenMemory
from tests.formats.delivering import changes, delivered, run_once
from tests.integration.daemon.running import (
    daemon,
    file_table,
    page,
    run_to_end,
    write_config,
)
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("memory_is_installed")

VERSIONS = (10, 20, 30)


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "table")


def three_versions(location: Path) -> Path:
    """Write a table: five rows, two more, and the first five gone."""
    table = WrittenMemory(location)
    first = table.append(range(5))
    table.append([7, 8])
    table.remove(first)
    return table.location


FROM_BEGINNING = Counter(
    {
        **{("insert", number, 10): 1 for number in range(5)},
        **{("insert", number, 20): 1 for number in (7, 8)},
        **{("delete", number, 30): 1 for number in range(5)},
    }
)


@pytest.mark.full
@pytest.mark.parametrize("table_format", ["auto", "memory"])
def test_tail_prints_its_changes(location: Path, table_format: str) -> None:
    done = run_to_end(
        *("tail", location, "--from", "10", "--to", "30", "--format", "jsonl"),
        *("--table-format", table_format),
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert changes(rows) == FROM_BEGINNING
    once = run_to_end("tail", location, "--from", "20", "--once", "--columns", "id")
    assert once.returncode == 0, once.stderr


def test_tail_names_what_is_known_where_a_format_is_not(location: Path) -> None:
    done = run_to_end("tail", location, "--once", "--table-format", "memroy")
    assert done.returncode != 0
    assert "`memory`" in done.stderr


def test_a_table_is_delivered_goes_on_and_verifies(table: Table, tmp_path: Path) -> None:
    options: dict[str, object] = {"format": table.format}
    if table.format == "memory":
        options["format_options"] = {"task_rows": "1"}
    config = write_config(tmp_path, orders=file_table(table.location, tmp_path / "out", **options))
    first = table.append([1, 2])
    run_once(config)
    second = table.append([3])
    run_once(config)
    third = table.remove(first)
    run_once(config)
    if table.format != "tiledb":
        # What was delivered may go; in an array that is another history.
        table.drop_before(third)
    head = table.append([4])
    run_once(config)
    assert changes(delivered(tmp_path / "out")) == Counter(
        [
            *(("insert", 1, first), ("insert", 2, first), ("insert", 3, second)),
            *(("delete", 1, third), ("delete", 2, third), ("insert", 4, head)),
        ]
    )
    verified = run_to_end("verify", "orders", "--config", config, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    verdict = json.loads(verified.stdout)
    assert (verdict["version"], verdict["rows"], verdict["is_equal"]) == (head, 2, True)
    validated = run_to_end("validate", config, "--json")
    assert f'"head_version": {head}' in validated.stdout, validated.stdout + validated.stderr
    if table.ledger is not None:
        kept = list((tmp_path / "state/ledger/orders").iterdir())
        assert len(kept) == 1, "what is delivered is forgotten"


def test_the_daemon_hears_of_a_commit_and_shows_the_table(table: Table, tmp_path: Path) -> None:
    table.append([1])
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(table.location, out))
    with daemon(config) as process:
        eventually(lambda: len(delivered(out)) == 1)
        for number in (2, 3):
            time.sleep(0.3)
            began = time.monotonic()
            table.append([number])
            eventually(lambda count=number: len(delivered(out)) == count)  # type: ignore[misc]
            assert time.monotonic() - began < 5
        if table_format(table.format).statistics is not None:
            eventually(lambda: (shown_table(config)["size"] or {}).get("files") == 3)
            assert shown_table(config)["size"]["rows"] in (3, None)
        shown = shown_table(config)
        assert shown["format"] == table.format
        assert shown["capabilities"] == asdict(table_format(table.format).capabilities)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def shown_table(config: Path) -> dict[str, Any]:
    [shown] = json.loads(page(config, "/status"))["tables"]
    return {"size": None, **shown}


@pytest.mark.full
@pytest.mark.parametrize("on_gap", ["stop", "snapshot"])
def test_versions_that_are_gone_are_met_as_the_policy_says(
    table: Table, tmp_path: Path, on_gap: str
) -> None:
    if table.format == "kartothek":
        pytest.skip("its history is the daemon's ledger: see kartothek/test_daemon.py")
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(table.location, out, on_gap=on_gap))
    first = table.append([0, 1])
    run_once(config)
    table.append([2])
    head = table.append([3])
    table.drop_before(head)
    assert "missing_version" in run_once(config, 3 if on_gap == "stop" else 0)
    ids = range(4) if on_gap == "snapshot" else ()
    expected = [("insert", 0, first), ("insert", 1, first), *(("insert", n, head) for n in ids)]
    assert changes(delivered(out)) == Counter(expected)
