"""The columns of a feed in the form of Debezium's schema change topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tailerd.records.schema_changes import SchemaChange, describe_field

_OTHER = 1111
_JDBC_TYPES: Sequence[tuple[Callable[[pa.DataType], bool], int]] = (
    (pa.types.is_boolean, 16),
    (pa.types.is_int8, -6),
    (lambda kind: pa.types.is_int16(kind) or pa.types.is_uint8(kind), 5),
    (lambda kind: pa.types.is_int32(kind) or pa.types.is_uint16(kind), 4),
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_uint32(kind), -5),
    (pa.types.is_uint64, 2),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), 7),
    (pa.types.is_float64, 8),
    (pa.types.is_decimal, 3),
    (pa.types.is_string, 12),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind), -3),
    (pa.types.is_date, 91),
    (pa.types.is_time, 92),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, 2014),
    (pa.types.is_timestamp, 93),
    (pa.types.is_struct, 2002),
    (pa.types.is_list, 2003),
)
"""Numbers of `java.sql.Types`; unsigned integers have those of the next wider type."""


def describe_table(change: SchemaChange, names: Sequence[str], key: Sequence[str]) -> object:
    """Return the item of `tableChanges`.

    Args:
        names: Database, schema and table; empty ones are left out of the id.
        key: Columns that identify a row.
    """
    columns = [_describe_column(field, at) for at, field in enumerate(change.schema, 1)]
    return {
        "type": "ALTER" if change.changes else "CREATE",
        "id": ".".join(f'"{name}"' for name in names if name),
        "table": {
            "defaultCharsetName": None,
            "primaryKeyColumnNames": list(key),
            "columns": columns,
            "attributes": [],
            "comment": None,
        },
    }


def _describe_column(field: pa.Field, position: int) -> dict[str, object]:
    described = describe_field(field)
    kind, name = field.type, described["type"]
    is_decimal = pa.types.is_decimal(kind)
    is_variant = name == "variant"
    jdbc = _OTHER if is_variant else next((n for is_it, n in _JDBC_TYPES if is_it(kind)), _OTHER)
    return {
        "name": field.name,
        "jdbcType": jdbc,
        "nativeType": None,
        "typeName": name,
        "typeExpression": name,
        "charsetName": None,
        "length": kind.precision if is_decimal else None,
        "scale": kind.scale if is_decimal else None,
        "position": position,
        "optional": field.nullable,
        "autoIncremented": False,
        "generated": False,
        "comment": described.get("comment"),
    }
