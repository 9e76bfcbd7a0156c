"""Packed records are the encoded ones again, in their order, in pieces of bounded size."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.spark.arrow_schema import declared_schema
from tailerd.spark.encoded_records import ENCODED_ARROW
from tailerd.spark.packed_records import (
    PACKED_SCHEMA,
    PIECE_BYTES,
    RecordPiece,
    packed,
    piece_of,
    unpacked,
)


@st.composite
def commits(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Return the records of some commits, few of them large."""
    made = []
    for version in range(draw(st.integers(0, 3))):
        sizes = draw(st.lists(st.sampled_from([0, 1, 30, 50_000]), min_size=1, max_size=6))
        made.append([row(version, number, size) for number, size in enumerate(sizes)])
    return [pa.RecordBatch.from_pylist(rows, schema=ENCODED_ARROW) for rows in made]


def row(version: int, number: int, size: int) -> dict[str, Any]:
    return {
        "table": "a" if version % 2 else "b",
        "topic": f"t{version}",
        "partition": 3 if number % 3 else None,
        "key": b"%d" % number if number % 2 else None,
        "value": b"x" * size if size else None,
        "headers": [{"key": "h", "value": None}] if version % 3 else None,
        "_change_type": "insert",
        "_commit_version": version,
        "_commit_timestamp": version,
        "_order": number,
    }


@settings(max_examples=40)
@given(commits())
def test_what_is_packed_is_unpacked_in_its_order(made: list[pa.RecordBatch]) -> None:
    rows = list(packed(piece_of(each) for each in made))
    assert all(each.schema.equals(declared_schema(PACKED_SCHEMA)) for each in rows)
    pieces = list(unpacked(rows))
    assert all(piece.records.nbytes <= PIECE_BYTES for piece in pieces)
    found = pa.Table.from_batches([piece.records for piece in pieces], ENCODED_ARROW)
    assert found.equals(pa.Table.from_batches(made, ENCODED_ARROW))
    for piece in pieces:
        assert set(piece.records["table"].to_pylist()) == {piece.table}
        assert set(piece.records["topic"].to_pylist()) == {piece.topic}
    places = [
        (version.as_py(), order.as_py())
        for each in rows
        for version, order in zip(each["_commit_version"], each["_order"], strict=True)
    ]
    assert places == sorted(places)


def test_a_chosen_partition_goes_with_its_piece() -> None:
    records = pa.RecordBatch.from_pylist([row(1, 1, 1)], schema=ENCODED_ARROW)
    piece = RecordPiece(table="a", topic="t1", records=records, partition=7)
    [found] = unpacked(packed([piece]))
    assert found.partition == 7


def test_a_record_larger_than_a_piece_is_a_piece_of_its_own() -> None:
    made = [row(1, 0, 3 * PIECE_BYTES), row(1, 1, 1)]
    records = pa.RecordBatch.from_pylist(made, schema=ENCODED_ARROW)
    pieces = list(unpacked(packed([piece_of(records)])))
    assert [piece.records.num_rows for piece in pieces] == [1, 1]
