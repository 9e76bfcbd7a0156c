"""Tables on Spark as `tailerd run` has them: every sink, one bad table, stop and resume.

Those with a sink of Spark's own have a query each, all others are deliveries of the daemon: what is
promised of one is promised of the other, so most tests have one of each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.process_tree import pids_below
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import field
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]


class Supervised:
    """The process of `supervised.py` and what it has said so far."""

    def __init__(
        self,
        folder: Path,
        tables: dict[str, Any],
        *arguments: str,
        spark: dict[str, Any] | None = None,
    ) -> None:
        require_java()
        config = folder / "config.json"
        settings = {
            "state": str(folder / "state"),
            "engine": "spark",
            "spark": spark or {"master": "local[2]"},
            "http": {"listen": None},
        }
        config.write_text(json.dumps({**settings, "shutdown_timeout": "20s", "tables": tables}))
        module = "tests.integration.spark.supervised"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(config), *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self.lines: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_lines, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_events(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith('{"event"'):
                self.events.append(json.loads(line))
            elif "jdk.incubator.vector" not in line:
                self.noise.append(line)

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def of(self, event: str, table: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event and e.get("table") == table]

    def delivered(self, table: str) -> int:
        return sum(sum(e["rows"].values()) for e in self.of("DeliveryAcknowledged", table))

    def reported(self) -> str:
        return "\n".join([*(json.dumps(event) for event in self.events), *self.noise])

    def until(self, is_true: Callable[[], bool]) -> None:
        def is_reached() -> bool:
            assert is_true() or self.process.poll() is None, self.reported()
            return is_true()

        eventually(is_reached, explain=self.reported)

    def ended(self) -> int:
        status = self.process.wait(PATIENCE_SECONDS)
        for thread in self._threads:
            thread.join(10)
        return status


def _table(folder: Path, commits: int = 3) -> TableBuilder:
    table = TableBuilder(folder, start_ms=None)
    for version in range(commits):
        table.append([{"id": version * 10 + n, "name": "x"} for n in range(2)])
    return table


def _json_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.open()]


def _streamed_rows(folder: Path) -> list[dict[str, Any]]:
    """What readers of Spark's file sink see: the files of batches that ended, commit by commit."""
    log = [file for file in (folder / "_spark_metadata").glob("[!.]*") if file.suffix != ".tmp"]
    lines = [line for file in log for line in file.read_text().splitlines() if line[0] == "{"]
    names = {Path(json.loads(line)["path"]).name for line in lines}
    rows = [json.loads(line) for name in names for line in (folder / name).open()]
    return sorted(rows, key=lambda row: int(row["_commit_version"]))


def _both_ways(folder: Path, **table: Any) -> dict[str, Any]:
    """A table as two: into files of ours, and through a query into files of Spark's own sink."""
    options = {"path": str(folder / "streamed")}
    sinks: dict[str, dict[str, Any]] = {
        "ours": {"kind": "file", "path": str(folder / "ours")},
        "streamed": {"kind": "stream", "format": "json", "options": options},
    }
    return {name: {**table, "sink": sink} for name, sink in sinks.items()}


BOTH = ("ours", "streamed")


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return _json_rows(folder / name) if name == "ours" else _streamed_rows(folder / name)


