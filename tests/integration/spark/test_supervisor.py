"""Supervised queries as `tailerd run` starts them: every sink, one bad table, stop and resume."""

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
        settings = {"state": str(folder / "state"), "spark": spark or {"master": "local[2]"}}
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

    def said(self) -> str:
        return "\n".join([*(json.dumps(event) for event in self.events), *self.noise])

    def until(self, is_true: Callable[[], bool], seconds: float = 150.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < deadline, self.said()
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)

    def ended(self, seconds: float = 120.0) -> int:
        status = self.process.wait(seconds)
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


@pytest.mark.full
def test_once_delivers_every_table_to_its_sink_and_a_bad_one_stops_alone(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    source = {"path": str(table.folder), "from": "snapshot"}
    checkpoint = tmp_path / "state/spark/damaged"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata").touch()
    run = Supervised(
        tmp_path,
        {
            "shown": {**source, "from": "1", "sink": {"kind": "console"}},
            "missing": {**source, "path": str(tmp_path / "no"), "sink": {"kind": "console"}},
            "damaged": {**source, "sink": {"kind": "console"}},
            "kept": {**source, "sink": {"kind": "file", "path": str(tmp_path / "kept")}},
            "streamed": {
                **source,
                "sink": {
                    "kind": "stream",
                    "format": "parquet",
                    "options": {"path": str(tmp_path / "streamed")},
                },
            },
        },
        "--once",
    )
    assert run.ended() == 3, run.said()

    shown = [json.loads(line) for line in run.lines]
    assert sorted((row["id"], row["_commit_version"]) for row in shown) == [
        (10, 1),
        (11, 1),
        (20, 2),
        (21, 2),
    ]
    assert sorted(row["id"] for row in _json_rows(tmp_path / "kept")) == [0, 1, 10, 11, 20, 21]
    assert pq.read_table(tmp_path / "streamed").num_rows == 6
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
def test_a_stopped_daemon_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    tables = {"orders": {"path": str(table.folder), "from": "snapshot", "sink": sink}}
    run = Supervised(tmp_path, tables)
    run.until(lambda: run.delivered("orders") == 6)
    table.append([{"id": 30, "name": "live"}])
    run.until(lambda: run.delivered("orders") == 7)
    asked = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0, run.said()
    assert time.monotonic() - asked < 20
    assert [e["is_complete"] for e in run.of("PipelineStopped", "orders")] == [False]
    assert not run.noise

    table.append([{"id": 40, "name": "while it was down"}])
    again = Supervised(tmp_path, tables, "--once")
    assert again.ended() == 0, again.said()
    assert again.delivered("orders") == 1
    # Told before the query starts: cleanup waits for it, also where there is nothing to deliver.
    assert [(e["version"], e["is_resumed"]) for e in again.of("OffsetChosen", "orders")] == [
        (4, True)
    ]
    assert not run.of("OffsetChosen", "orders")
    ids = [row["id"] for row in _json_rows(tmp_path / "out")]
    assert (sorted(ids[:6]), ids[6:]) == ([0, 1, 10, 11, 20, 21], [30, 40])


@pytest.mark.full
def test_a_new_column_restarts_the_query_with_the_new_schema(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders", commits=1)
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    run = Supervised(tmp_path, {"orders": {"path": str(table.folder), "from": "0", "sink": sink}})
    run.until(lambda: run.delivered("orders") == 2)
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("note", "string")])
    table.append([{"id": 20, "name": "x", "note": "new"}])
    run.until(lambda: run.delivered("orders") == 3)
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0, run.said()
    assert [e["version"] for e in run.of("SchemaAdopted", "orders")] == [2]
    assert not run.of("RetryScheduled", "orders")
    assert not run.of("PipelineFailed", "orders")
    saved_at = [n for n, e in enumerate(run.events) if e["event"] == "OffsetSaved"]
    adopted_at = next(n for n, e in enumerate(run.events) if e["event"] == "SchemaAdopted")
    assert all(n > adopted_at for n in saved_at if run.events[n]["version"] == 3)
    rows = _json_rows(tmp_path / "out")
    assert [(row["id"], row.get("note")) for row in rows] == [(0, None), (1, None), (20, "new")]


