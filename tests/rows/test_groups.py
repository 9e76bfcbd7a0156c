"""Files are compared apart only where no row of one can be equal to a row of the other."""

from __future__ import annotations

import datetime as dt
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.rows.groups import (
    ColumnBounds,
    FileBounds,
    FileGroup,
    group_files,
    likely_rewrites,
    widened_bounds,
)

ENDS = st.none() | st.integers(0, 9)
BOUNDS = st.builds(
    lambda lower, upper, nulls: ColumnBounds(
        lower=lower if None in (lower, upper) else min(lower, upper),
        upper=upper if None in (lower, upper) else max(lower, upper),
        null_count=nulls,
    ),
    ENDS,
    ENDS,
    st.sampled_from([None, 0, 0, 0, 2]),
)
FILES = st.lists(
    st.builds(
        FileBounds,
        partition=st.tuples(st.sampled_from(["a", "b", None])),
        columns=st.dictionaries(st.sampled_from(["x", "y"]), BOUNDS),
    ),
    max_size=7,
)


def may_share_rows(one: FileBounds, other: FileBounds) -> bool:
    if one.partition != other.partition:
        return False
    for name in one.columns.keys() & other.columns.keys():
        left, right = one.columns[name], other.columns[name]
        ends = ((left.upper, right.lower), (right.upper, left.lower))
        is_apart = any(u is not None and low is not None and u < low for u, low in ends)
        if is_apart and 0 in (left.null_count, right.null_count):
            return False
    return True


@settings(max_examples=500)
@given(FILES, FILES)
def test_files_that_may_share_a_row_are_in_one_group(
    removed: list[FileBounds], added: list[FileBounds]
) -> None:
    groups = group_files(removed, added)
    for numbers, files in zip(
        ([n for g in groups for n in g.removed], [n for g in groups for n in g.added]),
        (removed, added),
        strict=True,
    ):
        assert sorted(numbers) == list(range(len(files)))
    together = {pair for group in groups for pair in product(group.removed, group.added)}
    for one, other in product(range(len(removed)), range(len(added))):
        if may_share_rows(removed[one], added[other]):
            assert (one, other) in together


INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 4)).map(
        lambda each: FileBounds(
            columns={"x": ColumnBounds(lower=each[0], upper=each[0] + each[1], null_count=0)}
        )
    ),
    max_size=9,
)


@settings(max_examples=300)
@given(INTERVALS, INTERVALS)
def test_groups_are_as_small_as_one_column_can_make_them(
    removed: list[FileBounds], added: list[FileBounds]
) -> None:
    """Files of one side that overlap do not matter; files joined by files of the other do."""
    reached: dict[tuple[str, int], set[tuple[str, int]]] = {}
    nodes = [("r", n) for n in range(len(removed))] + [("a", n) for n in range(len(added))]
    for node in nodes:
        reached[node] = {node}
    for one, other in product(range(len(removed)), range(len(added))):
        if may_share_rows(removed[one], added[other]):
            joined = reached["r", one] | reached["a", other]
            for node in joined:
                reached[node] = joined
    expected = {frozenset(part) for part in reached.values() if len({s for s, _ in part}) > 1}
    groups = group_files(removed, added)
    found = {
        frozenset([*(("r", n) for n in group.removed), *(("a", n) for n in group.added)])
        for group in groups
        if group.removed and group.added
    }
    assert found == expected


def numbered(lower: object, upper: object, nulls: int | None = 0) -> FileBounds:
    return FileBounds(columns={"x": ColumnBounds(lower=lower, upper=upper, null_count=nulls)})


def test_files_side_by_side_are_compared_one_by_one() -> None:
    files = [numbered(n * 10, n * 10 + 9) for n in range(1000)]
    assert group_files(files, files) == [FileGroup((n,), (n,)) for n in range(1000)]


def test_nulls_on_both_sides_may_be_equal_rows() -> None:
    low, high = numbered(0, 1, nulls=2), numbered(5, 6, nulls=2)
    assert len(group_files([low], [high])) == 1
    assert len(group_files([low], [numbered(5, 6)])) == 2
    assert len(group_files([numbered(0, 1, nulls=None)], [high])) == 1


def test_floats_are_no_bounds_as_nan_is_outside_of_them() -> None:
    assert len(group_files([numbered(0.0, 1.0)], [numbered(5.0, 6.0)])) == 1


def test_partition_values_are_equal_as_values() -> None:
    def file(value: object) -> FileBounds:
        return FileBounds(partition=(value,))

    utc = dt.UTC
    one = dt.datetime(2026, 1, 1, 12, tzinfo=utc)
    same = one.astimezone(dt.timezone(dt.timedelta(hours=3)))
    assert len(group_files([file(one)], [file(same)])) == 1
    assert len(group_files([file(float("nan"))], [file(float("nan"))])) == 1
    assert len(group_files([file(0.0)], [file(-0.0)])) == 1
    assert len(group_files([file("1")], [file(None)])) == 2


@pytest.mark.parametrize(
    ("upper", "value"),
    [
        ("abc", "abc" + "\U0010ffff" * 9),
        ("ab\ud7ff", "ab\ud7ff\U0010ffff"),
        ("a\U0010ffff", "a\U0010ffff\U0010ffff"),
        (b"ab", b"ab\xff\xff"),
        (b"a\xff", b"a\xff\xff"),
        (dt.datetime(2026, 1, 1, 0, 0, 0, 1000), dt.datetime(2026, 1, 1, 0, 0, 0, 1999)),
    ],
)
def test_bounds_that_were_cut_are_widened(upper: object, value: object) -> None:
    low, high = widened_bounds(upper, upper)
    assert low <= upper
    assert high > value


def test_what_has_no_wider_bound_is_unbounded_and_other_bounds_stay() -> None:
    assert widened_bounds("", "\U0010ffff") == ("", None)
    assert widened_bounds(b"", b"\xff") == (b"", None)
    assert widened_bounds(dt.datetime.min, dt.datetime.max) == (None, None)
    assert widened_bounds(1, 2) == (1, 2)
    assert widened_bounds(dt.date(2026, 1, 1), None) == (dt.date(2026, 1, 1), None)


def test_a_file_and_its_rewrite_have_bounds_in_common() -> None:
    removed = [numbered(n, n + 50) for n in range(5)]
    added = [numbered(3, 53), numbered(0, 50), numbered(700, 800)]
    group = FileGroup((0, 1, 2, 3, 4), (0, 1, 2))
    assert likely_rewrites(group, removed, added) == [(0, 1), (3, 0)]
    assert likely_rewrites(FileGroup((4,), (2,)), removed, added) == [(4, 2)]
    assert likely_rewrites(FileGroup((4,), ()), removed, added) == []
