"""Random rows of every type a reader gives, and what they are equal to, said in plain Python."""

from __future__ import annotations

import datetime as dt
import functools
import math
import struct
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import VARIANT_FIELD

Row = tuple[Any, ...]
Model = tuple[Hashable, ...]

UTC = dt.UTC
NAN_WITH_PAYLOAD = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0]
VARIANT = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())]
)

_LONG = "x" * 70
_FLAT: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-1, 0, 1],
    pa.int16(): [-300, 0, 300],
    pa.int32(): [-1, 0, 1, 2**31 - 1],
    pa.int64(): [-1, 0, 1, 2**63 - 1, -(2**63)],
    pa.bool_(): [True, False],
    pa.float32(): [0.0, -0.0, 1.5, math.nan, math.inf],
    pa.float64(): [0.0, -0.0, 1.5, -1.5, math.nan, NAN_WITH_PAYLOAD, math.inf, -math.inf],
    pa.decimal128(10, 2): [Decimal("0.00"), Decimal("1.50"), Decimal("-1.50")],
    pa.decimal128(38, 0): [Decimal(10**37), Decimal(-(10**37)), Decimal(1), Decimal(2**64)],
    pa.string(): ["", "a", "b", "\x00", "a\x00", "seven..", "eight...", "nine.....", _LONG],
    pa.large_string(): ["", "a", "ü", _LONG],
    pa.binary(): [b"", b"\x00", b"\x00\x00", b"a", b"\xff" * 9],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2026, 1, 1)],
    pa.timestamp("us", "UTC"): [dt.datetime(n, 1, 1, tzinfo=UTC) for n in (1, 1970)],
    pa.timestamp("us"): [dt.datetime(1970, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 1)],
    pa.null(): [None],
}


def variant(value: Any, names: Sequence[str] = ()) -> dict[str, bytes]:
    """Return a variant as its two columns; `names` begin the dictionary, in that order."""
    listed = list(names)
    data = _variant_value(value, listed)
    texts = [name.encode() for name in listed]
    offsets = [sum(map(len, texts[:count])) for count in range(len(texts) + 1)]
    metadata = bytes([1, len(texts), *offsets]) + b"".join(texts)
    return {"metadata": metadata, "value": data}


class Wide(int):
    """An integer that is written with eight bytes."""


def _variant_value(value: Any, names: list[str]) -> bytes:
    match value:
        case None:
            return b"\x00"
        case bool():
            return bytes([(1 if value else 2) << 2])
        case Wide():
            return bytes([6 << 2]) + value.to_bytes(8, "little", signed=True)
        case int():
            return bytes([3 << 2]) + value.to_bytes(1, "little", signed=True)
        case Decimal():
            _, digits, exponent = value.as_tuple()
            unscaled = int("".join(map(str, digits)))
            return bytes([8 << 2, -int(exponent)]) + unscaled.to_bytes(4, "little", signed=True)
        case float():
            return bytes([7 << 2]) + struct.pack("<d", value)
        case str():
            return bytes([1 | len(value.encode()) << 2]) + value.encode()
        case list():
            items = [_variant_value(item, names) for item in value]
            return bytes([3, len(items), *_ends(items)]) + b"".join(items)
        case dict():
            names += [name for name in value if name not in names]
            members = [_variant_value(value[name], names) for name in value]
            ids = [names.index(name) for name in value]
            return bytes([2, len(ids), *ids, *_ends(members)]) + b"".join(members)
    raise TypeError(value)


def _ends(parts: list[bytes]) -> list[int]:
    return [sum(map(len, parts[:count])) for count in range(len(parts) + 1)]


_VARIANTS: list[tuple[dict[str, bytes], Hashable]] = [
    (variant(None), "null"),
    (variant(True), "true"),
    (variant(1), ("exact", 1)),
    (variant(Wide(1)), ("exact", 1)),
    (variant(Decimal("1.00")), ("exact", 1)),
    (variant(1.0), ("double", 1.0)),
    (variant(0.0), ("double", 0.0)),
    (variant(-0.0), ("double", 0.0)),
    (variant(math.nan), ("double", "nan")),
    (variant("a"), ("text", "a")),
    (variant([1, "a"]), ("list", 1, "a")),
    (variant([Wide(1), "a"]), ("list", 1, "a")),
    (variant({"a": 1, "b": None}), ("object", "a", 1, "b", None)),
    (variant({"b": None, "a": 1}), ("object", "a", 1, "b", None)),
    (variant({"a": 1, "b": None}, names=["z", "b"]), ("object", "a", 1, "b", None)),
    (variant({"a": 1}), ("object", "a", 1)),
    ({"metadata": b"\x09", "value": b"?"}, "damaged"),
]
VARIANT_MEANING = {(v["metadata"], v["value"]): meaning for v, meaning in _VARIANTS}


