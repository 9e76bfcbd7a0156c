"""Packed records are the encoded ones again, in their order, in pieces of bounded size."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.spark.arrow_schema import declared_schema
from tailerd.spark.encoded_records import ENCODED_ARROW
from tailerd.spark.packed_records import PACKED_SCHEMA, PIECE_BYTES, packed, unpacked
from tests.unit.spark.record_rows import Row, piece_of, rows_of


@st.composite
def commits(draw: st.DrawFn) -> list[list[Row]]:
    """Return the records of some commits, few of them large."""
    made = []
    for version in range(draw(st.integers(0, 3))):
        sizes = draw(st.lists(st.sampled_from([0, 1, 30, 150_000]), min_size=1, max_size=6))
        made.append([row(version, number, size) for number, size in enumerate(sizes)])
    return made


def row(version: int, number: int, size: int) -> Row:
    return {
        "table": "a" if version % 2 else "b",
        "topic": f"t{version}",
        "partition": 3 if number % 3 else None,
        "key": b"%d" % number if number % 2 else None,
        "value": b"x" * size if size else None,
        "headers": [("h", None), ("i", b"1")] if version % 3 else [],
        "_change_type": "insert",
        "_commit_version": version,
        "_commit_timestamp": version,
        "_order": number,
    }


@settings(max_examples=40)
@given(commits())
def test_what_is_packed_is_unpacked_in_its_order(made: list[list[Row]]) -> None:
    rows = list(packed(piece_of(each) for each in made))
    assert all(each.schema.equals(declared_schema(PACKED_SCHEMA)) for each in rows)
    pieces = list(unpacked(rows))
    assert all(piece.records.nbytes <= PIECE_BYTES for piece in pieces)
    assert all(piece.records.schema.equals(ENCODED_ARROW) for piece in pieces)
    assert [row for piece in pieces for row in rows_of(piece)] == [r for each in made for r in each]
    places = [
        (version.as_py(), order.as_py())
        for each in rows
        for version, order in zip(each["_commit_version"], each["_order"], strict=True)
    ]
    assert places == sorted(set(places))


def test_a_chosen_partition_goes_with_its_piece() -> None:
    [found] = unpacked(packed([replace(piece_of([row(1, 1, 1)]), partition=7)]))
    assert found.partition == 7


def test_a_record_larger_than_a_piece_is_a_piece_of_its_own() -> None:
    pieces = list(unpacked(packed([piece_of([row(1, 0, 3 * PIECE_BYTES), row(1, 1, 1)])])))
    assert [piece.records.num_rows for piece in pieces] == [1, 1]


def test_records_that_are_a_part_of_larger_ones_take_no_more_than_their_own_bytes() -> None:
    whole = piece_of([row(1, number, 100) for number in range(1000)])
    some = replace(whole, records=whole.records.slice(500, 10))
    [packed_some] = packed([some])
    assert packed_some.nbytes < 2000
    assert [rows_of(piece)[0]["key"] for piece in unpacked([packed_some])] == [None]
