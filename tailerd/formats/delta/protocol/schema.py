"""Parses a table's schema from Delta's JSON, and maps it to Arrow types.

Protocol: PROTOCOL.md#schema-serialization-format, #column-mapping, #delta-data-type-to-parquet
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tailerd.changefeed.change_batch import COMMENT, FIELD_ID, VARIANT_FIELD
from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.remedies import LEAVE_OUT

PHYSICAL_NAME = "delta.columnMapping.physicalName"
COLUMN_ID = "delta.columnMapping.id"
_COMMENT = "comment"
CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"

VARIANT = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), False)]
)
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "int": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": UTC_TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "variant": VARIANT,
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)")

_OPAQUE = re.compile(r"\s*(interval |geometry|geography)", re.IGNORECASE)
_TYPE_KEYS = frozenset({"type", "elementType", "keyType", "valueType"})

MAX_DEPTH = 60
"""Limit of Arrow streams, which are also used for Spark; a map counts as two levels."""


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A type by its name, `decimal(p,s)` included."""

    name: str


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list."""

    element: DataType
    contains_null: bool = True


@dataclass(frozen=True, slots=True)
class MapType:
    """A map."""

    key: DataType
    value: DataType
    value_contains_null: bool = True


@dataclass(frozen=True, slots=True)
class StructType:
    """Named fields in order."""

    fields: tuple[StructField, ...]

    def find_field(self, name: str) -> StructField | None:
        """Return the field of this logical name; None if there is none."""
        return next((item for item in self.fields if item.name == name), None)


@dataclass(frozen=True, slots=True)
class StructField:
    """A column, or a field of a struct."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def physical_name(self, column_mapping: str) -> str:
        """Return the name in data files and in `partitionValues`."""
        if column_mapping == "none":
            return self.name
        return str(self.metadata.get(PHYSICAL_NAME, self.name))

    @property
    def column_id(self) -> int | None:
        """`delta.columnMapping.id`; None if the table has none."""
        value = self.metadata.get(COLUMN_ID)
        return value if isinstance(value, int) else None

    @property
    def char_lengths(self) -> CharLengths:
        """Lengths of its CHAR(n) types, at any depth, which readers pad."""
        return char_lengths(str(self.metadata.get(CHAR_TYPE, "")))

    @property
    def char_length(self) -> int | None:
        """Length of a CHAR(n) column, which readers pad; None for everything else."""
        return dict(self.char_lengths).get(())


DataType = PrimitiveType | ArrayType | MapType | StructType
VOID = PrimitiveType("void")


def schema_json(text: str) -> Any:
    """Return `schemaString` as JSON; for an empty one a struct without fields.

    Raises:
        CorruptLogError: The text is not JSON.
        UnsupportedFeatureError: It is nested too deeply.
    """
    if not text:
        # A table may be created without columns.
        return {"type": "struct", "fields": []}
    try:
        return json.loads(text)
    except ValueError as error:
        raise _no_schema(error) from error
    except RecursionError as error:
        raise _too_deep() from error


