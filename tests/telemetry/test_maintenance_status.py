"""The part of `/status` that shows maintenance."""

from __future__ import annotations

from tailerd.telemetry import events
from tailerd.telemetry.status import MaintenanceBoard
from tests.doubles.sim_clock import SimClock

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


def test_status_shows_that_a_table_is_measured() -> None:
    board = MaintenanceBoard(SimClock())

    def shown() -> dict[str, object]:
        found = board.describe("orders")
        assert found is not None
        return found

    board.handle(started("measure"))
    assert shown()["running"] == "measure"
    for end in (UNKNOWN, MEASURED):
        board.handle(started("measure"))
        board.handle(end)
        assert shown()["running"] is None
    assert shown()["jobs"] == {}


def test_a_table_that_is_measured_beside_its_pipeline_is_not_maintained_for_that() -> None:
    board = MaintenanceBoard(SimClock())
    board.handle(MEASURED)
    assert board.describe("orders") is None
    # Its maintenance may be at something else meanwhile.
    board.handle(started("checkpoint"))
    board.handle(MEASURED)
    found = board.describe("orders")
    assert found is not None
    assert found["running"] == "checkpoint"
