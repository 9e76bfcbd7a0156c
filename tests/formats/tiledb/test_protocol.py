"""Names, consolidated commits, versions and delete conditions: pure rules, with random input."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.tiledb.protocol.commits import (
    Commits,
    find_commits,
    read_consolidated,
    read_lines,
)
from tailerd.formats.tiledb.protocol.conditions import (
    Combination,
    Combined,
    Comparison,
    Condition,
    Operator,
    negate,
    read_condition,
)
from tailerd.formats.tiledb.protocol.names import CommitKind, TimedName, commit_file, timed_name
from tailerd.formats.tiledb.protocol.timeline import (
    NONE_MS,
    Timeline,
    find_vanished,
    late_commits,
)

FOREVER = 10**15
times = st.integers(0, 10**13)
uuids = st.uuids().map(lambda each: each.hex)


@st.composite
def names(draw: st.DrawFn) -> TimedName:
    first, last = sorted((draw(times), draw(times)))
    return TimedName(
        first_ms=first, last_ms=last, text=f"__{first}_{last}_{draw(uuids)}_{draw(st.just(22))}"
    )


def write(time: int, number: int) -> TimedName:
    return TimedName(first_ms=time, last_ms=time, text=f"__{time}_{time}_{number:032x}_22")


def merged(first: int, last: int, number: int = 999) -> TimedName:
    return TimedName(first_ms=first, last_ms=last, text=f"__{first}_{last}_{number:032x}_22")


@given(names(), st.sampled_from(CommitKind))
def test_a_name_is_read_as_it_was_written(name: TimedName, kind: CommitKind) -> None:
    assert timed_name(name.text) == name
    assert commit_file(f"{name.text}{kind.value}") == (name, kind)
    assert name.uuid in name.text


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("__5dc2cc9cce204a189f825fd4919d0c55_1541540586869", 1541540586869, 1541540586869),
        ("__5dc2cc9cce204a189f825fd4919d0c55_10_20", 10, 20),
        ("__10_20_5dc2cc9cce204a189f825fd4919d0c55", 10, 20),
    ],
)
def test_names_of_old_formats_are_read(text: str, first: int, last: int) -> None:
    found = timed_name(text)
    assert found is not None
    assert (found.first_ms, found.last_ms) == (first, last)


@pytest.mark.parametrize("text", ["", "__schema", "__1_2", "part-0.parquet", "__lock.tdb"])
def test_other_names_are_no_commits(text: str) -> None:
    assert timed_name(text) is None
    assert commit_file(text) is None
    assert commit_file(f"{text}.wrt") is None


@given(st.lists(st.tuples(names(), st.one_of(st.none(), st.binary(max_size=40))), max_size=8))
def test_what_is_consolidated_is_what_was_committed(
    entries: list[tuple[TimedName, bytes | None]],
) -> None:
    content, files = b"", []
    for name, condition in entries:
        suffix = ".wrt" if condition is None else ".del"
        files.append(f"{name.text}{suffix}")
        content += f"__commits/{name.text}{suffix}\n".encode()
        if condition is not None:
            content += struct.pack("<Q", len(condition)) + condition
    found = read_consolidated(content, "x.con")
    both = find_commits([], consolidated=[found])
    apart = find_commits(files)
    assert both.fragments == apart.fragments
    assert set(both.deletes) == set(apart.deletes)
    conditions = [each for _, each in entries if each is not None]
    cut = [content[p.start : p.start + (p.length or 0)] for _, p in found.deletes]
    assert cut == conditions
    ignored = find_commits([], consolidated=[found], ignored=files)
    assert not ignored.fragments
    if content and not entries[-1][1]:
        with pytest.raises(CorruptLogError):
            read_consolidated(content[:-1], "x.con")


def test_updates_by_condition_are_refused_with_the_file_named() -> None:
    name = f"{write(1, 1).text}.upd"
    with pytest.raises(UnsupportedFeatureError, match=name):
        find_commits([name])
    with pytest.raises(UnsupportedFeatureError, match=name):
        read_consolidated(f"__commits/{name}\n".encode(), "x.con")


histories = st.lists(st.integers(1, 200), min_size=1, max_size=12, unique=True).map(sorted)


def of(fragments: list[TimedName], vacuum: dict[str, list[str]] | None = None) -> Commits:
    return find_commits([f"{each.text}.wrt" for each in fragments], to_vacuum=vacuum or {})


@given(histories, st.booleans())
def test_merging_changes_no_version_until_an_original_is_gone(
    found: list[int], keeps_times: bool
) -> None:
    originals = [write(time, number) for number, time in enumerate(found)]
    big = merged(found[0], found[-1])
    vacuum = {big.text: [f"s3://b/a/__fragments/{each.text}" for each in originals]}
    timed = {big.text} if keeps_times else set()
    before = Timeline.from_commits(of(originals), timed, FOREVER)
    both = Timeline.from_commits(of([*originals, big], vacuum), timed, FOREVER)
    assert list(both.versions) == list(before.versions) == found
    assert not both.blind
    if len(found) > 1:
        after = Timeline.from_commits(of([*originals[1:], big], vacuum), timed, FOREVER)
        assert after.versions == (found[-1],)
        hides = [after.hiding(time) is not None for time in found]
        assert hides == [not keeps_times] * (len(found) - 1) + [False]
        assert not find_vanished(before.commits.fragments, after)


@given(histories, st.integers(-1, 201))
def test_versions_follow_each_other(found: list[int], at: int) -> None:
    timeline = Timeline.from_commits(of([write(t, n) for n, t in enumerate(found)]), (), FOREVER)
    assert timeline.before(at) == max([t for t in found if t < at], default=NONE_MS)
    assert timeline.after(at) == min([t for t in found if t > at], default=None)
    assert timeline.versions_between(at, FOREVER) == tuple(t for t in found if t > at)


@given(histories, st.integers(0, 201))
def test_what_is_stamped_in_the_future_is_no_version_yet(found: list[int], now: int) -> None:
    timeline = Timeline.from_commits(of([write(t, n) for n, t in enumerate(found)]), (), now)
    assert list(timeline.versions) == [t for t in found if t <= now]


@given(histories, st.data())
def test_late_is_what_was_not_known_and_lies_behind(found: list[int], data: st.DataObject) -> None:
    every = [write(time, number) for number, time in enumerate(found)]
    known = data.draw(st.sets(st.sampled_from(every)))
    delivered = data.draw(st.integers(0, 201))
    late = late_commits(known, {*every, merged(1, 200)}, delivered)
    assert set(late.times_ms) == {
        each.last_ms for each in every if each not in known and each.last_ms <= delivered
    }


@given(histories, st.data())
def test_what_is_gone_and_merged_nowhere_is_missed(found: list[int], data: st.DataObject) -> None:
    every = [write(time, number) for number, time in enumerate(found)]
    left = data.draw(st.sets(st.sampled_from(every)))
    timeline = Timeline.from_commits(of(sorted(left)), (), FOREVER)
    assert set(find_vanished(every, timeline)) == {each.text for each in every} - {
        each.text for each in left
    }


conditions: st.SearchStrategy[Condition] = st.recursive(
    st.builds(Comparison, st.sampled_from(Operator), st.text(max_size=5), st.binary(max_size=9)),
    lambda parts: st.one_of(
        st.builds(
            Combined,
            st.sampled_from((Combination.AND, Combination.OR)),
            st.lists(parts, min_size=1, max_size=3).map(tuple),
        ),
        st.builds(Combined, st.just(Combination.NOT), st.tuples(parts)),
    ),
    max_leaves=8,
)


def tree(condition: Condition) -> bytes:
    if isinstance(condition, Combined):
        parts = b"".join(map(tree, condition.parts))
        return struct.pack("<BBQ", 0, condition.combination, len(condition.parts)) + parts
    field = condition.field.encode()
    found = struct.pack("<BBI", 1, condition.operator, len(field)) + field
    found += struct.pack("<Q", len(condition.value)) + condition.value
    is_set = condition.operator in (Operator.IN, Operator.NOT_IN)
    return found + (struct.pack("<QQ", 8, 0) if is_set else b"")


def tile(content: bytes, *, chunk: int = 64, encryption: int = 0, kind: int = 1) -> bytes:
    chunks = [content[at : at + chunk] for at in range(0, len(content), chunk)]
    data = struct.pack("<Q", len(chunks))
    for each in chunks:
        packed = zlib.compress(each)
        meta = struct.pack("<IIII", 0, 1, len(each), len(packed))
        data += struct.pack("<III", len(each), len(packed), len(meta)) + meta + packed
    pipeline = struct.pack("<IIBIBi", 65536, 1, kind, 5, kind, -1)
    header = struct.pack("<IQQBQBI", 22, len(data), len(content), 4, 1, encryption, len(pipeline))
    return header + pipeline + data


@given(conditions, st.integers(1, 200))
def test_a_condition_is_read_as_it_was_stored(condition: Condition, chunk: int) -> None:
    assert read_condition(tile(tree(condition), chunk=chunk), "x.del") == condition


@given(conditions)
def test_a_condition_that_is_negated_twice_means_the_same(condition: Condition) -> None:
    for values in range(4):
        assert holds(negate(condition), values) != holds(condition, values)


def holds(condition: Condition, values: int) -> bool:
    """Evaluate with operators that mean: is the bit set which the field's length says?"""
    if isinstance(condition, Comparison):
        base = min(condition.operator, negate(condition).operator)  # type: ignore[union-attr]
        bit = bool(values >> (len(condition.field) % 2) & 1)
        return bit == (condition.operator == base)
    parts = [holds(part, values) for part in condition.parts]
    if condition.combination is Combination.NOT:
        return not parts[0]
    return all(parts) if condition.combination is Combination.AND else any(parts)


@given(conditions, st.data())
def test_a_delete_that_is_cut_off_or_damaged_is_an_error_that_names_it(
    condition: Condition, data: st.DataObject
) -> None:
    whole = tile(tree(condition))
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises((CorruptLogError, UnsupportedFeatureError), match=r"x\.del"):
        read_condition(short, "x.del")


@pytest.mark.parametrize("wrong", [{"encryption": 1}, {"kind": 7}])
def test_encrypted_and_otherwise_filtered_deletes_are_refused(wrong: dict[str, int]) -> None:
    stored = tile(tree(Comparison(Operator.LESS, "v", b"1")), **wrong)
    with pytest.raises(UnsupportedFeatureError, match=r"x\.del"):
        read_condition(stored, "x.del")


def test_vacuum_files_of_any_release_name_fragments() -> None:
    lines = b"/__fragments/__1_1_a\nfile:///data/x/__fragments/__2_2_b\n__commits/__3_3_c.wrt\n"
    assert read_lines(lines) == ("__1_1_a", "__2_2_b", "__3_3_c.wrt")