@functools.lru_cache(maxsize=256)
def parse_schema(text: str) -> StructType:
    """Parse `schemaString`; an empty one is a struct without columns.

    Raises:
        CorruptLogError: The text is not a schema.
        UnsupportedFeatureError: It is nested too deeply.
    """
    try:
        parsed = _parse(schema_json(text), 0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_schema(error) from error
    if not isinstance(parsed, StructType):
        raise CorruptLogError(
            "The table's schemaString is not a struct, as a table's schema must be."
        )
    return parsed


@functools.lru_cache(maxsize=256)
def comparable_text(text: str) -> str:
    """Return `schemaString` with intervals and shapes as the values that files have for them.

    Rows of a table are compared in all columns, also in those that cannot be delivered.
    """
    return json.dumps(_comparable(schema_json(text))) if _OPAQUE.search(text) else text


def _comparable(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _comparable_type(item) if key in _TYPE_KEYS else _comparable(item)
            for key, item in node.items()
        }
    return [_comparable(item) for item in node] if isinstance(node, list) else node


def _comparable_type(node: Any) -> Any:
    if not isinstance(node, str) or (found := _OPAQUE.match(node)) is None:
        return _comparable(node)
    if found[1].lower().startswith("geo"):
        return "binary"
    is_of_months = "year" in node.lower() or "month" in node.lower()
    return "integer" if is_of_months else "long"


def _no_schema(error: Exception) -> CorruptLogError:
    return CorruptLogError(
        f"The table's schemaString is not a valid Delta schema: {error!r}.",
        remedy="The metaData action is damaged: restore the log entry from a backup.",
    )


def _too_deep() -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"The table's types are nested deeper than {MAX_DEPTH} levels, which this release does not"
        " read.",
        remedy="Rewrite the table with flatter columns.",
    )


def _parse(node: Any, depth: int) -> DataType:
    if depth > MAX_DEPTH:
        raise _too_deep()
    if isinstance(node, str):
        _check_is_text(node)
        # Readers written before 3.0 spell NullType this way.
        return VOID if node in ("void", "null") else PrimitiveType(node.strip().lower())
    match node["type"]:
        case "struct":
            fields = tuple(_parse_field(item, depth + 1) for item in node["fields"])
            if len({item.name for item in fields}) < len(fields):
                raise ValueError("two fields of a struct have one name")
            return StructType(fields)
        case "array":
            element = _parse(node["elementType"], depth + 1)
            return ArrayType(element, bool(node.get("containsNull", True)))
        case "map":
            return MapType(
                _parse(node["keyType"], depth + 2),
                _parse(node["valueType"], depth + 2),
                bool(node.get("valueContainsNull", True)),
            )
        case str(name):
            return _parse(name, depth)
        case other:
            raise TypeError(f"unknown type {other!r}")


def _check_is_text(text: str) -> None:
    """Reject lone surrogates, which neither Arrow nor a message can encode."""
    text.encode()


def _parse_field(node: Any, depth: int) -> StructField:
    name, metadata = node["name"], node.get("metadata") or {}
    if not isinstance(name, str) or not isinstance(metadata, dict):
        raise TypeError(f"the name {name!r} or its metadata are of another type")
    _check_is_text(name)
    _check_is_text(str(metadata.get(PHYSICAL_NAME, "")))
    return StructField(
        name, _parse(node["type"], depth), bool(node.get("nullable", True)), metadata
    )


def arrow_type(data_type: DataType, column: str) -> pa.DataType:
    """Return the Arrow type for a Delta type.

    Raises:
        UnsupportedFeatureError: There is none; the message names the type and the column.
    """
    match data_type:
        case StructType(fields):
            return pa.struct([arrow_field(item, f"{column}.{item.name}") for item in fields])
        case ArrayType(element, contains_null):
            item = _build_field("element", element, f"{column}.element", contains_null)
            return pa.list_(item)
        case MapType(key, value, value_contains_null):
            return pa.map_(
                _build_field("key", key, f"{column}.key", False),
                _build_field("value", value, f"{column}.value", value_contains_null),
            )
        case PrimitiveType(name):
            return _primitive(name, column)


def _build_field(name: str, data_type: DataType, column: str, nullable: bool) -> pa.Field:
    metadata = VARIANT_FIELD if data_type == PrimitiveType("variant") else None
    return pa.field(name, arrow_type(data_type, column), nullable, metadata)


def _primitive(name: str, column: str) -> pa.DataType:
    if (found := _ARROW.get(name)) is not None:
        return found
    if name == "decimal":
        return pa.decimal128(10, 0)
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    raise UnsupportedFeatureError(
        f"Column {column} has the type {name!r}, which this release does not read.",
        remedy=f"Use a newer tailerd, or {LEAVE_OUT}.",
    )


