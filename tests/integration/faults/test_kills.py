"""`kill -9` at random moments while a writer commits and the file sink writes.

Ten kills in every run, `--kills 100` on demand. Nothing is lost and nothing comes twice; what was
delivered and not yet covered by the saved offset, so that it is delivered again, is one batch.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.daemon.running import daemon, file_table, read_log, write_config
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

DEFAULT_KILLS = 10
SNAPSHOT_FILES = 60
COMMITS_BETWEEN_CHECKPOINTS = 200
PACE_SECONDS = 0.01
MEAN_LIFE_SECONDS = 0.12
"""After the start; the start itself takes longer."""


@dataclass
class BusyTable:
    """A table and the one who writes to it.

    Attributes:
        version_of: The version that inserted each id.
    """

    builder: TableBuilder
    version_of: dict[int, int] = field(default_factory=dict)

    def commit(self, files: int) -> None:
        first, version = len(self.version_of), self.builder.version + 1
        ids = range(first, first + files)
        # A new one: what a test goes through meanwhile does not grow.
        self.version_of = {**self.version_of, **dict.fromkeys(ids, version)}
        self.builder.commit(*(self.builder.data_file([{"id": i, "name": "x"}]) for i in ids))

    @contextmanager
    def written_to(self, source: random.Random) -> Iterator[None]:
        """Commit all the time, one file or several."""
        ends = threading.Event()

        def write() -> None:
            while not ends.wait(source.expovariate(1 / PACE_SECONDS)):
                self.commit(source.choice([1, 1, 1, 2, 9]))
                if self.builder.version % COMMITS_BETWEEN_CHECKPOINTS == 0:
                    self.builder.checkpoint()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            ends.set()
            writer.join()


@dataclass(frozen=True)
class Row:
    start: tuple[int, int, int]
    id: int
    version: int


def delivered(out: Path) -> list[Row]:
    """The rows that are there; a daemon that starts takes back files while they are read."""
    while True:
        with suppress(FileNotFoundError):
            return _delivered(out)


def _delivered(out: Path) -> list[Row]:
    """All rows in the order in which a reader finds them."""
    found: list[Row] = []
    for path in sorted((*out.glob("*.jsonl"), *out.glob("*.parquet"))):
        version, phase, position, _ = path.name.split("-")
        start = (int(version), int(phase), int(position))
        if path.suffix == ".parquet":
            rows = pq.ParquetFile(path).read(["id", "_commit_version"]).to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        found += [Row(start, row["id"], row["_commit_version"]) for row in rows]
    return found


def saved_order(state: Path, table: str = "orders") -> tuple[int, int, int] | None:
    path = state / f"offsets/{table}.json"
    if not path.exists():
        return None
    offset = json.loads(path.read_text())["offset"]
    return offset["version"], int(offset["phase"] == "follow"), offset["position"]


def check_what_a_kill_left(table: BusyTable, out: Path, state: Path, name: str = "orders") -> int:
    """Check the laws on a dead daemon's files; return how many rows will be delivered again.

    Each of them is in one file only: the next start removes that before it delivers them again.
    """
    rows, saved = delivered(out), saved_order(state, name)
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids), "a row came twice"
    versions = [row.version for row in rows]
    assert versions == sorted(versions)
    if saved is None:
        assert rows == [], "rows before the first offset"
        return 0
    if saved[1] and saved[2] == 0:
        covered = {i for i, version in table.version_of.items() if version < saved[0]}
        assert covered <= set(ids), "the offset covers what the sink does not have"
    again = [row for row in rows if row.start >= saved]
    assert len({row.start for row in again}) <= 1, "more than one batch will come again"
    return len(again)


def check_everything_came(table: BusyTable, out: Path) -> None:
    rows = delivered(out)
    assert sorted(row.id for row in rows) == list(range(len(table.version_of)))
    for row in rows:
        is_snapshot = row.start[1] == 0
        inserted = table.version_of[row.id]
        assert inserted <= row.version if is_snapshot else inserted == row.version


def live_and_be_killed(config: Path, chances: random.Random) -> None:
    before = starts(config)
    with daemon(config) as process:
        if chances.random() < 0.9:
            # Else it may die while it starts.
            eventually(lambda: starts(config) > before)
        time.sleep(chances.expovariate(1 / MEAN_LIFE_SECONDS))
        process.kill()
        process.wait(10)


def starts(config: Path) -> int:
    return read_log(config).count("http://") if (config.parent / "daemon.log").exists() else 0


@pytest.mark.full
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_killed_again_and_again_under_load_it_loses_and_doubles_nothing(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    kills = request.config.getoption("--kills") or DEFAULT_KILLS
    table = BusyTable(TableBuilder(tmp_path / "t", start_ms=None))
    table.builder.create()
    for _ in range(SNAPSHOT_FILES):
        table.commit(1)
    out, state = tmp_path / "out", tmp_path / "state"
    orders = file_table(tmp_path / "t", out, max_files_per_batch=4)
    config = write_config(
        tmp_path, orders={**orders, "sink": {"kind": "file", "path": str(out), "format": kind}}
    )
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chances, again = random.Random(seed), 0
    with table.written_to(random.Random(f"{seed}/writer")):
        # Half of the kills for each format.
        for _ in range((kills + (kind == "jsonl")) // 2):
            live_and_be_killed(config, chances)
            again += check_what_a_kill_left(table, out, state)
    with daemon(config) as process:
        # What piled up while it was dead most of the time.
        end = (table.builder.version + 1, 1, 0)
        eventually(lambda: saved_order(state) == end)
        process.terminate()
        assert process.wait(30) == 0
    assert check_what_a_kill_left(table, out, state) == 0
    check_everything_came(table, out)
    print(f"{len(table.version_of)} rows in {table.builder.version} commits, {again} of them twice")