@pytest.mark.full
def test_once_delivers_every_table_to_its_sink_and_a_bad_one_stops_alone(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    source = {"path": str(table.folder), "from": "snapshot"}
    checkpoint = tmp_path / "state/spark/damaged"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata").touch()
    stream = {"kind": "stream", "format": "parquet"}
    run = Supervised(
        tmp_path,
        {
            "shown": {**source, "from": "1", "sink": {"kind": "console"}},
            "missing": {**source, "path": str(tmp_path / "no"), "sink": {"kind": "console"}},
            "damaged": {**source, "sink": {**stream, "options": {"path": str(tmp_path / "d")}}},
            "kept": {**source, "sink": {"kind": "file", "path": str(tmp_path / "kept")}},
            "streamed": {**source, "sink": {**stream, "options": {"path": str(tmp_path / "s")}}},
        },
        "--once",
    )
    assert run.ended() == 3, run.reported()

    shown = [json.loads(line) for line in run.lines]
    assert sorted((row["id"], row["_commit_version"]) for row in shown) == [
        (10, 1),
        (11, 1),
        (20, 2),
        (21, 2),
    ]
    assert sorted(row["id"] for row in _json_rows(tmp_path / "kept")) == [0, 1, 10, 11, 20, 21]
    assert pq.read_table(tmp_path / "s").num_rows == 6
    assert [e["error_code"] for e in run.of("PipelineFailed", "missing")] == ["not_a_table"]
    [failed] = run.of("PipelineFailed", "damaged")
    assert f"`rm -r {checkpoint}`" in failed["error"]
    for name, rows in (("shown", 4), ("kept", 6), ("streamed", 6)):
        assert run.delivered(name) == rows
        assert run.of("BacklogMeasured", name)[-1]["versions"] == 0
        assert run.of("OffsetSaved", name)[-1]["version"] == 3
        assert [e["is_complete"] for e in run.of("PipelineStopped", name)] == [True]
    assert not run.noise


@pytest.mark.full
def test_every_change_of_the_schema_in_flight_gives_every_row_once(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path / "orders",
        fields=[("id", "long"), ("name", "string"), ("price", "integer")],
        start_ms=None,
        mapping="name",
    )
    table.append([{"id": 0, "name": "a", "price": 1}])
    source = {"path": str(table.folder), "from": "0"}
    run = Supervised(tmp_path, _both_ways(tmp_path, **source))

    def until(rows: int) -> None:
        run.until(lambda: all(run.delivered(name) == rows for name in BOTH))

    until(1)
    table.append([{"id": 1, "name": "b", "price": 2}])
    table.rename_column("name", "label")
    table.append([{"id": 2, "label": "c", "price": 3}])
    until(3)
    table.field_named("price")["type"] = "long"
    table.change_metadata()
    table.append([{"id": 3, "label": "d", "price": 2**40}])
    table.change_metadata(fields=[item for item in table.fields if item["name"] != "label"])
    table.append([{"id": 4, "price": 5}])
    until(5)
    removed = [table.remove({"add": action}) for action in table.state().adds.values()]
    table.fields = [field("id", "string"), field("day", "string")]
    table.mapping = "none"
    table.properties.clear()
    table.partition_by = ["day"]
    files = table.data_files([{"id": "x", "day": "1"}, {"id": "y", "day": "2"}])
    # As CREATE OR REPLACE TABLE does it: with another id within the log.
    replaced = table.metadata(id="00000000-0000-4000-8000-000000000007")
    table.commit(replaced, *removed, *files)
    until(12)
    run.until(lambda: all("00000007" in str(run.of("OffsetSaved", n)[-1]) for n in BOTH))
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0, run.reported()
    assert not run.noise
    # A query has one schema: another takes over where that changes.
    assert run.of("SchemaAdopted", "streamed")
    assert not run.of("SchemaAdopted", "ours")
    for name in BOTH:
        assert not run.of("PipelineFailed", name)
        assert not run.of("RetryScheduled", name)
        _has_every_row_once(_rows(tmp_path, name))


def _has_every_row_once(rows: list[dict[str, Any]]) -> None:
    bare = [{k: v for k, v in row.items() if v is not None and k[0] != "_"} for row in rows]
    assert bare[:5] == [
        {"id": 0, "name": "a", "price": 1},
        {"id": 1, "name": "b", "price": 2},
        {"id": 2, "label": "c", "price": 3},
        {"id": 3, "label": "d", "price": 2**40},
        {"id": 4, "price": 5},
    ]
    replaced = list(zip(rows[5:], bare[5:], strict=True))
    gone = [row for change, row in replaced if change["_change_type"] == "delete"]
    assert sorted((row["id"], row["price"]) for row in gone) == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 2**40),
        (4, 5),
    ]
    come = [row["id"] for change, row in replaced if change["_change_type"] == "insert"]
    assert sorted(come) == ["x", "y"]


@pytest.mark.full
def test_all_tables_go_on_where_they_were_after_java_was_killed_and_after_a_stop(
    tmp_path: Path,
) -> None:
    table = _table(tmp_path / "orders")
    tables = _both_ways(tmp_path, path=str(table.folder), **{"from": "snapshot"})
    run = Supervised(tmp_path, tables)
    run.until(lambda: all(run.delivered(name) == 6 for name in BOTH))
    (java,) = pids_below(run.process.pid, "java")
    os.kill(java, signal.SIGKILL)
    table.append([{"id": 30, "name": "while it was down"}])
    run.until(lambda: all(run.delivered(name) == 7 for name in BOTH))
    (second,) = pids_below(run.process.pid, "java")
    assert second != java
    table.append([{"id": 40, "name": "live"}])
    run.until(lambda: all(run.delivered(name) == 8 for name in BOTH))
    requested = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0, run.reported()
    assert time.monotonic() - requested < 20
    for name in BOTH:
        assert {e["error_code"] for e in run.of("RetryScheduled", name)} == {"engine"}
        assert not run.of("PipelineFailed", name)
        assert [e["is_complete"] for e in run.of("PipelineStopped", name)] == [False]
    reported = [e["error"] for name in BOTH for e in run.of("RetryScheduled", name)]
    assert any("ended by signal 9" in each for each in reported), run.reported()

    table.append([{"id": 50, "name": "while it was stopped"}])
    again = Supervised(tmp_path, tables, "--once")
    assert again.ended() == 0, again.reported()
    assert not again.noise
    for name in BOTH:
        assert again.delivered(name) == 1
        # Told before anything is read: cleanup waits for it, also where nothing is to deliver.
        assert [(e["version"], e["is_resumed"]) for e in again.of("OffsetChosen", name)] == [
            (5, True)
        ]
        ids = [row["id"] for row in _rows(tmp_path, name)]
        assert (sorted(ids[:6]), ids[6:]) == ([0, 1, 10, 11, 20, 21], [30, 40, 50])
