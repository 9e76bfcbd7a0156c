from __future__ import annotations

import datetime

import pytest

from tailerd.changefeed.points import StartWord, parse_point, parse_start, show_ms, to_ms
from tailerd.errors import UsageError

UTC = datetime.UTC


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("snapshot", StartWord.SNAPSHOT),
        (" LATEST\n", StartWord.LATEST),
        ("0", 0),
        ("12", 12),
        ("2024-02-29", datetime.datetime(2024, 2, 29, tzinfo=UTC)),
        ("2024-02-29T12:00", datetime.datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("2024-02-29 12:00:00.5Z", datetime.datetime(2024, 2, 29, 12, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_a_start_is_a_word_a_version_or_a_time(text: str, meaning: object) -> None:
    assert parse_start(text) == meaning


def test_a_zone_moves_the_moment() -> None:
    east, utc = parse_point("2024-01-01T02:00+02:00"), parse_point("2024-01-01")
    assert east == utc


@pytest.mark.parametrize("text", ["", "now", "-1", "+1", "1e3", "١٢", "2024-02-30", "snapshots"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither snapshot, latest, a version nor a time"):
        parse_start(text)


@pytest.mark.parametrize("text", ["snapshot", "latest"])
def test_an_end_is_no_word(text: str) -> None:
    with pytest.raises(UsageError):
        parse_point(text)


def test_milliseconds_are_rounded_toward_the_commits_that_are_meant() -> None:
    time = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_400, tzinfo=UTC)
    assert to_ms(time) == -1
    assert to_ms(time, round_up=True) == 0
    assert show_ms(-1) == "1969-12-31T23:59:59.999Z"
    assert show_ms(1_704_067_200_000) == "2024-01-01T00:00:00.000Z"
