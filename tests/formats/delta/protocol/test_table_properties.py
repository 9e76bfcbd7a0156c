from __future__ import annotations

import pytest

from tailerd.formats.delta.protocol.table_properties import (
    DELETED_FILE_RETENTION,
    LOG_RETENTION,
    duration_seconds,
    parse_interval,
    retention_seconds,
)

DAY = 86_400.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 30 days", 30 * DAY),
        ("INTERVAL 1 WEEK", 7 * DAY),
        ("7 days", 7 * DAY),
        ("interval 1 day 12 hours", 1.5 * DAY),
        ("interval 90 minutes 30 seconds", 5430.0),
        ("interval 1500 milliseconds", 1.5),
        ("interval 0.5 seconds", 0.5),
        ("interval 0 months 7 days", 7 * DAY),
        ("- 1 days +2 days", DAY),
        ("interval 0 seconds", 0.0),
    ],
)
def test_intervals_are_read_as_spark_writes_them(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "interval",
        "30",
        "interval 1 month",
        "1 year",
        "days 3",
        "interval -2 days",
        "interval 0.5 days",
        "P365D",
        "7days",
        "interval7 days",
        "interval interval 7 days",
        "interval 7 dayss",
        "2147483648 days",
        "1e9 days",
        "x",
    ],
)
def test_what_is_no_fixed_length_is_none(text: str) -> None:
    assert parse_interval(text) is None


def test_the_shorter_retention_counts_and_defaults_stand_in() -> None:
    assert retention_seconds({}) == 7 * DAY
    assert retention_seconds({LOG_RETENTION: "interval 2 days"}) == 2 * DAY
    kept = {LOG_RETENTION: "interval 60 days", DELETED_FILE_RETENTION: "interval 45 days"}
    assert retention_seconds(kept) == 45 * DAY
    assert duration_seconds({LOG_RETENTION: "soon"}, LOG_RETENTION) is None
    assert retention_seconds({DELETED_FILE_RETENTION: "soon"}) == 7 * DAY
