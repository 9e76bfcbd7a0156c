"""Cleanup deletes nothing that a pipeline, the table or a later commit still keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.checks.maintained import configure_maintenance, find_retention_floor
from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.daemon.offsets import open_state, reset_offset
from tailerd.errors import UnsupportedFeatureError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.maintenance import log_cleanup
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, Policies
from tailerd.formats.delta.protocol.table_properties import parse_interval
from tailerd.formats.maintenance import (
    CleanupPolicy,
    Decision,
    LogAssessment,
    RetentionFloor,
    TableMaintenance,
)
from tailerd.maintenance.needs import PipelinePositions
from tailerd.storage.folder_identity import FolderIdentity
from tailerd.storage.local import LocalStore
from tailerd.storage.stores import Stores
from tailerd.telemetry import events
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.log_bodies import add, remove
from tests.maintenance.test_cleanup import DAY, FIRST, commits_of, daily
from tests.tables.builder import TableBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.attack


CLEANING = Policies(
    checkpoint=CheckpointPolicy(every_commits=1000),
    cleanup=CleanupPolicy(is_enabled=True),
)
TODAY = FIRST + 40 * DAY


def maintenance(folder: Path, policies: Policies = CLEANING) -> DeltaMaintenance:
    return DeltaMaintenance(
        LogReader(LocalStore(), str(folder)), policies, clock=SimClock(TODAY, is_automatic=True)
    )


async def planned(work: TableMaintenance) -> tuple[LogAssessment, Decision]:
    """LogAssessment a log, and return what it says of cleanup."""
    assessment = await work.assessment()
    return assessment, next(each for each in assessment.decisions if each.job == "cleanup")


# ---------------------------------------------------------------- commits after the plan


def forbid(table: TableBuilder) -> None:
    table.change_metadata(properties={"delta.enableExpiredLogCleanup": "false"}, mtime_ms=TODAY)


def keep_longer(table: TableBuilder) -> None:
    table.change_metadata(
        properties={"delta.logRetentionDuration": "interval 39 days"}, mtime_ms=TODAY
    )


def protect(table: TableBuilder) -> None:
    table.commit(
        table.protocol(minWriterVersion=7, writerFeatures=["v2Checkpoint", "checkpointProtection"]),
        table.metadata(
            configuration={"delta.requireCheckpointProtectionBeforeVersion": str(table.version)}
        ),
        mtime_ms=TODAY,
    )


def upgrade(table: TableBuilder) -> None:
    features = ["v2Checkpoint", "featureOfTomorrow"]
    table.commit(table.protocol(minWriterVersion=7, writerFeatures=features), mtime_ms=TODAY)


CHANGES = [forbid, keep_longer, protect, upgrade]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_commit_after_the_plan_that_keeps_more_is_obeyed(
    tmp_path: Path, change: Callable[[TableBuilder], None]
) -> None:
    table = daily(tmp_path)
    table.checkpoint(7)
    work = maintenance(tmp_path)
    assessment, cleanup = await planned(work)
    assert cleanup.is_due
    change(table)
    with suppress(UnsupportedFeatureError):
        result = await work.apply(assessment, cleanup)
        assert (result.outcome, result.files) == ("nothing_to_say", 0)
    assert commits_of(table)[0] == 0


async def test_what_expired_after_the_plan_stays_until_it_is_planned(tmp_path: Path) -> None:
    table = daily(tmp_path)
    for version in (3, 7):
        table.checkpoint(version)
    work = maintenance(tmp_path)
    assessment, cleanup = await planned(work)
    assert cleanup.end_version == 7
    table.checkpoint(9)
    assert (await work.apply(assessment, cleanup)).version == 7
    assert commits_of(table)[0] == 7


@pytest.mark.parametrize("change", CHANGES)
async def test_a_commit_in_the_middle_of_a_cleanup_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[TableBuilder], None]
) -> None:
    table = daily(tmp_path)
    table.checkpoint(7)
    monkeypatch.setattr(log_cleanup, "BATCH_FILES", 2)

    class Store(LocalStore):
        """The log changes when its first file is deleted."""

        deleted = 0

        async def delete(self, path: str) -> None:
            self.deleted += 1
            if self.deleted == 1:
                change(table)
            await super().delete(path)

    store = Store()
    work = DeltaMaintenance(
        LogReader(store, str(tmp_path)), CLEANING, clock=SimClock(TODAY, is_automatic=True)
    )
    assessment, cleanup = await planned(work)
    with suppress(UnsupportedFeatureError):
        await work.apply(assessment, cleanup)
    assert store.deleted == 2
    assert commits_of(table)[0] == 2


# ---------------------------------------------------------------- other names of one table


def pipelines(**folders: Path) -> PipelinePositions:
    """Return the positions of pipelines that read these tables."""
    keeper = PipelinePositions()
    keeper.set_pipelines({name: str(folder / "_delta_log") for name, folder in folders.items()})
    return keeper


def tell(keeper: PipelinePositions, name: str, version: int, table_id: str) -> None:
    offset = Offset(table_id=table_id, version=Version(version)).to_json()
    keeper.handle(
        events.OffsetSaved(
            table=name, engine="arrow", version=version, offset=offset, duration_seconds=0.0
        )
    )


def test_a_pipeline_that_reads_through_a_link_keeps_what_it_needs(tmp_path: Path) -> None:
    table = daily(tmp_path / "orders")
    (tmp_path / "shop").symlink_to("orders")
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "_delta_log").symlink_to(table.log)
    keeper = pipelines(shop=tmp_path / "shop", view=tmp_path / "view")
    log = str(table.log)
    assert keeper.floor(log, table.table_id).obstacle
    tell(keeper, "shop", 12, table.table_id)
    assert "view" in keeper.floor(log, table.table_id).obstacle
    tell(keeper, "view", 5, table.table_id)
    assert keeper.floor(log, table.table_id) == RetentionFloor(from_version=5)


def test_a_bind_mount_is_the_folder_that_it_shows() -> None:
    # Making one takes privileges: device and inode are all that is seen of it.
    orders = FolderIdentity(path="/lake/orders", location=(8, 17))
    assert orders.is_same(FolderIdentity(path="/mnt/orders", location=(8, 17)))
    assert orders.is_same(FolderIdentity(path="/mnt/orders", location=(9, 17))) is None
    bucket = FolderIdentity.read("lake/orders")
    assert bucket.is_same(FolderIdentity.read("lake/orders2")) is False


def test_folders_that_cannot_be_compared_are_told_apart_by_the_tables_id(tmp_path: Path) -> None:
    table = daily(tmp_path / "orders", days=3)
    away = tmp_path / "not-mounted" / "orders"
    keeper = pipelines(orders=table.folder, shop=away)
    log = str(table.log)
    tell(keeper, "orders", 30, table.table_id)
    found = keeper.floor(log, table.table_id)
    assert "shop" in found.obstacle
    assert str(away) in found.obstacle
    tell(keeper, "shop", 5, table.table_id)
    assert keeper.floor(log, table.table_id) == RetentionFloor(from_version=5)
    tell(keeper, "shop", 5, "another")
    assert keeper.floor(log, table.table_id) == RetentionFloor(from_version=30)


def test_a_pipeline_of_another_folder_hinders_nothing(tmp_path: Path) -> None:
    table, other = daily(tmp_path / "orders", days=3), daily(tmp_path / "copy", days=3)
    keeper = pipelines(copy=other.folder)
    assert keeper.floor(str(table.log), table.table_id) == RetentionFloor()


async def test_the_command_cleans_up_nothing_that_a_linked_pipeline_wants(tmp_path: Path) -> None:
    table = daily(tmp_path / "orders")
    table.checkpoint(7)
    (tmp_path / "shop").symlink_to("orders")
    config = Config.model_validate(
        {
            "state": str(tmp_path / "state"),
            "tables": {
                "orders": {
                    "path": str(table.folder),
                    "maintenance": {"cleanup": {"enabled": True}},
                },
                "shop": {
                    "path": str(tmp_path / "shop"),
                    "sink": {"kind": "file", "path": str(tmp_path / "out")},
                },
            },
        }
    )
    assert "shop" in (await find_retention_floor(config, "orders", table.table_id)).obstacle
    state = open_state(config, clock=SystemClock())
    async with state.hold():
        await reset_offset(config, "shop", "3", state=state)
    assert (await find_retention_floor(config, "orders", table.table_id)).from_version == 3
    _, work = await configure_maintenance(config, "orders", Stores()).open()
    assessment, cleanup = await planned(work)
    assert not cleanup.is_due
    assert commits_of(table)[0] == 0
    assert assessment.floor.from_version == 2


# ---------------------------------------------------------------- retentions that cannot be read


@pytest.mark.parametrize("text", ["interval 1 year", "P365D", "", "interval 0.5 days", "365"])
async def test_a_retention_that_cannot_be_read_keeps_the_whole_log(
    tmp_path: Path, text: str
) -> None:
    table = daily(tmp_path, properties={"delta.logRetentionDuration": text})
    table.checkpoint(7)
    policies = Policies(
        checkpoint=CheckpointPolicy(every_commits=3, min_interval_seconds=0),
        cleanup=CleanupPolicy(is_enabled=True),
    )
    work = maintenance(tmp_path, policies)
    assessment = await work.assessment()
    [cleanup] = [each for each in assessment.decisions if each.job == "cleanup"]
    assert not cleanup.is_due
    assert "delta.logRetentionDuration" in cleanup.reason
    assert assessment.cleanup_error is not None
    assert assessment.cleanup_error.code == "invalid_property"
    [due] = [each for each in assessment.decisions if each.is_due]
    result = await work.apply(assessment, due)
    assert (result.job, result.outcome) == ("checkpoint", "written")
    assert commits_of(table) == list(range(40))


@pytest.mark.parametrize(("text", "is_kept"), [("interval 1 year", True), ("7 days", False)])
def test_a_tombstone_stays_while_its_retention_cannot_be_read(
    tmp_path: Path, text: str, is_kept: bool
) -> None:
    table = TableBuilder(tmp_path, properties={"delta.deletedFileRetentionDuration": text})
    table.create(add("a"), add("b"), add("c"))
    untimed = remove("c")
    del untimed["remove"]["deletionTimestamp"]
    table.commit(remove("b"), untimed)

    async def checkpoint() -> None:
        reader = LogReader(LocalStore(), str(tmp_path))
        for _ in range(2):
            # The second is made from the rows of the first.
            writer = LogWriter(reader, clock=SimClock(TODAY))
            await writer.write_checkpoint(await reader.open())
            table.commit(add(f"d{table.version}"))

    asyncio.run(checkpoint())
    for path in table.log.glob("*.checkpoint.parquet"):
        rows = pq.read_table(path, columns=["remove"]).column("remove").to_pylist()
        assert {row["path"] for row in rows if row} == ({"b", "c"} if is_kept else set())


@pytest.mark.full
@pytest.mark.spark
def test_intervals_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    units = ["week", "day", "days", "hours", "minute", "second", "milliseconds", "microsecond"]
    texts = [f"interval {count} {unit}" for count in ("7", "1.5", "-3") for unit in units]
    texts += [f"{a} days {b} hours" for a in ("2", "-1", "+ 1") for b in ("5", "- 24", "25")]
    texts += ["interval 1 year", "1 month", "0 months 7 days", "1 years -12 months 3 days", "P1D"]
    texts += ["7days", "interval7 days", "interval interval 1 day", "1 dayss", "1 day 2", ".5 s"]
    texts += ["1 day, 2 hours", "'7' days", "7 d", "day 7", " INTERVAL  7   Days ", "7\tdays"]
    texts += [
        "7. seconds",
        ".5 seconds",
        "1.1234567891 seconds",
        "1.123456789 seconds",
        "7 days ago",
    ]
    texts += [
        "2147483647 days",
        "2147483648 days",
        "9999999999999 hours",
        "1e3 days",
        "7\u00a0days",
    ]
    jvm = spark._jvm
    assert jvm is not None
    known = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils

    def of_spark(text: str) -> float | None:
        # As `DeltaConfigs.parseCalendarInterval` and `isValidIntervalConfigValue` do.
        text = text.strip().lower()
        text = text if text.startswith("interval ") else f"interval {text}"
        found = known.safeStringToInterval(
            jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
        )
        if found is None:
            return None
        # Months are in its text alone: fields of Java objects are out of Py4J's reach.
        words = found.toString().split()
        is_fixed = not any(word.startswith(("year", "month")) for word in words)
        seconds = (
            found.extractAsPeriod().getDays() * 86_400 + found.extractAsDuration().toNanos() / 1e9
        )
        return seconds if is_fixed and seconds >= 0 else None

    assert {text: parse_interval(text) for text in texts} == {
        text: of_spark(text) for text in texts
    }
