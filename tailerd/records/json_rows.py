"""Convert small columns to JSON text, value by value; the bytes are those of `json_columns`.

Below a few hundred rows, calls of Arrow's kernels take more time than Python.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from tailerd.records.json_columns import (
    NULL,
    column_texts,
    is_any_list,
    is_variant,
    list_parts,
    map_parts,
    plain_array,
)
from tailerd.records.json_leaves import float_texts, timestamp_texts
from tailerd.records.json_text import (
    date_text,
    quote_text,
    quote_utf8,
    spaced_text,
    timestamp_text,
)

_MIN_TIMESTAMPS_OF_KERNELS = 40
"""Timestamps are the most expensive values: kernels are faster for fewer of them."""

_BOOLEANS = {None: NULL, True: "true", False: "false"}


def object_texts(
    arrays: Sequence[pa.Array], fields: Sequence[pa.Field], length: int, *, quote_decimals: bool
) -> list[str]:
    """Return `"name":value,...` for each row, without the braces."""
    columns = []
    for array, field in zip(arrays, fields, strict=True):
        name = quote_text(field.name)
        values = row_texts(array, field, quote_decimals=quote_decimals)
        columns.append([f"{name}:{value}" for value in values])
    if not columns:
        return [""] * length
    return [",".join(row) for row in zip(*columns, strict=True)]


def row_texts(array: pa.Array, field: pa.Field, *, quote_decimals: bool) -> list[str]:
    """Return the JSON text of each value; arguments and errors as `json_columns.column_texts`."""
    array = plain_array(array)
    kind = array.type
    if pa.types.is_string(kind):
        return _strings(array)
    if pa.types.is_integer(kind):
        return [NULL if value is None else str(value) for value in array.to_pylist()]
    if pa.types.is_boolean(kind):
        return [_BOOLEANS[value] for value in array.to_pylist()]
    if pa.types.is_float64(kind):
        return [NULL if value is None else _double(value) for value in array.to_pylist()]
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        if len(array) >= _MIN_TIMESTAMPS_OF_KERNELS:
            return [str(text) for text in timestamp_texts(array).fill_null(NULL).to_pylist()]
        is_utc = kind.tz is not None
        return [
            NULL if value is None else f'"{timestamp_text(value, is_utc=is_utc)}"'
            for value in array.view(pa.int64()).to_pylist()
        ]
    if pa.types.is_date32(kind):
        days = array.view(pa.int32()).to_pylist()
        return [NULL if value is None else f'"{date_text(value)}"' for value in days]
    if pa.types.is_binary(kind):
        return [
            NULL if value is None else f'"{b64encode(value).decode()}"'
            for value in array.to_pylist()
        ]
    if pa.types.is_dictionary(kind):
        return row_texts(array.dictionary_decode(), field, quote_decimals=quote_decimals)
    return _nest_values(array, field, quote_decimals)


def _nest_values(array: pa.Array, field: pa.Field, quote_decimals: bool) -> list[str]:
    kind = array.type
    if pa.types.is_struct(kind) and not is_variant(field):
        children = [array.field(index) for index in range(kind.num_fields)]
        bodies = object_texts(children, list(kind), len(array), quote_decimals=quote_decimals)
        return _copy_nulls(array, [f"{{{body}}}" for body in bodies])
    if pa.types.is_map(kind):
        return _maps(array, quote_decimals)
    if is_any_list(kind):
        offsets, items = list_parts(array)
        texts = row_texts(items, kind.value_field, quote_decimals=quote_decimals)
        return _copy_nulls(array, _enclose_lists("[", offsets.tolist(), texts, "]"))
    texts = column_texts(array, field, quote_decimals=quote_decimals).complete().to_pylist()
    return [str(text) for text in texts]


def _maps(array: pa.Array, quote_decimals: bool) -> list[str]:
    offsets, keys, values = map_parts(array)
    key_texts = row_texts(keys, array.type.key_field, quote_decimals=True)
    if pa.types.is_nested(keys.type):
        key_texts = [spaced_text(text) for text in key_texts]
    value_texts = row_texts(values, array.type.item_field, quote_decimals=quote_decimals)
    entries = [
        f"{key if key.startswith(chr(34)) else quote_text(key)}:{value}"
        for key, value in zip(key_texts, value_texts, strict=True)
    ]
    return _copy_nulls(array, _enclose_lists("{", offsets.tolist(), entries, "}"))


def _strings(array: pa.Array) -> list[str]:
    try:
        values = array.to_pylist()
    except UnicodeDecodeError:
        raw = array.cast(pa.binary()).to_pylist()
        return [NULL if value is None else quote_utf8(value) for value in raw]
    return [NULL if value is None else quote_text(value) for value in values]


def _double(value: float) -> str:
    # Within these bounds Python and Arrow write the same shortest digits without an exponent.
    if 1e-4 <= abs(value) < 1e9 or value == 0:
        return repr(value)
    return str(float_texts(pa.array([value], pa.float64()))[0])


def _enclose_lists(opening: str, offsets: list[int], texts: list[str], closing: str) -> list[str]:
    return [f"{opening}{','.join(texts[start:end])}{closing}" for start, end in pairwise(offsets)]


def _copy_nulls(array: pa.Array, texts: list[str]) -> list[str]:
    if not array.null_count:
        return texts
    return [
        text if is_there else NULL
        for text, is_there in zip(texts, array.is_valid().to_pylist(), strict=True)
    ]
