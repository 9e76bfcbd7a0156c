"""The keeper measures what pipelines tell of, over real tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.stats.table_growth import TableGrowth
from tailerd.pipeline.growth_tracker import RETRY_SECONDS, GrowthTracker
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events
from tests.doubles.sim_clock import SimClock
from tests.tables.builder import TableBuilder

ROWS: list[dict[str, object]] = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


class Kept:
    """A keeper with what it tells."""

    def __init__(self) -> None:
        self.reported: list[events.Event] = []
        self.past: list[events.Event] = []
        self.clock = SimClock()
        self.opened = 0
        self.while_opening: Callable[[], None] = lambda: None
        self.keeper = GrowthTracker(
            self.open,
            telemetry=Telemetry([self.notify]),
            clock=self.clock,
        )

    async def open(self, table: str, location: str) -> TableGrowth:
        assert table == "orders"
        self.opened += 1
        self.while_opening()
        return TableGrowth(LogReader(*Stores().locate(location), with_rows=True))

    def notify(self, event: events.Event) -> None:
        is_past = isinstance(event, events.CommitObserved | events.SchemaObserved)
        (self.past if is_past else self.reported).append(event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def start(self, location: Path | str) -> None:
        self.keeper.handle(
            events.PipelineStarted(
                table="orders", source=str(location), sink="file", engine="arrow"
            )
        )

    def remove(self) -> None:
        self.keeper.handle(
            events.TableRemoved(table="orders", engine="arrow", path="", reason="It is gone.")
        )

    def holds(self) -> bool:
        """Tell whether anything is kept of the table."""
        keeper = self.keeper
        kept = (keeper._reported, keeper._dirty, keeper._maintained, keeper._tables)
        return any("orders" in each for each in (*kept, keeper._failed_at))

    async def pass_time(self, seconds: float) -> None:
        for _ in range(60):
            await asyncio.sleep(0.002)
            await self.clock.advance(seconds / 60)

    def save(self, table_id: str, version: int, phase: Phase = Phase.FOLLOW, at: int = 0) -> None:
        offset = Offset(table_id=table_id, version=Version(version), phase=phase, position=at)
        self.keeper.handle(
            events.OffsetSaved(
                table="orders",
                engine="arrow",
                version=version,
                offset=offset.to_json(),
                duration_seconds=0.0,
            )
        )

    async def next_told(self, seconds: float = 1.0) -> events.Event:
        """Let time pass until something more is told; return it."""
        before = len(self.reported)
        for _ in range(400):
            await asyncio.sleep(0.005)
            if len(self.reported) > before:
                return self.reported[-1]
            await self.clock.advance(seconds / 10)
        raise AssertionError("nothing was told")


def make_table(folder: Path, commits: int) -> tuple[TableBuilder, str]:
    table = TableBuilder(folder)
    for _ in range(commits):
        table.append(ROWS)
    return table, table.table_id


async def test_a_table_is_measured_and_then_followed(tmp_path: Path) -> None:
    table, table_id = make_table(tmp_path, 3)
    kept = Kept()
    async with kept.running():
        kept.start(tmp_path)
        kept.save(table_id, 2)
        first = await kept.next_told()
        assert isinstance(first, events.TableMeasured)
        assert (first.version, first.files, first.rows) == (2, 3, 6)
        assert first.pending_files == 1
        table.append(ROWS)
        kept.save(table_id, 3)
        second = await kept.next_told()
        assert isinstance(second, events.TableMeasured)
        assert (second.version, second.rows, second.pending_files) == (3, 8, 1)
        kept.save(table_id, 4)
        third = await kept.next_told()
        assert isinstance(third, events.TableMeasured)
        assert (third.pending_files, third.pending_bytes) == (0, 0)


async def test_what_was_heard_before_it_runs_is_not_lost(tmp_path: Path) -> None:
    _, table_id = make_table(tmp_path, 1)
    kept = Kept()
    kept.start(tmp_path)
    kept.save(table_id, 1)
    async with kept.running():
        assert isinstance(await kept.next_told(), events.TableMeasured)


async def test_a_snapshot_that_is_half_delivered_is_pending_by_half(tmp_path: Path) -> None:
    _, table_id = make_table(tmp_path, 8)
    kept = Kept()
    kept.start(tmp_path)
    kept.save(table_id, 7, Phase.SNAPSHOT, 1 << 63)
    async with kept.running():
        reported = await kept.next_told()
    assert isinstance(reported, events.TableMeasured)
    assert reported.pending_files == 4
    assert reported.pending_bytes == round(reported.bytes / 2)


async def test_an_offset_that_was_moved_back_is_followed_from_there(tmp_path: Path) -> None:
    _, table_id = make_table(tmp_path, 5)
    kept = Kept()
    kept.start(tmp_path)
    kept.save(table_id, 5)
    async with kept.running():
        first = await kept.next_told()
        assert isinstance(first, events.TableMeasured)
        assert first.pending_files == 0
        kept.save(table_id, 1)
        reported = await kept.next_told()
    assert isinstance(reported, events.TableMeasured)
    assert reported.pending_files == 4


async def test_another_table_at_the_location_is_opened_again(tmp_path: Path) -> None:
    table, table_id = make_table(tmp_path, 3)
    kept = Kept()
    kept.start(tmp_path)
    kept.save(table_id, 3)
    async with kept.running():
        await kept.next_told()
        for path in table.log.iterdir():
            path.unlink()
        other = TableBuilder(tmp_path, table_id="another")
        other.append(ROWS)
        kept.save("another", 1)
        reported = await kept.next_told()
    assert isinstance(reported, events.TableMeasured)
    assert (reported.version, reported.files) == (0, 1)


async def test_a_table_that_cannot_be_read_is_told_and_tried_again_later(tmp_path: Path) -> None:
    kept = Kept()
    kept.start(tmp_path)
    kept.save("t", 1)
    async with kept.running():
        failed = await kept.next_told()
        assert isinstance(failed, events.GrowthUnavailable)
        assert failed.error_code == "not_a_table"
        make_table(tmp_path, 1)
        reported = await kept.next_told(RETRY_SECONDS)
        assert isinstance(reported, events.TableMeasured)


async def test_commits_and_schemas_that_come_are_told_one_by_one(tmp_path: Path) -> None:
    table, table_id = make_table(tmp_path, 2)
    kept = Kept()
    async with kept.running():
        kept.start(tmp_path)
        kept.save(table_id, 2)
        await kept.next_told()
        table.append(ROWS, operation="WRITE")
        table.change_metadata(fields=[("id", "long"), ("name", "string"), ("tags", "date")])
        kept.save(table_id, 4)
        await kept.next_told()
    commits = [each for each in kept.past if isinstance(each, events.CommitObserved)]
    schemas = [each for each in kept.past if isinstance(each, events.SchemaObserved)]
    first = commits[0]
    assert (first.operation, first.files_added, first.rows_added) == ("WRITE", 1, 2)
    assert commits[0].bytes_added > 0
    assert [each.version for each in commits] == [2, 3]
    assert [each.columns for each in schemas] == [
        (("id", "long"), ("name", "string")),
        (("id", "long"), ("name", "string"), ("tags", "date")),
    ]


async def test_a_checkpoint_of_our_own_is_seen_at_once(tmp_path: Path) -> None:
    table, table_id = make_table(tmp_path, 3)
    kept = Kept()
    async with kept.running():
        kept.start(tmp_path)
        kept.save(table_id, 3)
        before = await kept.next_told()
        table.checkpoint()
        kept.keeper.handle(
            events.LogMaintained(
                table="orders",
                job="checkpoint",
                version=2,
                result="written",
                files=1,
                bytes=100,
                duration_seconds=0.1,
                reason="Due.",
                summary="Wrote it.",
            )
        )
        after = await kept.next_told()
    assert isinstance(before, events.TableMeasured)
    assert isinstance(after, events.TableMeasured)
    assert (before.checkpoint_version, before.commits_since_checkpoint) == (None, 3)
    assert (after.checkpoint_version, after.commits_since_checkpoint) == (2, 0)


async def test_a_table_that_is_removed_is_forgotten(tmp_path: Path) -> None:
    table, table_id = make_table(tmp_path / "orders", 3)
    kept = Kept()
    async with kept.running():
        kept.start(table.folder)
        kept.save(table_id, 3)
        assert isinstance(await kept.next_told(), events.TableMeasured)
        kept.remove()
        for version in (4, 5):
            table.append(ROWS)
            # An offset that was on its way.
            kept.save(table_id, version)
        before = len(kept.reported) + len(kept.past)
        await kept.pass_time(3 * RETRY_SECONDS)
        assert len(kept.reported) + len(kept.past) == before
        assert not kept.holds()
        # The name may come again, for another table.
        other, other_id = make_table(tmp_path / "other", 2)
        kept.start(other.folder)
        kept.save(other_id, 2)
        reported = await kept.next_told()
        assert isinstance(reported, events.TableMeasured)
        assert reported.version == 1


async def test_a_table_that_fails_and_is_removed_is_tried_no_more(tmp_path: Path) -> None:
    kept = Kept()
    kept.start(tmp_path)
    kept.save("t", 1)
    async with kept.running():
        assert isinstance(await kept.next_told(), events.GrowthUnavailable)
        kept.remove()
        make_table(tmp_path, 1)
        await kept.pass_time(3 * RETRY_SECONDS)
        assert len(kept.reported) == 1
        assert not kept.holds()


async def test_a_table_that_is_removed_while_it_is_looked_at_is_not_told(tmp_path: Path) -> None:
    table, table_id = make_table(tmp_path, 3)
    kept = Kept()
    kept.start(table.folder)
    kept.save(table_id, 3)
    kept.while_opening = kept.remove
    async with kept.running():
        await kept.pass_time(RETRY_SECONDS)
    assert kept.opened == 1
    assert not kept.reported
    assert not kept.past
    assert not kept.holds()


async def test_a_name_that_means_a_copy_of_the_table_is_opened_at_its_new_location(
    tmp_path: Path,
) -> None:
    table, table_id = make_table(tmp_path / "orders", 3)
    kept = Kept()
    async with kept.running():
        kept.start(table.folder)
        kept.save(table_id, 3)
        await kept.next_told()
        copy = TableBuilder(tmp_path / "copy", table_id=table_id)
        for _ in range(4):
            copy.append(ROWS)
        kept.start(copy.folder)
        kept.save(table_id, 4)
        reported = await kept.next_told()
    assert isinstance(reported, events.TableMeasured)
    assert reported.version == 3
