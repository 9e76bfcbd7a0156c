"""A table without commits since a time: for every format, command, Python and Spark."""

from __future__ import annotations

import datetime as dt
import threading
import time
from pathlib import Path

import pytest

import tailerd
from tailerd.cli import run
from tailerd.errors import UsageError
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import open_table
from tailerd.spark.change_range import batch_range, starting_offset
from tailerd.spark.options import ReadOptions
from tailerd.storage.table_location import locate_table
from tests.formats.conftest import Table


def quiet(table: Table) -> str:
    """Commit, and return a time after that."""
    table.append([1, 2])
    time.sleep(0.01)
    return dt.datetime.now(dt.UTC).isoformat()


def test_once_and_python_have_no_rows_since_a_quiet_time(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    since = quiet(table)
    location, ledger = str(table.location), None
    options = ["--table-format", table.format, "--format", "jsonl", "--once"]
    if table.ledger is not None:
        ledger = str(table.ledger.location)
        options += ["--ledger", ledger]
    for start in (since, "-0s"):
        assert run(["tail", location, "--from", start, *options]) == 0
        assert capsys.readouterr() == ("", "")
        changes = tailerd.changes(location, since=start, ledger=ledger, table_format=table.format)
        assert list(changes) == []
    assert run(["tail", location, "--from", "2999-01-01", *options]) == 2
    assert "is in the future" in capsys.readouterr().err
    with pytest.raises(UsageError, match="in the future"):
        list(tailerd.changes(location, since="2999-01-01", ledger=ledger))


def test_following_from_a_quiet_time_begins_with_the_next_commit(
    table: Table, tmp_path: Path
) -> None:
    quiet(table)
    ledger = None if table.ledger is None else str(table.ledger.location)
    follower = tailerd.follow(
        str(table.location),
        since="-0s",
        ledger=ledger,
        poll_seconds=0.05,
        table_format=table.format,
    )
    batches = iter(follower)

    def commit(number: int) -> None:
        time.sleep(1)
        table.append([number])

    writer = threading.Thread(target=commit, args=(7,))
    writer.start()
    found = next(batches)
    writer.join()
    assert found.rows.column("id").to_pylist() == [7]
    batches.close()  # type: ignore[attr-defined]


async def test_spark_has_no_rows_since_a_quiet_time_and_a_stream_waits(table: Table) -> None:
    since = quiet(table)
    options = ReadOptions.parse({"path": str(table.location), "startingTimestamp": since})
    request = OpenRequest(ledger=table.ledger)
    source = await open_table(locate_table(str(table.location)), request, table.format)
    start, end = await batch_range(source, options)
    assert not start.is_before(end)
    latest = await source.initial_offset("latest")
    assert await starting_offset(source, options, snapshot_by_default=True) == latest
