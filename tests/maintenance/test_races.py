"""Maintenance of all kinds beside a writer that commits, deletes and checkpoints all the time.

Six seconds each in every run; `--race-seconds 60` for longer. What has expired is made so by
dating it back: all commits but the newest are as old as their retention allows.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tailerd.clock import SystemClock
from tailerd.formats.delta.log.log_reader import LogReader
from tests.maintenance.delta_spark import DeltaSpark
from tests.maintenance.racing import KEPT_VERSIONS, TWO_MONTHS, Maintenance, race

pytestmark = pytest.mark.slow

DEFAULT_SECONDS = 6


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float:
    requested = pytestconfig.getoption("--race-seconds")
    return float(DEFAULT_SECONDS if requested is None else requested)


class LocalLog:
    """A log on this machine's disk; its files are dated back."""

    def __init__(self, table: Path) -> None:
        self.clock = SystemClock()
        self._table = table
        self._log = table / "_delta_log"

    def reader(self) -> LogReader:
        return LogReader.at(str(self._table))

    def keep_commits(self, aside: Path) -> None:
        for path in self._log.glob("*.json"):
            if path.stem.isdigit() and not (aside / path.name).exists():
                shutil.copy2(path, aside / path.name)

    def date_back(self, before: int) -> None:
        for path in self._log.glob("0*"):
            if int(path.name.partition(".")[0]) < before:
                old = time.time() - TWO_MONTHS
                try:
                    os.utime(path, (old, old))
                except FileNotFoundError:
                    continue  # The writer cleans up too.


def rows_by_deltalake(folder: Path, version: int | None = None) -> list[int]:
    table = deltalake.DeltaTable(str(folder), version=version)
    query = deltalake.QueryBuilder().register("t", table)
    found: list[int] = pa.table(query.execute("SELECT id FROM t")).column("id").to_pylist()
    return sorted(found)


@pytest.mark.full
def test_deltalake_writes_deletes_and_checkpoints_beside_all_jobs(
    tmp_path: Path, seconds: float
) -> None:
    location = tmp_path / "table"
    ids, versions = {0}, {0: [0]}
    deltalake.write_deltalake(location, pa.table({"id": pa.array([0], pa.int64())}))
    # Two that clean up are one too many: deltalake's own ends in an error where ours was faster.
    hooks = deltalake.PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

    def write(number: int) -> None:
        table = deltalake.DeltaTable(location)
        if number % 5 == 0:
            gone = min(ids)
            table.delete(f"id = {gone}", post_commithook_properties=hooks)
            ids.discard(gone)
        else:
            rows = pa.table({"id": pa.array([number], pa.int64())})
            deltalake.write_deltalake(
                location, rows, mode="append", post_commithook_properties=hooks
            )
            ids.add(number)
        fresh = deltalake.DeltaTable(location)
        versions[fresh.version()] = sorted(ids)
        if number % 9 == 0:
            fresh.create_checkpoint()
        if number % 4 == 0:
            assert rows_by_deltalake(location) == sorted(ids)

    maintenance = Maintenance(LocalLog(location), tmp_path / "aside")
    race(maintenance, seconds, write)
    assert maintenance.head == max(versions)
    for version in range(maintenance.head - KEPT_VERSIONS, maintenance.head + 1):
        assert rows_by_deltalake(location, version) == versions[version]
    asyncio.run(maintenance.assert_whole())


@pytest.mark.full
@pytest.mark.spark
def test_delta_spark_writes_deletes_and_checkpoints_beside_all_jobs(
    delta_spark: DeltaSpark, tmp_path: Path, seconds: float
) -> None:
    location = tmp_path / "table"
    name = f"delta.`{location}`"

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
            delta_spark.ask("checkpoint", path=str(location))
        if number % 4 == 0:
            assert sorted(row["id"] for row in delta_spark.rows(location)) == sorted(ids)

    maintenance = Maintenance(LocalLog(location), tmp_path / "aside")
    race(maintenance, seconds, write)
    assert sorted(row["id"] for row in delta_spark.rows(location)) == sorted(ids)
    seen = delta_spark.ask("snapshot", path=str(location))
    assert (seen["version"], seen["is_valid"]) == (maintenance.head, True)
    asyncio.run(maintenance.assert_whole())
