"""A lake of small tables, the daemon that follows it, and what that process takes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.integration.daemon.running import daemon, page
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

FIELDS = (
    ("id", "long"),
    ("customer", "string"),
    ("product", "string"),
    ("amount", "double"),
    ("quantity", "integer"),
    ("region", "string"),
    ("status", "string"),
    ("updated", "timestamp"),
)
ROWS_PER_COMMIT = 10
COMMITS = 5
AT_REST = 0.04
"""Share of a core below which a daemon is not busy with its start: with the sizes of tables."""


class Lake:
    """Tables in `folder/tables`, their changes in `folder/out`, the configuration beside them."""

    def __init__(self, folder: Path, tables: int) -> None:
        """Make the tables, each with a few commits."""
        self.folder = folder
        self.builders = [self._make(number) for number in range(tables)]
        self.config = folder / "tailerd.yaml"
        template = {"from": "latest", "sink": {"kind": "file", "path": f"{folder}/out/{{name}}"}}
        config = {
            "engine": "arrow",
            "state": str(folder / "state"),
            "http": {"listen": "127.0.0.1:0"},
            "discover": {"lake": {"path": f"{folder}/tables/*", "template": template}},
        }
        self.config.write_text(yaml.safe_dump(config))

    def _make(self, number: int) -> TableBuilder:
        table = TableBuilder(
            self.folder / "tables" / f"t{number:04}",
            fields=list(FIELDS),
            table_id=f"00000000-0000-4000-8000-{number:012}",
            start_ms=None,
        )
        table.create(_add(table))
        for _ in range(COMMITS - 1):
            table.commit(_add(table))
        return table

    def commit(self, number: int) -> float:
        """Commit rows to a table; return when the commit became visible, as `perf_counter` says."""
        table = self.builders[number]
        rows = [{"id": i, "customer": f"customer-{i}"} for i in range(ROWS_PER_COMMIT)]
        add = table.data_file(rows)
        began = time.perf_counter()
        table.commit(add)
        return began

    def delivered(self, number: int) -> Path:
        """Return the file in which the newest commit of a table arrives."""
        version = self.builders[number].version
        name = f"{version:020d}-1-{0:020d}-00000.jsonl"
        return self.folder / "out" / f"t{number:04}" / name

    def seconds_to_delivery(self, number: int, began: float, within: float = 30) -> float:
        """Wait until the newest commit of a table is delivered; return seconds since `began`."""
        path = os.fspath(self.delivered(number))
        while not os.path.exists(path):
            assert time.perf_counter() < began + within, f"{path} did not come"
            time.sleep(0.0002)
        return time.perf_counter() - began


def _add(table: TableBuilder) -> dict[str, Any]:
    """Return the `add` of a file that nobody reads, with statistics."""
    number = table.version + 1
    stats = '{"numRecords":1000,"minValues":{"id":%d},"maxValues":{"id":%d},"nullCount":{"id":0}}'
    body = {
        "path": f"part-{number:05}-5f1d0f6e-7a11-4e2b-9c1d-{number:012}.c000.snappy.parquet",
        "partitionValues": {},
        "size": 40_000 + number,
        "modificationTime": 1_600_000_000_000,
        "dataChange": True,
        "stats": stats % (number * 1000, number * 1000 + 999),
    }
    return {"add": body}


class Watched:
    """A process, seen through `/proc`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def rss_bytes(self) -> int:
        """Resident memory."""
        return self._status_kib("VmRSS") * 1024

    @property
    def peak_bytes(self) -> int:
        """Highest resident memory so far."""
        return self._status_kib("VmHWM") * 1024

    def _status_kib(self, name: str) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+)", text)
        assert found is not None
        return int(found[1])

    def cpu_seconds(self) -> float:
        """User and system time of all threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wake_ups(self) -> int:
        """How often its threads went to sleep so far."""
        count = 0
        for path in Path(f"/proc/{self.pid}/task").glob("*/status"):
            found = re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", path.read_text())
            count += int(found[1]) if found else 0
        return count


@contextmanager
def following(lake: Lake) -> Iterator[Watched]:
    """Run the daemon over a lake; all its tables are followed."""
    with daemon(lake.config) as process:
        eventually(lambda: is_ready(lake.config), seconds=60)
        yield Watched(process.pid)


def is_ready(config: Path) -> bool:
    """Tell whether every table is followed."""
    try:
        return page(config, "/readyz") == "ready\n"
    except OSError:
        return False


def at_rest(process: Watched, seconds: float = 5) -> None:
    """Wait until a process takes little processor time: what a start brings along is over."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        before = process.cpu_seconds()
        time.sleep(seconds)
        if process.cpu_seconds() - before < AT_REST * seconds:
            return
    raise AssertionError("the process does not come to rest")


def quantile(values: list[float], share: float) -> float:
    """Return the value that `share` of the others do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
