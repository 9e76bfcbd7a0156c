"""Encode record keys as a JSON object of the key columns, like Debezium's converter.

The bytes of a key are a function of its values for the life of a topic: they choose the partition,
and compaction compares them. So the schema of a key ignores comments, nullability and the widths of
integers and decimals. Other changes of a key column's type change its bytes and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tailerd.changefeed.change_batch import TYPE, ChangeBatch
from tailerd.errors import SchemaChangedError
from tailerd.records.json import is_small
from tailerd.records.json_columns import is_any_list, is_variant, join_pieces, object_pieces
from tailerd.records.json_rows import object_texts
from tailerd.records.record_parts import RowPart, encode_in_parts
from tailerd.records.update_pairs import key_columns
from tailerd.remedies import reset_command


def record_keys(
    batch: ChangeBatch,
    key: Sequence[str],
    *,
    quote_decimals: bool,
    opening: str = "",
    closing: str = "",
) -> pa.Array:
    """Return `{"name":value,...}` for each row; equal keys have equal bytes.

    Each key is between `opening` and `closing`.

    Raises:
        ConfigError: A key column is not among the table's columns.
    """

    def texts(part: RowPart) -> pa.Array:
        arrays, fields = key_columns(part.batch.rows, key)
        count = part.batch.num_rows
        head, tail = f"{opening}{{", f"}}{closing}"
        if is_small(part.batch):
            bodies = object_texts(arrays, fields, count, quote_decimals=quote_decimals)
            return pa.array([f"{head}{body}{tail}" for body in bodies], pa.string())
        pieces = object_pieces(arrays, fields, quote_decimals=quote_decimals)
        return join_pieces([head, *pieces, tail], count)

    return encode_in_parts(RowPart(batch), texts)


def stable_fields(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Return key columns as their schema has them: the same for all widths of a type."""
    return [_stable(field) for field in fields]


def stable_columns(arrays: Sequence[pa.Array], fields: Sequence[pa.Field]) -> list[pa.Array]:
    """Return the values of key columns in the types of `stable_fields`."""
    return [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, stable_fields(fields), strict=True)
    ]


def key_types(rows: pa.Schema, key: Sequence[str]) -> dict[str, str]:
    """Return the type of each key column, as text; columns that are not there are left out."""
    fields = [rows.field(name) for name in key if name in rows.names]
    return {field.name: str(field.type) for field in stable_fields(fields)}


def check_key_types(table: str, known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that equal keys still have equal bytes.

    Args:
        table: Configured name of the table.
        known: Types of the key columns when the first rows were delivered, as `key_types` returns.
        now: Their types now.

    Raises:
        SchemaChangedError: A key column has another type.
    """
    changed = [name for name in now if known.get(name, now[name]) != now[name]]
    if not changed:
        return
    name = changed[0]
    raise SchemaChangedError(
        f"The key column {name!r} of {table} was {known[name]} and is {now[name]} now. Equal keys"
        " would get other bytes, go to another partition, and not replace earlier records.",
        remedy=f"Deliver the table to a new topic. Or empty the topic and {reset_command(table)}.",
    )


def _stable(field: pa.Field) -> pa.Field:
    kept = {name: text for name, text in (field.metadata or {}).items() if name == TYPE}
    kind = field.type if is_variant(field) else _stable_type(field.type)
    return pa.field(field.name, kind, metadata=kept or None)


def _stable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _stable_type(kind.value_type)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return pa.int64()
    if pa.types.is_decimal(kind) and kind.bit_width <= 128:
        return pa.decimal128(38, kind.scale)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_stable(child) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(_stable_type(kind.key_type), _stable(kind.item_field))
    if is_any_list(kind) and not pa.types.is_fixed_size_list(kind):
        return pa.list_(_stable(kind.value_field))
    return kind
