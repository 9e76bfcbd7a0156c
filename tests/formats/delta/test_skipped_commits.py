"""Commits that are left out by what their writers recorded, and change files that are ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.commit_filter import CommitFilter
from tailerd.errors import UsageError
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import open_table
from tailerd.storage.table_location import locate_table
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import EVERYTHING, read_batches
from tests.tables.lance_writer import LanceWriter
from tests.tables.opened import open_delta


def make_table(folder: Path) -> None:
    table = TableBuilder(folder)
    table.create()
    recorded = [("WRITE", ""), ("RESTORE", ""), ("WRITE", "backfill"), ("WRITE", "")]
    for number, (operation, text) in enumerate(recorded):
        info = {"timestamp": 0, "operation": operation} | ({"userMetadata": text} if text else {})
        table.commit(
            {"commitInfo": info},
            {"txn": {"appId": f"app-{number}", "version": 1}},
            table.data_file([{"id": number, "name": "a"}]),
            commit_info=False,
        )


async def ids(folder: Path, skips: CommitFilter, start: str = "0") -> list[int]:
    source = await open_delta(str(folder), OpenRequest(skips=skips))
    at = await source.initial_offset(start)
    found: list[int] = []
    while (end := await source.latest_offset(at, EVERYTHING)) != at:
        skipped = [group.version async for group in source.plan(at, end) if group.is_skipped]
        batches = await read_batches(source, at, end)
        assert not {batch.version for batch in batches} & set(skipped)
        found += [row for batch in batches for row in batch.rows.column("id").to_pylist()]
        at = end
    return found


@pytest.mark.parametrize(
    ("skips", "expected"),
    [
        (CommitFilter(operations=frozenset({"restore"})), [0, 2, 3]),
        (CommitFilter(operations=frozenset({"WRITE"})), [1]),
        (CommitFilter(application_ids=frozenset({"app-0", "app-3"})), [1, 2]),
        (CommitFilter(user_metadata="backfill"), [0, 1, 3]),
        (CommitFilter(user_metadata="back"), [0, 1, 2, 3]),
        (CommitFilter(operations=frozenset({"RESTORE"}), user_metadata="backfill"), [0, 3]),
    ],
)
async def test_commits_are_left_out_and_the_offset_goes_on(
    tmp_path: Path, skips: CommitFilter, expected: list[int]
) -> None:
    make_table(tmp_path)
    assert await ids(tmp_path, skips) == expected
    assert sorted(await ids(tmp_path, skips, "snapshot")) == [0, 1, 2, 3], "a snapshot has all rows"


async def test_a_log_that_does_not_know_the_writer_refuses(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append([{"id": 1, "name": "a"}])
    request = OpenRequest(skips=CommitFilter(user_metadata="x"))
    with pytest.raises(UsageError, match="cannot be skipped by user_metadata"):
        await open_table(locate_table(str(tmp_path / "t")), request)
    request = OpenRequest(skips=CommitFilter(operations=frozenset({"append"})))
    await open_table(locate_table(str(tmp_path / "t")), request)


@pytest.mark.parametrize("mode", [ChangeMode.AUTO, ChangeMode.COMPARE])
async def test_change_files_are_ignored_where_rows_are_compared(
    tmp_path: Path, mode: ChangeMode
) -> None:
    """The feed says less than what happened, which nobody notices by its counts."""
    table = TableBuilder(tmp_path, properties=CDF)
    rows: list[dict[str, Any]] = [{"id": number, "name": "a"} for number in range(3)]
    [add] = table.append(rows).adds
    changed = [{**row, "name": "b"} for row in rows]
    feed = table.cdc_file(
        [
            {**row, "_change_type": kind}
            for kind, image in (("update_preimage", rows), ("update_postimage", changed))
            for row in image
        ]
    )
    feed_less = table.data_file([*changed[:2], {"id": 2, "name": "c"}])
    table.commit(table.remove(add), feed_less, feed)
    source = await open_delta(str(tmp_path), OpenRequest(changes=mode))
    at = await source.initial_offset("1")
    batches = await read_batches(source, at, await source.latest_offset(at, EVERYTHING))
    names = [name for batch in batches for name in batch.rows.column("name").to_pylist()]
    sources = {batch.change_source for batch in batches}
    if mode is ChangeMode.COMPARE:
        assert (sorted(names), sources) == (["a", "a", "a", "b", "b", "c"], {"rows"})
    else:
        assert sources <= {"cdc", "rows"}
