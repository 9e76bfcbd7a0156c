"""One Arrow-engine daemon: a thousand tables, and tables larger than memory.

There is no peer: the figures are of a process seen from outside, through `/proc` and its files.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.benchmarks.big_tables import backlog, linked_files
from tests.benchmarks.conftest import Report
from tests.benchmarks.many_tables import (
    Lake,
    Watched,
    at_rest,
    following,
    is_ready,
    quantile,
)
from tests.benchmarks.measuring import Row, mebibytes, milliseconds, per_second
from tests.formats.delivering import delivered
from tests.formats.tiledb import arrays
from tests.integration.daemon.running import daemon, file_table, page, write_config
from tests.tables.dataset_writer import DatasetWriter
from tests.tables.lance_writer import LanceWriter
from tests.waiting import eventually

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

TABLES = 1000
IDLE_SECONDS = 60
COMMITS = 300
FORMAT_COMMITS, SOON_SECONDS = 30, 0.05
MEBIBYTE = 2**20
BUDGET_BYTES = 256 * MEBIBYTE
MILLION = 1_000_000


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lake"), TABLES)


def bare_bytes(folder: Path) -> int:
    """Return the resident memory of a daemon that follows one small table, at rest."""
    with following(Lake(folder, 1)) as process:
        at_rest(process)
        return process.rss_bytes


def test_a_thousand_tables_at_rest(lake: Lake, tmp_path: Path, report: Report) -> None:
    bare = bare_bytes(tmp_path)
    with following(lake) as process:
        at_rest(process)
        cpu, wakes = process.cpu_seconds(), process.wake_ups()
        time.sleep(IDLE_SECONDS)
        share = (process.cpu_seconds() - cpu) / IDLE_SECONDS
        wakes_per_second = (process.wake_ups() - wakes) / IDLE_SECONDS
        above = process.rss_bytes - bare
    work = f"{TABLES:,} tables, idle"
    goal = 150 * MEBIBYTE
    report(
        [
            Row(f"{work}: a core", f"{share:.2%}", "", None, "<= 1%", share <= 0.01),
            Row(
                f"{work}: wake-ups",
                f"{wakes_per_second:.0f}/s",
                "",
                None,
                "<= 50/s",
                wakes_per_second <= 50,
            ),
            Row(
                f"{work}: memory above {mebibytes(bare)}",
                mebibytes(above),
                "",
                None,
                f"<= {mebibytes(goal)}",
                above <= goal,
            ),
        ]
    )


def test_a_commit_in_any_of_a_thousand_tables(lake: Lake, report: Report) -> None:
    chance = random.Random(4)
    seconds: list[float] = []
    with following(lake) as process:
        at_rest(process)
        for _ in range(COMMITS):
            number = chance.randrange(TABLES)
            began = lake.commit(number)
            seconds.append(lake.seconds_to_delivery(number, began))
            time.sleep(chance.random() * 0.1)
    work = f"commit in one of {TABLES:,} tables -> its file"
    rows = []
    for name, share, goal in (("p50", 0.5, 0.010), ("p99", 0.99, 0.050)):
        found = quantile(seconds, share)
        goal_text = f"<= {milliseconds(goal)}"
        rows.append(Row(f"{work}: {name}", milliseconds(found), "", None, goal_text, found <= goal))
    report(rows)


def test_a_restart_with_a_thousand_tables(lake: Lake, report: Report) -> None:
    """The commit came while the daemon was down, to the table that is last in the alphabet."""
    with following(lake) as process:
        at_rest(process)
    lake.commit(TABLES - 1)
    began = time.perf_counter()
    with daemon(lake.config):
        seconds = lake.seconds_to_delivery(TABLES - 1, began)
    work = f"restart with {TABLES:,} tables -> first delivery"
    report([Row(work, f"{seconds:.2f} s", "", None, "<= 10 s", seconds <= 10)])


def big_config(folder: Path, table: Path, **options: object) -> Path:
    """Return the configuration of one table, its changes as Parquet, memory bounded."""
    sink = {"kind": "file", "path": str(folder / "out"), "format": "parquet"}
    config = write_config(folder, big={"path": str(table), "sink": sink, **options})
    fields = {**yaml.safe_load(config.read_text()), "memory": f"{BUDGET_BYTES}B"}
    config.write_text(yaml.safe_dump(fields))
    return config


def delivered_rows(config: Path) -> int:
    (shown,) = json.loads(page(config, "/status"))["tables"]
    assert shown["state"] in ("starting", "running"), shown
    return sum(shown["rows_delivered"].values())


def keeping_out_small(out: Path) -> Iterator[None]:
    """Remove what was delivered, again and again: only memory and speed are asked for here."""
    while True:
        for path in sorted(out.glob("0*.parquet"))[:-1]:
            os.unlink(path)
        yield


def memory_row(work: str, process: Watched, bare: int) -> Row:
    above = process.peak_bytes - bare
    goal = f"<= {mebibytes(BUDGET_BYTES)}"
    name = f"{work}: peak memory above {mebibytes(bare)}"
    return Row(name, mebibytes(above), "", None, goal, above <= BUDGET_BYTES)


def test_a_backlog_of_a_hundred_million_rows(tmp_path: Path, report: Report) -> None:
    total = 100 * MILLION
    bare = bare_bytes(tmp_path / "bare")
    config = big_config(tmp_path, backlog(1000, total // 1000), **{"from": "0"})
    cleaner = keeping_out_small(tmp_path / "out")
    began = time.perf_counter()
    with daemon(config) as popen:
        eventually(lambda: is_ready(config), 60)
        while delivered_rows(config) < total:
            next(cleaner)
            assert time.perf_counter() < began + 600
            time.sleep(0.2)
        seconds = time.perf_counter() - began
        memory = memory_row("backlog of 100 M rows", Watched(popen.pid), bare)
    speed = Row("backlog of 100 M rows: speed", per_second(total, seconds), "", None, "", True)
    report([memory, speed])


def test_a_snapshot_of_a_table_of_two_million_files(tmp_path: Path, report: Report) -> None:
    """The first minute of it: all files are listed by then, and some of them are read."""
    bare = bare_bytes(tmp_path / "bare")
    config = big_config(tmp_path, linked_files(2 * MILLION), **{"from": "snapshot"})
    cleaner = keeping_out_small(tmp_path / "out")
    with daemon(config) as popen:
        began = time.perf_counter()
        eventually(lambda: is_ready(config) and delivered_rows(config) > 0, 120)
        first = time.perf_counter() - began
        while time.perf_counter() < began + first + 60:
            next(cleaner)
            time.sleep(0.2)
        rows, seconds = delivered_rows(config), time.perf_counter() - began - first
        memory = memory_row("snapshot of 2 M files", Watched(popen.pid), bare)
    speed = f"{first:.1f} s, then {rows / 10 / seconds:,.0f} files/s"
    report([memory, Row("snapshot of 2 M files: first delivery", speed, "", None, "", True)])


def _kartothek(folder: Path) -> tuple[Path, Callable[[int], object]]:
    writer = DatasetWriter(folder / "store")
    return writer.location, lambda number: writer.commit([{"id": number, "name": "n"}])


def _lance(folder: Path) -> tuple[Path, Callable[[int], object]]:
    writer = LanceWriter(folder / "t", stable_ids=True)
    return folder / "t", lambda number: writer.append([{"id": number, "name": "n"}])


def _tiledb(folder: Path) -> tuple[Path, Callable[[int], object]]:
    arrays.create_named(folder / "array")
    return folder / "array", lambda number: arrays.write_named(folder / "array", None, [number])


@pytest.mark.parametrize(
    ("name", "make"), [("Kartothek", _kartothek), ("Lance", _lance), ("TileDB", _tiledb)]
)
def test_a_commit_of_another_format_reaches_its_file_soon(
    tmp_path: Path,
    report: Report,
    name: str,
    make: Callable[[Path], tuple[Path, Callable[[int], object]]],
) -> None:
    location, commit = make(tmp_path)
    commit(0)
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(location, out))
    seconds: list[float] = []
    with daemon(config):
        eventually(lambda: len(delivered(out)) == 1, 120)
        for number in range(1, FORMAT_COMMITS + 1):
            # It is at rest by then.
            time.sleep(0.2)
            commit(number)
            began = time.perf_counter()
            while len(delivered(out)) <= number:
                assert time.perf_counter() - began < 60, "the rows did not come"
                time.sleep(0.001)
            seconds.append(time.perf_counter() - began)
    found = quantile(seconds, 0.5)
    goal = f"<= {milliseconds(SOON_SECONDS)}"
    work = f"{name}: commit -> its file, idle: p50"
    report([Row(work, milliseconds(found), "", None, goal, found <= SOON_SECONDS)])
