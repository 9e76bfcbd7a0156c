"""Times as people say them: `-2h`, `yesterday`, `today`."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest

from tailerd.changefeed.points import parse_point, resolved_point
from tailerd.errors import UsageError
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder

NOW = dt.datetime(2026, 11, 23, 1, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-2h", "2026-11-22T21:30:00+00:00"),
        ("-90s", "2026-11-22T23:28:30+00:00"),
        ("-1.5d", "2026-11-21T11:30:00+00:00"),
        (" -1W ", "2026-11-15T23:30:00+00:00"),
        ("today", "2026-11-22T00:00:00+00:00"),
        ("Yesterday", "2026-11-21T00:00:00+00:00"),
        ("12", "12"),
        ("snapshot", "snapshot"),
        ("2026-11-21", "2026-11-21"),
        ("-2", "-2"),
        ("--2h", "--2h"),
    ],
)
def test_relative_times_become_absolute_and_all_else_stays(text: str, expected: str) -> None:
    assert resolved_point(text, NOW) == expected


def test_a_time_too_long_ago_is_refused() -> None:
    with pytest.raises(UsageError, match="too long ago"):
        resolved_point("-999999999w", NOW)


def test_what_is_resolved_is_a_point() -> None:
    assert isinstance(parse_point(resolved_point("-2h", NOW)), dt.datetime)


def test_tail_takes_relative_times(tmp_path: Path, command: Commands) -> None:
    table = TableBuilder(tmp_path, start_ms=None)
    table.create()
    table.append([{"id": 1}])
    ran = command("tail", table.folder, "--from", "-2h", "--once", "--format", "jsonl")
    assert [json.loads(line)["id"] for line in ran.output.splitlines()] == [1]
    late = command("inspect", table.folder, "--timestamp", "yesterday")
    assert (late.status, "[missing_version]" in late.errors) == (3, True)


ABSURD = [10**18, -(10**18), 2**63 - 1]


@pytest.mark.parametrize("time_ms", ABSURD)
def test_a_commit_with_an_absurd_time_is_shown_and_not_delivered(
    tmp_path: Path, command: Commands, time_ms: int
) -> None:
    builder = TableBuilder(
        tmp_path / "orders", properties={"delta.enableInCommitTimestamps": "true"}
    )
    builder.append([{"id": 1}])
    builder.append([{"id": 2}], in_commit_ms=time_ms)
    for name in ("history", "inspect", "growth"):
        ran = command(name, builder.folder)
        assert (ran.status, ran.errors) == (0, ""), name
    assert str(time_ms) in command("history", builder.folder, "--json").output
    ran = command("tail", builder.folder, "--from", "0", "--once", "--format", "jsonl")
    assert ran.status == 3
    assert "corrupt_log" in ran.errors
    assert f"has the time {time_ms} ms" in ran.errors
    assert len(ran.output.splitlines()) == 1