@dataclass(frozen=True)
class RandomTable:
    """A schema and how to draw rows of it."""

    schema: pa.Schema
    rows: st.SearchStrategy[Row]

    def batch(self, rows: Sequence[Row], *, padding: int = 0) -> pa.RecordBatch:
        """Return Arrow rows, a slice where `padding` is not 0."""
        padded = [*list(rows[:1]) * padding, *rows]
        columns = [
            pa.array([row[number] for row in padded], field.type)
            for number, field in enumerate(self.schema)
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return made.slice(len(padded) - len(rows))

    def model(self, rows: Sequence[Row]) -> list[Model]:
        """Return of each row what is equal exactly where rows are."""
        fields = list(self.schema)
        return [
            tuple(meaning(value, field) for value, field in zip(row, fields, strict=True))
            for row in rows
        ]


def meaning(value: Any, field: pa.Field) -> Hashable:
    """Return what is equal to that of another value exactly where the two are equal."""
    kind = field.type
    if value is None:
        return None
    if field.metadata:
        return ("variant", VARIANT_MEANING[value["metadata"], value["value"]])
    if pa.types.is_floating(kind):
        return "nan" if math.isnan(value) else value + 0.0
    if pa.types.is_struct(kind):
        return ("struct", *(meaning(value[child.name], child) for child in kind))
    if pa.types.is_map(kind):
        entries = ((meaning(k, kind.key_field), meaning(v, kind.item_field)) for k, v in value)
        return ("map", frozenset(entries))
    if pa.types.is_list(kind):
        return ("list", *(meaning(item, kind.value_field) for item in value))
    found: Hashable = (type(value).__name__, value)
    return found


def model_of(batches: Sequence[pa.RecordBatch]) -> Counter[Model]:
    """Return the multiset of the rows of batches, by meaning."""
    found: Counter[Model] = Counter()
    for batch in batches:
        fields = list(batch.schema)
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            found[tuple(meaning(v, f) for v, f in zip(row, fields, strict=True))] += 1
    return found


_Drawn = tuple[pa.Field, st.SearchStrategy[Any]]
# What draws values is made once for each type: hypothesis looks through all of it at its first use,
# which takes as long as many draws.


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@functools.cache
def _flat(kind: pa.DataType) -> _Drawn:
    return pa.field("c", kind), _or_null(st.sampled_from(_FLAT[kind]))


def _variant() -> _Drawn:
    values = _or_null(st.sampled_from([value for value, _ in _VARIANTS]))
    return pa.field("c", VARIANT, metadata=VARIANT_FIELD), values


@functools.cache
def _struct(children: tuple[_Drawn, ...]) -> _Drawn:
    fields = [field.with_name(f"f{number}") for number, (field, _) in enumerate(children)]
    values = {f"f{number}": values for number, (_, values) in enumerate(children)}
    return pa.field("c", pa.struct(fields)), _or_null(st.fixed_dictionaries(values))


@functools.cache
def _list(child: _Drawn) -> _Drawn:
    field, values = child
    return pa.field("c", pa.list_(field.with_name("element"))), _or_null(
        st.lists(values, max_size=3)
    )


@functools.cache
def _map(child: _Drawn) -> _Drawn:
    field, values = child
    kind = pa.map_(pa.string(), field.with_name("value"))
    entries = st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), values), max_size=3, unique_by=lambda e: e[0]
    )
    return pa.field("c", kind), _or_null(entries)


def _nesting(inner: st.SearchStrategy[_Drawn]) -> st.SearchStrategy[_Drawn]:
    structs = st.lists(inner, min_size=1, max_size=2).map(tuple).map(_struct)
    return structs | inner.map(_list) | inner.map(_map)


_COLUMNS: st.SearchStrategy[_Drawn] = st.recursive(
    st.sampled_from(list(_FLAT)).map(_flat) | st.just(_variant()), _nesting, max_leaves=3
)


def values_by_type() -> dict[str, tuple[pa.Field, list[Any]]]:
    """Return each type by name, flat and nested, with its values and null."""
    text = [None, "", "a"]
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        **{str(kind): (kind, [None, *values]) for kind, values in _FLAT.items()},
        "struct": (pa.struct([("f", pa.string())]), [None, *({"f": value} for value in text)]),
        "list": (pa.list_(pa.string()), [None, [], *([value] for value in text), ["a", "a"]]),
        "map": (
            pa.map_(pa.string(), pa.int64()),
            [None, [], [("a", None)], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]],
        ),
    }
    fields = {name: (pa.field("c", kind), values) for name, (kind, values) in columns.items()}
    variants = [None, *(value for value, _ in _VARIANTS)]
    return {**fields, "variant": (pa.field("c", VARIANT, metadata=VARIANT_FIELD), variants)}


@st.composite
def tables(draw: st.DrawFn, max_columns: int = 4) -> RandomTable:
    """Draw a schema; few values of each type, so that rows are often equal."""
    columns = draw(st.lists(_COLUMNS, min_size=1, max_size=max_columns))
    fields = [field.with_name(f"c{number}") for number, (field, _) in enumerate(columns)]
    return RandomTable(pa.schema(fields), st.tuples(*(values for _, values in columns)))
