"""Whoever names something that is no table learns what is there, and what to type next."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def make_table(folder: Path) -> Path:
    TableBuilder(folder).append([{"id": 1, "name": "a"}])
    return folder


def hudi(folder: Path) -> Path:
    (folder / ".hoodie").mkdir(parents=True)
    (folder / ".hoodie/hoodie.properties").write_text("")
    return folder


def parquet(folder: Path) -> Path:
    folder.mkdir()
    (folder / "part-0.parquet").write_bytes(b"PAR1")
    return folder


def partitions(folder: Path) -> Path:
    (folder / "region=EU/day=1").mkdir(parents=True)
    (folder / "region=EU/day=1/part-0.parquet").write_bytes(b"PAR1")
    return folder


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def lake(folder: Path) -> Path:
    for name in ("orders", "payments", "sales/refunds"):
        make_table(folder / name)
    return folder


def file(folder: Path) -> Path:
    folder.write_text("a,b\n")
    return folder


def texts(folder: Path) -> Path:
    folder.mkdir()
    (folder / "notes.txt").write_text("")
    return folder


def log(folder: Path) -> Path:
    return make_table(folder) / "_delta_log"


def data_file(folder: Path) -> Path:
    return next(make_table(folder).glob("*.parquet"))


def empty_log(folder: Path) -> Path:
    (folder / "_delta_log").mkdir(parents=True)
    return folder


def misspelt(folder: Path) -> Path:
    make_table(folder)
    return folder.with_name("ordres")


CASES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "Hudi": (hudi, "it is a Hudi table", "`tailerd help formats`"),
    "Parquet files": (parquet, "it has Parquet files, but no log", "CONVERT TO DELTA parquet.`"),
    "partitions": (partitions, "it has Parquet files, but no log", "CONVERT TO DELTA parquet.`"),
    "empty": (empty, "the folder is empty", "`tailerd init "),
    "tables below": (
        lake,
        "it is a folder with 3 tables: orders, payments, sales/refunds",
        "`tailerd tail {place}/orders`. To deliver all of them: `tailerd init {place}`.",
    ),
    "a file": (file, "it is a file, and a table is a folder", "`tailerd init "),
    "other files": (texts, "neither a log nor Parquet files", "`tailerd init "),
    "the log of a table": (log, "it is inside the table ", "`tailerd tail {table}`"),
    "a file of a table": (data_file, "it is inside the table ", "`tailerd tail {table}`"),
    "an empty log": (empty_log, "its log, the folder _delta_log, is empty", "`tailerd init "),
    "a misspelt name": (misspelt, "the folder does not exist", "Did you mean {table}?"),
}


@pytest.mark.parametrize("name", ["tail", "inspect", "maintain"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_there_is_named_with_the_next_command(
    tmp_path: Path, command: Commands, case: str, name: str
) -> None:
    make, reason, remedy = CASES[case]
    place = make(tmp_path / "orders")
    ran = command(name, place)
    assert (ran.status, ran.output) == (3, "")
    assert ran.errors.startswith(f"error[not_a_table]: There is no table at {place}: ")
    assert reason in ran.errors
    assert remedy.format(place=place, table=tmp_path / "orders") in ran.errors


@pytest.mark.parametrize("case", ["tables below", "the log of a table", "a file of a table"])
def test_the_next_command_runs(tmp_path: Path, command: Commands, case: str) -> None:
    place = CASES[case][0](tmp_path / "or ders")
    errors = command("tail", place, "--once").errors
    found = re.search(r"`tailerd tail '(.+?)'`", errors)
    assert found is not None, errors
    assert command("tail", found[1], "--once").status == 0
