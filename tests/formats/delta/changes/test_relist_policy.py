"""A log at rest is not listed again and again, and whatever happens to it is noticed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tailerd.formats.delta.changes.log_continuity import SAFETY_LISTING_SECONDS, RelistPolicy
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.storage.local import LocalStore
from tailerd.storage.metered import MeteredStore
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.tables.builder import TableBuilder

A_WHILE = 10 * SAFETY_LISTING_SECONDS


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": 1}])
    table.append([{"id": 2}])
    return table


def let_rest(table: TableBuilder) -> None:
    """Make the log as if nothing had happened to it for an hour."""
    status = table.log.stat()
    os.utime(table.log, ns=(status.st_atime_ns, status.st_mtime_ns - 3600 * 10**9))


async def noted(table: TableBuilder, clock: SimClock) -> tuple[RelistPolicy, LogFile]:
    """Return the need right after a listing of a log, and its newest commit."""
    reader = LogReader(MeteredStore(LocalStore()), str(table.folder))
    need = RelistPolicy(reader, clock)
    assert await need.is_due(None)
    await need.note()
    seen = await reader.commit_file(table.version)
    assert seen is not None
    return need, seen


async def test_a_log_at_rest_is_never_listed_again(table: TableBuilder) -> None:
    let_rest(table)
    clock = SimClock()
    need, seen = await noted(table, clock)
    await clock.advance(A_WHILE)
    assert not await need.is_due(seen)


async def test_a_file_that_came_or_went_makes_a_listing_due_at_once(table: TableBuilder) -> None:
    let_rest(table)
    need, seen = await noted(table, SimClock())
    table.commit(version=7)
    assert await need.is_due(seen)
    # A file system may date both to one tick of the kernel's clock.
    let_rest(table)
    await need.note()
    assert not await need.is_due(seen)
    table.commit_path(0).unlink()
    assert await need.is_due(seen)


async def test_a_log_that_another_replaced_is_listed(table: TableBuilder) -> None:
    let_rest(table)
    need, seen = await noted(table, SimClock())
    kept = table.log.with_name("kept")
    shutil.copytree(table.log, kept)
    table.log.rename(table.log.with_name("old"))
    kept.rename(table.log)
    assert await need.is_due(seen)


async def test_a_newest_commit_that_was_written_over_in_place_is_noticed(
    table: TableBuilder,
) -> None:
    let_rest(table)
    need, seen = await noted(table, SimClock())
    with table.commit_path(table.version).open("a") as file:
        file.write("\n")
    assert await need.is_due(seen)


async def test_what_changed_only_just_is_listed_once_more_after_a_while(
    table: TableBuilder,
) -> None:
    clock = SimClock()
    need, seen = await noted(table, clock)
    assert not await need.is_due(seen)
    await clock.advance(SAFETY_LISTING_SECONDS)
    assert await need.is_due(seen)


async def test_without_a_mark_time_decides(table: TableBuilder) -> None:
    let_rest(table)
    clock = SimClock()
    reader = LogReader(FaultyStore(LocalStore()), str(table.folder))
    need = RelistPolicy(reader, clock)
    await need.note()
    assert not await need.is_due(None)
    await clock.advance(SAFETY_LISTING_SECONDS)
    assert await need.is_due(None)


async def test_a_log_that_is_gone_is_due(table: TableBuilder) -> None:
    let_rest(table)
    clock = SimClock()
    need, seen = await noted(table, clock)
    shutil.rmtree(table.log)
    assert await need.is_due(seen)
