"""Encode whole columns as JSON texts: nested types are joined from the texts of their leaves.

The path of the JSON formats for large batches: Python runs per column and per nesting level, never
per row (except for variants).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import UnsupportedFeatureError
from tailerd.records.json_leaves import (
    base64_texts,
    date_texts,
    decimal_texts,
    escaped_texts,
    float_texts,
    quote_texts,
    time_texts,
    timestamp_texts,
)
from tailerd.records.json_text import quote_text, spaced_text
from tailerd.records.variant import variant_json
from tailerd.remedies import LEAVE_OUT

NULL = "null"

_PLAIN_TYPES = frozenset(
    kind.id
    for kind in (
        pa.string(),
        pa.int64(),
        pa.int32(),
        pa.float64(),
        pa.bool_(),
        pa.binary(),
        pa.timestamp("us"),
        pa.date32(),
        pa.decimal128(1),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTexts:
    """The JSON texts of a column.

    Attributes:
        array: `string` array; null is JSON null.
        needs_quotes: Whether the texts are without quotes. Then there are no nulls, and the quotes
            can be merged into the constants before and after the column.
    """

    array: pa.Array
    needs_quotes: bool = False

    def complete(self) -> pa.Array:
        """Return texts with quotes and with `null` for null."""
        if self.needs_quotes:
            return quote_texts(self.array)
        return self.array.fill_null(NULL) if self.array.null_count else self.array


def is_variant(field: pa.Field) -> bool:
    """Return whether the field is a Delta variant."""
    key, value = next(iter(VARIANT_FIELD.items()))
    return bool((field.metadata or {}).get(key) == value)


def plain_array(array: pa.Array) -> pa.Array:
    """Convert an array to its type's basic layout: no views, large strings or extension types.

    Raises:
        pyarrow.ArrowCapacityError, pyarrow.ArrowInvalid: More than 2 GiB under 32-bit offsets.
    """
    kind = array.type
    if kind.id in _PLAIN_TYPES:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return plain_array(array.storage)
    if pa.types.is_run_end_encoded(kind):
        return plain_array(pc.run_end_decode(array))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if (
        pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return array.cast(pa.binary())
    if pa.types.is_date64(kind):
        return array.cast(pa.date32())
    return array


def column_texts(array: pa.Array, field: pa.Field, *, quote_decimals: bool) -> ColumnTexts:
    """Return the JSON texts of a column.

    Args:
        array: Any slice, in any layout, of a Delta type.
        field: Names the column in errors and identifies variants.
        quote_decimals: Decimals as strings instead of numbers.

    Raises:
        UnsupportedFeatureError: The type has no JSON form.
        UnreadableDataFileError: A variant value is damaged.
        pyarrow.ArrowCapacityError: The texts do not fit 32-bit offsets.
    """
    array = plain_array(array)
    kind = array.type
    if is_variant(field):
        return ColumnTexts(array=_variants(array))
    if pa.types.is_string(kind):
        texts = escaped_texts(array)
        if texts.null_count:
            return ColumnTexts(array=quote_texts(texts))
        return ColumnTexts(array=texts, needs_quotes=True)
    if pa.types.is_decimal(kind):
        texts = decimal_texts(array)
        return ColumnTexts(array=quote_texts(texts) if quote_decimals else texts)
    if pa.types.is_dictionary(kind):
        values = column_texts(array.dictionary, field, quote_decimals=quote_decimals)
        return ColumnTexts(array=values.complete().take(array.indices))
    if pa.types.is_struct(kind):
        return ColumnTexts(array=_structs(array, quote_decimals))
    if pa.types.is_map(kind):
        return ColumnTexts(array=_maps(array, quote_decimals))
    if is_any_list(kind):
        return ColumnTexts(array=_lists(array, quote_decimals))
    return ColumnTexts(array=scalar_texts(array, field))


def is_any_list(kind: pa.DataType) -> bool:
    """Return whether the type is a list of any layout."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or _is_list_view(kind)
    )


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def scalar_texts(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return the texts of a column of numbers, booleans, bytes, dates or times.

    Raises:
        UnsupportedFeatureError: The type has no JSON form.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        return pc.if_else(array, "true", "false")
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):
        return float_texts(array)
    if pa.types.is_timestamp(kind):
        return timestamp_texts(array)
    if pa.types.is_date32(kind):
        return date_texts(array)
    if pa.types.is_time(kind):
        return time_texts(array)
    if pa.types.is_binary(kind):
        return base64_texts(array)
    raise UnsupportedFeatureError(
        f"Column {field.name!r} has the type {kind}, which has no JSON form here, because it is"
        " not a type of Delta.",
        remedy=f"Rewrite it in a type of Delta, or {LEAVE_OUT}.",
    )


