"""What is left of two multisets of rows, against counting them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.errors import BugError
from tailerd.rows.difference import RowDifference, Side, find_unmatched
from tailerd.rows.hashing import RowHashes
from tailerd.rows.positions import Positions

Hash = tuple[int, int]
Found = dict[tuple[Side, int], list[int]]

# Alike in their first bits, in the first or the second half, or not at all.
HASHES = st.sampled_from(
    [(1, 1), (2, 1), (1, 2), (1 << 63, 1), ((1 << 63) + 1, 1), ((1 << 64) - 1, 0), (7 << 40, 9)]
)
INPUTS = st.lists(st.lists(HASHES, max_size=8), max_size=4)
AMPLE = 1 << 30


def row_hashes(hashes: list[Hash]) -> RowHashes:
    first, second = ([each[half] for each in hashes] for half in (0, 1))
    return RowHashes(np.array(first, np.uint64), np.array(second, np.uint64))


def push_all(difference: RowDifference, inputs: dict[Side, list[list[Hash]]], cut: int) -> None:
    for side, lists in inputs.items():
        for number, hashes in enumerate(lists):
            for start in range(0, len(hashes), cut):
                part = hashes[start : start + cut]
                difference.push(side, number, row_hashes(part), start)


def differing(
    removed: list[list[Hash]], added: list[list[Hash]], max_bytes: int = AMPLE, cut: int = 3
) -> tuple[Found, int]:
    difference = RowDifference(max_bytes=max_bytes)
    found: Found = {}
    passes = 0
    while not difference.is_complete:
        push_all(difference, {Side.REMOVED: removed, Side.ADDED: added}, cut)
        for left in difference.finish_pass():
            positions = found.setdefault((left.side, left.input), [])
            positions += left.positions.to_numpy().tolist()
        passes += 1
    return {key: sorted(positions) for key, positions in found.items()}, passes


def model(removed: list[list[Hash]], added: list[list[Hash]]) -> Found:
    """Cancel row by row, those pushed first being first."""
    sides = {Side.REMOVED: removed, Side.ADDED: added}
    counts = {s: Counter(h for hashes in lists for h in hashes) for s, lists in sides.items()}
    cancelled = counts[Side.REMOVED] & counts[Side.ADDED]
    found: Found = {}
    for side, lists in sides.items():
        left = Counter(cancelled)
        for number, hashes in enumerate(lists):
            for position, each in enumerate(hashes):
                if left[each]:
                    left[each] -= 1
                else:
                    found.setdefault((side, number), []).append(position)
    return found


@settings(max_examples=300)
@given(INPUTS, INPUTS, st.integers(1, 9))
def test_what_is_left_is_the_difference_of_multisets(
    removed: list[list[Hash]], added: list[list[Hash]], cut: int
) -> None:
    assert differing(removed, added, cut=cut) == (model(removed, added), 1)


@settings(max_examples=200)
@given(INPUTS, INPUTS, st.integers(0, 400))
def test_less_memory_takes_more_passes_and_gives_the_same(
    removed: list[list[Hash]], added: list[list[Hash]], max_bytes: int
) -> None:
    found, _ = differing(removed, added, max_bytes=max_bytes)
    assert found == model(removed, added)


@pytest.mark.parametrize("max_bytes", [100_000, 600_000, AMPLE])
def test_many_rows_in_several_passes(max_bytes: int) -> None:
    random = np.random.default_rng(7)
    numbers = random.integers(0, 20_000, 40_000)
    first = np.array([hash((n, "a")) & (2**64 - 1) for n in range(20_000)], np.uint64)
    second = np.arange(20_000, dtype=np.uint64)
    rows = [(int(first[n]), int(second[n])) for n in numbers]
    removed, added = [rows[:15_000], rows[15_000:20_000]], [rows[20_000:]]
    found, passes = differing(removed, added, max_bytes=max_bytes, cut=999)
    assert found == model(removed, added)
    assert (passes > 1) == (max_bytes < AMPLE)


def test_passes_keep_within_their_memory() -> None:
    difference = RowDifference(max_bytes=200_000)
    random = np.random.default_rng(1)
    for start in range(0, 100_000, 1000):
        halves = random.integers(0, 2**63, (2, 1000)).astype(np.uint64) << np.uint64(1)
        difference.push(Side.REMOVED, 0, RowHashes(*halves), start)
        assert difference._stored_bytes <= 200_000
    assert sum(len(left.positions) for left in difference.finish_pass()) > 100


def test_positions_may_be_given_one_by_one() -> None:
    difference = RowDifference(max_bytes=AMPLE)
    difference.push(Side.REMOVED, 3, row_hashes([(1, 1), (2, 2)]), np.array([10, 20]))
    difference.push(Side.REMOVED, 3, row_hashes([(3, 3)]), np.array([1 << 40]))
    difference.push(Side.ADDED, 0, row_hashes([(1, 1)]), 5)
    [left] = difference.finish_pass()
    assert (left.side, left.input) == (Side.REMOVED, 3)
    assert left.positions.to_numpy().tolist() == [20, 1 << 40]
    with pytest.raises(BugError, match="complete"):
        difference.push(Side.ADDED, 0, row_hashes([(1, 1)]), 5)


@given(st.lists(HASHES, max_size=12), st.lists(HASHES, max_size=12))
def test_unmatched_rows_of_a_side_are_its_last(removed: list[Hash], added: list[Hash]) -> None:
    hashes = row_hashes([*removed, *added])
    both = np.stack([hashes.first, hashes.second], axis=1)
    found = np.flatnonzero(find_unmatched(both, len(removed))).tolist()
    expected = model([removed], [added])
    shifted = [len(removed) + position for position in expected.get((Side.ADDED, 0), [])]
    assert found == [*expected.get((Side.REMOVED, 0), []), *shifted]


@given(st.sets(st.integers(0, 300) | st.integers(2**40, 2**40 + 50)), st.sets(st.integers(0, 99)))
def test_positions_are_a_set(one: set[int], other: set[int]) -> None:
    sets = [Positions.from_ascending(np.array(sorted(each), np.int64)) for each in (one, other)]
    for found, expected in zip(sets, (one, other), strict=True):
        assert found.to_numpy().tolist() == sorted(expected)
        assert len(found) == len(expected)
    assert sets[0].union(sets[1]).to_numpy().tolist() == sorted(one | other)


def test_positions_of_whole_files_take_a_bit_each() -> None:
    assert Positions.from_ascending(np.arange(1000, 1_001_000)).nbytes == 125_000
    assert Positions.from_ascending(np.array([0, 1 << 40])).nbytes == 16
