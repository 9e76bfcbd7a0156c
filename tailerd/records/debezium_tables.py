"""The columns of a feed in the form of Debezium's schema change topic."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from tailerd.records.schema_changes import SchemaChange, describe_field

_JDBC_TYPES: dict[str, str] = dict(
    re.findall(
        r"(\w+)=(\S+)",
        "bool=16 int8=-6 int16=5 int32=4 int64=-5 uint8=5 uint16=4 uint32=-5 uint64=2"
        " halffloat=7 float=7 double=8 decimal128=3 decimal256=3 string=12 binary=-3"
        " fixed_size_binary=-3 date32=91 time32=92 time64=92 timestamp=93 struct=2002 list=2003",
    )
)
"""Numbers of `java.sql.Types`; unsigned integers have those of the next wider type."""
_WITH_TIME_ZONE, _OTHER = 2014, 1111


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
    kind, described = field.type, describe_field(field)
    name = str(described["type"])
    jdbc = int(_JDBC_TYPES.get(re.split(r"\W", name)[0], _OTHER))
    has_zone = pa.types.is_timestamp(kind) and kind.tz is not None
    is_decimal = pa.types.is_decimal(kind)
    return {
        "name": field.name,
        "jdbcType": _WITH_TIME_ZONE if has_zone else jdbc,
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
