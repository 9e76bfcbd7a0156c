from __future__ import annotations

import dataclasses
import json

import pytest

from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.telemetry import events
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.status import StatusBoard
from tests.doubles.sim_clock import SimClock
from tests.telemetry.test_telemetry import DELIVERED, STARTED, backlog, samples

DAY = 86_400.0
MEASURED = events.TableMeasured(
    table="orders",
    version=5,
    files=3,
    bytes=70_000,
    rows=40,
    deletion_vectors=1,
    deleted_rows=2,
    # One of up to 1 KiB, one of up to 64 KiB, one of more.
    size_counts=(0,) * 10 + (1,) + (0,) * 5 + (1, 1) + (0,) * 46,
    checkpoint_version=None,
    commits_since_checkpoint=6,
    bytes_since_checkpoint=900,
    log_files=7,
    retention_seconds=7 * DAY,
    pending_files=11,
    pending_bytes=12_000,
)
OF_PIPELINE = ("engine=arrow", "table=orders")


def saved(position: int, phase: Phase = Phase.SNAPSHOT) -> events.OffsetSaved:
    offset = Offset(table_id="t", version=Version(3), phase=phase, position=position)
    return events.OffsetSaved(
        table="orders", engine="arrow", version=3, offset=offset.to_json(), duration_seconds=0.1
    )


def shown(board: StatusBoard) -> dict[str, object]:
    first: dict[str, object] = json.loads(json.dumps(board.to_json()))["tables"][0]
    return first


def test_table_sizes_are_metrics() -> None:
    metrics = Metrics(SimClock())
    metrics.handle(MEASURED)
    found = samples(metrics)
    values = {
        name: found[name, "table=orders"] for name, *labels in found if labels == ["table=orders"]
    }
    assert values["tailerd_table_files"] == 3
    assert values["tailerd_table_size_bytes"] == 70_000
    assert values["tailerd_table_rows"] == 40
    assert values["tailerd_table_deletion_vectors"] == 1
    assert values["tailerd_table_deleted_rows"] == 2
    assert values["tailerd_log_commits_since_checkpoint"] == 6
    assert values["tailerd_log_bytes_since_checkpoint"] == 900
    assert values["tailerd_log_files"] == 7
    bucket = "tailerd_table_file_size_bytes_bucket"
    assert found[bucket, "le=65536.0", "table=orders"] == 2
    assert found[bucket, "le=262144.0", "table=orders"] == 3
    assert found[bucket, "le=+Inf", "table=orders"] == 3
    assert found["tailerd_table_file_size_bytes_sum", "table=orders"] == 70_000


def test_rows_that_are_not_known_are_no_sample() -> None:
    metrics = Metrics(SimClock())
    metrics.handle(dataclasses.replace(MEASURED, rows=None, pending_files=None))
    names = {name for name, *_ in samples(metrics)}
    assert "tailerd_table_rows" not in names
    assert "tailerd_table_growth_rows_per_day" not in names
    assert "tailerd_lag_files" not in names
    assert "tailerd_table_files" in names


def test_a_size_that_became_unknown_is_told_no_more() -> None:
    metrics = Metrics(SimClock())
    metrics.handle(MEASURED)
    metrics.handle(events.GrowthUnavailable(table="orders", error_code="corrupt_log", error="x"))
    found = samples(metrics)
    assert ("tailerd_table_files", "table=orders") not in found
    assert found["tailerd_errors_total", "error_code=corrupt_log", "table=orders"] == 1


def test_lag_in_files_and_bytes_is_zero_when_idle() -> None:
    metrics = Metrics(SimClock())
    metrics.handle(backlog(2, 1))
    metrics.handle(MEASURED)
    assert samples(metrics)["tailerd_lag_files", *OF_PIPELINE] == 11
    assert samples(metrics)["tailerd_lag_bytes", *OF_PIPELINE] == 12_000
    metrics.handle(backlog(0, None))
    assert samples(metrics)["tailerd_lag_files", *OF_PIPELINE] == 0


def test_retention_headroom_shrinks_while_a_version_waits() -> None:
    clock = SimClock()
    metrics = Metrics(clock)
    name = ("tailerd_retention_headroom_seconds", *OF_PIPELINE)
    metrics.handle(backlog(0, None))
    assert name not in samples(metrics)
    metrics.handle(MEASURED)
    assert samples(metrics)[name] == 7 * DAY
    metrics.handle(backlog(1, clock.now_ms() - 86_400_000))
    assert samples(metrics)[name] == 6 * DAY
    clock.jump_wall(7 * 86_400_000)
    assert samples(metrics)[name] == -DAY
    # What the pipeline itself tells of the table counts, too.
    metrics.handle(dataclasses.replace(backlog(0, None), retention_seconds=2 * DAY))
    assert samples(metrics)[name] == 2 * DAY


