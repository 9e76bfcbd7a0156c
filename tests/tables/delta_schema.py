"""Delta schemas for test tables: fields, column mapping, and their Arrow counterparts."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

DeltaType = str | dict[str, Any]
Field = dict[str, Any]

ID = "delta.columnMapping.id"
PHYSICAL_NAME = "delta.columnMapping.physicalName"

_ARROW: dict[str, pa.DataType] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "variant": pa.struct(
        [
            pa.field("metadata", pa.binary(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    ),
}


def field(name: str, kind: DeltaType, *, nullable: bool = True, **metadata: Any) -> Field:
    """Return one field as `schemaString` has it."""
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: Field) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: DeltaType, *, contains_null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": contains_null}


def map_of(key: DeltaType, value: DeltaType) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def assign_mapping(fields: Sequence[Field], next_id: Iterator[int], *, keep_names: bool) -> None:
    """Give every field without a column-mapping id one, at all depths.

    With `keep_names` the physical name is the logical one, as after an upgrade of a table.
    """
    for item in fields:
        if ID not in item["metadata"]:
            number = next(next_id)
            item["metadata"][ID] = number
            item["metadata"][PHYSICAL_NAME] = item["name"] if keep_names else f"col-{number:04}"
        for nested in _nested_structs(item["type"]):
            assign_mapping(nested["fields"], next_id, keep_names=keep_names)


def max_mapping_id(fields: Sequence[Field]) -> int:
    """Return the largest column-mapping id at any depth; 0 without one."""
    ids = [int(item["metadata"].get(ID, 0)) for item in fields]
    for item in fields:
        ids += [max_mapping_id(nested["fields"]) for nested in _nested_structs(item["type"])]
    return max(ids, default=0)


def _nested_structs(kind: DeltaType) -> Iterator[dict[str, Any]]:
    if isinstance(kind, str):
        return
    match kind["type"]:
        case "struct":
            yield kind
        case "array":
            yield from _nested_structs(kind["elementType"])
        case "map":
            yield from _nested_structs(kind["keyType"])
            yield from _nested_structs(kind["valueType"])


def physical_name(item: Field) -> str:
    """Return the name a field has in Parquet, in statistics and in partition values."""
    return str(item["metadata"].get(PHYSICAL_NAME, item["name"]))


def arrow_field(item: Field) -> pa.Field:
    """Return the Parquet column of a field: physical name, and the field id where it has one."""
    metadata = {}
    if ID in item["metadata"]:
        metadata = {b"PARQUET:field_id": str(item["metadata"][ID]).encode()}
    kind = arrow_type(item["type"])
    return pa.field(physical_name(item), kind, nullable=item["nullable"], metadata=metadata)


def arrow_type(kind: DeltaType) -> pa.DataType:
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = kind[len("decimal(") : -1].split(",")
            return pa.decimal128(int(precision), int(scale))
        return _ARROW[kind]
    match kind["type"]:
        case "struct":
            return pa.struct([arrow_field(item) for item in kind["fields"]])
        case "array":
            element = arrow_type(kind["elementType"])
            return pa.list_(pa.field("element", element, nullable=kind["containsNull"]))
        case "map":
            return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    raise ValueError(f"no Delta type: {kind}")


def physical_value(value: Any, kind: DeltaType) -> Any:
    """Return a Python value with the names inside it made physical."""
    if value is None or isinstance(kind, str):
        return value
    match kind["type"]:
        case "struct":
            return {
                physical_name(item): physical_value(value.get(item["name"]), item["type"])
                for item in kind["fields"]
            }
        case "array":
            return [physical_value(item, kind["elementType"]) for item in value]
        case _:
            return [
                (physical_value(key, kind["keyType"]), physical_value(item, kind["valueType"]))
                for key, item in (value.items() if isinstance(value, Mapping) else value)
            ]


def partition_text(value: Any) -> str | None:
    """Serialize a partition value as the protocol says; text is taken as it is."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case datetime.datetime():
            if value.tzinfo is not None:
                utc = value.astimezone(datetime.UTC).replace(tzinfo=None)
                return utc.isoformat(timespec="microseconds") + "Z"
            return value.isoformat(sep=" ", timespec="microseconds")
        case bytes():
            return value.decode("latin-1")
        case decimal.Decimal():
            return format(value, "f")
    return str(value)
