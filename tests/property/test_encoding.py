"""The columnar encoder against a row-by-row one, and both against Python's JSON reader."""

from __future__ import annotations

import base64
import datetime
import functools
import json
import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from tailerd.records.json import JsonEncoder
from tailerd.records.json_columns import column_texts, join_pieces, object_pieces
from tailerd.records.json_rows import object_texts, row_texts
from tailerd.records.json_text import date_text, timestamp_text
from tailerd.records.update_pairs import NO_ROW, pair_rows
from tailerd.records.variant import variant_json
from tests.records.batches import change_batch
from tests.records.tables import nested_types

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text(
    '"\\\n\x01aé', max_size=6
)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Years 1..9999 more often than the 290,000 years on either side.
MICROS = st.integers(-62135596800000000, 253402300799999999) | INT64

LEAVES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): INT32,
    pa.int64(): INT64,
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.integers(-(10**17), 10**17).map(float),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.string_view(): TEXT,
    pa.binary(): st.binary(max_size=7),
    pa.date32(): st.integers(-719162, 2932896) | INT32,
    pa.timestamp("us", "UTC"): MICROS,
    pa.timestamp("us"): MICROS,
    pa.decimal128(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    pa.decimal128(38, 18): st.integers(-(10**28), 10**28).map(lambda n: _scaled(n, 18)),
    pa.decimal128(38, 38): st.integers(-(10**28), 10**28).map(lambda n: _scaled(n, 38)),
}
KEYS = [pa.int32(), pa.string(), pa.date32(), pa.float64(), pa.bool_(), pa.decimal128(9, 2)]


def _scaled(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


# What draws is made once: hypothesis looks through what is new, which takes as long as many draws.
TYPES = nested_types(LEAVES, TEXT, KEYS)


@functools.cache
def values(kind: pa.DataType) -> st.SearchStrategy[object]:
    if kind in LEAVES:
        some: st.SearchStrategy[object] = LEAVES[kind]
    elif pa.types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_map(kind):
        entry = st.tuples(LEAVES[kind.key_type], values(kind.item_type))
        some = st.lists(entry, max_size=3, unique_by=lambda pair: _key(pair[0], kind.key_type))
    elif pa.types.is_fixed_size_list(kind):
        some = st.lists(values(kind.value_type), min_size=2, max_size=2)
    else:
        some = st.lists(values(kind.value_type), max_size=3)
    return st.none() | some


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, list[object]]:
    """An array that may be a slice, and its values; dates and timestamps are integers there."""
    kind = draw(TYPES)
    rows = draw(st.lists(values(kind), max_size=6))
    array = pa.array(rows, kind)
    start = draw(st.integers(0, len(rows)))
    length = draw(st.integers(0, len(rows)))
    return array.slice(start, length), rows[start : start + length]


# ---------------------------------------------------------------- what a reader must find


def _date(days: int) -> str:
    """Python's calendar, moved by whole cycles of 400 years, which all are alike."""
    cycles, rest = divmod(days + 719162, 146097)
    day = datetime.date.fromordinal(rest + 1)
    year = day.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{day:%m-%d}"


def _timestamp(micros: int) -> str:
    days, rest = divmod(micros, 86_400_000_000)
    time = datetime.datetime(2000, 1, 1) + datetime.timedelta(microseconds=rest)
    return f"{_date(days)}T{time:%H:%M:%S.%f}"


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    return None if math.isfinite(number) else "Infinity" if number > 0 else "-Infinity"


def expected(value: object, kind: pa.DataType) -> object:
    """The value a JSON reader must give for a raw value; numbers as `(kind, text)` see `agree`."""
    match value:
        case None | bool() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return f"{value:.{kind.scale}f}"
        case float():
            return _special(value) or value
        case int() if pa.types.is_date(kind):
            return _date(value)
        case int() if pa.types.is_timestamp(kind):
            return _timestamp(value) + ("Z" if kind.tz else "")
        case dict():
            return {field.name: expected(value[field.name], field.type) for field in kind}
        case list() if pa.types.is_map(kind):
            return {_key(key, kind.key_type): expected(item, kind.item_type) for key, item in value}
        case list():
            return [expected(item, kind.value_type) for item in value]
        case _:
            return value


def _key(value: object, kind: pa.DataType) -> str:
    text = expected(value, kind)
    if isinstance(text, str):
        return text
    return str(
        column_texts(pa.array([value], kind), pa.field("k", kind), quote_decimals=True).array[0]
    )


