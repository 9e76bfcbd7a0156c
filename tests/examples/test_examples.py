"""The examples run as they are, as programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tables.builder import CDF, TableBuilder
from tests.waiting import PATIENCE_SECONDS

HERE = Path(__file__).resolve().parent
EXAMPLES = sorted(
    path.stem for path in HERE.glob("*.py") if not path.stem.startswith(("test", "_"))
)


@pytest.fixture
def orders(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "orders", properties=CDF)
    table.create()
    for number in range(3):
        table.append([{"id": number, "name": f"n{number}"}])
    return table


def run(name: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, HERE / f"{name}.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_three_and_each_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert len(EXAMPLES) == 3
    assert all(f'run("{name}"' in text for name in EXAMPLES)


def test_an_offset_that_the_caller_keeps_repeats_and_loses_nothing(
    orders: TableBuilder, tmp_path: Path
) -> None:
    offset = tmp_path / "offset"
    assert run("keep_an_offset", orders.folder, offset).endswith("3 rows\n")
    assert run("keep_an_offset", orders.folder, offset) == "0 rows\n"
    orders.append([{"id": 9, "name": "late"}])
    lines = run("keep_an_offset", orders.folder, offset).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("insert 4 {'id': 9")


def test_changes_are_counted_by_day(orders: TableBuilder) -> None:
    assert run("daily_counts", orders.folder) == "2024-01-01 insert 3\n"


def test_rows_and_growth_are_reported(orders: TableBuilder) -> None:
    shown = run("report", orders.folder)
    assert "n2" in shown
    assert "total_bytes" in shown
