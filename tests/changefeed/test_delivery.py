from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.delivery import DeliveryTracker
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import BugError


def at(version: int) -> Offset:
    return Offset(table_id="t", version=Version(version))


@given(st.permutations(range(8)))
def test_the_safe_offset_covers_an_unbroken_run_whatever_the_order(order: list[int]) -> None:
    tracker = DeliveryTracker()
    for version in range(8):
        tracker.begin(at(version))
    done: set[int] = set()
    safe = -1
    for version in order:
        done.add(version)
        unbroken = next(number for number in range(9) if number not in done) - 1
        moved = tracker.acknowledge(at(version))
        assert moved == (at(unbroken) if unbroken > safe else None)
        safe = max(safe, unbroken)
        assert tracker.in_flight == 7 - safe
    assert safe == 7


def test_deliveries_begin_in_the_order_of_the_table() -> None:
    tracker = DeliveryTracker()
    tracker.begin(at(2))
    for version in (2, 1):
        with pytest.raises(BugError, match="out of order"):
            tracker.begin(at(version))


def test_a_delivery_is_acknowledged_once_and_after_it_began() -> None:
    tracker = DeliveryTracker()
    with pytest.raises(BugError, match="never begun"):
        tracker.acknowledge(at(1))
    tracker.begin(at(1))
    assert tracker.acknowledge(at(1)) == at(1)
    with pytest.raises(BugError, match="never begun"):
        tracker.acknowledge(at(1))
