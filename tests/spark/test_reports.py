"""What Spark says about a query, as events; and what Java there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.java import java_home_or_version
from tailerd.spark.progress import OLDEST_MS, BatchReport, list_events
from tailerd.telemetry.events import BacklogMeasured, DeliveryAcknowledged, OffsetSaved


def _offset(version: int, **more: int) -> str:
    return json.dumps(
        {**json.loads(Offset(table_id="t", version=Version(version)).to_json()), **more}
    )


def test_a_micro_batch_tells_rows_offset_and_backlog() -> None:
    report = BatchReport(
        start=_offset(3),
        end=_offset(5),
        head=_offset(
            9, head_version=8, undelivered_versions=4, delivered_version=4, **{OLDEST_MS: 1234}
        ),
        observed={
            "insert": 2,
            "delete": 1,
            "update_preimage": 0,
            "update_postimage": None,
            "first_version": 3,
            "last_version": 4,
        },
        duration_seconds=0.5,
    )
    delivered, saved, backlog = list_events(report, "orders", "file")
    assert isinstance(delivered, DeliveryAcknowledged)
    assert delivered.rows == {"insert": 2, "delete": 1}
    assert (delivered.start_version, delivered.end_version) == (3, 4)
    assert isinstance(saved, OffsetSaved)
    assert saved.version == 5
    assert backlog == BacklogMeasured(
        table="orders",
        engine="spark",
        version=5,
        head_version=8,
        versions=4,
        oldest_timestamp_ms=1234,
        delivered_version=4,
    )


def test_at_the_head_nothing_is_old() -> None:
    report = BatchReport(
        start=_offset(5),
        end=_offset(5),
        head=_offset(5, head_version=4, undelivered_versions=0, **{OLDEST_MS: 7}),
        observed={},
        duration_seconds=0.0,
    )
    assert list_events(report, "orders", "file") == [
        BacklogMeasured(
            table="orders",
            engine="spark",
            version=5,
            head_version=4,
            versions=0,
            oldest_timestamp_ms=None,
        )
    ]


def test_a_report_without_offsets_tells_nothing() -> None:
    for nothing in ("", "null", "None"):
        report = BatchReport(start="", end=nothing, head=nothing, observed={}, duration_seconds=0.0)
        assert list_events(report, "orders", "file") == []


def test_a_batch_repeated_after_a_restart_has_no_head_to_report() -> None:
    report = BatchReport(
        start=_offset(3), end=_offset(5), head="None", observed={}, duration_seconds=0.5
    )
    (saved,) = list_events(report, "orders", "file")
    assert isinstance(saved, OffsetSaved)
    assert saved.version == 5


def _java(folder: Path, says: str) -> dict[str, str]:
    binary = folder / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    binary.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": ""}


@pytest.mark.parametrize(
    ("says", "version", "is_usable"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17, True),
        ('openjdk version "25" 2025-09-16', 25, True),
        ('java version "1.8.0_402"', 8, False),
        ('openjdk version "11.0.2" 2019-01-15', 11, False),
        ("no version here", 0, False),
    ],
)
def test_the_java_that_spark_would_take_is_found(
    tmp_path: Path, says: str, version: int, is_usable: bool
) -> None:
    found = java_home_or_version(_java(tmp_path, says))
    assert (found.version, found.is_usable) == (version, is_usable)
    assert found.is_usable or str(tmp_path) in found.reason


def test_a_machine_without_java_says_so() -> None:
    found = java_home_or_version({"PATH": "/nonexistent"})
    assert not found.is_usable
    assert "no `java` on the PATH" in found.reason


def test_a_java_home_that_leads_nowhere_says_so(tmp_path: Path) -> None:
    found = java_home_or_version({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})
    assert "cannot be started" in found.reason