def test_snapshot_progress_is_there_while_a_snapshot_is() -> None:
    metrics = Metrics(SimClock())
    name = ("tailerd_snapshot_progress_ratio", *OF_PIPELINE)
    metrics.handle(saved(1 << 62))
    assert samples(metrics)[name] == 0.25
    metrics.handle(saved(0, Phase.FOLLOW))
    assert name not in samples(metrics)
    when = samples(metrics)["tailerd_last_progress_timestamp_seconds", *OF_PIPELINE]
    assert when == SimClock().now_ms() / 1000


def test_commits_are_counted_by_how_they_were_read() -> None:
    metrics = Metrics(SimClock())
    for commits in ({"cdc": 2, "none": 1}, {"cdc": 1}):
        metrics.handle(
            events.CommitsDelivered(
                table="orders", engine="arrow", commits=commits, unchanged_updates=5
            )
        )
    found = samples(metrics)
    assert found["tailerd_commits_total", "engine=arrow", "mode=cdc", "table=orders"] == 3
    assert found["tailerd_commits_total", "engine=arrow", "mode=none", "table=orders"] == 1
    assert found["tailerd_unchanged_updates_total", "engine=arrow", "table=orders"] == 10


def test_a_removed_table_is_shown_no_more() -> None:
    metrics = Metrics(SimClock())
    for event in (STARTED, backlog(0, None), MEASURED, saved(0, Phase.FOLLOW)):
        metrics.handle(event)
    metrics.handle(events.TableRemoved(table="orders", engine="arrow", path="/t", reason="gone"))
    left = {key[0] for key in samples(metrics) if "table=orders" in key}
    assert not {name for name in left if name.startswith(("tailerd_table_", "tailerd_log_"))}
    assert "tailerd_retention_headroom_seconds" not in left


def test_status_shows_what_the_metrics_show() -> None:
    clock = SimClock()
    board = StatusBoard([("orders", "arrow")], clock)
    for event in (STARTED, backlog(2, clock.now_ms() - 5000), MEASURED, saved(1 << 63), DELIVERED):
        board.handle(event)
    table = shown(board)
    assert (table["lag_files"], table["lag_bytes"]) == (11, 12_000)
    assert (table["rows_per_second"], table["snapshot_progress"]) == (7.0, 0.5)
    assert table["retention_headroom_seconds"] == 7 * DAY - 5
    assert table["last_progress_ms"] == clock.now_ms()
    size = table["size"]
    assert isinstance(size, dict)
    assert (size["files"], size["rows"], size["log_files"]) == (3, 40, 7)
    assert size["growth_per_day"] == {"files": 0, "bytes": 0, "rows": 0}


def test_a_paused_pipeline_does_not_keep_the_daemon_from_being_ready() -> None:
    board = StatusBoard([("orders", "arrow")], SimClock())
    assert not board.is_ready
    board.handle(events.PipelinePaused(table="orders", engine="arrow"))
    assert board.is_ready
    assert shown(board)["state"] == "paused"


@pytest.mark.parametrize("versions", [0, 2])
def test_a_paused_pipeline_that_had_nothing_to_do_no_longer_knows_its_lag(versions: int) -> None:
    clock = SimClock()
    board, metrics = StatusBoard([("orders", "arrow")], clock), Metrics(clock)
    paused = events.PipelinePaused(table="orders", engine="arrow")
    for event in (STARTED, backlog(versions, clock.now_ms() - 5000 if versions else None), paused):
        board.handle(event)
        metrics.handle(event)
    lag = ("tailerd_lag_versions", "engine=arrow", "table=orders")
    seconds = ("tailerd_lag_seconds", "engine=arrow", "table=orders")
    table, reported = shown(board), samples(metrics)
    assert board.is_ready
    if versions:
        assert (table["lag_versions"], table["lag_seconds"]) == (2, 5.0)
        assert (reported[lag], reported[seconds]) == (2, 5.0)
        return
    for name in ("head_version", "lag_versions", "lag_seconds", "retention_headroom_seconds"):
        assert table[name] is None
    assert lag not in reported
    assert seconds not in reported
    for event in (STARTED, backlog(1, clock.now_ms() - 3000)):
        metrics.handle(event)
    reported = samples(metrics)
    assert (reported[lag], reported[seconds]) == (1, 3.0)


def test_the_next_attempt_is_told_and_forgotten_when_it_succeeds() -> None:
    clock = SimClock()
    board = StatusBoard([("orders", "arrow")], clock)
    retry = events.RetryScheduled(
        table="orders", engine="arrow", attempt=1, wait_seconds=2.5, error_code="storage", error="x"
    )
    board.handle(retry)
    assert shown(board)["next_retry_ms"] == clock.now_ms() + 2500
    board.handle(backlog(0, None))
    assert shown(board)["next_retry_ms"] is None


def test_memory_is_asked_at_each_scrape() -> None:
    metrics, used = Metrics(SimClock()), [10]
    metrics.watch_memory(256, lambda: used[0])
    assert samples(metrics)["tailerd_memory_used_bytes",] == 10
    used[0] = 20
    assert samples(metrics)["tailerd_memory_used_bytes",] == 20
    assert samples(metrics)["tailerd_memory_budget_bytes",] == 256
