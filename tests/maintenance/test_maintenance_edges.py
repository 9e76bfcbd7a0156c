"""Maintenance and state where files vanish, clocks run on, names are bytes and storages hang."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.daemon.offsets import open_state, reset_offset
from tailerd.errors import LogChangedError, StateInUseError, StorageError
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.maintenance import policies as delta_policies
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.formats.delta.maintenance.policies import (
    MAX_COMPACTION_BYTES,
    CheckpointPolicy,
    ChecksumPolicy,
    CommitFigures,
    LogCompactionPolicy,
    LogStats,
    Policies,
)
from tailerd.formats.maintenance import CleanupPolicy
from tailerd.maintenance.pins import Pin, PinBoard
from tailerd.maintenance.programs import encode_result
from tailerd.state.leased_files import LeasedFiles
from tailerd.state.state import Offsets
from tailerd.storage import lease as lease_module
from tailerd.storage.base import FileMeta
from tailerd.storage.lease import Lease
from tailerd.storage.local import LocalStore
from tailerd.storage.memory import MemoryStore
from tailerd.storage.output import Output
from tailerd.telemetry import events
from tests.contracts.test_offset_store import saved
from tests.doubles.owned_state import leased_state
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.log_bodies import add
from tests.maintenance.test_cleanup import DAY, FIRST, OLD_SIDECAR, commits_of, daily
from tests.maintenance.test_jobs import do_all
from tests.maintenance.test_table_maintainer import Turns
from tests.state.test_snapshot_manifest import ListedFiles
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.attack


TODAY = FIRST + 40 * DAY
HOUR = 3_600_000
ROOT = "/lake/state"

# ---------------------------------------------------------------- a lease whose files vanish


async def vanish(store: MemoryStore, folder: str = f"{ROOT}/lease") -> None:
    """Delete what a lifecycle rule would."""
    for path in [meta.path async for meta in store.list_from(folder)]:
        await store.delete(path)


@pytest.mark.parametrize("behind_ms", [0, 400 * DAY])
async def test_a_state_whose_lease_vanished_can_be_used_again(behind_ms: int) -> None:
    store = MemoryStore()
    for _ in range(3):
        first = leased_state(store, ROOT, SimClock(TODAY))
        async with first.hold():
            await first.offsets.save("orders", saved(4))
    await vanish(store)
    second = leased_state(store, ROOT, SimClock(TODAY + DAY - behind_ms))
    async with second.hold():
        assert await second.offsets.load("orders") == saved(4)
        await second.offsets.save("orders", saved(5))
    third = leased_state(store, ROOT, SimClock(TODAY + 2 * DAY - behind_ms))
    async with third.hold():
        assert await third.offsets.load("orders") == saved(5)


@pytest.mark.parametrize("behind_ms", [0, 400 * DAY])
@pytest.mark.parametrize("is_saved", [True, False])
async def test_who_slept_while_its_lease_vanished_saves_no_more(
    behind_ms: int, is_saved: bool
) -> None:
    store = MemoryStore()
    sleeper = leased_state(store, ROOT, SimClock(TODAY), holder="old")
    async with sleeper.hold():
        await sleeper.offsets.save("orders", saved(4))
        await vanish(store)
        now_ms = TODAY + DAY - behind_ms
        successor = leased_state(store, ROOT, SimClock(now_ms), holder="new")
        async with successor.hold():
            assert await successor.offsets.load("orders") == saved(4)
            if is_saved:
                await successor.offsets.save("orders", saved(6))
            with pytest.raises(StateInUseError, match="taken over by new"):
                await sleeper.offsets.save("orders", saved(5))
            assert await successor.offsets.load("orders") == saved(6 if is_saved else 4)


# ---------------------------------------------------------------- a pin whose name is bytes


def pin_of_bytes(table: TableBuilder, body: str) -> None:
    folder = table.folder / "_tailerd" / "pins"
    folder.mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(folder) + b"/export-\xff.json")).write_text(body)


@pytest.mark.parametrize(("body", "oldest"), [('{"version": 5}', 3), ("{", 0)])
async def test_a_pin_whose_name_is_no_text_counts_and_blocks_no_other_job(
    tmp_path: Path, body: str, oldest: int
) -> None:
    table = daily(tmp_path)
    for version in (3, 7):
        table.checkpoint(version)
    pin_of_bytes(table, body)
    policies = Policies(
        checkpoint=CheckpointPolicy(every_commits=3, min_interval_seconds=0),
        cleanup=CleanupPolicy(is_enabled=True),
    )
    turns = Turns(table, policies, clock=SimClock(TODAY, is_automatic=True))
    await turns.turn()
    assert turns.jobs() == (["checkpoint", "cleanup"] if oldest else ["checkpoint"])
    assert commits_of(table)[0] == oldest
    reported = [encode_result(event) for event in turns.reported]
    failures = turns.of(events.MaintenanceFailed)
    assert [failed.error_code for failed in failures] == ([] if oldest else ["pin_unreadable"])
    assert oldest or any(
        rb"export-\\xff" in line or rb"export-\\udcff" in line for line in reported
    )
    needs = await PinBoard(LocalStore(), str(tmp_path), clock=turns.clock).floor()
    assert b"export-" in encode_result(needs)


# ---------------------------------------------------------------- clocks that run on meanwhile


class SleepyStore(LocalStore):
    """The machine sleeps for three days when a certain folder is listed or file is read."""

    def __init__(self, clock: SimClock, location: str) -> None:
        super().__init__()
        self._clock = clock
        self._location = location

    def _sleep(self, path: str) -> None:
        if path.endswith(self._location):
            self._location = "nothing more"
            self._clock.jump_wall(3 * DAY)

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        found = [meta async for meta in super().list_from(folder, start_after)]
        self._sleep(folder)
        for meta in found:
            yield meta

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        body = await super().get(path, start, length)
        self._sleep(path)
        return body


@pytest.mark.parametrize("location", ["/_delta_log", "/_sidecars"])
async def test_a_sidecar_that_is_young_when_it_is_listed_stays(
    tmp_path: Path, location: str
) -> None:
    table = daily(tmp_path)
    table.checkpoint(7)
    sidecar = table.log / "_sidecars" / OLD_SIDECAR
    sidecar.parent.mkdir()
    sidecar.write_bytes(b"")
    clock = SimClock(TODAY)
    os.utime(sidecar, ((TODAY - HOUR) / 1000, (TODAY - HOUR) / 1000))
    cleanup = LogCleanup(LogReader(SleepyStore(clock, location), str(tmp_path)), clock=clock)
    assert await cleanup.unnamed_sidecars() == ()
    assert len(await cleanup.unnamed_sidecars()) == 1


async def test_commits_that_are_young_when_they_are_listed_stay(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(9)
    clock = SimClock(TODAY - DAY)
    reader = LogReader(SleepyStore(clock, "/_delta_log"), str(tmp_path))
    state = (await LogReader.at(str(tmp_path)).open()).state
    cleanup = LogCleanup(reader, clock=clock)
    assert (await cleanup.plan(state)).files == ()
    assert (await cleanup.plan(state)).oldest_version == 9


async def test_a_pin_that_holds_when_pins_are_looked_at_holds(tmp_path: Path) -> None:
    clock = SimClock(TODAY)
    board = PinBoard(SleepyStore(clock, "export.json"), str(tmp_path), clock=clock)
    await board.set(Pin(name="export", version=5, expires_ms=TODAY + HOUR))
    assert (await board.floor()).from_version == 5
    assert (await board.floor()).from_version is None


# ---------------------------------------------------------------- a checkpoint and nothing more


async def test_a_log_of_one_checkpoint_is_maintained_and_goes_on(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(39)
    for version in range(40):
        table.commit_path(version).unlink()
    policies = Policies(
        checkpoint=CheckpointPolicy(every_commits=1, min_interval_seconds=0),
        checksum=ChecksumPolicy(is_enabled=True),
        cleanup=CleanupPolicy(is_enabled=True),
    )
    turns = Turns(table, policies, clock=SimClock(TODAY, is_automatic=True))
    for _ in range(3):
        await turns.turn()
    assert turns.keeper.error is None
    assert turns.of(events.MaintenanceRefused) == []
    assert turns.jobs() == []
    table.commit(add("new"), mtime_ms=TODAY)
    await turns.turn()
    assert turns.jobs() == ["checksum", "checkpoint"]
    assert table.version == 40


# ---------------------------------------------------------------- commits that are too large


@given(
    sizes=st.lists(
        st.sampled_from(
            [
                1,
                MAX_COMPACTION_BYTES // 3,
                MAX_COMPACTION_BYTES // 2,
                MAX_COMPACTION_BYTES,
                MAX_COMPACTION_BYTES + 1,
            ]
        ),
        max_size=24,
    )
)
def test_compactions_leave_out_what_fits_no_file_and_nothing_else(sizes: list[int]) -> None:
    policy = LogCompactionPolicy(every_commits=2)
    commits = tuple(
        CommitFigures(version=version, size_bytes=size, time_ms=0)
        for version, size in enumerate(sizes)
    )
    compacted: set[int] = set()
    until = None
    while True:
        stats = LogStats(version=len(sizes), commits=commits, compacted_until=until)
        decision = policy.decide(stats, 0)
        if not decision.is_due:
            break
        assert decision.start_version is not None
        assert decision.end_version is not None
        part = range(decision.start_version, decision.end_version + 1)
        assert len(part) >= 2
        assert sum(sizes[version] for version in part) <= MAX_COMPACTION_BYTES
        compacted.update(part)
        until = decision.end_version
    for first, second in zip(range(len(sizes)), range(1, len(sizes)), strict=False):
        is_left = not {first, second} & compacted
        assert not is_left or sizes[first] + sizes[second] > MAX_COMPACTION_BYTES


async def test_a_huge_commit_is_compacted_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_policies, "MAX_COMPACTION_BYTES", 2000)
    table = TableBuilder(tmp_path)
    table.create(add("a"))
    table.checkpoint(0)
    for version in range(1, 9):
        files = [add(f"{version}-{number}") for number in range(40 if version == 4 else 1)]
        table.commit(*files)
    policies = Policies(
        checkpoint=CheckpointPolicy(every_commits=1000),
        log_compaction=LogCompactionPolicy(every_commits=3),
    )
    work = DeltaMaintenance(LogReader.at(str(tmp_path)), policies, clock=SimClock(TODAY))
    for _ in range(2):
        assessment = await work.assessment()
        for decision in assessment.decisions:
            if decision.is_due:
                await work.apply(assessment, decision)
    ranges = sorted(path.name[18:41] for path in table.log.glob("*.compacted.json"))
    assert ranges == [f"01.{3:020}", f"05.{8:020}"]
    assert await do_all(work) == {}
    assert (await LogReader.at(str(tmp_path)).open()).num_files == 48


# ---------------------------------------------------------------- sidecars that go meanwhile


class DroppingStore(LocalStore):
    """A foreign cleanup deletes a sidecar when the first new one begins."""

    def __init__(self, dropped: Path) -> None:
        super().__init__()
        self.put_paths: list[str] = []
        self._dropped = dropped

    def open_output(self, path: str) -> Output:
        self._dropped.unlink(missing_ok=True)
        return super().open_output(path)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        self.put_paths.append(path)
        await super().put(path, data, if_absent=if_absent)


async def test_a_manifest_never_appears_whose_sidecar_is_known_to_be_gone(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path,
        reader_features=["v2Checkpoint"],
        properties={"delta.checkpointPolicy": "v2"},
    )
    table.create(add("a"), add("b"))
    reader = LogReader.at(str(tmp_path))
    await LogWriter(reader, clock=SimClock(TODAY)).write_checkpoint(await reader.open())
    [sidecar] = (table.log / "_sidecars").iterdir()
    table.commit(add("c"))
    store = DroppingStore(sidecar)
    reader = LogReader(store, str(tmp_path))
    snapshot = await reader.open()
    with pytest.raises(LogChangedError, match=sidecar.name):
        await LogWriter(reader, clock=SimClock(TODAY)).write_checkpoint(snapshot)
    assert store.put_paths == []
    assert list((table.log / "_sidecars").iterdir()) == []


# ---------------------------------------------------------------- the list of a snapshot


async def test_who_lost_the_state_removes_no_list_of_its_successor() -> None:
    store = MemoryStore()
    first = leased_state(store, ROOT, SimClock(TODAY))
    second = leased_state(store, ROOT, SimClock(TODAY))

    async def list_names() -> list[str]:
        return [meta.name async for meta in store.list_from(f"{ROOT}/spool/orders")]

    async with first.hold():
        late = Spool(first.scratch("orders"))
        await late.write("t", ListedFiles(3))
        # It is heard of no more: its file says so.
        assert isinstance(first._files, LeasedFiles)
        lease = first._files._lease
        mine = lease._mine
        await lease.release()
        lease._mine = mine
        async with second.hold():
            await Spool(second.scratch("orders")).write("t", ListedFiles(5))
            names = await list_names()
            with pytest.raises(StateInUseError, match="taken over"):
                await late.remove()
            with pytest.raises(StateInUseError, match="taken over"):
                await Spool(first.scratch("orders")).write("t", ListedFiles(7))
            assert await list_names() == names


async def test_a_reset_that_cannot_be_saved_leaves_the_list_of_the_snapshot_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "orders")
    table.append([{"id": 1}])
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    settings: dict[str, Any] = {
        "engine": "arrow",
        "state": str(tmp_path / "state"),
        "tables": {"orders": {"path": str(table.folder), "sink": sink}},
    }
    config = Config(**settings)
    state = open_state(config, clock=SystemClock())

    async def fail(*_: object) -> None:
        raise StorageError("The disk is full.")

    async with state.hold():
        await reset_offset(config, "orders", "snapshot", state=state)
        assert await Spool(state.scratch("orders")).find(table.table_id, 0) is not None
        table.append([{"id": 2}])
        with monkeypatch.context() as broken:
            broken.setattr(Offsets, "save", fail)
            with pytest.raises(StorageError, match="full"):
                await reset_offset(config, "orders", "snapshot", state=state)
        assert await Spool(state.scratch("orders")).find(table.table_id, 0) is not None
        await reset_offset(config, "orders", "snapshot", state=state)
        assert await Spool(state.scratch("orders")).find(table.table_id, 1) is not None


# ---------------------------------------------------------------- the end, in an outage


class HangingStore(MemoryStore):
    """Answers no writing once it hangs."""

    is_hanging = False

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        if self.is_hanging:
            await asyncio.Event().wait()
        await super().put(path, data, if_absent=if_absent)


async def test_who_ends_in_an_outage_does_not_wait_for_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_module, "RELEASE_SECONDS", 0.3)
    store, clock = HangingStore(), SimClock()
    lease = Lease(store, "/s", clock=clock)
    async with lease.hold():
        store.is_hanging = True
        # A beat is under way.
        await asyncio.sleep(0)
        await clock.advance(lease_module.LEASE_SECONDS)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert lease_module.LEASE_SECONDS > 5
