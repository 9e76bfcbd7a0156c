"""Sums in buckets against counting rows one by one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.row_multiset import RowCounts, RowMultiset

CHANGES = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"", b"{}"]), st.sampled_from([1, -1])),
    max_size=30,
)


def multiset(changes: list[tuple[bytes, int]], pieces: int) -> RowMultiset:
    found = RowMultiset()
    for start in range(0, len(changes), pieces):
        part = changes[start : start + pieces]
        found.add([row for row, _ in part], [sign for _, sign in part])
    return found


def counted(changes: list[tuple[bytes, int]]) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for row, sign in changes:
        counts[row] += sign
    return Counter({row: count for row, count in counts.items() if count})


@given(CHANGES, CHANGES, st.integers(1, 7))
def test_two_multisets_differ_in_no_bucket_exactly_when_counts_are_equal(
    left: list[tuple[bytes, int]], right: list[tuple[bytes, int]], pieces: int
) -> None:
    one, other = multiset(left, pieces), multiset(right, 100)
    assert one.total == sum(sign for _, sign in left)
    differing = one.differing(other)
    assert (len(differing) == 0) == (counted(left) == counted(right))


@given(CHANGES, CHANGES)
def test_a_second_look_at_the_buckets_that_differ_finds_every_row_concerned(
    left: list[tuple[bytes, int]], right: list[tuple[bytes, int]]
) -> None:
    buckets = multiset(left, 5).differing(multiset(right, 5))
    counts = RowCounts(buckets)
    counts.add([row for row, _ in left], [sign for _, sign in left])
    counts.add([row for row, _ in right], [-sign for _, sign in right])
    expected = counted([*left, *((row, -sign) for row, sign in right)])
    assert counts.counts == expected
