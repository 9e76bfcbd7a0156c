"""Random tables for encoders: types, values and columns that may be slices."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text("ab_-1é ", min_size=1, max_size=4) | st.sampled_from(["value", "_change_type"])
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
# The years 1 to 9999, which is what the peers' calendars know.
DAYS = st.integers(-719162, 2932896)
MICROS = st.integers(-62135596800000000, 253402300799999999)
CLOCK = st.integers(0, 86_399_999_999)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[object]:
    largest = 10**digits - 1
    numbers = st.integers(-largest, largest) | st.integers(-300, 300).filter(
        lambda number: abs(number) <= largest
    )
    return numbers.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


LEAVES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): INT32,
    pa.int64(): INT64,
    pa.uint8(): st.integers(0, 255),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.string_view(): TEXT,
    pa.binary(): st.binary(max_size=20),
    pa.large_binary(): st.binary(max_size=5),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): DAYS,
    pa.time64("us"): CLOCK,
    pa.timestamp("us", "UTC"): MICROS,
    pa.timestamp("us"): MICROS,
    pa.timestamp("ms", "UTC"): st.integers(-62135596800000, 253402300799999),
    pa.decimal128(1, 0): _decimals(1, 0),
    pa.decimal128(9, 2): _decimals(9, 2),
    pa.decimal128(18, 4): _decimals(18, 4),
    pa.decimal128(38, 18): _decimals(38, 18),
    pa.decimal256(60, 10): _decimals(60, 10),
}
KEYS = (pa.int32(), pa.int64(), pa.string(), pa.date32(), pa.bool_(), pa.decimal128(9, 2))


def nested_types(
    leaves: Iterable[pa.DataType], names: st.SearchStrategy[str], keys: Sequence[pa.DataType]
) -> st.SearchStrategy[pa.DataType]:
    """Types nested in each other: structs have fields of `names`, maps have `keys`."""

    def nest(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        structs = st.lists(st.tuples(names, inner), max_size=3, unique_by=lambda pair: pair[0])
        return st.one_of(
            inner.map(pa.list_),
            inner.map(pa.large_list),
            inner.map(lambda kind: pa.list_(kind, 2)),
            structs.map(pa.struct),
            st.tuples(st.sampled_from(keys), inner).map(lambda pair: pa.map_(*pair)),
        )

    return st.recursive(st.sampled_from(list(leaves)), nest, max_leaves=4)


# What draws is made once: hypothesis looks through what is new, which takes as long as many draws.
TYPES = nested_types(LEAVES, NAMES, KEYS)


@functools.cache
def values(kind: pa.DataType, *, has_null_items: bool = True) -> st.SearchStrategy[object]:
    """Values of a type or None; dates and times as integers."""
    return st.none() | _values(kind, has_null_items)


@functools.cache
def _values(kind: pa.DataType, has_null_items: bool) -> st.SearchStrategy[object]:
    if kind in LEAVES:
        return LEAVES[kind]

    def item(of: pa.DataType) -> st.SearchStrategy[object]:
        inner = _values(of, has_null_items)
        return st.none() | inner if has_null_items else inner

    if pa.types.is_struct(kind):
        return st.fixed_dictionaries(
            {field.name: values(field.type, has_null_items=has_null_items) for field in kind}
        )
    if pa.types.is_map(kind):
        entry = st.tuples(LEAVES[kind.key_type], item(kind.item_type))
        return st.lists(entry, max_size=3, unique_by=lambda pair: pair[0])
    if pa.types.is_fixed_size_list(kind):
        return st.lists(item(kind.value_type), min_size=2, max_size=2)
    return st.lists(item(kind.value_type), max_size=3)


@st.composite
def tables(
    draw: st.DrawFn, *, has_null_items: bool = True
) -> tuple[pa.RecordBatch, list[list[object]]]:
    """Rows, which may be a slice, and the values of each column."""
    kinds = draw(st.lists(TYPES, min_size=1, max_size=4))
    names = draw(st.lists(NAMES, min_size=len(kinds), max_size=len(kinds), unique=True))
    count = draw(st.integers(0, 6))
    start = draw(st.integers(0, count))
    length = draw(st.integers(0, count - start))
    arrays, columns = [], []
    for kind in kinds:
        rows = draw(
            st.lists(values(kind, has_null_items=has_null_items), min_size=count, max_size=count)
        )
        arrays.append(pa.array(rows, kind))
        columns.append(rows[start : start + length])
    batch = pa.RecordBatch.from_arrays(arrays, names=names).slice(start, length)
    return batch, columns


def unscaled(value: Decimal) -> int:
    """Return a decimal's digits as a number."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def shortest_bytes(number: int) -> bytes:
    """Return big-endian two's complement in as few bytes as hold the number."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def to_micros(value: int, kind: pa.DataType) -> int:
    """Return a timestamp in microseconds."""
    return value * {"s": 10**6, "ms": 1000, "us": 1}[kind.unit]


def make_rows(columns: Sequence[Sequence[object]]) -> list[tuple[object, ...]]:
    """Return the rows that columns make up."""
    return list(zip(*columns, strict=True))
