"""Following a table where every question is a request: few are asked, nothing is missed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset
from tailerd.errors import MissingVersionError, NotATableError, TableRecreatedError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.log_continuity import (
    COPY_SECONDS,
    REMOTE_LISTING_SECONDS,
    SAFETY_LISTING_SECONDS,
)
from tailerd.formats.versioned_source import VersionedSource
from tailerd.storage.base import ObjectStore
from tailerd.storage.metered import MeteredStore
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.tables.builder import TableBuilder
from tests.tables.feed import EVERYTHING
from tests.tables.opened import open_delta

VERSIONS = 120
A_MOMENT = 2.0
"""Too short for a table of so many commits to take the place of another."""
A_WHILE = 100.0


class Followed:
    """A table whose log is followed as a pipeline does it, and what that asks of its store."""

    def __init__(self, table: TableBuilder) -> None:
        self.table = table
        self.clock = SimClock()
        self.meter: MeteredStore
        self.faulty: FaultyStore
        self.source: VersionedSource
        self.at: Offset

    async def open(self, *, is_bucket: bool = True) -> Followed:
        def wrap(store: ObjectStore) -> MeteredStore:
            if not is_bucket:
                self.meter = MeteredStore(store)
                return self.meter
            # Without folder marks, and not said to be near.
            self.faulty = FaultyStore(store)
            self.faulty.is_remote = True
            self.meter = MeteredStore(self.faulty)
            return self.meter

        self.source = await open_delta(
            str(self.table.folder), OpenRequest(wrap_store=wrap, clock=self.clock)
        )
        self.at = await self.source.initial_offset("latest")
        await self.poll(0)
        # Its first commit also reads the list of the table's files.
        self.commit()
        await self.poll(A_MOMENT)
        return self

    async def poll(self, after_seconds: float) -> dict[str, int]:
        """Look at the log as often as a pipeline does when it is woken; return the requests."""
        await self.clock.advance(after_seconds)
        self.meter.reset()
        while (end := await self.source.latest_offset(self.at, EVERYTHING)) != self.at:
            backlog = await self.source.backlog(self.at)
            assert backlog.versions == end.version - self.at.version
            assert backlog.oldest_undelivered_timestamp_ms is not None
            async for _ in self.source.plan(self.at, end):
                pass
            await self.source.commit(end)
            self.at = end
        return {kind: count for kind, count in self.meter.requests.items() if count}

    def commit(self) -> int:
        return self.table.append([{"id": 1, "name": "a"}]).version


def let_rest(table: TableBuilder) -> None:
    """Make the log as if nothing had happened to it for an hour."""
    status = table.log.stat()
    os.utime(table.log, ns=(status.st_atime_ns, status.st_mtime_ns - 3600 * 10**9))


@pytest.fixture
async def followed(tmp_path: Path) -> Followed:
    table = TableBuilder(tmp_path / "t")
    for number in range(VERSIONS):
        table.append([{"id": number, "name": ""}])
    return await Followed(table).open()


async def test_an_idle_look_is_one_get(followed: Followed) -> None:
    for _ in range(5):
        assert await followed.poll(A_MOMENT) == {"get": 1}


async def test_an_idle_look_at_a_folder_reads_nothing_and_misses_nothing(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t")
    for number in range(3):
        table.append([{"id": number, "name": ""}])
    followed = await Followed(table).open(is_bucket=False)
    for _ in range(2):
        let_rest(table)
        # One listing shows the folder as it is now that it rests.
        assert await followed.poll(2 * SAFETY_LISTING_SECONDS) == {"get": 1, "list": 1}
        for _ in range(3):
            assert await followed.poll(A_MOMENT) == {"head": 1}
        version = followed.commit()
        await followed.poll(A_MOMENT)
        assert followed.at.version == version + 1


async def test_a_commit_is_seen_though_its_folder_keeps_the_time_of_before(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": 1, "name": ""}])
    followed = await Followed(table).open(is_bucket=False)
    let_rest(table)
    await followed.poll(2 * SAFETY_LISTING_SECONDS)
    status = table.log.stat()
    version = followed.commit()
    # As tools do that copy a folder with its times.
    os.utime(table.log, ns=(status.st_atime_ns, status.st_mtime_ns))
    await followed.poll(A_MOMENT)
    assert followed.at.version == version + 1


async def test_a_commit_is_got_by_its_name_and_the_next_asked_for_once(
    followed: Followed,
) -> None:
    for _ in range(3):
        version = followed.commit()
        assert await followed.poll(A_MOMENT) == {"get": 2}
        assert followed.at.version == version + 1


async def test_many_commits_are_one_get_each_and_one_more(followed: Followed) -> None:
    for _ in range(10):
        followed.commit()
    assert await followed.poll(A_MOMENT) == {"get": 11}


async def test_after_a_while_one_listing_tells_whether_it_is_still_the_same_table(
    followed: Followed,
) -> None:
    followed.commit()
    assert A_WHILE > VERSIONS * COPY_SECONDS
    assert await followed.poll(A_WHILE) == {"get": 1, "list": 1}


async def test_the_safety_net_is_one_listing_in_place_of_the_get(followed: Followed) -> None:
    assert await followed.poll(REMOTE_LISTING_SECONDS) == {"list": 1}
    followed.commit()
    assert await followed.poll(REMOTE_LISTING_SECONDS) == {"list": 1, "get": 1}


async def test_a_table_dropped_is_noticed_by_the_safety_net(followed: Followed) -> None:
    shutil.rmtree(followed.table.log)
    assert await followed.poll(A_MOMENT) == {"get": 1}
    with pytest.raises(NotATableError):
        await followed.poll(REMOTE_LISTING_SECONDS)


async def test_another_table_that_grew_past_the_offset_is_noticed_with_its_first_commit(
    followed: Followed,
) -> None:
    shutil.rmtree(followed.table.folder)
    other = TableBuilder(followed.table.folder, table_id="another")
    for number in range(VERSIONS + 2):
        other.append([{"id": number, "name": "other"}])
    with pytest.raises(TableRecreatedError):
        await followed.poll(A_WHILE)


async def test_a_version_told_of_that_is_not_the_next_shows_the_gap_at_once(
    followed: Followed,
) -> None:
    followed.table.version += 1
    later = followed.commit()
    assert await followed.poll(A_MOMENT) == {"get": 1}
    followed.source.notify(later)
    with pytest.raises(MissingVersionError):
        await followed.poll(A_MOMENT)


async def test_a_version_told_of_wrongly_costs_one_listing_once(followed: Followed) -> None:
    followed.source.notify(VERSIONS + 5)
    assert await followed.poll(A_MOMENT) == {"get": 1, "list": 1}
    assert await followed.poll(A_MOMENT) == {"get": 1}


async def test_a_stale_listing_costs_time_but_no_commit(followed: Followed) -> None:
    followed.commit()
    version = followed.commit()
    followed.faulty.hide_from_listings(
        f"{version:020}.json", f"{version - 1:020}.json", f"{version - 2:020}.json"
    )
    await followed.poll(A_WHILE)
    await followed.poll(A_MOMENT)
    assert followed.at.version == version + 1
