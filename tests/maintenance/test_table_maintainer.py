"""One table's turn: what goes wrong is told once, tried again later, and stops nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import AccessDeniedError, StorageError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, ChecksumPolicy, Policies
from tailerd.formats.maintenance import CleanupPolicy, DailyPause, RetentionFloor
from tailerd.maintenance.opening import MaintainedTable
from tailerd.maintenance.programs import MaintenanceTarget
from tailerd.maintenance.table_maintainer import REFUSED_SECONDS, TableMaintainer
from tailerd.storage.lease import Holder, Lease
from tailerd.storage.local import LocalStore
from tailerd.telemetry import Telemetry, events
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.log_bodies import add
from tests.maintenance.opened_tables import convert_policies, maintained
from tests.maintenance.tables import grow, living_table
from tests.maintenance.test_cleanup import DAY, FIRST, commits_of, daily
from tests.tables.builder import TableBuilder

OFTEN = Policies(
    checkpoint=CheckpointPolicy(every_commits=3, min_interval_seconds=0),
    checksum=ChecksumPolicy(is_enabled=True),
)


class Turns:
    """A keeper of one table, its clock and what it told."""

    def __init__(
        self,
        table: TableBuilder,
        policies: Policies = OFTEN,
        *,
        clock: SimClock | None = None,
        needs: Callable[[], RetentionFloor] = RetentionFloor,
    ) -> None:
        self.reported: list[Any] = []
        self.clock = clock or SimClock(is_automatic=True)
        self.store = FaultyStore(LocalStore())
        self.may_continue = True
        kept = MaintenanceTarget(
            location=str(table.folder),
            folder=str(table.log),
            policies=convert_policies(policies),
            is_alone=True,
        )

        async def opened() -> MaintainedTable:
            return maintained(self.store, str(table.folder))

        async def requested(_: str) -> RetentionFloor:
            return needs()

        self.keeper = TableMaintainer(
            "orders",
            kept,
            opened,
            telemetry=Telemetry([self.reported.append]),
            clock=self.clock,
            needs=requested,
            may_continue=lambda: self.may_continue,
        )

    async def turn(self) -> float | None:
        return await self.keeper.turn()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.reported if isinstance(event, kind)]

    def jobs(self) -> list[str]:
        return [event.job for event in self.of(events.LogMaintained)]


async def test_what_is_due_is_done_and_then_nothing_is_waited_for(tmp_path: Path) -> None:
    turns = Turns(living_table(tmp_path))
    assert await turns.turn() is None
    assert turns.jobs() == ["checksum", "checkpoint"]
    assert await turns.turn() is None
    assert turns.jobs() == ["checksum", "checkpoint"]


async def test_an_operator_gets_a_checkpoint_before_a_limit_is_reached(tmp_path: Path) -> None:
    table = living_table(tmp_path)
    turns = Turns(table, Policies(checkpoint=CheckpointPolicy(every_commits=1000)))
    await turns.turn()
    assert turns.jobs() == []
    turns.keeper.ask()
    await turns.turn()
    [done] = turns.of(events.LogMaintained)
    assert (done.job, done.result, done.version) == ("checkpoint", "written", table.version)
    assert turns.of(events.LogAssessed)[-1].due_reasons == ("Requested by an operator.",)
    turns.keeper.ask()
    await turns.turn()
    assert turns.jobs() == ["checkpoint"], "nothing came since, so there is nothing to write"


async def test_the_second_checkpoint_costs_what_was_committed_and_not_the_table(
    tmp_path: Path,
) -> None:
    table = living_table(tmp_path)
    turns = Turns(table)
    await turns.turn()
    for version in range(20, 24):
        grow(table, version)
    turns.store.log.clear()
    await turns.turn()
    assert turns.jobs()[-2:] == ["checksum", "checkpoint"]
    read = [path for kind, path in turns.store.log if kind == "get"]
    commits = {str(table.commit_path(v)) for v in range(table.version - 9)}
    assert not commits & set(read), "it was not opened anew"


async def test_a_storage_that_fails_is_tried_again_after_a_while(tmp_path: Path) -> None:
    turns = Turns(living_table(tmp_path))
    for attempt in range(3):
        turns.store.fail_nth(1, kind="put", path_part=".crc")
        wait = await turns.turn()
        assert wait is not None
        assert wait > 0
        again = await turns.turn()
        assert again is not None
        assert again <= wait + 0.001, "hints do not make it impatient"
        assert len(turns.of(events.MaintenanceFailed)) == attempt + 1
        await turns.clock.sleep(wait)
    assert await turns.turn() is None
    assert turns.jobs() == ["checksum", "checkpoint"]


@pytest.mark.parametrize(
    "error", [StorageError("No space left on device."), AccessDeniedError("It is read-only.")]
)
async def test_a_checkpoint_that_cannot_be_written_is_told_and_gives_the_lease_back(
    tmp_path: Path, error: StorageError
) -> None:
    table = living_table(tmp_path)
    turns = Turns(table)
    turns.store.fail_nth(1, error, path_part="checkpoint.parquet")
    assert await turns.turn() is not None
    [failed] = turns.of(events.MaintenanceFailed)
    assert (failed.job, failed.error_code) == ("checkpoint", error.code)
    other = Lease(
        LocalStore(),
        str(tmp_path),
        clock=SimClock(),
        holder=Holder(machine="x", pid=1, name="another"),
    )
    await other.acquire()
    assert not [path for path in table.log.iterdir() if "checkpoint" in path.name]


async def test_a_job_that_breaks_is_told_as_a_bug_and_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(living_table(tmp_path))

    async def assessment(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(DeltaMaintenance, "assessment", assessment)
        wait = await turns.turn()
    assert wait is not None
    assert turns.of(events.MaintenanceFailed)[0].error_code == "bug"
    await turns.clock.sleep(wait)
    await turns.turn()
    assert turns.jobs() == ["checksum", "checkpoint"]


async def test_a_log_that_must_be_left_alone_is_refused_once_and_looked_at_rarely(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, reader_features=[], writer_features=["somethingNew"])
    table.create(add("a"))
    turns = Turns(table)
    for _ in range(3):
        assert await turns.turn() is None
        requests = len(turns.store.log)
        assert await turns.turn() is not None
        assert len(turns.store.log) == requests
        await turns.clock.sleep(REFUSED_SECONDS + 1)
    [refused] = turns.of(events.MaintenanceRefused)
    assert "somethingNew" in refused.error


async def test_another_process_is_given_way_until_it_is_silent(tmp_path: Path) -> None:
    turns = Turns(living_table(tmp_path))
    other = Lease(
        LocalStore(),
        str(tmp_path),
        clock=SimClock(),
        holder=Holder(machine="x", pid=1, name="another"),
    )
    await other.acquire()
    wait = await turns.turn()
    assert turns.jobs() == ["checksum"]
    assert "another maintains" in turns.of(events.MaintenanceYielded)[0].reason
    assert wait is not None
    await turns.clock.sleep(wait)
    await turns.turn()
    assert turns.jobs() == ["checksum", "checkpoint"]


async def test_who_is_asked_to_stop_begins_no_other_job(tmp_path: Path) -> None:
    turns = Turns(living_table(tmp_path))
    turns.may_continue = False
    await turns.turn()
    assert turns.jobs() == []


async def test_a_table_that_was_dropped_and_made_again_is_opened_anew(tmp_path: Path) -> None:
    turns = Turns(living_table(tmp_path / "table"))
    await turns.turn()
    (tmp_path / "table").rename(tmp_path / "old")
    fresh = living_table(tmp_path / "table", other="yes")
    for version in range(20, 26):
        grow(fresh, version)
    await turns.turn()
    assert turns.jobs()[-1] == "checkpoint"
    files = len(fresh.state().adds)
    for version in range(fresh.version):
        fresh.commit_path(version).unlink()
    snapshot = await LogReader(LocalStore(), str(fresh.folder)).open()
    assert snapshot.version == fresh.version
    assert snapshot.state.metadata.configuration["other"] == "yes"
    assert snapshot.num_files == files


async def test_a_limit_of_time_is_slept_until_and_not_asked_for(tmp_path: Path) -> None:
    table = living_table(tmp_path)
    newest_ms = max(path.stat().st_mtime_ns for path in table.log.glob("*.json")) // 1_000_000
    clock = SimClock(newest_ms + 1000, is_automatic=True)
    aged = Policies(checkpoint=CheckpointPolicy(every_commits=1000, every_seconds=600))
    turns = Turns(table, aged, clock=clock)
    wait = await turns.turn()
    assert wait is not None
    assert 0 < wait <= 600
    assert turns.jobs() == []
    await clock.sleep(wait)
    assert await turns.turn() is None
    assert turns.jobs() == ["checkpoint"]


async def test_a_pause_of_the_day_holds_everything_but_checksums(tmp_path: Path) -> None:
    noon = 1_700_006_400_000 // 86_400_000 * 86_400_000 + 12 * 3_600_000
    clock = SimClock(noon, is_automatic=True)
    paused = Policies(
        checkpoint=OFTEN.checkpoint, checksum=OFTEN.checksum, pauses=(DailyPause(11 * 60, 13 * 60),)
    )
    turns = Turns(living_table(tmp_path), paused, clock=clock)
    wait = await turns.turn()
    assert turns.jobs() == ["checksum"]
    assert wait == 3600
    await clock.sleep(wait)
    await turns.turn()
    assert turns.jobs() == ["checksum", "checkpoint"]


async def test_a_cleanup_waits_for_pipelines_and_then_keeps_what_they_need(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(3)
    table.checkpoint(7)
    needs = [RetentionFloor(obstacle="orders has not told yet what it has delivered.")]
    cleaning = Policies(
        checkpoint=CheckpointPolicy(every_commits=1000), cleanup=CleanupPolicy(is_enabled=True)
    )
    clock = SimClock(FIRST + 40 * DAY, is_automatic=True)
    turns = Turns(table, cleaning, clock=clock, needs=lambda: needs[-1])
    assert await turns.turn() is None
    assert commits_of(table)[0] == 0
    needs.append(RetentionFloor(from_version=5))
    began = clock.monotonic()
    wait = await turns.turn()
    assert commits_of(table)[0] == 3
    assert wait is not None
    # Each renewal of the lease moved this clock, and how many there were is the machine's affair.
    assert clock.monotonic() + wait == began + 3600
    needs.append(RetentionFloor(from_version=31))
    await turns.turn()
    assert commits_of(table)[0] == 3, "it looks once an hour"
    await clock.sleep(3600)
    await turns.turn()
    assert commits_of(table)[0] == 7


@pytest.mark.parametrize("jump_ms", [DAY, -DAY], ids=["forward", "back"])
async def test_a_clock_that_jumps_by_a_day_deletes_nothing_for_a_day(
    tmp_path: Path, jump_ms: int
) -> None:
    table = daily(tmp_path)
    table.checkpoint(7)
    table.checkpoint(11)
    cleaning = Policies(
        checkpoint=CheckpointPolicy(every_commits=1000), cleanup=CleanupPolicy(is_enabled=True)
    )
    clock = SimClock(FIRST + 40 * DAY, is_automatic=True)
    turns = Turns(table, cleaning, clock=clock)
    await turns.turn()
    before = commits_of(table)
    assert before[0] == 7
    clock.jump_wall(jump_ms)
    for _ in range(3):
        await clock.sleep(3600)
        assert await turns.turn() is not None
    assert commits_of(table) == before
    [reported] = turns.of(events.MaintenanceFailed)
    assert (reported.job, reported.error_code) == ("cleanup", "clock_jumped")
    await clock.sleep(DAY / 1000)
    await turns.turn()
    assert commits_of(table)[0] == (11 if jump_ms > 0 else 7)
