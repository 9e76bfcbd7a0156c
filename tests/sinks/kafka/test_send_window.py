"""How much may be in flight, by what the brokers acknowledge."""

from __future__ import annotations

import pytest

from tailerd.sinks.kafka.send_window import SendWindow

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
