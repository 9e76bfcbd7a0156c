"""Ranges of hashes are passed over exactly where both sides have the same rows there."""

from __future__ import annotations

from collections import Counter
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.rows.difference import HashBalance, RowDifference, Side
from tailerd.rows.hashing import RowHashes

BITS = 12
NUMBERS = st.integers(0, 3) | st.integers(0, 2**64 - 1)
HASHES = st.lists(st.tuples(st.integers(0, 40), NUMBERS, NUMBERS), max_size=60)
"""Each a range, what of the first half follows, and the second half."""


def hashes_of(found: list[tuple[int, int, int]]) -> RowHashes:
    low = 2 ** (64 - BITS)
    first = np.array([(position * low) + rest % low for position, rest, _ in found], np.uint64)
    return RowHashes(first, np.array([second for *_, second in found], np.uint64))


@given(HASHES, HASHES, HASHES, st.integers(0, 3), st.randoms())
@settings(max_examples=300)
def test_only_ranges_where_the_sides_differ_are_open(
    common: list[tuple[int, int, int]],
    removed: list[tuple[int, int, int]],
    added: list[tuple[int, int, int]],
    bits: int,
    random: Random,
) -> None:
    balance = HashBalance(0)
    sides = {True: [*common, *removed], False: [*common, *added]}
    for is_removed, found in sides.items():
        random.shuffle(found)
        for part in (found[:7], found[7:]):
            balance.add(hashes_of(part), is_removed=is_removed)
    assert balance.may_differ(hashes_of(common)) is None
    rows = balance.close(bits, 0)
    low, done = 2 ** (64 - BITS), 2 ** (BITS - bits)
    counts = [Counter((p, rest % low, second) for p, rest, second in f) for f in sides.values()]
    differing = {p for p, *_ in (counts[0] - counts[1]) + (counts[1] - counts[0])}
    open_ranges = {position for position in differing if bits == 0 or position >= done}
    if bits == 0:
        # The first pass considered all of them.
        open_ranges = set()
    everything = [*sides[True], *sides[False]]
    assert rows == sum(position in open_ranges for position, *_ in everything)
    may_differ = balance.may_differ(hashes_of(everything))
    assert may_differ is not None
    assert may_differ.tolist() == [position in open_ranges for position, *_ in everything]


@pytest.mark.parametrize(("differing", "passes"), [(0, 1), (5, 2), (40_000, 8)])
def test_few_rows_that_differ_among_many_take_two_passes(differing: int, passes: int) -> None:
    random = np.random.default_rng(3)
    halves = random.integers(0, 2**64, (2, 40_000), np.uint64)
    other = halves.copy()
    other[1, :differing] += np.uint64(1)
    order = random.permutation(40_000)
    difference = RowDifference(max_bytes=300_000)
    found: dict[Side, list[int]] = {side: [] for side in Side}
    taken = 0
    with patch("tailerd.rows.difference._MIN_BALANCE_BITS", 10):
        while not difference.is_complete:
            for start in range(0, 40_000, 1000):
                rows = slice(start, start + 1000)
                difference.push(Side.REMOVED, 0, RowHashes(*halves[:, rows]), start)
                difference.push(Side.ADDED, 0, RowHashes(*other[:, order[rows]]), start)
            for left in difference.finish_pass():
                positions = left.positions.to_numpy()
                found[left.side] += (order[positions] if left.side else positions).tolist()
            taken += 1
    assert taken <= passes
    assert all(sorted(rows) == list(range(differing)) for rows in found.values())
