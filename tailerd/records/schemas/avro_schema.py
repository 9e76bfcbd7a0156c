"""Convert a record's shape to an Avro schema with the names and types of AvroConverter.

| column | Avro |
|---|---|
| integers up to 32 bits | `int`; with connect names also `connect.type` int8 or int16 |
| other integers | `long`; unsigned ones of 64 bits `decimal(20,0)` |
| decimal(p,s) | `bytes`, logical type `decimal` |
| date | `int`, `date` |
| time of day | `long`, `time-micros` |
| timestamp with zone | `long`, `timestamp-micros` |
| timestamp without zone | `long`, `local-timestamp-micros` |
| UUID | `string`, `uuid` |
| variant | `string` that holds JSON |
| struct | a record named after its path: `Value__address`, `Value__items__element` |
| list | `array` |
| map | `map` where keys are strings, else `array` of records with `key` and `value` |

A nullable column is a union with `null` first and `null` as default, so that adding and removing
columns is compatible in both directions.

Protocol: Avro 1.12 specification, "Schema Declaration", "Logical Types"
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from tailerd.records.schemas.adjusted_names import (
    adjusted_fields,
    adjusted_record,
    allowed_full_name,
    field_names,
)
from tailerd.records.schemas.column_kind import (
    Kind,
    choose_kind,
    fits_int32,
    is_wide_unsigned,
    stored_type,
)
from tailerd.records.schemas.record_shape import (
    AdjustedName,
    RecordShape,
    WrittenSchema,
    read_comment,
    read_record_name,
)

Node: TypeAlias = "dict[str, object] | list[object] | str"

UINT64_DIGITS = 20
COLUMN_NAME = "tailerd.name"
"""Property of a field: its name in the table, if Avro does not allow that name."""
VARIANT_TYPE = {"type": "string", "tailerd.type": "variant"}
"""The type of a variant: a string that holds JSON."""
_JSON_NAME = "io.debezium.data.Json"
_NAIVE_TIMESTAMP_NAME = "io.debezium.time.MicroTimestamp"
_DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"
_SIMPLE = {
    Kind.NULL: "null",
    Kind.BOOLEAN: "boolean",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.BINARY: "bytes",
}


def avro_schema(shape: RecordShape, *, connect_names: bool = False) -> WrittenSchema:
    """Return the schema of records of a shape.

    Args:
        shape: Their name and fields.
        connect_names: Whether to add AvroConverter's `connect.*` properties, so that a converter
            returns the Connect types that Debezium documents.

    Raises:
        UnsupportedFeatureError: A column has no Avro type.
    """
    writer = _Writer(connect_names)
    name = allowed_full_name(shape.name)
    node = writer.record(name, shape.fields, ())
    if connect_names and name.endswith(".Envelope"):
        node["connect.version"] = 1
    text = json.dumps(node, separators=(",", ":"), ensure_ascii=False)
    adjusted = (*adjusted_record(shape.name), *writer.adjusted)
    return WrittenSchema(kind="AVRO", name=name, text=text, adjusted=adjusted)


def is_union(field: pa.Field) -> bool:
    """Return whether the field is a union with null; a column that is always null needs none."""
    return bool(field.nullable) and choose_kind(field) is not Kind.NULL


def is_avro_map(kind: pa.DataType) -> bool:
    """Return whether a map type is a map in Avro, whose keys are strings."""
    return choose_kind(kind.key_field) is Kind.STRING


class _Writer:
    """Writes one schema: the first use of a name defines it, later uses are references."""

    def __init__(self, connect_names: bool) -> None:
        self._connect_names = connect_names
        self._defined: dict[str, tuple[pa.Field, ...]] = {}
        self.adjusted: list[AdjustedName] = []

    def record(
        self, name: str, fields: Sequence[pa.Field], path: tuple[str, ...]
    ) -> dict[str, object]:
        namespace, _, short = name.rpartition(".")
        self._defined[name] = tuple(fields)
        names = field_names(fields)
        self.adjusted += adjusted_fields(path, fields, names)
        members = [
            self._field(written, field, f"{name}__{written}", (*path, field.name))
            for written, field in zip(names, fields, strict=True)
        ]
        node: dict[str, object] = {"type": "record", "name": short}
        if namespace:
            node["namespace"] = namespace
        node["fields"] = members
        if self._connect_names and "__" not in short:
            node["connect.name"] = name
        return node

    def _field(self, written: str, field: pa.Field, name: str, path: tuple[str, ...]) -> Node:
        node: dict[str, object] = {"name": written, "type": self._optional(field, name, path)}
        if comment := read_comment(field):
            node["doc"] = comment
        if is_union(field) or choose_kind(field) is Kind.NULL:
            node["default"] = None
        if written != field.name:
            node[COLUMN_NAME] = field.name
        return node

    def _optional(self, field: pa.Field, name: str, path: tuple[str, ...]) -> Node:
        node = self._type(field, name, path)
        return ["null", node] if is_union(field) else node

    def _type(self, field: pa.Field, name: str, path: tuple[str, ...]) -> Node:
        kind, stored = choose_kind(field), stored_type(field.type)
        match kind:
            case Kind.STRUCT:
                if given := allowed_full_name(read_record_name(field)):
                    return self._name_record(given, tuple(stored), path, is_given=True)
                return self._name_record(name, tuple(stored), path)
            case Kind.LIST:
                item = stored.value_field
                return {"type": "array", "items": self._optional(item, f"{name}__element", path)}
            case Kind.MAP if is_avro_map(stored):
                value = self._optional(stored.item_field, f"{name}__value", path)
                return {"type": "map", "values": value}
            case Kind.MAP:
                entry = (stored.key_field.with_name("key"), stored.item_field.with_name("value"))
                return {"type": "array", "items": self._name_record(f"{name}__entry", entry, path)}
        return self._scalar(kind, stored)

    def _name_record(
        self,
        name: str,
        fields: tuple[pa.Field, ...],
        path: tuple[str, ...],
        *,
        is_given: bool = False,
    ) -> Node:
        number, requested = 2, name
        while name in self._defined:
            if is_given and self._defined[name] == fields:
                return name
            # Two paths have the same name if their parts contain the separator.
            name, number = f"{requested}_{number}", number + 1
        return self.record(name, fields, path)

    def _scalar(self, kind: Kind, stored: pa.DataType) -> Node:
        if (simple := _SIMPLE.get(kind)) is not None:
            return simple
        match kind:
            case Kind.INTEGER if is_wide_unsigned(stored):
                return self._decimal(UINT64_DIGITS, 0)
            case Kind.INTEGER:
                return self._integer(stored)
            case Kind.DECIMAL:
                return self._decimal(stored.precision, stored.scale)
            case Kind.DATE:
                return {"type": "int", "logicalType": "date"}
            case Kind.TIME:
                return {"type": "long", "logicalType": "time-micros"}
            case Kind.TIMESTAMP if stored.tz is not None:
                return {"type": "long", "logicalType": "timestamp-micros"}
            case Kind.TIMESTAMP:
                node: dict[str, object] = {"type": "long", "logicalType": "local-timestamp-micros"}
                return self._with_name(node, _NAIVE_TIMESTAMP_NAME)
            case Kind.UUID:
                return {"type": "string", "logicalType": "uuid"}
        return self._with_name({**VARIANT_TYPE}, _JSON_NAME)

    def _integer(self, stored: pa.DataType) -> Node:
        if not fits_int32(stored):
            return "long"
        if self._connect_names and pa.types.is_signed_integer(stored) and stored.bit_width < 32:
            return {"type": "int", "connect.type": f"int{stored.bit_width}"}
        return "int"

    def _decimal(self, precision: int, scale: int) -> Node:
        node: dict[str, object] = {"type": "bytes"}
        node |= {"scale": scale, "precision": precision, "logicalType": "decimal"}
        if not self._connect_names:
            return node
        parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
        return self._with_name(node, _DECIMAL_NAME) | {"connect.parameters": parameters}

    def _with_name(self, node: dict[str, object], name: str) -> dict[str, object]:
        if not self._connect_names:
            return node
        return node | {"connect.version": 1, "connect.name": name}