def agree(read: object, wanted: object, kind: pa.DataType) -> bool:
    """Compare deeply; a double must be the same double, a float the same float."""
    if isinstance(wanted, float):
        assert isinstance(read, float)
        if kind == pa.float32():
            return bool(np.float32(read) == np.float32(wanted))
        return read == wanted and math.copysign(1, read) == math.copysign(1, wanted)
    if isinstance(wanted, list) and isinstance(read, list):
        item = kind.value_type
        return len(read) == len(wanted) and all(
            agree(left, right, item) for left, right in zip(read, wanted, strict=True)
        )
    if isinstance(wanted, dict) and isinstance(read, dict):
        of: Callable[[str], pa.DataType] = (
            (lambda name: kind.item_type)
            if pa.types.is_map(kind)
            else (lambda name: kind.field(name).type)
        )
        return list(read) == list(wanted) and all(
            agree(read[name], wanted[name], of(name)) for name in wanted
        )
    return type(read) is type(wanted) and read == wanted


@settings(max_examples=600, deadline=None)
@given(columns())
def test_columns_and_rows_give_the_same_text_and_readers_find_the_values(
    column: tuple[pa.Array, list[object]],
) -> None:
    array, rows = column
    field = pa.field("c", array.type)

    texts = column_texts(array, field, quote_decimals=True).complete().to_pylist()

    assert texts == row_texts(array, field, quote_decimals=True)
    for text, value in zip(texts, rows, strict=True):
        assert not any(ord(character) < 0x20 for character in text)
        assert agree(json.loads(text), expected(value, array.type), array.type), (text, value)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(TYPES, max_size=3))
def test_whole_records_are_the_same_on_both_paths(
    data: st.DataObject, kinds: list[pa.DataType]
) -> None:
    count = data.draw(st.integers(0, 4))
    arrays = [
        pa.array(data.draw(st.lists(values(kind), min_size=count, max_size=count)), kind)
        for kind in kinds
    ]
    fields = [pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)]

    by_column = join_pieces(["{", *object_pieces(arrays, fields, quote_decimals=True), "}"], count)
    by_row = object_texts(arrays, fields, count, quote_decimals=True)

    assert by_column.to_pylist() == [f"{{{body}}}" for body in by_row]


@settings(deadline=None)
@given(st.lists(st.tuples(TEXT, st.floats(), INT64 | st.none()), min_size=1, max_size=300))
def test_lines_of_small_and_large_batches_are_their_rows(
    rows: list[tuple[str, float, int | None]],
) -> None:
    columns = {
        "s": pa.array([row[0] for row in rows]),
        "f": pa.array([row[1] for row in rows], pa.float64()),
        "i": pa.array([row[2] for row in rows], pa.int64()),
    }
    encoder = JsonEncoder()
    batch = change_batch(columns)

    lines = encoder.encode_lines(batch)

    one_by_one = [
        encoder.encode_lines(
            change_batch({name: array.slice(i, 1) for name, array in columns.items()})
        )
        for i in range(len(rows))
    ]
    assert lines == b"".join(one_by_one)
    assert [line + b"\n" for line in encoder.encode(batch).to_pylist()] == one_by_one


@given(INT32)
def test_dates_of_any_year_agree_with_pythons_calendar(days: int) -> None:
    assert date_text(days) == _date(days)


@given(MICROS)
def test_timestamps_of_any_year_agree_with_pythons_calendar(micros: int) -> None:
    assert timestamp_text(micros, is_utc=False) == _timestamp(micros)


# ---------------------------------------------------------------- variants

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON_VALUES)
def test_a_variant_made_by_spark_reads_back_as_the_json_it_was_made_of(value: object) -> None:
    variant = VariantVal.parseJson(json.dumps(value))

    text = variant_json(bytes(variant.metadata), bytes(variant.value))

    # Spark keeps the numbers that it can as decimals: the same number, perhaps other digits.
    assert json.loads(text) == json.loads(json.dumps(value))


# ---------------------------------------------------------------- pairs

KINDS = st.sampled_from(["insert", "delete", "update_preimage", "update_postimage"])


@given(st.lists(st.tuples(KINDS, st.integers(0, 3)), max_size=12), st.booleans())
def test_pairing_uses_every_row_once_and_on_its_own_side(
    rows: list[tuple[str, int]], has_key: bool
) -> None:
    batch = change_batch(
        {"id": pa.array([row[1] for row in rows], pa.int64())}, [row[0] for row in rows]
    )

    changes = pair_rows(batch, ("id",) if has_key else ())

    before = [row for row in changes.before.tolist() if row != NO_ROW]
    after = [row for row in changes.after.tolist() if row != NO_ROW]
    assert sorted(before + after) == list(range(len(rows)))
    assert {rows[row][0] for row in before} <= {"delete", "update_preimage"}
    assert {rows[row][0] for row in after} <= {"insert", "update_postimage"}
    for old, new in zip(changes.before.tolist(), changes.after.tolist(), strict=True):
        if NO_ROW not in (old, new):
            assert (rows[old][0], rows[new][0]) == ("update_preimage", "update_postimage")
            assert not has_key or rows[old][1] == rows[new][1]
