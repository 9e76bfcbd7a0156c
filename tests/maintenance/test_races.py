"""Maintenance of all kinds beside a writer that commits, deletes and checkpoints all the time.

Twelve seconds each in every run; `--race-seconds 60` for longer. What has expired is made so by
dating it back: all commits but the newest are as old as their retention allows.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tailerd.delta.log_reader import LogReader
from tailerd.errors import TailerdError
from tailerd.maintenance.jobs import TableMaintenance
from tailerd.maintenance.needs import Needs
from tailerd.maintenance.plan import CleanupPolicy, Policies
from tailerd.maintenance.policies.checkpoint import CheckpointPolicy
from tailerd.maintenance.policies.checksum import ChecksumPolicy
from tailerd.maintenance.policies.log_compaction import LogCompactionPolicy
from tests.maintenance.delta_spark import DeltaSpark
from tests.tables import naive_log
from tests.unit.delta.histories import assert_described, assert_is, live_files

pytestmark = pytest.mark.slow

DEFAULT_SECONDS = 12
KEPT_VERSIONS = 5
"""So many of the newest versions are young; no writer looks at what is older."""
TWO_MONTHS = 60 * 86_400.0
ALL_JOBS = Policies(
    checkpoint=CheckpointPolicy(every_commits=4, min_interval_seconds=0.0),
    log_compaction=LogCompactionPolicy(every_commits=2),
    checksum=ChecksumPolicy(is_enabled=True),
    cleanup=CleanupPolicy(is_enabled=True),
)


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float:
    asked = pytestconfig.getoption("--race-seconds")
    return float(DEFAULT_SECONDS if asked is None else asked)


class Maintenance:
    """Does all jobs in a loop, in a thread of its own, and keeps every commit aside.

    Attributes:
        aside: A copy of the log's commits, as nobody touched them.
        done: Jobs that were done, by kind.
        errors: What jobs raised.
    """

    def __init__(self, table: Path, aside: Path) -> None:
        self.aside = aside
        self.done: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._log = table / "_delta_log"
        self._work = TableMaintenance(LogReader.at(str(table)), ALL_JOBS, needs=self._needs)
        self._is_over = threading.Event()
        aside.mkdir()

    @property
    def head(self) -> int:
        return max((int(path.stem) for path in self.aside.iterdir()), default=-1)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._loop()))
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(60)
        assert not thread.is_alive()

    async def _loop(self) -> None:
        while not self._is_over.is_set():
            try:
                await self.turn()
            except TailerdError as error:
                self.errors.append(error)
            await asyncio.sleep(0.01)

    async def turn(self) -> None:
        self._keep_commits()
        self._date_back()
        survey = await self._work.survey()
        for decision in survey.decisions:
            if decision.is_due:
                result = await self._work.apply(survey, decision)
                if result.outcome in ("written", "deleted"):
                    self.done[result.job] += 1

    async def _needs(self) -> Needs:
        return Needs(from_version=max(0, self.head - KEPT_VERSIONS))

    def _keep_commits(self) -> None:
        for path in self._log.glob("*.json"):
            if path.stem.isdigit() and not (self.aside / path.name).exists():
                shutil.copy2(path, self.aside / path.name)

    def _date_back(self) -> None:
        for path in self._log.glob("0*"):
            if int(path.name.partition(".")[0]) < self.head - KEPT_VERSIONS:
                old = time.time() - TWO_MONTHS
                try:
                    os.utime(path, (old, old))
                except FileNotFoundError:
                    continue  # The writer cleans up too.

    def oldest(self) -> int:
        return min(int(p.stem) for p in self._log.glob("*.json") if p.stem.isdigit())

    async def assert_whole(self, folder: Path) -> None:
        """Every version that must be readable is what its commits say, by ours."""
        reader = LogReader.at(str(folder))
        for version in range(self.head - KEPT_VERSIONS, self.head + 1):
            snapshot = await reader.open(version)
            state = naive_log.replay(self.aside, version)
            assert_is(snapshot, state)
            assert_described(await live_files(reader, snapshot), state)


def race(maintenance: Maintenance, seconds: float, write: Callable[[int], None]) -> int:
    """Let a writer write so long; return how often it did."""
    deadline, number = time.monotonic() + seconds, 0
    with maintenance.running():
        # A slow machine must come to the first cleanup too.
        while time.monotonic() < deadline or number <= 2 * KEPT_VERSIONS:
            number += 1
            write(number)
    # Whoever came last, everything can be done now that nobody else is there.
    asyncio.run(maintenance.turn())
    jobs = {"checkpoint", "checksum", "log_compaction", "cleanup"}
    assert maintenance.done.keys() == jobs, maintenance.done
    told = [repr(error) for error in maintenance.errors]
    print(f"\n{number} writes, {dict(maintenance.done)}, {len(told)} refusals: {told[:3]}")
    # A job may find that the log changed under it and be done again; that is the exception.
    assert len(told) <= maintenance.done.total() // 10, told
    return number


def rows_by_deltalake(folder: Path, version: int | None = None) -> list[int]:
    table = deltalake.DeltaTable(str(folder), version=version)
    query = deltalake.QueryBuilder().register("t", table)
    found: list[int] = pa.table(query.execute("SELECT id FROM t")).column("id").to_pylist()
    return sorted(found)


def test_deltalake_writes_deletes_and_checkpoints_beside_all_jobs(
    tmp_path: Path, seconds: float
) -> None:
    place = tmp_path / "table"
    ids, versions = {0}, {0: [0]}
    deltalake.write_deltalake(place, pa.table({"id": pa.array([0], pa.int64())}))
    # Two that clean up are one too many: deltalake's own ends in an error where ours was faster.
    hooks = deltalake.PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

    def write(number: int) -> None:
        table = deltalake.DeltaTable(place)
        if number % 5 == 0:
            gone = min(ids)
            table.delete(f"id = {gone}", post_commithook_properties=hooks)
            ids.discard(gone)
        else:
            rows = pa.table({"id": pa.array([number], pa.int64())})
            deltalake.write_deltalake(place, rows, mode="append", post_commithook_properties=hooks)
            ids.add(number)
        fresh = deltalake.DeltaTable(place)
        versions[fresh.version()] = sorted(ids)
        if number % 9 == 0:
            fresh.create_checkpoint()
        if number % 4 == 0:
            assert rows_by_deltalake(place) == sorted(ids)

    maintenance = Maintenance(place, tmp_path / "aside")
    race(maintenance, seconds, write)
    assert maintenance.head == max(versions)
    for version in range(maintenance.head - KEPT_VERSIONS, maintenance.head + 1):
        assert rows_by_deltalake(place, version) == versions[version]
    asyncio.run(maintenance.assert_whole(place))


@pytest.mark.spark
def test_delta_spark_writes_deletes_and_checkpoints_beside_all_jobs(
    delta_spark: DeltaSpark, tmp_path: Path, seconds: float
) -> None:
    place = tmp_path / "table"
    name = f"delta.`{place}`"

    def sql(text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = delta_spark.ask("sql", text=text)
        return found

    sql(
        f"CREATE TABLE {name} (id BIGINT, name STRING) USING delta TBLPROPERTIES"
        " ('delta.enableDeletionVectors' = 'true', 'delta.checkpointPolicy' = 'v2',"
        " 'delta.checkpointInterval' = '100000')"
    )
    sql(f"INSERT INTO {name} SELECT id, 'first' FROM range(20)")
    ids = set(range(20))

    def write(number: int) -> None:
        if number % 5 == 0:
            gone = min(ids)
            sql(f"DELETE FROM {name} WHERE id = {gone}")
            ids.discard(gone)
        elif number % 5 == 2:
            sql(f"UPDATE {name} SET name = 'v{number}' WHERE id % 10 = {number % 10}")
        else:
            sql(f"INSERT INTO {name} VALUES ({100 + number}, 'new')")
            ids.add(100 + number)
        if number % 7 == 0:
            delta_spark.ask("checkpoint", path=str(place))
        if number % 4 == 0:
            assert sorted(row["id"] for row in delta_spark.rows(place)) == sorted(ids)

    maintenance = Maintenance(place, tmp_path / "aside")
    race(maintenance, seconds, write)
    assert sorted(row["id"] for row in delta_spark.rows(place)) == sorted(ids)
    seen = delta_spark.ask("snapshot", path=str(place))
    assert (seen["version"], seen["is_valid"]) == (maintenance.head, True)
    asyncio.run(maintenance.assert_whole(place))
