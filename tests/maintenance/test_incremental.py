"""V2 checkpoints name untouched sidecars again, and stay right however long that goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import CheckpointResult, LogWriter
from tailerd.formats.delta.protocol import sidecar
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.formats.delta.stats.table_growth import SnapshotCache
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import assert_described, assert_is, live_files
from tests.formats.delta.log_bodies import add, remove
from tests.maintenance.written import (
    assert_same,
    checkpoint_actions,
    checkpoint_of,
    expected,
    state_of,
)
from tests.tables.builder import START_MS, TableBuilder

DAY = 86_400_000
NOW = START_MS + DAY


class Held:
    """A snapshot that is advanced and rebased, as a daemon holds one."""

    def __init__(self, table: TableBuilder) -> None:
        self.table = table
        self.reader = LogReader(LocalStore(), str(table.folder))
        self.cache = SnapshotCache(self.reader)
        self.snapshot: Snapshot | None = None
        self.clock = SimClock(NOW)

    async def checkpoint(self) -> CheckpointResult:
        if self.snapshot is None:
            self.snapshot = await self.reader.open()
        while file := await self.reader.commit_file(self.snapshot.version + 1):
            body = await self.reader.read_commit(file)
            self.snapshot = self.snapshot.advance(body.commit)
        result = await LogWriter(self.reader, clock=self.clock).write_checkpoint(self.snapshot)
        if result.rebased is not None:
            self.snapshot = result.rebased
        return result

    async def check(self) -> None:
        version = self.table.version
        state = self.table.state()
        actions = checkpoint_actions(self.table.log, version)
        assert_same(state_of(actions, version), expected(state, now_ms=self.clock.now_ms()))
        assert self.snapshot is not None
        for snapshot in (self.snapshot, await LogReader(LocalStore(), self.reader.root).open()):
            assert_is(snapshot, state)
            assert_described(await live_files(self.reader, snapshot), state)


@pytest.fixture(autouse=True, params=[1, 100], ids=["copied", "decoded"])
def copied_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small row groups be copied, as large ones are, or decoded."""
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", request.param)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path, reader_features=["v2Checkpoint", "deletionVectors"])
    table.create(*(add(f"a{n}", stats=json.dumps({"numRecords": n})) for n in range(5)))
    return table


def sidecars_of(table: TableBuilder) -> list[str]:
    lines = checkpoint_of(table.log, table.version).read_text().splitlines()
    return [body["sidecar"]["path"] for line in lines if "sidecar" in (body := json.loads(line))]


async def test_appends_add_a_sidecar_and_touch_none(table: TableBuilder) -> None:
    held = Held(table)
    first = await held.checkpoint()
    before = sidecars_of(table)
    table.commit(add("b0"), add("b1"))
    second = await held.checkpoint()
    await held.check()
    assert first.reused_files == ()
    assert second.reused_files == tuple(f"_sidecars/{name}" for name in before)
    assert len(sidecars_of(table)) == 2
    assert sidecars_of(table)[:1] == before
    assert len(second.files) == 2


async def test_a_sidecar_that_lost_a_file_is_written_again(table: TableBuilder) -> None:
    held = Held(table)
    await held.checkpoint()
    table.commit(add("b"))
    await held.checkpoint()
    [old, new] = sidecars_of(table)
    table.commit(remove("a1", deletionTimestamp=NOW))
    result = await held.checkpoint()
    await held.check()
    assert old not in sidecars_of(table)
    assert new in sidecars_of(table)
    assert result.reused_files == (f"_sidecars/{new}",)


async def test_a_sidecar_of_removes_goes_when_one_is_undone(table: TableBuilder) -> None:
    held = Held(table)
    table.commit(remove("a1", deletionTimestamp=NOW), remove("a2", deletionTimestamp=NOW))
    await held.checkpoint()
    table.commit(add("b"))
    kept = await held.checkpoint()
    assert len(kept.reused_files) == 2
    table.commit(add("a1"))
    result = await held.checkpoint()
    await held.check()
    # The files stay; the removes and the file that came again are new.
    assert len(result.reused_files) == 2
    assert len(result.files) == 3


