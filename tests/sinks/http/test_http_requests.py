"""Requests: how events are cut into them, and which ids they have."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tailerd.records.base import Header, Records
from tailerd.records.event_ids import ID_HEADER
from tailerd.sinks.http.requests import Events, RequestCutter
from tests.sinks.http.deliveries import batch


def records(numbers: Sequence[int], size: int = 10) -> Records:
    """One record of `size` bytes for each number, whose last digit is the key."""
    texts = [f'"{n}"'.ljust(size).encode() for n in numbers]
    return Records(
        keys=pa.array([str(n % 10) for n in numbers], pa.string()),
        values=pa.array(texts, pa.binary()),
        headers=(Header(name=ID_HEADER, value=pa.array([f"id-{n}" for n in numbers])),),
    )


def cutter(lanes: int = 1, max_events: int = 100, max_bytes: int = 1 << 20) -> RequestCutter:
    return RequestCutter(lanes=lanes, max_events=max_events, max_bytes=max_bytes)


def numbers(events: Events) -> list[int]:
    return [int(value.decode().strip().strip('"')) for value in events.values.to_pylist()]


def cut(made: RequestCutter, *commits: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """The requests of commits, each a list of batches: (lane, numbers)."""
    found = []
    for version, batches in enumerate(commits):
        for each in batches:
            found += made.add(batch(version, each), records(each))
    return [(lane, numbers(events)) for lane, events in (*found, *made.finish())]


def only_request(of: Sequence[int]) -> Events:
    made = cutter()
    assert made.add(batch(0, of), records(of)) == []
    [(_, events)] = made.finish()
    return events


def test_a_request_has_at_most_max_events() -> None:
    requests = cut(cutter(max_events=4), [range(10)])
    assert requests == [(0, [0, 1, 2, 3]), (0, [4, 5, 6, 7]), (0, [8, 9])]


def test_a_request_has_at_most_max_bytes_and_a_larger_event_is_alone() -> None:
    made = cutter(max_bytes=25)
    found = made.add(batch(0, range(3)), records(range(3)))
    found += made.add(batch(0, [3]), records([3], size=90))
    found += made.add(batch(0, [4, 5]), records([4, 5]))
    requests = [numbers(events) for _, events in (*found, *made.finish())]
    assert requests == [[0, 1], [2], [3], [4, 5]]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("sizes", [(1,) * 60, (7, 53), (59, 1)], ids=["ones", "7+53", "59+1"])
def test_requests_do_not_depend_on_the_batches_of_a_commit(
    lanes: int, sizes: Sequence[int]
) -> None:
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    split = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    whole = cut(cutter(lanes, max_events=7, max_bytes=55), [range(60)])
    found = cut(cutter(lanes, max_events=7, max_bytes=55), split)
    for lane in range(lanes):
        assert [r for r in found if r[0] == lane] == [r for r in whole if r[0] == lane]


def test_a_request_never_has_events_of_two_commits() -> None:
    assert cut(cutter(), [[1, 2]], [[]], [[3]], [[4], [5]]) == [(0, [1, 2]), (0, [3]), (0, [4, 5])]


def test_equal_keys_are_in_one_lane_in_order_and_lanes_take_turns() -> None:
    requests = cut(cutter(lanes=4, max_events=5), [range(100)], [range(100, 200)])
    lanes: dict[int, set[int]] = {}
    for lane, found in requests:
        for number in found:
            lanes.setdefault(number % 10, set()).add(lane)
    assert all(len(each) == 1 for each in lanes.values())
    assert len({lane for lane, _ in requests}) > 1
    for key in range(10):
        of_key = [n for _, found in requests for n in found if n % 10 == key]
        assert of_key == list(range(key, 200, 10))
    first = [lane for lane, _ in requests[:3]]
    assert len(set(first)) == len(first)


def test_a_key_has_the_same_lane_in_every_process() -> None:
    # Pinned: with another hash, requests that are repeated after an upgrade have other keys.
    lanes = dict(cut(cutter(lanes=4), [range(10)]))
    assert lanes == {0: [0, 5, 6], 1: [1, 7], 2: [2, 3, 8, 9], 3: [4]}


def test_the_idempotency_key_is_a_hash_of_pipeline_and_ids() -> None:
    expected = hashlib.sha256(b"orders\nid-1\nid-2").hexdigest()
    assert only_request([1, 2]).idempotency_key("orders") == expected
    assert only_request([1, 2]).idempotency_key("orders/eu") != expected


def test_halves_have_all_events_once() -> None:
    events = only_request(range(5))
    first, second = events.halve()
    assert (numbers(first), numbers(second)) == ([0, 1], [2, 3, 4])
    assert first.to_array() == b'["0"       ,"1"       ]'
    assert first.idempotency_key("orders") != events.idempotency_key("orders")
