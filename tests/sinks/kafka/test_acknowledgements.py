"""Back-pressure and the wait for acknowledgements."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailerd.errors import SinkError
from tailerd.sinks.kafka.acknowledgements import AbandonedError, Acknowledgements, NoProgressError
from tailerd.sinks.kafka.send_window import SendWindow


def acknowledgements(max_bytes: int = 100) -> Acknowledgements:
    return Acknowledgements(
        window=SendWindow(max_bytes, seconds=1),
        timeout_seconds=30,
        explain=lambda e: SinkError(f"explained {e}"),
    )


def test_what_does_not_fit_waits_for_room() -> None:
    counted = acknowledgements()
    counted.reserve(60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(counted.reserve, 60)
        time.sleep(0.05)
        assert not waiting.done()
        counted.done(60, None)
        waiting.result(5)
    assert counted.in_flight_bytes == 60


def test_a_piece_larger_than_all_room_goes_alone() -> None:
    counted = acknowledgements()
    counted.reserve(1000)
    assert counted.in_flight_bytes == 1000


def test_waiting_ends_when_the_last_piece_is_acknowledged() -> None:
    counted = acknowledgements()
    counted.wait()
    for _ in range(3):
        counted.reserve(10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(counted.wait)
        for _ in range(3):
            assert not waiting.done()
            counted.done(10, None)
        waiting.result(5)


def test_the_first_failure_is_explained_to_everybody_who_waits_now_or_later() -> None:
    counted = acknowledgements()
    counted.reserve(10)
    counted.reserve(10)
    counted.done(10, OSError("first"))
    counted.done(10, OSError("second"))
    for attempt in (counted.wait, lambda: counted.reserve(1)):
        with pytest.raises(SinkError, match="explained first"):
            attempt()


def test_a_delivery_that_is_abandoned_lets_its_thread_go() -> None:
    counted = Acknowledgements(
        window=SendWindow(10, seconds=1), timeout_seconds=30, explain=lambda error: error
    )
    counted.reserve(10)
    threading.Timer(0.05, counted.abandon).start()
    with pytest.raises(AbandonedError):
        counted.wait()


def test_nothing_is_waited_for_without_end() -> None:
    counted = Acknowledgements(
        window=SendWindow(10, seconds=1), timeout_seconds=0.1, explain=lambda error: error
    )
    counted.reserve(10)
    with pytest.raises(NoProgressError, match="nothing was acknowledged"):
        counted.wait()
