"""Reading a partition to an offset: its records, its gaps, and brokers that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kafka import TopicPartition

from tailerd.errors import SinkError
from tailerd.sinks.kafka.partition_reader import read_partition

PARTITION = TopicPartition("offsets", 0)


@dataclass
class Sent:
    offset: int


class Clock:
    """Time that passes only in polls."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Consumer:
    """Answers each poll with the offsets given for it, after the seconds given for it."""

    def __init__(self, clock: Clock, polls: Iterator[tuple[float, list[int], int]]) -> None:
        self._clock = clock
        self._polls = polls
        self._position = 0

    def position(self, partition: TopicPartition) -> int:
        assert partition == PARTITION
        return self._position

    def poll(self, timeout_ms: int, max_records: int | None) -> dict[TopicPartition, list[Sent]]:
        assert timeout_ms
        seconds, offsets, self._position = next(self._polls)
        self._clock.seconds += seconds
        return {PARTITION: [Sent(offset) for offset in offsets[:max_records]]} if offsets else {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    return clock


def offsets_of(consumer: Any, until: int, **options: Any) -> list[int]:
    found = read_partition(consumer, PARTITION, until, **options)
    return [record.offset for records in found for record in records]


def test_it_ends_at_the_offset_and_passes_markers(clock: Clock) -> None:
    polls = [(0.0, [0, 1], 2), (0.05, [], 3), (0.0, [3, 4, 5, 6], 7)]
    assert offsets_of(Consumer(clock, iter(polls)), 5) == [0, 1, 3, 4]


def test_brokers_that_return_nothing_for_half_a_minute_are_an_error(clock: Clock) -> None:
    def silent() -> Iterator[tuple[float, list[int], int]]:
        yield 0.0, [0], 1
        while True:
            yield 0.05, [], 1

    with pytest.raises(SinkError, match="offsets returned no records for 30 s"):
        offsets_of(Consumer(clock, silent()), 2)
    assert 30 < clock.seconds < 31


def test_a_machine_that_stood_still_is_no_silence_of_the_brokers(clock: Clock) -> None:
    polls = [(90.0, [], 0), (0.05, [0], 1)]
    assert offsets_of(Consumer(clock, iter(polls)), 1) == [0]


def test_the_time_of_whoever_takes_the_records_does_not_count(clock: Clock) -> None:
    polls = [(0.0, [0], 1), (0.05, [], 1), (0.0, [1], 2)]
    for _ in read_partition(Consumer(clock, iter(polls)), PARTITION, 2):
        clock.seconds += 60


def test_a_read_that_nobody_waits_for_ends(clock: Clock) -> None:
    abandoned = threading.Event()
    abandoned.set()
    with pytest.raises(SinkError, match="returned no records"):
        offsets_of(Consumer(clock, iter([(0.05, [], 0)])), 1, abandoned=abandoned)
