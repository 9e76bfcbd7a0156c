"""Columns of bytes: varints, what is put together, and Arrow's many layouts of one column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.errors import TableError, UnsupportedFeatureError
from tailerd.records.base import FormatOptions
from tailerd.records.binary.byte_pieces import (
    binary_array,
    joined_rows,
    mask_piece,
    prepend_header,
    text_bytes,
)
from tailerd.records.binary.varints import encode_varints, varint_bytes, zigzag_varints
from tailerd.records.byte_rows import ConstantBytes
from tailerd.records.formats.avro import avro_envelopes, avro_rows
from tailerd.records.formats.protobuf import ProtobufCodec, protobuf_rows
from tailerd.records.formats.registered_records import RegisteredRecords, SchemaIds
from tailerd.records.short_bytes import ShortBytes, varint
from tests.records.batches import change_batch

OPTIONS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=None, value=1)
WORDS = st.integers(0, 2**64 - 1) | st.integers(0, 70).map(lambda bits: max(0, 2**bits - 1) % 2**64)
FORMS = pytest.mark.parametrize(
    "make",
    [
        avro_rows,
        avro_envelopes,
        lambda options: protobuf_rows(options, ProtobufCodec(collections="wrapped")),
    ],
    ids=["avro", "envelope", "protobuf"],
)


def as_bytes(short: ShortBytes, count: int) -> list[bytes]:
    return [bytes(value) for value in joined_rows([short], count).to_pylist()]


@settings(max_examples=150, deadline=None)
@given(numbers=st.lists(WORDS, min_size=1, max_size=5))
def test_varints_of_a_column_are_those_of_each_number(numbers: list[int]) -> None:
    found = encode_varints(np.array(numbers, np.uint64))
    assert as_bytes(found, len(numbers)) == [varint_bytes(number) for number in numbers]
    signed = np.array(numbers, np.uint64).view(np.int64)
    assert as_bytes(zigzag_varints(signed), len(numbers)) == [varint(int(n)) for n in signed]


@pytest.mark.parametrize("bits", range(65))
def test_varints_are_right_at_every_width(bits: int) -> None:
    numbers = [n for n in (2**bits - 1, 2**bits, 2**bits + 1) if 0 <= n < 2**64]
    found = encode_varints(np.array(numbers, np.uint64))
    assert as_bytes(found, len(numbers)) == [varint_bytes(number) for number in numbers]


@pytest.mark.parametrize("size", [0, 4, 8, 9, 12, 13, 40])
def test_texts_of_every_length_come_whole_and_from_the_middle_of_a_column(size: int) -> None:
    texts = [f"{row}" * size for row in range(5)]
    expected = [text.encode() for text in texts[2:]]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        column = pa.array(texts, kind).slice(2)
        assert joined_rows([text_bytes(column)], 3).to_pylist() == expected


@pytest.mark.parametrize("raw", [b"short", b"longer than twelve bytes"])
def test_a_constant_may_be_missing_in_some_rows(raw: bytes) -> None:
    piece = mask_piece(ConstantBytes(raw), np.array([True, False, True]))
    assert joined_rows([piece], 3).to_pylist() == [raw, b"", raw]


def test_what_stands_before_values_leaves_nulls_alone() -> None:
    values = pa.array([b"a", None, b""], pa.binary())
    assert prepend_header(values, b"12345").to_pylist() == [b"12345a", None, b"12345"]


def test_bytes_beyond_32_bits_make_a_large_array() -> None:
    parts = [pa.array([b"abc"], pa.large_binary()), pa.array([b"de"], pa.large_binary())]
    assert binary_array(parts).type == pa.binary()
    with patch("tailerd.records.binary.byte_pieces._MAX_INT32", 4):
        found = binary_array(parts)
    assert found.type == pa.large_binary()
    assert found.to_pylist() == [b"abc", b"de"]


INTS: list[Any] = [[1, None], None, [], [3, 3, 3]]
TEXTS: list[Any] = ["a", "a", None, "a long text, longer than twelve"]


@FORMS
@pytest.mark.parametrize(
    ("plain", "other"),
    [
        (pa.array(INTS), pa.array(INTS, pa.large_list(pa.int64()))),
        (pa.array(INTS), pa.array(INTS, pa.list_view(pa.int64()))),
        (pa.array(INTS), pa.array(INTS, pa.large_list_view(pa.int64()))),
        (pa.array(TEXTS), pa.array(TEXTS, pa.large_string())),
        (pa.array(TEXTS), pa.array(TEXTS, pa.string_view())),
        (pa.array(TEXTS), pa.array(TEXTS).dictionary_encode()),
        (pa.array(TEXTS), pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], pa.array(TEXTS))),
        (
            pa.array([["a", None], [], None, ["a"]]),
            pa.ListArray.from_arrays(
                pa.array([0, 2, 2, 2, 3], pa.int32()),
                pa.array(["a", None, "a"]).dictionary_encode(),
                mask=pa.array([False, False, True, False]),
            ),
        ),
        (
            pa.array([{"x": "a"}, {"x": None}, {"x": "a"}, {"x": "b"}]),
            pa.StructArray.from_arrays(
                [pa.array(["a", None, "a", "b"]).dictionary_encode()], names=["x"]
            ),
        ),
    ],
    ids=lambda array: str(array.type),
)
def test_every_layout_of_a_column_gives_the_same_bytes(
    make: Callable[[FormatOptions], RegisteredRecords], plain: pa.Array, other: pa.Array
) -> None:
    form = make(OPTIONS)
    expected = form.records(change_batch({"x": plain}), ids=IDS).values
    assert form.records(change_batch({"x": other}), ids=IDS).values.equals(expected)
    longer = pa.concat_arrays([other, other]).slice(3)
    whole = change_batch({"x": longer})
    # Ids are made of locations.
    moved = replace(change_batch({"x": plain}), positions=whole.slice(1, len(plain)).positions)
    expected = form.records(moved, ids=IDS).values
    assert form.records(whole, ids=IDS).values.slice(1).equals(expected)


@pytest.mark.parametrize(
    "items",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])),
        pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["a", None])),
    ],
    ids=["dictionary", "run ends"],
)
def test_nulls_that_arrow_does_not_count_are_nulls(items: pa.Array) -> None:
    plain = change_batch({"x": pa.array(["a", None])})
    other = change_batch({"x": items})
    for form in (avro_rows(OPTIONS), protobuf_rows(OPTIONS)):
        found = form.records(other, ids=IDS).values
        assert found.equals(form.records(plain, ids=IDS).values)
    lists = change_batch({"x": pa.ListArray.from_arrays([0, 2], items)})
    with pytest.raises(TableError, match="has a null in a list"):
        protobuf_rows(OPTIONS).records(lists, ids=IDS)


@FORMS
def test_a_table_without_columns_has_rows_all_the_same(
    make: Callable[[FormatOptions], RegisteredRecords],
) -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    form, batch = make(OPTIONS), change_batch(rows)
    records = form.records(batch, ids=IDS)
    assert len(records) == 2
    alone = [form.records(batch.slice(row, 1), ids=IDS).values for row in (0, 1)]
    assert records.values.equals(pa.concat_arrays(alone))


@FORMS
def test_a_decimal_of_negative_scale_has_no_form(
    make: Callable[[FormatOptions], RegisteredRecords],
) -> None:
    schema = pa.schema([pa.field("x", pa.decimal128(5, -2))])
    with pytest.raises(UnsupportedFeatureError, match="'x' has the type"):
        make(OPTIONS).schemas(schema)
