"""Cleanup deletes nothing that a pipeline, the table or a later commit still keeps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tailerd.delta.log_reader import LogReader
from tailerd.delta.log_writer import LogWriter
from tailerd.delta.protocol.table_properties import parse_interval
from tailerd.maintenance.jobs import TableMaintenance
from tailerd.maintenance.plan import CleanupPolicy, Policies
from tailerd.maintenance.policies.checkpoint import CheckpointPolicy
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.maintenance.test_cleanup import DAY, FIRST, commits_of, daily
from tests.tables.builder import TableBuilder
from tests.unit.delta.log_bodies import add, remove

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEANING = Policies(
    checkpoint=CheckpointPolicy(every_commits=1000),
    cleanup=CleanupPolicy(is_enabled=True),
)
TODAY = FIRST + 40 * DAY


def maintenance(folder: Path, policies: Policies = CLEANING) -> TableMaintenance:
    return TableMaintenance(
        LogReader(LocalStore(), str(folder)), policies, clock=SimClock(TODAY, is_automatic=True)
    )


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
    survey = await work.survey()
    [cleanup] = [each for each in survey.decisions if each.job == "cleanup"]
    assert not cleanup.is_due
    assert "delta.logRetentionDuration" in cleanup.reason
    assert survey.cleanup_error is not None
    assert survey.cleanup_error.code == "invalid_property"
    [due] = [each for each in survey.decisions if each.is_due]
    result = await work.apply(survey, due)
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