def arrow_field(item: StructField, column: str | None = None) -> pa.Field:
    """Return the Arrow field of a column; its metadata has id and comment, and marks variants."""
    # Nullability is advisory: data files may lack any column, which then reads as null.
    field = _build_field(item.name, item.type, column or item.name, True)
    reported: dict[bytes, bytes] = {}
    if item.column_id is not None:
        reported[FIELD_ID] = str(item.column_id).encode()
    if isinstance(comment := item.metadata.get(_COMMENT), str) and comment:
        reported[COMMENT] = comment.encode("utf-8", "replace")
    return field.with_metadata({**(field.metadata or {}), **reported}) if reported else field


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a table's rows, logical names in schema order."""
    return pa.schema([arrow_field(item) for item in schema.fields])


# Delta stores CHAR(n) as string, and `__CHAR_VARCHAR_TYPE_STRING` of the top-level column has the
# declared type, such as `struct<code:char(5),tags:array<varchar(9)>>`. Readers pad its CHAR
# values.
#
# Spark: CharVarcharUtils.scala

Path = tuple[str, ...]
"""Names of fields; `element` of a list, `key` and `value` of a map."""

CharLengths = tuple[tuple[Path, int], ...]

_WORD = re.compile(r"\s*([a-z_]+)\s*(?:\((\d{1,6})(?:\s*,\s*-?\d+)?\))?\s*", re.IGNORECASE)
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^:`<>,]+?))\s*:")
_PARTS = {"array": ("element",), "map": ("key", "value")}


@functools.lru_cache(maxsize=1024)
def char_lengths(text: str) -> CharLengths:
    """Return the lengths of the CHAR types in a type's text; none if it is not understood."""
    found: list[tuple[Path, int]] = []
    try:
        end = _read_type(text, 0, (), found)
    except (ValueError, RecursionError):
        return ()
    return tuple(found) if end == len(text) else ()


def _read_type(text: str, at: int, path: Path, found: list[tuple[Path, int]]) -> int:
    """Add the CHAR types of the type at a position; return the position after it."""
    match = _WORD.match(text, at)
    if match is None:
        raise ValueError("no type")
    word, length, at = match[1].lower(), match[2], match.end()
    if word == "char" and length:
        found.append((path, int(length)))
    if word in _PARTS:
        for part, opening in zip(_PARTS[word], "<,", strict=False):
            at = _read_type(text, _expect(text, at, opening), (*path, part), found)
        return _expect(text, at, ">")
    if word != "struct":
        return at
    at = _expect(text, at, "<")
    while not text.startswith(">", at):
        name = _NAME.match(text, at)
        if name is None:
            raise ValueError("no name")
        field = name[1].replace("``", "`") if name[1] else name[2]
        at = _read_type(text, name.end(), (*path, field), found)
        at = at if text.startswith(">", at) else _expect(text, at, ",")
    return at + 1


def _expect(text: str, at: int, sign: str) -> int:
    if not text.startswith(sign, at):
        raise ValueError(f"no {sign!r}")
    return at + len(sign)


# Protocol: PROTOCOL.md#schema-serialization-format


def type_text(data_type: DataType) -> str:
    """Return a type in the form of Spark's `simpleString`: `array<struct<a:long>>`."""
    match data_type:
        case PrimitiveType(name):
            return name
        case ArrayType(element=element):
            return f"array<{type_text(element)}>"
        case MapType(key=key, value=value):
            return f"map<{type_text(key)},{type_text(value)}>"
        case StructType(fields):
            inner = ",".join(f"{each.name}:{type_text(each.type)}" for each in fields)
            return f"struct<{inner}>"


def column_texts(schema: StructType) -> tuple[tuple[str, str], ...]:
    """Return name and type of each column, in order, with `not null` if applicable."""
    return tuple(
        (each.name, type_text(each.type) + ("" if each.nullable else " not null"))
        for each in schema.fields
    )
