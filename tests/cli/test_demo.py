from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tailerd.cli import demo
from tailerd.errors import MissingExtraError
from tailerd.formats.delta.demo import DEMO, DemoTable
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.parts import make_demo_table
from tests.cli.commands import Commands, started
from tests.tables.feed import changes


def test_the_demo_table_is_a_delta_table_whose_feed_and_files_agree(tmp_path: Path) -> None:
    make_demo_table(DEMO, tmp_path / "orders", changes=20)
    folder = tmp_path / "orders"

    async def keys() -> tuple[Counter[int], Counter[int]]:
        snapshot = Counter(row["order_id"] for row in await changes(folder, "snapshot"))
        folded: Counter[int] = Counter()
        for row in await changes(folder, "0"):
            folded[row["order_id"]] += -1 if row["_change_type"] in LEAVING else 1
        return snapshot, folded

    snapshot, folded = asyncio.run(keys())
    assert snapshot == folded
    assert set(snapshot.values()) == {1}
    assert asyncio.run(LogReader.at(str(folder)).open()).version == 20


def test_a_demo_without_a_row_is_an_error(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_STARTUP_SECONDS", 0.1)
    monkeypatch.setattr(demo._Demo, "_handle", lambda _, event: None)
    ran = command("demo", "--engine", "arrow", "--seconds", "0.1")
    assert ran.status == 1
    assert "No change row arrived within 0 s on the arrow engine." in " ".join(ran.errors.split())


@pytest.mark.parametrize("requested", [None, "spark"])
def test_without_pyspark_the_demo_says_how_it_is_installed(
    requested: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    if requested is None:
        assert demo._choose_engine(None) == "arrow"
        assert "PySpark is not installed" in capsys.readouterr().err
        return
    with pytest.raises(MissingExtraError) as caught:
        demo._choose_engine(requested)
    assert "pip install 'tailerd[spark]'" in caught.value.remedy


LEAVING = {"delete", "update_preimage"}


def test_a_seed_makes_the_same_changes_again(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        table = DemoTable(tmp_path / name, seed=3)
        table.create()
        made.append([table.change() for _ in range(10)])
    assert made[0] == made[1]
    assert len(set(made[0])) > 1


@pytest.mark.slow
def test_the_demo_shows_changes_and_stops_by_itself() -> None:
    with started("demo", "--engine", "arrow", "--seconds", 2) as shown:
        first = json.loads(shown.line())
        assert {"order_id", "_change_type", "_commit_version"} <= first.keys()
        status, errors = shown.end()
    assert status == 0
    assert "Engine: Arrow" in errors
    assert "Page:   http://127.0.0.1:" in errors
    [folder] = [
        line.split()[1].rstrip(",") for line in errors.splitlines() if line.startswith("Table:")
    ]
    assert not Path(folder).exists(), "the temporary table is removed"


@pytest.mark.slow
def test_the_tables_of_a_demo_that_keeps_them_can_be_read(
    tmp_path: Path, command: Commands
) -> None:
    lake = tmp_path / "la ke"
    ran = command("demo", "--engine", "arrow", "--seconds", 0.5, "--keep", lake)
    assert ran.status == 0
    assert f"The tables stay in '{lake}'. Type next:" in ran.errors
    for name in ("orders", "payments"):
        assert command("tail", lake / name, "-n", 1, "--once").output.count("\n") == 2
    again = command("demo", "--engine", "arrow", "--keep", lake)
    assert (again.status, again.output) == (2, "")
    assert again.errors.startswith(f"error[usage]: {lake}/orders exists already. ")


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_early_and_removes_its_table() -> None:
    with started("demo", "--engine", "arrow", "--seconds", 600) as shown:
        shown.line()
        shown.process.send_signal(signal.SIGINT)
        status, errors = shown.end()
    assert status == 130
    assert "Traceback" not in errors
    [folder] = [
        line.split()[1].rstrip(",") for line in errors.splitlines() if line.startswith("Table:")
    ]
    assert not Path(folder).exists()