def join_pieces(pieces: Sequence[str | ColumnTexts], length: int) -> pa.Array:
    """Join constants and columns, in order, into one text per row.

    Args:
        pieces: Constants are repeated on every row; neighbouring constants are merged.
        length: Number of rows.

    Returns:
        A `string` array without nulls.
    """
    arguments: list[pa.Array | str] = []
    constant = ""
    for piece in pieces:
        if isinstance(piece, str):
            constant += piece
            continue
        quote = '"' if piece.needs_quotes else ""
        if constant + quote:
            arguments.append(constant + quote)
        arguments.append(piece.array)
        constant = quote
    if constant:
        arguments.append(constant)
    if not any(isinstance(argument, pa.Array) for argument in arguments):
        return pa.repeat(pa.scalar(constant, pa.string()), length)
    return pc.binary_join_element_wise(
        *arguments, "", null_handling="replace", null_replacement=NULL
    )


def object_pieces(
    arrays: Sequence[pa.Array], fields: Sequence[pa.Field], *, quote_decimals: bool
) -> list[str | ColumnTexts]:
    """Return the pieces of `"name":value,...` without the braces."""
    pieces: list[str | ColumnTexts] = []
    for index, (array, field) in enumerate(zip(arrays, fields, strict=True)):
        pieces.append(("," if index else "") + quote_text(field.name) + ":")
        pieces.append(column_texts(array, field, quote_decimals=quote_decimals))
    return pieces


def _structs(array: pa.Array, quote_decimals: bool) -> pa.Array:
    # `field` applies the slice of the parent, but not its nulls.
    children = [array.field(index) for index in range(array.type.num_fields)]
    pieces = object_pieces(children, list(array.type), quote_decimals=quote_decimals)
    return _copy_nulls(array, join_pieces(["{", *pieces, "}"], len(array)))


def _lists(array: pa.Array, quote_decimals: bool) -> pa.Array:
    offsets, items = list_parts(array)
    texts = column_texts(items, array.type.value_field, quote_decimals=quote_decimals).complete()
    return _copy_nulls(array, _enclose_lists("[", offsets, texts, "]"))


def _maps(array: pa.Array, quote_decimals: bool) -> pa.Array:
    offsets, keys, values = map_parts(array)
    key_texts = column_texts(keys, array.type.key_field, quote_decimals=True)
    value_texts = column_texts(values, array.type.item_field, quote_decimals=quote_decimals)
    if pa.types.is_nested(keys.type):
        # There is no kernel for this, and nested keys are rare.
        spaced = [spaced_text(text) for text in key_texts.complete().to_pylist()]
        key_texts = ColumnTexts(array=pa.array(spaced, pa.string()))
    key_column = key_texts if key_texts.needs_quotes else _as_key(key_texts.complete())
    entries = join_pieces([key_column, ":", value_texts], len(keys))
    return _copy_nulls(array, _enclose_lists("{", offsets, entries, "}"))


def _as_key(texts: pa.Array) -> ColumnTexts:
    """Convert texts to strings where necessary: names in an object must be strings."""
    is_string = pc.starts_with(texts, '"')
    bare = pc.if_else(is_string, pc.utf8_slice_codeunits(texts, 1, -1), escaped_texts(texts))
    return ColumnTexts(array=bare, needs_quotes=True)


def list_parts(array: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return n + 1 offsets from 0, and the items, of a list that may be a slice."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        offsets = np.arange(len(array) + 1, dtype=np.int64) * size
        return offsets, array.values.slice(array.offset * size, len(array) * size)
    if _is_list_view(array.type):
        # Not by a cast: PyArrow 26 leaves the last offset unset there.
        sizes = array.sizes.to_numpy()
        if array.null_count:
            sizes = np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
        return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))), array.flatten()
    offsets = array.offsets.to_numpy().astype(np.int64)
    first = int(offsets[0])
    return offsets - first, array.values.slice(first, int(offsets[-1]) - first)


def map_parts(array: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array, pa.Array]:
    """Return n + 1 offsets from 0, keys and values of a map that may be a slice."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    return offsets - first, array.keys.slice(first, count), array.items.slice(first, count)


def _enclose_lists(
    opening: str, offsets: npt.NDArray[np.int64], texts: pa.Array, closing: str
) -> pa.Array:
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), texts)
    return pc.binary_join_element_wise(opening, pc.binary_join(lists, ","), closing, "")


def _copy_nulls(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _variants(array: pa.Array) -> pa.Array:
    metadata = plain_array(array.field("metadata")).to_pylist()
    values = plain_array(array.field("value")).to_pylist()
    texts = [
        variant_json(dictionary, value) if is_there and value is not None else None
        for is_there, dictionary, value in zip(
            array.is_valid().to_pylist(), metadata, values, strict=True
        )
    ]
    return pa.array(texts, pa.string())
