"""Progress on standard error: silent for short work, one line on a terminal, lines on a pipe."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest

from tailerd.cli import progress
from tailerd.cli.progress import Progress
from tailerd.cli.run_progress import RunProgress
from tailerd.telemetry import events
from tests.telemetry.test_telemetry import DELIVERED, STARTED, backlog
from tests.waiting import eventually


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class Seconds:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_line_has_percent_rate_and_time_left() -> None:
    clock = Seconds()
    shown = Progress("Reading orders", "rows", stream=io.StringIO(), clock=clock)
    clock.now = 20.0
    shown.report(50_000, 0.25)
    assert shown.text() == "Reading orders, 25%, 50,000 rows, 2,500 rows/s, 20 s, ETA 1 min"


def test_without_a_share_there_is_no_guess() -> None:
    clock = Seconds()
    shown = Progress("Comparing", "bytes", stream=io.StringIO(), clock=clock)
    clock.now = 2.0
    shown.report(3 << 20)
    assert shown.text() == "Comparing, 3.0 MiB, 1.5 MiB/s, 2.0 s"


@pytest.mark.parametrize("share", [-1.0, 0.0, 1.0, 7.0])
def test_a_share_stays_between_nothing_and_all(share: float) -> None:
    shown = Progress("x", stream=io.StringIO(), clock=Seconds())
    shown.report(1, share)
    assert "0%" in shown.text() or "100%" in shown.text()


@pytest.mark.parametrize("stream", [io.StringIO(), Screen()])
def test_short_work_prints_nothing(stream: io.StringIO) -> None:
    with Progress("x", stream=stream):
        pass
    assert stream.getvalue() == ""


def test_a_terminals_line_is_cleared_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.01)
    screen = Screen()
    with Progress("Working", stream=screen):
        eventually(lambda: "Working" in screen.getvalue())
    assert screen.getvalue().endswith("\r\x1b[K")
    assert "\n" not in screen.getvalue()


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PIPE_SECONDS", 0.01)
    pipe = io.StringIO()
    with Progress("Working", stream=pipe):
        eventually(lambda: "\n" in pipe.getvalue())
    assert all(line.startswith("Working") for line in pipe.getvalue().splitlines())
    assert "\x1b" not in pipe.getvalue()


def test_a_stream_that_is_gone_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PIPE_SECONDS", 0.01)
    pipe = io.StringIO()
    made = Progress("x", stream=pipe)
    pipe.close()
    with made:
        time.sleep(0.05)


def engine_started(seconds: float = 0.0) -> events.EngineStarted:
    return events.EngineStarted(engine="spark", duration_seconds=seconds)


def test_the_start_of_spark_is_shown_and_log_lines_come_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.01)
    screen = Screen()
    logged: list[events.Event] = []
    with RunProgress(logged.append, is_counting=False, stream=screen) as shown:
        shown.handle(events.EngineLaunched(engine="spark"))
        eventually(lambda: "Starting Spark" in screen.getvalue())
        shown.handle(STARTED)
        assert screen.getvalue().endswith("\r\x1b[K")
        shown.handle(engine_started())
        end = screen.getvalue()
        shown.handle(DELIVERED)
        assert screen.getvalue() == end
    assert logged == [events.EngineLaunched(engine="spark"), STARTED, engine_started(), DELIVERED]


def test_run_once_shows_rows_and_the_share_over_all_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.01)
    screen = Screen()
    with RunProgress(lambda _: None, is_counting=True, stream=screen) as shown:
        for event in (
            STARTED,
            replace(STARTED, table="stock"),
            backlog(8, None),
            DELIVERED,
            backlog(2, None),
        ):
            shown.handle(event)
        # One of two tables has 6 of 8 versions; of the other nothing is known yet.
        eventually(lambda: "Delivering, 38%, 7 rows" in screen.getvalue())


def test_on_a_pipe_run_prints_its_log_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.01)
    pipe = io.StringIO()
    logged: list[events.Event] = []
    with RunProgress(logged.append, is_counting=True, stream=pipe) as shown:
        shown.handle(events.EngineLaunched(engine="spark"))
        time.sleep(0.1)
    assert (len(logged), pipe.getvalue()) == (1, "")
