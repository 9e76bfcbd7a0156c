"""Garbage collection: what goes, what stays, and why."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tailerd.clock import SystemClock
from tailerd.formats.detect import table_format
from tailerd.formats.maintenance import (
    AskFloor,
    CleanupPolicy,
    JobResult,
    MaintenancePolicies,
    RetentionFloor,
    TableMaintenance,
    no_readers,
)
from tailerd.state.ledger import LedgerLocation
from tests.formats.kartothek.observing import Follower, deleted
from tests.formats.kartothek.test_daemon import rows
from tests.integration.daemon.running import file_table, run_to_end, write_config
from tests.tables.dataset_writer import DatasetWriter
from tests.tables.opened import part_request

DAY = 86_400


def aged(store: Path, seconds: float = 2 * DAY) -> None:
    """Make every file look older."""
    then = time.time() - seconds
    for path in store.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def maintained(
    location: Path,
    *ledgers: Path,
    is_enabled: bool = True,
    older_than: float | None = None,
    floor: AskFloor = no_readers,
) -> TableMaintenance:
    found = table_format("kartothek")
    assert found.maintainer is not None
    return found.maintainer.open(
        part_request(
            location,
            "kartothek",
            ledgers=tuple(LedgerLocation(str(each), is_read_only=True) for each in ledgers),
        ),
        MaintenancePolicies(
            cleanup=CleanupPolicy(is_enabled=is_enabled, older_than_seconds=older_than)
        ),
        clock=SystemClock(),
        floor=floor,
    )


async def collected(work: TableMaintenance) -> JobResult | None:
    assessment = await work.assessment()
    [decision] = assessment.decisions
    return await work.apply(assessment, decision) if decision.is_due else None


def data_files(writer: DatasetWriter) -> set[str]:
    return {str(path.relative_to(writer.store)) for path in writer.location.rglob("*.parquet")}


def named(writer: DatasetWriter) -> set[str]:
    return {key for files in writer.partitions.values() for key in files.values()}


@pytest.fixture
def writer(tmp_path: Path) -> DatasetWriter:
    """A dataset of which one file was replaced long ago."""
    writer = DatasetWriter(tmp_path / "store", partition_on=["name"])
    [first] = writer.commit(rows(1))
    writer.commit(rows(1, 2), without=first.__eq__)
    aged(writer.store)
    return writer


async def test_what_nothing_names_goes_once(writer: DatasetWriter) -> None:
    work = maintained(writer.location)
    done = await collected(work)
    assert done is not None
    assert (done.outcome, done.files) == ("deleted", 1)
    assert data_files(writer) == named(writer)
    assert await collected(work) is None


async def test_young_files_stay_until_their_time(writer: DatasetWriter) -> None:
    [orphan] = data_files(writer) - named(writer)
    os.utime(writer.path(orphan))
    assessment = await maintained(writer.location).assessment()
    [decision] = assessment.decisions
    assert not decision.is_due
    assert decision.due_ms is not None
    assert abs(decision.due_ms / 1000 - time.time() - DAY) < 60
    aged(writer.store)
    assert await collected(maintained(writer.location, older_than=3 * DAY)) is None
    assert orphan in data_files(writer)


async def test_no_wish_shortens_the_grace(writer: DatasetWriter) -> None:
    aged(writer.store, DAY / 2)
    assert await collected(maintained(writer.location, older_than=1)) is None


async def test_files_of_indices_and_other_files_stay(writer: DatasetWriter) -> None:
    index = "ds/indices/id/1.by-dataset-index.parquet"
    for name in (index, "ds/indices/id/old.by-dataset-index.parquet", "ds/table/notes.txt"):
        writer.path(name).parent.mkdir(parents=True, exist_ok=True)
        writer.path(name).write_bytes(b"x")
    writer.indices = {"id": index}
    writer.store_metadata()
    aged(writer.store)
    done = await collected(maintained(writer.location))
    assert done is not None
    assert done.files == 2
    assert data_files(writer) == named(writer) | {index}
    assert writer.path("ds/table/notes.txt").exists()


async def test_rows_that_a_pipeline_has_yet_to_read_stay(tmp_path: Path) -> None:
    writer, ledger = DatasetWriter(tmp_path / "store"), tmp_path / "ledger"
    writer.commit(rows(1))
    follower = await Follower.open(writer.location, "latest", ledger=ledger)
    writer.commit(rows(2), without=lambda _: True)
    aged(writer.store)
    work = maintained(writer.location, tmp_path / "another", ledger)
    [decision] = (await work.assessment()).decisions
    assert not decision.is_due
    assert "kept for pipelines" in decision.reason
    assert sum(deleted(await follower.rest()).values()) == 1
    done = await collected(work)
    assert done is not None
    assert done.files == 1


async def test_what_is_named_again_before_it_goes_stays(writer: DatasetWriter) -> None:
    work = maintained(writer.location)
    assessment = await work.assessment()
    [orphan] = data_files(writer) - named(writer)
    writer.partitions["again"] = {"table": orphan}
    writer.store_metadata()
    done = await work.apply(assessment, assessment.decisions[0])
    assert (done.outcome, done.files) == ("nothing_to_say", 0)
    assert orphan in data_files(writer)


async def test_a_reader_that_is_not_known_yet_forbids_it(writer: DatasetWriter) -> None:
    async def unknown(_: str) -> RetentionFloor:
        return RetentionFloor(obstacle="orders has not delivered anything yet.")

    assessment = await maintained(writer.location, floor=unknown).assessment()
    [decision] = assessment.decisions
    assert not decision.is_due
    assert "has not delivered" in decision.reason


async def test_links_are_not_followed(writer: DatasetWriter, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.parquet").write_bytes(b"x")
    (writer.location / "table/link").symlink_to(outside)
    aged(tmp_path)
    done = await collected(maintained(writer.location))
    assert done is not None
    assert done.files == 1
    assert (outside / "mine.parquet").exists()


@pytest.mark.full
def test_the_command_tells_why_and_deletes_when_it_is_asked_to(
    tmp_path: Path, writer: DatasetWriter
) -> None:
    table = file_table(writer.location, tmp_path / "out")
    config = write_config(tmp_path, orders=table)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    maintenance = {"cleanup": {"enabled": True}}
    config = write_config(tmp_path, orders={**table, "maintenance": maintenance})
    shown: list[dict[str, Any]] = []
    for option in ("--dry-run", "--apply"):
        ran = run_to_end("maintain", "orders", "--config", config, option, "--json")
        assert ran.returncode == 0, ran.stderr
        shown += map(json.loads, ran.stdout.splitlines())
    assert [each["is_due"] for each in shown] == [True, True]
    assert "1 files" in shown[0]["reason"]
    assert shown[0]["result"] is None
    assert shown[1]["result"]["files"] == 1
    assert data_files(writer) == named(writer)


@pytest.mark.full
def test_the_daemon_collects_by_policy(tmp_path: Path, writer: DatasetWriter) -> None:
    maintenance = {"cleanup": {"enabled": True}}
    table = file_table(writer.location, tmp_path / "out")
    config = write_config(tmp_path, orders={**table, "maintenance": maintenance})
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert data_files(writer) == named(writer)
