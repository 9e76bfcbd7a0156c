"""When a table's keeper cleans up: what comes between costs a while, and never a whole `every`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tailerd.errors import StorageError
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, Policies
from tailerd.formats.maintenance import CleanupPolicy, DailyPause, RetentionFloor
from tailerd.storage.lease import LEASE_SECONDS, Holder, Lease
from tailerd.storage.local import LocalStore
from tailerd.telemetry import events
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.log_bodies import add
from tests.maintenance.test_cleanup import DAY, FIRST, commits_of, daily
from tests.maintenance.test_table_maintainer import Turns
from tests.tables.builder import TableBuilder

HOUR = 3_600_000
EVERY = 86_400.0
EIGHT_TO_SIX = DailyPause(8 * 60, 18 * 60)


def turns_of(
    table: TableBuilder,
    *pauses: DailyPause,
    at_ms: int = FIRST + 40 * DAY,
    every_commits: int = 1000,
    needs: Callable[[], RetentionFloor] = RetentionFloor,
) -> Turns:
    cleaning = Policies(
        checkpoint=CheckpointPolicy(every_commits=every_commits, min_interval_seconds=0),
        cleanup=CleanupPolicy(is_enabled=True, every_seconds=EVERY),
        pauses=pauses,
    )
    return Turns(table, cleaning, clock=SimClock(at_ms, is_automatic=True), needs=needs)


def expired(folder: Path) -> TableBuilder:
    """A table whose first seven versions can go."""
    table = daily(folder)
    table.checkpoint(7)
    return table


async def test_a_pause_that_the_daemon_was_started_in_costs_no_day(tmp_path: Path) -> None:
    table = expired(tmp_path)
    # FIRST is at one o'clock, so this is nine.
    turns = turns_of(table, EIGHT_TO_SIX, at_ms=FIRST + 40 * DAY + 8 * HOUR)
    for hours in range(9):
        assert turns.clock.now_ms() == FIRST + 40 * DAY + (8 + hours) * HOUR
        wait = await turns.turn()
        assert wait is not None
        assert 0 < wait <= 3600
        await turns.clock.sleep(wait)
    assert turns.jobs() == []
    assert f"{7:020}.checkpoint.parquet" in {path.name for path in table.log.iterdir()}
    await turns.turn()
    assert turns.jobs() == ["cleanup"], "at six o'clock"
    assert commits_of(table)[0] == 7


async def test_a_lease_that_is_taken_costs_as_long_as_a_lease_lasts(tmp_path: Path) -> None:
    table = expired(tmp_path)
    turns = turns_of(table)
    holder = Holder(machine="x", pid=1, name="another")
    other = Lease(LocalStore(), str(tmp_path), clock=SimClock(), holder=holder)
    await other.acquire()
    assert await turns.turn() == LEASE_SECONDS
    assert turns.of(events.MaintenanceYielded)
    await other.release()
    turns.store.log.clear()
    await turns.turn()
    assert not [path for kind, path in turns.store.log if "7.checkpoint" in path], (
        "a commit that comes meanwhile does not make it look for what has expired"
    )
    await turns.clock.sleep(LEASE_SECONDS)
    await turns.turn()
    assert turns.jobs() == ["cleanup"]


async def test_a_cleanup_that_failed_is_tried_again_soon_and_then_rarely(tmp_path: Path) -> None:
    table = expired(tmp_path)
    turns = turns_of(table)
    turns.store.fail_nth(3, kind="delete", path_part="_delta_log/0")
    wait = await turns.turn()
    [failed] = turns.of(events.MaintenanceFailed)
    assert (failed.job, failed.error_code) == ("cleanup", StorageError.code)
    assert isinstance(turns.keeper.error, StorageError)
    assert wait is not None
    assert 0 < wait < 60
    await turns.clock.sleep(wait)
    wait = await turns.turn()
    assert turns.jobs() == ["cleanup"]
    assert turns.keeper.error is None
    assert commits_of(table)[0] == 7
    # Not looked for before a day has passed.
    assert wait == 3600
    await turns.clock.sleep(wait)
    turns.store.log.clear()
    await turns.turn()
    assert not [path for kind, path in turns.store.log if "7.checkpoint" in path]


async def test_a_cleanup_that_fails_for_ever_is_no_loop_and_holds_up_nothing_else(
    tmp_path: Path,
) -> None:
    table = expired(tmp_path)
    turns = turns_of(table, every_commits=3)
    for failures in range(40):
        turns.store.fail_nth(1, kind="delete", path_part=f"{0:020}.json")
        wait = await turns.turn()
        assert wait is not None
        assert wait > 0
        again = await turns.turn()
        assert again is not None
        assert len(turns.of(events.MaintenanceFailed)) == failures + 1, "hints change nothing"
        await turns.clock.sleep(wait)
    seconds = turns.clock.monotonic()
    assert seconds > 20 * 300, "the waits grow"
    turns.store.fail_nth(1, kind="delete", path_part=f"{0:020}.json")
    for _ in range(3):
        table.commit(add(f"b{table.version}"), mtime_ms=turns.clock.now_ms() - 1000)
    before = turns.jobs().count("checkpoint")
    await turns.turn()
    assert turns.jobs().count("checkpoint") == before + 1


async def test_another_job_that_fails_before_it_costs_no_day(tmp_path: Path) -> None:
    table = expired(tmp_path)
    turns = turns_of(table, every_commits=3)
    turns.store.fail_nth(1, path_part=f"{39:020}.checkpoint.")
    wait = await turns.turn()
    assert [failed.job for failed in turns.of(events.MaintenanceFailed)] == ["checkpoint"]
    assert wait is not None
    await turns.clock.sleep(wait)
    await turns.turn()
    assert turns.jobs() == ["checkpoint", "cleanup"]


async def test_a_pipeline_that_does_not_tell_any_more_is_not_asked_every_second(
    tmp_path: Path,
) -> None:
    needs = [RetentionFloor()]
    turns = turns_of(expired(tmp_path), needs=lambda: needs[-1])
    await turns.turn()
    assert turns.jobs() == ["cleanup"]
    needs.append(RetentionFloor(obstacle="orders has not told yet what it has delivered."))
    await turns.clock.sleep(EVERY)
    assert await turns.turn() is None


async def test_a_damaged_checkpoint_stops_the_cleanup_and_nothing_else(tmp_path: Path) -> None:
    table = expired(tmp_path)
    [damaged] = table.log.glob(f"{7:020}.checkpoint*")
    damaged.write_bytes(damaged.read_bytes()[:100])
    turns = turns_of(table, every_commits=3)
    wait = await turns.turn()
    assert turns.jobs() == ["checkpoint"]
    [failed] = turns.of(events.MaintenanceFailed)
    assert (failed.job, failed.error_code) == ("cleanup", "corrupt_log")
    assert "version 7" in failed.error
    assert turns.keeper.error is not None
    assert not turns.of(events.MaintenanceRefused)
    assert commits_of(table)[0] == 0
    # Nobody mends it within a second: it is told as rarely as it is looked for what has expired.
    assert wait == 3600
    for _ in range(24):
        await turns.turn()
        assert len(turns.of(events.MaintenanceFailed)) == 1
        await turns.clock.sleep(3600)
    await turns.turn()
    assert len(turns.of(events.MaintenanceFailed)) == 2
    damaged.unlink()
    table.checkpoint(7)
    await turns.clock.sleep(EVERY)
    await turns.turn()
    assert turns.jobs() == ["checkpoint", "cleanup"]
    assert commits_of(table)[0] == 7


async def test_a_storage_that_fails_while_a_cleanup_is_planned_stops_nothing_else(
    tmp_path: Path,
) -> None:
    table = expired(tmp_path)
    turns = turns_of(table, every_commits=3)
    # Once before it opens the table, once behind that, and once for the plan.
    turns.store.fail_nth(3, kind="list", path_part="_delta_log")
    wait = await turns.turn()
    assert turns.jobs() == ["checkpoint"]
    [failed] = turns.of(events.MaintenanceFailed)
    assert (failed.job, failed.error_code) == ("cleanup", StorageError.code)
    assert wait is not None
    assert wait < 60
    await turns.clock.sleep(wait)
    await turns.turn()
    assert turns.jobs() == ["checkpoint", "cleanup"]
