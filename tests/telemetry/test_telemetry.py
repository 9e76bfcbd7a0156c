"""Events become log lines, metrics and status; none is forgotten."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailerd.telemetry import Telemetry, events
from tailerd.telemetry.logs import LINES, LOG_FIELDS, line_fields, log_handler
from tailerd.telemetry.metrics import LABELS, Metrics
from tailerd.telemetry.pipeline_metrics import STATES
from tailerd.telemetry.status import StatusBoard
from tests.doubles.sim_clock import SimClock

ALL = get_args(events.Event)
NOT_COUNTED = {
    events.TableOpened,
    events.DaemonStarted,
    events.EngineChosen,
    events.ConfigReloaded,
    events.ConfigRejected,
    events.TableAdded,
    events.TableAltered,
    events.TableRejected,
    events.SchemaAdopted,
    events.SchemaChanged,
    events.ShutdownRequested,
    events.MaintenanceStarted,
    events.WatcherUnavailable,
    events.NotificationRejected,
    events.ChecksumDiffered,
    events.CheckpointSkipped,
    events.CommitObserved,
    events.HistoryUnsaved,
    events.SchemaObserved,
    events.MaskUnmatched,
    events.ZoneAssumed,
    events.EngineLaunched,
    events.EngineStarted,
}

STARTED = events.PipelineStarted(table="orders", source="/t", sink="file", engine="arrow")
DELIVERED = events.DeliveryAcknowledged(
    table="orders",
    sink="file",
    engine="arrow",
    start_version=1,
    end_version=3,
    rows={"insert": 5, "delete": 2},
    bytes=700,
    duration_seconds=0.25,
)
FAILED = events.PipelineFailed(
    table="orders", engine="arrow", error_code="corrupt_log", error="Version 3 is no JSON."
)


def backlog(versions: int, oldest_ms: int | None) -> events.BacklogMeasured:
    return events.BacklogMeasured(
        table="orders",
        engine="arrow",
        version=4,
        head_version=3 + versions,
        versions=versions,
        oldest_timestamp_ms=oldest_ms,
    )


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    text = metrics.exposition().decode()
    return {
        (s.name, *(f"{k}={v}" for k, v in sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_event_has_a_log_line_or_is_counted(kind: type) -> None:
    assert kind in LINES
    counted = kind in Metrics(SimClock()).handlers()
    assert counted is (kind not in NOT_COUNTED)
    assert counted or LINES[kind] is not None


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_event_is_named_in_the_past_tense_and_says_who_needs_it(kind: type) -> None:
    assert re.search(r"(ed|en|Met|Lost|Unavailable)$", kind.__name__)
    assert kind.__doc__
    assert dataclasses.is_dataclass(kind)


def test_log_lines_have_only_the_agreed_fields() -> None:
    stream = io.StringIO()
    telemetry = Telemetry([log_handler(stream, "json", "debug")])
    for event in (STARTED, DELIVERED, FAILED, backlog(2, 1)):
        telemetry.emit(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 4
    for line in lines:
        assert set(line) <= LOG_FIELDS | {"event", "level", "timestamp"}
    assert (lines[1]["rows"], lines[1]["bytes"], lines[1]["level"]) == (7, 700, "info")
    assert (lines[2]["level"], lines[2]["error_code"]) == ("error", "corrupt_log")


def test_lines_below_the_level_are_left_out_and_people_get_no_json() -> None:
    stream = io.StringIO()
    handle = log_handler(stream, "human", "warning")
    handle(STARTED)
    assert stream.getvalue() == ""
    handle(FAILED)
    assert "Version 3 is no JSON." in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_no_terminal_means_json() -> None:
    stream = io.StringIO()
    log_handler(stream)(STARTED)
    assert json.loads(stream.getvalue())["table"] == "orders"


def test_line_fields_keep_zero_and_leave_out_what_is_empty() -> None:
    capabilities: dict[str, object] = {"ordering": "total", "has_deletes": True}
    opened = events.TableOpened(table="orders", format="delta", capabilities=capabilities)
    assert line_fields(opened)["table"] == "orders"
    fields = line_fields(events.DaemonStarted(path=""))
    assert fields == {}
    saved = events.OffsetSaved(
        table="t", engine="arrow", version=0, offset="{}", duration_seconds=0.12345678
    )
    assert (line_fields(saved)["version"], line_fields(saved)["duration_seconds"]) == (0, 0.123457)


def test_deliveries_are_counted_by_change_type() -> None:
    metrics = Metrics(SimClock())
    metrics.handle(DELIVERED)
    metrics.handle(DELIVERED)
    found = samples(metrics)
    labels = ("engine=arrow", "op=insert", "sink=file", "table=orders")
    assert found["tailerd_changes_delivered_rows_total", *labels] == 10
    assert found["tailerd_delivery_seconds_count", *labels[:1], *labels[2:]] == 2


def test_lag_grows_while_nothing_happens_and_is_zero_when_idle() -> None:
    clock = SimClock()
    metrics = Metrics(clock)
    name = ("tailerd_lag_seconds", "engine=arrow", "table=orders")
    metrics.handle(backlog(2, clock.now_ms() - 3000))
    assert samples(metrics)[name] == 3.0
    clock.jump_wall(4000)
    assert samples(metrics)[name] == 7.0
    assert samples(metrics)["tailerd_lag_versions", *name[1:]] == 2
    metrics.handle(backlog(0, None))
    assert samples(metrics)[name] == 0.0
    assert samples(metrics)["tailerd_lag_versions", *name[1:]] == 0


def test_a_commit_from_the_future_is_no_negative_lag() -> None:
    clock = SimClock()
    metrics = Metrics(clock)
    metrics.handle(backlog(1, clock.now_ms() + 60_000))
    assert samples(metrics)["tailerd_lag_seconds", "engine=arrow", "table=orders"] == 0.0


def test_state_and_errors_are_visible() -> None:
    metrics = Metrics(SimClock())
    state = ("tailerd_pipeline_state", "engine=arrow", "table=orders")
    metrics.handle(STARTED)
    assert samples(metrics)[state] == STATES["starting"]
    metrics.handle(FAILED)
    found = samples(metrics)
    assert found[state] == STATES["failed"]
    assert found["tailerd_errors_total", "error_code=corrupt_log", "table=orders"] == 1


def test_metric_names_and_labels_follow_the_house() -> None:
    clock = SimClock()
    metrics = Metrics(clock)
    for event in (STARTED, DELIVERED, FAILED, backlog(1, 1)):
        metrics.handle(event)
    metrics.handle(events.StorageRequested(operation="list"))
    own = [key for key in samples(metrics) if key[0].startswith("tailerd_")]
    labels = {label.partition("=")[0] for key in own for label in key[1:]}
    assert labels - {"le"} <= LABELS
    names = {key[0] for key in own}
    for name in (
        "tailerd_lag_versions",
        "tailerd_lag_seconds",
        "tailerd_changes_delivered_rows_total",
        "tailerd_storage_requests_total",
        "tailerd_errors_total",
    ):
        assert name in names


def test_two_daemons_in_one_process_do_not_share_metrics() -> None:
    one, two = Metrics(SimClock()), Metrics(SimClock())
    one.handle(DELIVERED)
    assert b"orders" not in two.exposition()


def test_status_tells_the_whole_story_of_a_pipeline() -> None:
    clock = SimClock()
    board = StatusBoard([("orders", "arrow"), ("late", "spark")], clock)
    assert not board.is_ready
    for event in (STARTED, backlog(2, clock.now_ms() - 1000), DELIVERED, DELIVERED):
        board.handle(event)
    shown = json.loads(json.dumps(board.to_json()))["tables"][0]
    assert shown["state"] == "running"
    assert shown["rows_delivered"] == {"insert": 10, "delete": 4}
    assert (shown["lag_versions"], shown["lag_seconds"], shown["head_version"]) == (2, 1.0, 5)
    assert shown["last_error"] is None
    board.handle(FAILED)
    shown = json.loads(json.dumps(board.to_json()))["tables"][0]
    assert (shown["state"], shown["last_error"]["code"]) == ("failed", "corrupt_log")


def test_status_says_since_when_a_pipeline_fails_and_how_far_it_is_behind() -> None:
    clock = SimClock()
    board = StatusBoard([("orders", "arrow")], clock)

    def shown() -> tuple[object, ...]:
        found = json.loads(json.dumps(board.to_json()))["tables"][0]
        names = ("state", "failing_since_ms", "lag_versions", "next_retry_ms")
        return tuple(found[name] for name in names)

    retry = events.RetryScheduled(
        table="orders",
        engine="arrow",
        attempt=1,
        wait_seconds=4.0,
        error_code="sink",
        error="No broker answers.",
    )
    for event in (STARTED, backlog(1, clock.now_ms()), retry):
        board.handle(event)
    since = clock.now_ms()
    clock.jump_wall(60_000)
    # Polls of the log and further attempts do not end it: nothing was delivered.
    for event in (backlog(2, since), retry, dataclasses.replace(backlog(3, since), is_idle=True)):
        board.handle(event)
    assert shown() == ("retrying", since, 3, clock.now_ms() + 4000)
    board.handle(backlog(3, since))
    board.handle(DELIVERED)
    assert shown() == ("running", None, 3, None)


def test_a_pipeline_that_never_reached_its_sink_is_not_ready() -> None:
    board = StatusBoard([("orders", "arrow")], SimClock())
    retry = events.RetryScheduled(
        table="orders", engine="arrow", attempt=1, wait_seconds=4.0, error_code="sink", error="No."
    )
    for event in (STARTED, retry, dataclasses.replace(backlog(3, 0), is_idle=True)):
        board.handle(event)
    assert not board.is_ready


def test_ready_means_every_pipeline_has_looked_and_none_has_failed() -> None:
    board = StatusBoard([("orders", "arrow")], SimClock())
    board.handle(STARTED)
    assert not board.is_ready
    board.handle(backlog(0, None))
    assert board.is_ready
    board.handle(FAILED)
    assert not board.is_ready


def test_events_of_foreign_tables_are_passed_over() -> None:
    board = StatusBoard([("other", "arrow")], SimClock())
    board.handle(STARTED)
    assert [table.state for table in board.tables] == ["starting"]
    assert board.tables[0].source == ""