@pytest.mark.full
def test_every_change_of_the_schema_in_flight_gives_every_row_once(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path / "orders",
        fields=[("id", "long"), ("name", "string"), ("price", "integer")],
        start_ms=None,
        mapping="name",
    )
    table.append([{"id": 0, "name": "a", "price": 1}])
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    tables = {"orders": {"path": str(table.folder), "from": "0", "sink": sink}}
    run = Supervised(tmp_path, tables)
    run.until(lambda: run.delivered("orders") == 1)
    table.append([{"id": 1, "name": "b", "price": 2}])
    table.rename_column("name", "label")
    table.append([{"id": 2, "label": "c", "price": 3}])
    run.until(lambda: run.delivered("orders") == 3)
    table.field_named("price")["type"] = "long"
    table.change_metadata()
    table.append([{"id": 3, "label": "d", "price": 2**40}])
    table.change_metadata(fields=[item for item in table.fields if item["name"] != "label"])
    table.append([{"id": 4, "price": 5}])
    run.until(lambda: run.delivered("orders") == 5)
    removed = [table.remove({"add": action}) for action in table.state().adds.values()]
    table.fields = [field("id", "string"), field("day", "string")]
    table.mapping = "none"
    table.properties.clear()
    table.partition_by = ["day"]
    files = table.data_files([{"id": "x", "day": "1"}, {"id": "y", "day": "2"}])
    # As CREATE OR REPLACE TABLE does it: with another id within the log.
    replaced = table.metadata(id="00000000-0000-4000-8000-000000000007")
    table.commit(replaced, *removed, *files)
    run.until(lambda: run.delivered("orders") == 12)
    assert "000000000007" in run.of("OffsetSaved", "orders")[-1]["offset"]
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0, run.said()
    assert not run.noise
    assert not run.of("PipelineFailed", "orders")
    assert not run.of("RetryScheduled", "orders")

    rows = _json_rows(tmp_path / "out")
    bare = [{k: v for k, v in row.items() if v is not None and k[0] != "_"} for row in rows]
    assert bare[:5] == [
        {"id": 0, "name": "a", "price": 1},
        {"id": 1, "name": "b", "price": 2},
        {"id": 2, "label": "c", "price": 3},
        {"id": 3, "label": "d", "price": 2**40},
        {"id": 4, "price": 5},
    ]
    assert sorted((row["id"], row["price"]) for row in bare[5:10]) == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 2**40),
        (4, 5),
    ]
    assert [row["_change_type"] for row in rows[5:]] == ["delete"] * 5 + ["insert"] * 2
    assert sorted(row["id"] for row in bare[10:]) == ["x", "y"]


@pytest.mark.full
def test_a_java_process_that_is_killed_is_replaced_and_the_queries_go_on(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    other = {"kind": "file", "path": str(tmp_path / "other")}
    source = {"path": str(table.folder), "from": "snapshot"}
    run = Supervised(
        tmp_path, {"orders": {**source, "sink": sink}, "again": {**source, "sink": other}}
    )
    run.until(lambda: run.delivered("orders") == run.delivered("again") == 6)
    (java,) = pids_below(run.process.pid, "java")
    os.kill(java, signal.SIGKILL)
    table.append([{"id": 30, "name": "while it was down"}])
    run.until(lambda: run.delivered("orders") == run.delivered("again") == 7, 300)
    (second,) = pids_below(run.process.pid, "java")
    assert second != java
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0, run.said()

    for name in ("out", "other"):
        ids = [row["id"] for row in _json_rows(tmp_path / name)]
        assert (sorted(ids[:6]), ids[6:]) == ([0, 1, 10, 11, 20, 21], [30])
    retries = [*run.of("RetryScheduled", "orders"), *run.of("RetryScheduled", "again")]
    assert {e["error_code"] for e in retries} == {"engine"}
    assert any("ended by signal 9" in e["error"] for e in retries), run.said()
    assert not run.of("PipelineFailed", "orders")