async def test_a_sidecar_of_removes_goes_when_most_have_expired(table: TableBuilder) -> None:
    held = Held(table)
    table.commit(remove("a1", deletionTimestamp=NOW), remove("a2", deletionTimestamp=NOW))
    await held.checkpoint()
    held.clock.jump_wall(8 * DAY)
    table.commit(add("b"))
    result = await held.checkpoint()
    await held.check()
    assert len(result.reused_files) == 1


async def test_small_sidecars_are_folded(table: TableBuilder) -> None:
    held = Held(table)
    most = 0
    for number in range(3 * sidecar.MAX_SMALL):
        table.commit(add(f"b{number}"))
        await held.checkpoint()
        most = max(most, len(sidecars_of(table)))
    await held.check()
    assert most == sidecar.MAX_SMALL


async def test_full_sidecars_are_not_folded(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.sidecar_writer.SIDECAR_FILES", 2)
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.ROWS_AT_ONCE", 2)
    monkeypatch.setattr(sidecar, "SMALL_FILES", 1)
    held = Held(table)
    await held.checkpoint()
    before = sidecars_of(table)
    for number in range(2 * sidecar.MAX_SMALL):
        table.commit(add(f"b{number}"), add(f"c{number}"))
        await held.checkpoint()
    await held.check()
    assert set(before) <= set(sidecars_of(table))
    assert len(before) + 2 * sidecar.MAX_SMALL == len(sidecars_of(table))


@pytest.mark.parametrize("layout", ["v2-json", "v2-parquet", "v2-classic"])
async def test_sidecars_of_other_writers_are_reused(table: TableBuilder, layout: str) -> None:
    table.commit(*(add(f"b{number}") for number in range(5)))
    table.checkpoint(layout=layout, sidecars=2)  # type: ignore[arg-type]
    names = {path.name for path in (table.log / "_sidecars").iterdir()}
    table.commit(remove("a1", deletionTimestamp=NOW))
    held = Held(table)
    result = await held.checkpoint()
    await held.check()
    assert len(result.reused_files) == 1
    assert result.reused_files[0].rpartition("/")[2] in names


async def test_a_manifest_whose_sidecar_vanished_is_withdrawn(table: TableBuilder) -> None:
    held = Held(table)
    await held.checkpoint()
    [sidecar] = sidecars_of(table)
    table.commit(add("b"))

    class Cleaning(LocalStore):
        async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
            await super().put(path, data, if_absent=if_absent)
            (table.log / "_sidecars" / sidecar).unlink()

    held.reader.store = Cleaning()
    with pytest.raises(CorruptLogError, match="was deleted while"):
        await held.checkpoint()
    assert not list(table.log.glob(f"{1:020}.checkpoint*"))


def test_rows_of_a_held_snapshot_are_found_after_many_checkpoints(table: TableBuilder) -> None:
    async def long_life() -> None:
        held = Held(table)
        for number in range(30):
            kept = [path for path, _ in table.state().adds]
            table.commit(
                add(f"b{number}"),
                remove(kept[number % len(kept)], deletionTimestamp=NOW - number * DAY // 2),
            )
            if number % 3 == 0:
                await held.checkpoint()
                await held.check()

    asyncio.run(long_life())


@pytest.mark.parametrize("policy", ["classic", "v2"])
async def test_a_transaction_that_expired_is_not_missed_by_the_next_checkpoint(
    tmp_path: Path, policy: str
) -> None:
    table = TableBuilder(
        tmp_path,
        reader_features=["v2Checkpoint"],
        properties={
            "delta.setTransactionRetentionDuration": "interval 1 days",
            "delta.checkpointPolicy": policy,
        },
    )
    table.create({"txn": {"appId": "old", "version": 1, "lastUpdated": NOW}}, add("a"))
    held = Held(table)
    for day, kept in enumerate((["old"], [], [], ["old"])):
        table.commit(add(f"b{day}"))
        if day == 3:
            time = held.clock.now_ms() + 2 * DAY
            table.commit({"txn": {"appId": "old", "version": 2, "lastUpdated": time}})
        assert (await held.checkpoint()).outcome == "written"
        assert held.snapshot is not None
        assert list(held.snapshot.transactions) == kept
        opened = await held.reader.open()
        assert list(opened.transactions) == kept
        held.clock.jump_wall(2 * DAY)
