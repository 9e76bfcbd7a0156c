"""Spark's tasks write the checkpoint that one process would have written."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from tailerd.errors import CorruptLogError, TailerdError, UnsupportedFeatureError
from tailerd.formats.delta.log.checkpoint_basis import choose_basis
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import CheckpointResult, LogWriter
from tailerd.formats.delta.log.v2_manifest import ManifestKind
from tailerd.formats.delta.maintenance.distributed.checkpoint import DistributedCheckpoints
from tailerd.formats.delta.maintenance.distributed.ranges import read_pieces, write_range
from tailerd.formats.delta.maintenance.distributed.request import CheckpointRequest, commit_splits
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.formats.delta.protocol.checkpoint_form import CheckpointForm
from tailerd.maintenance.programs import EngineRequest
from tailerd.registry import MAINTENANCE_PROGRAMS
from tailerd.spark.maintenance_program import SparkTaskExecutor
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import CheckpointKind, write_checkpoint, write_history
from tests.formats.delta.log_bodies import add, remove
from tests.integration.daemon.running import run_to_end, write_config
from tests.maintenance.delta_spark import ROOT, DeltaSpark
from tests.maintenance.tables import STRUCT_STATS, V2, hide, living_table
from tests.maintenance.test_random_histories import histories, legal
from tests.maintenance.written import (
    assert_same,
    checkpoint_actions,
    checkpoint_of,
    expected,
    state_of,
    without_old_removes,
)
from tests.property.test_log_replay import write
from tests.tables.builder import START_MS, TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DAY = 86_400_000
NOW = START_MS + DAY


def checkpoint(
    spark: SparkSession,
    folder: Path,
    *,
    version: int | None = None,
    now_ms: int = NOW,
    manifest: ManifestKind = "json",
) -> CheckpointResult:
    async def job() -> CheckpointResult:
        reader = LogReader.at(str(folder))
        snapshot, _ = await reader.open_listed(version, with_files=False)
        work = DistributedCheckpoints(SparkTaskExecutor(spark), reader, clock=SimClock(now_ms))
        return await work.write(snapshot, manifest)

    return asyncio.run(job())


def checkpoint_here(folder: Path, *, version: int | None = None, now_ms: int = NOW) -> None:
    async def job() -> None:
        reader = LogReader.at(str(folder))
        await LogWriter(reader, clock=SimClock(now_ms)).write_checkpoint(await reader.open(version))

    asyncio.run(job())


def actions(table: TableBuilder, folder: Path | None = None) -> list[str]:
    """Return every action of the newest checkpoint, sidecars resolved."""
    log = (folder or table.folder) / "_delta_log"
    return sorted(json.dumps(a, sort_keys=True) for a in checkpoint_actions(log, table.version))


BELOW: tuple[CheckpointKind, ...] = (
    "none",
    "classic",
    "parts",
    "v2-json",
    "v2-json-sidecars",
    "v2-parquet-sidecars",
    "v2-classic-sidecars",
)


@pytest.mark.full
@pytest.mark.parametrize("below", BELOW)
def test_sparks_checkpoint_is_ours_action_by_action(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: CheckpointKind
) -> None:
    # Three files a sidecar, so that there are several ranges of keys.
    monkeypatch.setattr("tailerd.formats.delta.maintenance.distributed.checkpoint.SIDECAR_FILES", 3)
    table = write_history(tmp_path / "spark")
    write_checkpoint(table, below, 2)
    table.commit(
        add("new", future={"a": [1, 2]}, tags={"k": "v"}),
        remove("d", deletionTimestamp=NOW, later="x"),
        remove("c/%C3%BC", deletionTimestamp=NOW - 30 * DAY),
        {"txn": {"appId": "z", "version": 4, "lastUpdated": 5, "unknown": True}},
    )
    shutil.copytree(table.folder, tmp_path / "here")
    result = checkpoint(spark, table.folder)
    assert result.outcome == "written"
    assert len(result.files) > 2
    state = table.state()
    assert result.add_files == len(state.adds)
    found = state_of(checkpoint_actions(table.log, table.version), table.version)
    assert_same(without_old_removes(found, NOW - 7 * DAY), expected(state, now_ms=NOW))
    checkpoint_here(tmp_path / "here")
    assert actions(table) == actions(table, tmp_path / "here")


@pytest.mark.full
@pytest.mark.parametrize("form", [{}, STRUCT_STATS], ids=["json-stats", "struct-stats"])
@pytest.mark.parametrize("manifest", ["json", "parquet"])
def test_deltalake_reads_it_alone(
    spark: SparkSession, tmp_path: Path, manifest: ManifestKind, form: dict[str, str]
) -> None:
    table = living_table(tmp_path, is_v2=True, **form)
    rows = ids(table)
    checkpoint(spark, tmp_path, now_ms=int(time.time() * 1000), manifest=manifest)
    hide(table, 0, table.version)
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path)))
    found = pa.table(query.execute("SELECT id FROM t")).column("id").to_pylist()
    assert sorted(found) == rows


def ids(table: TableBuilder) -> list[int]:
    return sorted(row["id"] for row in table.rows())


@pytest.mark.full
def test_delta_spark_reads_it_alone(
    spark: SparkSession, delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    table = living_table(tmp_path, is_v2=True, **STRUCT_STATS)
    rows = ids(table)
    checkpoint(spark, tmp_path, now_ms=int(time.time() * 1000))
    hide(table, 0, table.version - 1)
    assert sorted(row["id"] for row in delta_spark.rows(tmp_path)) == rows
    where = "day = '2020-02-01' AND id > 103"
    found = delta_spark.rows(tmp_path, where=where)
    assert sorted(row["id"] for row in found) == [i for i in rows if i > 103]
    assert delta_spark.ask("snapshot", path=str(tmp_path))["checkpoint"] == table.version


@pytest.mark.full
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(history=histories)
def test_checkpoints_of_random_histories_are_the_naive_state(
    spark: SparkSession, history: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailerd.formats.delta.maintenance.distributed.checkpoint.SIDECAR_FILES", 4)
        features = ["deletionVectors", "v2Checkpoint"]
        table = TableBuilder(Path(folder), reader_features=features, properties=V2)
        for version, (found, changed, protocol) in enumerate(history):
            if changed is not None:
                changed["configuration"] = V2
            write(table, version, (legal(table, found), changed, protocol))
        for version in sorted({table.version // 2, table.version}):
            checkpoint(spark, table.folder, version=version)
            written = state_of(checkpoint_actions(table.log, version), version)
            state = expected(table.state(version), now_ms=NOW)
            assert_same(without_old_removes(written, NOW - 7 * DAY), state)


def test_sidecars_that_no_commit_touched_are_named_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = living_table(tmp_path, is_v2=True)
    checkpoint(spark, tmp_path)
    table.append([{"id": 1000, "name": "new", "day": "2020-03-01"}])
    added = checkpoint(spark, tmp_path)
    assert (len(added.reused_files), added.add_files) == (1, len(table.state().adds))
    gone = next(iter(table.state().adds.values()))
    table.commit(remove(gone["path"], deletionTimestamp=NOW))
    removed = checkpoint(spark, tmp_path)
    assert len(removed.reused_files) == 1
    found = state_of(checkpoint_actions(table.log, table.version), table.version)
    assert_same(without_old_removes(found, NOW - 7 * DAY), expected(table.state(), now_ms=NOW))


def test_a_version_that_has_a_checkpoint_is_left_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = living_table(tmp_path, is_v2=True)
    checkpoint_here(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert checkpoint(spark, table.folder).outcome == "already_there"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_table_of_classic_checkpoints_is_refused_with_the_way_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    living_table(tmp_path)
    with pytest.raises(UnsupportedFeatureError, match=r"delta\.checkpointPolicy = v2"):
        checkpoint(spark, tmp_path)


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_damaged_log_leaves_no_checkpoint(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    table = living_table(tmp_path, is_v2=True)

    async def job() -> None:
        reader = LogReader.at(str(tmp_path))
        snapshot, _ = await reader.open_listed(with_files=False)
        path = table.commit_path(4)
        if damage == "gone":
            path.unlink()
        else:
            path.write_text('{"add":{"path":')
        await DistributedCheckpoints(SparkTaskExecutor(spark), reader, clock=SimClock(NOW)).write(
            snapshot
        )

    with pytest.raises(TailerdError) as caught:
        asyncio.run(job())
    assert caught.value.code == ("corrupt_log" if damage == "torn" else "missing_version")
    assert not list(table.log.glob("*checkpoint*"))


def test_a_checksum_that_counts_other_files_stops_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = living_table(tmp_path, is_v2=True)
    table.checksum(numFiles=3)
    with pytest.raises(CorruptLogError, match="3 files by its checksum"):
        checkpoint(spark, tmp_path)
    assert not list(table.log.glob("*checkpoint*"))


def test_what_a_lost_attempt_wrote_is_named_by_nobody_and_cleaned_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = living_table(tmp_path, is_v2=True)
    lost = write_as_a_task(tmp_path) + write_as_a_task(tmp_path)
    assert len(set(lost)) == len(lost) == 2
    result = checkpoint(spark, tmp_path)
    assert not {*lost} & {*result.files}
    sidecars = {f"_sidecars/{path.name}" for path in (table.log / "_sidecars").iterdir()}
    assert sidecars == {*lost, *result.files[1:]}

    async def unnamed(after_ms: int) -> list[str]:
        clock = SimClock(int(time.time() * 1000) + after_ms)
        found = await LogCleanup(LogReader.at(str(tmp_path)), clock=clock).unnamed_sidecars()
        return sorted(file.name for file in found)

    assert asyncio.run(unnamed(0)) == []
    assert asyncio.run(unnamed(3 * DAY)) == sorted(lost)


def write_as_a_task(folder: Path) -> list[str]:
    """Write all files as one task does whose answer never arrives."""

    async def learn() -> tuple[Any, int, CheckpointForm]:
        reader = LogReader.at(str(folder))
        snapshot, _ = await reader.open_listed(with_files=False)
        basis = await choose_basis(reader, snapshot, NOW)
        return basis, snapshot.version, CheckpointForm.from_state(snapshot.state)

    basis, version, form = asyncio.run(learn())
    reader = LogReader.at(str(folder))
    log = LogFolder(reader.store, reader.root)
    [split] = commit_splits(basis.commits)
    pieces = [piece for _, piece in read_pieces(log, split, form, 1)]
    return [each.file.name for each in write_range(log, pieces, form, version, 0)]


@pytest.mark.full
def test_the_daemon_has_spark_write_it(spark: SparkSession, tmp_path: Path) -> None:
    table = living_table(tmp_path / "table", is_v2=True)
    maintenance = {"engine": "spark", "checkpoint": {"every_commits": 1, "manifest": "parquet"}}
    config = write_config(tmp_path, t={"path": str(table.folder), "maintenance": maintenance})
    ended = run_to_end("run", "--config", config, "--once")
    assert ended.returncode == 0, ended.stderr
    assert checkpoint_of(table.log, table.version).suffix == ".parquet"
    found = state_of(checkpoint_actions(table.log, table.version), table.version)
    assert_same(found, expected(table.state(), now_ms=int(time.time() * 1000)))


def test_the_program_ends_with_its_parent(spark: SparkSession, tmp_path: Path) -> None:
    living_table(tmp_path, is_v2=True)
    program = subprocess.Popen(
        [sys.executable, "-m", MAINTENANCE_PROGRAMS["spark"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        assert program.stdin is not None
        job = CheckpointRequest().to_json()
        request = EngineRequest(location=str(tmp_path), format="delta", job=job)
        program.stdin.write(msgspec.json.encode(request) + b"\n")
        program.stdin.close()
        assert program.wait(30) == 1
    finally:
        program.kill()
        program.wait()
    assert not list((tmp_path / "_delta_log").glob("*checkpoint*"))
