"""A format that nobody but the registry knows runs through every command and engine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.doubles.memory_format import MemoryTable
from tests.formats.conftest import WrittenMemory
from tests.formats.delivering import changes, delivered
from tests.integration.daemon.running import file_table, run_to_end, write_config

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


@pytest.mark.parametrize(
    "options", [{}, {"format": "memory", "format_options": {"task_rows": "1"}}]
)
def test_the_arrow_engine_delivers_it_goes_on_and_verifies(
    location: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    table = file_table(location, tmp_path / "out", **{"from": "10"}, **options)
    config = write_config(tmp_path, orders=table)
    for more in ([], [9]):
        if more:
            written = MemoryTable.load((location / "_memory/table.jsonl").read_text())
            written.commit(*(("insert", number, f"n{number}") for number in more))
            written.save(location)
        done = run_to_end("run", "--config", config, "--once")
        assert done.returncode == 0, done.stderr
    found = changes(delivered(tmp_path / "out"))
    assert found == FROM_BEGINNING + Counter({("insert", 9, 40): 1})
    verified = run_to_end("verify", "orders", "--config", config, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    verdict = json.loads(verified.stdout)
    assert (verdict["version"], verdict["rows"], verdict["is_equal"]) == (40, 3, True)
    validated = run_to_end("validate", config, "--json")
    assert '"head_version": 40' in validated.stdout, validated.stdout + validated.stderr


@pytest.mark.full
def test_a_gap_is_crossed_as_the_policy_says(location: Path, tmp_path: Path) -> None:
    table = file_table(location, tmp_path / "out", **{"from": "10", "on_gap": "snapshot"})
    config = write_config(tmp_path, orders=table)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    written = MemoryTable.load((location / "_memory/table.jsonl").read_text())
    for number in (20, 21):
        written.commit(("insert", number, "x"))
    written.first = written.head
    written.save(location)
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    found = changes(delivered(tmp_path / "out"))
    expected = Counter({("insert", number, 50): 1 for number in (7, 8, 20, 21)})
    assert found == FROM_BEGINNING + expected
