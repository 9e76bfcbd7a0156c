"""Equal rows have equal hashes, and no others do: against what equality means in plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import BugError
from tailerd.rows.hash_kernels import BLOCK_ROWS
from tailerd.rows.hashing import RowHasher, RowHashes, VariantEquality, has_variants
from tests.rows.random_tables import VARIANT, RandomTable, tables, variant

SEED = 0x5EED_0F_A_DE11_FE2F_0123_4567_89AB
PINNED = [(2033238234468440070, 1700397732612527702), (9523903342466659437, 13716988780954688805)]


def hashes(batch: pa.RecordBatch, seed: int = SEED) -> list[tuple[int, int]]:
    found = RowHasher(batch.schema, seed).hash(batch)
    return list(zip(found.first.tolist(), found.second.tolist(), strict=True))


def column(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind)], names=["c"])


@settings(max_examples=400)
@given(st.data(), tables())
def test_rows_have_equal_hashes_exactly_where_they_are_equal(
    data: st.DataObject, table: RandomTable
) -> None:
    rows = data.draw(st.lists(table.rows, min_size=1, max_size=12))
    found = hashes(table.batch(rows))
    models = table.model(rows)
    for each, model in zip(found, models, strict=True):
        for other, other_model in zip(found, models, strict=True):
            assert (each == other) == (model == other_model)
            # Each half alone tells rows apart; only adversaries and large tables need both.
            assert (each[0] == other[0]) == (each[1] == other[1])


@settings(max_examples=200)
@given(st.data(), tables(), st.integers(1, 9))
def test_hashes_do_not_depend_on_where_a_batch_is_cut(
    data: st.DataObject, table: RandomTable, padding: int
) -> None:
    rows = data.draw(st.lists(table.rows, min_size=1, max_size=8))
    whole = hashes(table.batch(rows))
    assert hashes(table.batch(rows, padding=padding)) == whole
    assert [each for row in rows for each in hashes(table.batch([row]))] == whole


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_another_seed_gives_other_hashes(seed: int, other: int) -> None:
    batch = column(["a", "b", "", None], pa.string())
    assert (hashes(batch, seed) == hashes(batch, other)) == (seed == other)


LENGTHS = st.lists(st.integers(0, 200), min_size=1, max_size=40)


@given(LENGTHS, st.integers(0, 255), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_texts_of_any_lengths_side_by_side_hash_as_alone(
    lengths: list[int], byte: int, kind: pa.DataType
) -> None:
    texts = [bytes([byte]) * length for length in lengths]
    together = hashes(column(texts, kind))
    assert together == [hashes(column([text], kind))[0] for text in texts]
    assert len(set(together)) == len(set(texts))


@pytest.mark.parametrize("length", [*range(1, 20), 63, 64, 65, 130])
def test_every_byte_of_a_text_counts(length: int) -> None:
    base = bytes(range(1, length + 1))
    changed = [base[:i] + bytes([base[i] ^ 0x80]) + base[i + 1 :] for i in range(length)]
    found = hashes(column([base, *changed, base], pa.binary()))
    assert len(set(found)) == length + 1
    assert found[0] == found[-1]


def test_rows_beyond_one_block_hash_as_those_of_the_first() -> None:
    count = 2 * BLOCK_ROWS + 17
    texts = pa.array([f"{n % 5}" * (n % 5) for n in range(count)])
    batch = pa.record_batch([pa.array(np.arange(count) % 5), texts], names=["a", "b"])
    assert len(set(hashes(batch))) == 5
    assert hashes(batch)[:5] == hashes(batch.slice(count - count % 5 - 5, 5))


def test_what_is_stored_below_a_null_does_not_count() -> None:
    mask = pa.array([True, True, False])
    inner = pa.array([1, 2, 3])
    struct = pa.StructArray.from_arrays([inner], names=["a"], mask=mask)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]).cast(pa.int32()), inner, mask=mask)
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), inner, mask=mask
    )
    buffers = pa.array([b"xx", b"yyy", b"z"]).buffers()
    validity = pa.array([None, None, 1]).buffers()[0]
    texts = pa.Array.from_buffers(pa.binary(), 3, [validity, *buffers[1:]])
    numbers = pa.Array.from_buffers(pa.int64(), 3, [validity, inner.buffers()[1]])
    for array in (struct, lists, maps, texts, numbers):
        first, second, third = hashes(pa.record_batch([array], names=["c"]))
        assert first == second != third


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, -1], pa.int32()), pa.array([1, -1], pa.int64())),
        (pa.array(["a", None]), pa.array(["a", None], pa.large_string())),
        (pa.array(["a", "b"]), pa.array(["a", "b"]).dictionary_encode()),
        (pa.array(["a", None]), pa.array(["a", None]).dictionary_encode()),
        (pa.array(["a", None]), pa.array(["a", None], pa.string_view())),
        (pa.array([b"ab", None]), pa.array([b"ab", None], pa.binary(2))),
        (pa.array([[1], None]), pa.array([[1], None], pa.list_(pa.int64(), 1))),
        (pa.array([[1], None]), pa.array([[1], None], pa.large_list(pa.int64()))),
    ],
    ids=lambda array: str(array.type),
)
def test_how_equal_values_are_stored_does_not_count(one: pa.Array, other: pa.Array) -> None:
    [first, second] = [pa.record_batch([array], names=["c"]) for array in (one, other)]
    assert hashes(first) == hashes(second)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ([["a"], ["b"]], [["a", "b"], []], pa.list_(pa.list_(pa.string()))),
        ([[1, 2]], [[2, 1]], pa.list_(pa.list_(pa.int64()))),
        ([("a", "b"), ("c", "d")], [("a", "d"), ("c", "b")], pa.map_(pa.string(), pa.string())),
        ({"a": None}, None, pa.struct({"a": pa.int64()})),
        ([], None, pa.list_(pa.int64())),
        ([None], [], pa.list_(pa.int64())),
        ("", None, pa.string()),
        (0, None, pa.int64()),
    ],
    ids=str,
)
def test_values_that_look_alike_are_told_apart(one: Any, other: Any, kind: pa.DataType) -> None:
    first, second = hashes(column([one, other], kind))
    assert first != second


def test_columns_are_told_apart() -> None:
    batch = pa.record_batch([pa.array([1, 2]), pa.array([2, 1])], names=["a", "b"])
    first, second = hashes(batch)
    assert first != second


def test_rows_without_columns_are_all_equal() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), 3, [None]))
    assert hashes(batch) == [(0, 0)] * 3


def test_variants_are_equal_by_bytes_where_that_is_asked_for() -> None:
    field = pa.field("c", VARIANT, metadata=VARIANT_FIELD)
    values = [variant({"a": 1, "b": 2}), variant({"b": 2, "a": 1}), variant({"a": 1, "b": 2})]
    batch = pa.record_batch([pa.array(values, VARIANT)], schema=pa.schema([field]))
    by_value = RowHasher(batch.schema, SEED).hash(batch).first.tolist()
    by_bytes = RowHasher(batch.schema, SEED, VariantEquality.BY_BYTES).hash(batch).first.tolist()
    assert len(set(by_value)) == 1
    assert by_bytes[0] == by_bytes[2] != by_bytes[1]
    assert has_variants(batch.schema)
    assert has_variants(pa.schema([pa.field("l", pa.list_(field))]))
    assert not has_variants(pa.schema([pa.field("s", VARIANT)]))


def test_a_type_that_no_reader_gives_is_refused() -> None:
    with pytest.raises(BugError, match="month_day_nano"):
        hashes(column([None], pa.month_day_nano_interval()))
    with pytest.raises(BugError, match="2 columns for a schema of 1"):
        RowHasher(pa.schema({"a": pa.int64()}), SEED).hash(
            pa.record_batch([pa.array([1]), pa.array([1])], names=["a", "b"])
        )


def test_hashes_of_a_seed_never_change() -> None:
    """Tasks carry the seed to other processes, whose NumPy may be another."""
    batch = pa.record_batch(
        [
            pa.array([1, None]),
            pa.array(["tail", "a text of more than one word"]),
            pa.array([[1.5, math.nan], None]),
        ],
        names=["a", "b", "c"],
    )
    assert hashes(batch, 42) == PINNED


def test_bits_of_hashes_are_spread_evenly() -> None:
    """Ranges of hashes are shared out by the first bits, for any values."""
    batch = column(list(range(4096)), pa.int64())
    found = RowHasher(batch.schema, SEED).hash(batch)
    for half in (found.first, found.second):
        counts = np.bincount((half >> np.uint64(60)).astype(np.int64), minlength=16)
        assert counts.min() > 128
        assert counts.max() < 512


def test_some_hashes_can_be_taken() -> None:
    found = RowHashes(np.array([1, 2, 3], np.uint64), np.array([4, 5, 6], np.uint64))
    taken = found.take(np.array([2, 0]))
    assert (len(taken), taken.first.tolist(), taken.second.tolist()) == (2, [3, 1], [6, 4])


@pytest.mark.parametrize(
    "kind", [pa.decimal128(10, 2), pa.int64(), pa.string()], ids=["decimal", "integer", "text"]
)
def test_a_buffer_that_ends_with_part_of_a_value_is_read_as_far_as_it_has_values(
    kind: pa.DataType,
) -> None:
    whole = pa.array([None, None], kind)
    buffers = [None if each is None else each.to_pybytes() + b"\0" for each in whole.buffers()]
    for count in (0, 2):
        array = pa.Array.from_buffers(
            kind, count, [None if each is None else pa.py_buffer(each) for each in buffers]
        )
        rows = pa.RecordBatch.from_arrays([array], names=["c"])
        assert len(RowHasher(rows.schema, 1).hash(rows)) == count
