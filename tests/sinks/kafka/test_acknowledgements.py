"""Back-pressure and the wait for acknowledgements."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailerd.errors import SinkError
from tailerd.sinks.kafka.acknowledgements import (
    AbandonedError,
    Acknowledgements,
    NoProgressError,
    SendWindow,
)


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


pytestmark = pytest.mark.attack

MAX = 32 * 1024**2


def test_a_slow_link_gets_what_it_takes_within_the_time() -> None:
    window = SendWindow(MAX, seconds=2.0)
    window.start(100.0)
    for second in range(1, 20):
        window.acknowledge(150_000, 100.0 + second)
    assert window.bytes == pytest.approx(300_000, rel=0.1)


@pytest.mark.parametrize("rate", [5_000, 50_000_000])
def test_a_link_that_answers_at_once_keeps_the_maximum(rate: int) -> None:
    window = SendWindow(MAX, seconds=7.5)
    for delivery in range(10):
        window.start(float(delivery))
        window.acknowledge(rate // 100, delivery + 0.01)
    assert window.bytes == MAX


def test_a_link_that_becomes_fast_again_gets_more_soon() -> None:
    window = SendWindow(MAX, seconds=2.0)
    window.shrink()
    assert window.bytes == 64 * 1024
    now = 0.0
    window.start(now)
    for _ in range(20):
        now += window.bytes / 20e6
        window.acknowledge(window.bytes, now)
    assert window.bytes == MAX


def test_a_link_that_becomes_slow_gets_less_within_a_few_answers() -> None:
    window = SendWindow(MAX, seconds=2.0)
    window.start(0.0)
    for tenth in range(100):
        window.acknowledge(2_000_000, tenth / 10)
    assert window.bytes == MAX
    for second in range(10, 20):
        window.acknowledge(150_000, float(second))
    assert window.bytes < 1_000_000
