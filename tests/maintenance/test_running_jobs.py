"""What the process that maintains was at when it died, and which table is held for it."""

from __future__ import annotations

from tailerd.clock import SystemClock
from tailerd.maintenance import messages
from tailerd.maintenance.maintenance_process import MaintenanceProcess
from tailerd.maintenance.running_jobs import RunningJobs
from tailerd.telemetry import Telemetry, events
from tailerd.telemetry.maintenance_status import MaintenanceBoard
from tailerd.watchers.wakeups import WakeupRegistry
from tests.doubles.sim_clock import SimClock

SURVEYED = events.LogAssessed(table="orders", path="/t", version=1, is_alone=True)
MEASURED = events.TableMeasured(
    table="orders",
    version=1,
    files=1,
    bytes=1,
    rows=1,
    deletion_vectors=0,
    deleted_rows=0,
    size_counts=(),
    checkpoint_version=None,
    commits_since_checkpoint=1,
    bytes_since_checkpoint=1,
    log_files=1,
    retention_seconds=1.0,
    pending_files=None,
    pending_bytes=None,
)
UNKNOWN = events.GrowthUnavailable(table="orders", error_code="corrupt_log", error="")


def started(job: str) -> events.MaintenanceStarted:
    return events.MaintenanceStarted(table="orders", job=job)


def jobs_after(*told: events.Event) -> RunningJobs:
    jobs = RunningJobs()
    for event in told:
        jobs.handle(event)
    return jobs


def test_a_death_while_a_table_is_measured_holds_that_table_longer_each_time() -> None:
    jobs = RunningJobs()
    held = []
    for _ in range(12):
        for event in (started("assessment"), SURVEYED, started("measure")):
            jobs.handle(event)
        failed = jobs.on_process_death("It is gone.", 0.0)
        assert failed is not None
        assert (failed.table, failed.job) == ("orders", "measure")
        held.append(jobs.skipped(0.0)["orders"])
    assert held[-1] > 100 * held[0] > 0


def test_a_death_after_a_table_was_measured_is_nobodys_fault() -> None:
    for end in (MEASURED, UNKNOWN):
        assert jobs_after(started("measure"), end).on_process_death("It is gone.", 0.0) is None


def test_a_table_that_was_measured_again_begins_anew() -> None:
    jobs = RunningJobs()
    for _ in range(12):
        jobs.handle(started("measure"))
        jobs.on_process_death("It is gone.", 0.0)
    for event in (started("measure"), MEASURED, started("measure")):
        jobs.handle(event)
    jobs.on_process_death("It is gone.", 0.0)
    assert jobs.skipped(0.0)["orders"] < 10


def test_only_a_turn_that_ended_makes_the_next_restart_a_first_one() -> None:
    process = MaintenanceProcess(
        wakeups=WakeupRegistry(), telemetry=Telemetry(), clock=SystemClock()
    )
    process._attempt = 5
    for event in (started("assessment"), SURVEYED, started("measure"), MEASURED):
        process._on_message(messages.event_message(event))
    assert process._attempt == 5
    line = messages.line_of(messages.TurnEnded(table="orders"))
    process._on_message(messages.from_keeper(line))
    assert process._attempt == 0


def test_status_shows_that_a_table_is_measured_and_forgets_an_old_death() -> None:
    board = MaintenanceBoard(SimClock())

    def shown() -> dict[str, object]:
        found = board.of("orders")
        assert found is not None
        return found

    board.handle(started("measure"))
    assert shown()["running"] == "measure"
    failed = jobs_after(started("measure")).on_process_death("It is gone.", 0.0)
    assert failed is not None
    board.handle(failed)
    assert shown()["running"] is None
    assert "measure" in str(shown()["jobs"])
    for end in (UNKNOWN, MEASURED):
        board.handle(started("measure"))
        board.handle(end)
        assert shown()["running"] is None
    assert shown()["jobs"] == {}


def test_a_table_that_is_measured_beside_its_pipeline_is_not_maintained_for_that() -> None:
    board = MaintenanceBoard(SimClock())
    board.handle(MEASURED)
    assert board.of("orders") is None
    # Its maintenance may be at something else meanwhile.
    board.handle(started("checkpoint"))
    board.handle(MEASURED)
    found = board.of("orders")
    assert found is not None
    assert found["running"] == "checkpoint"
