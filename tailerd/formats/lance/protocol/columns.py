"""The columns of a version, from the fields of its manifest. Pure.

Specification: "Schema & Fields". A column, and a field inside it, is matched by its id: its name
may change, and another one may get its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailerd.changefeed.change_batch import COLUMN_ID
from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.lance.protocol.wire import content, decode_signed, entry, fields, number, text
from tailerd.formats.plain_schema import plain_type
from tailerd.remedies import LEAVE_OUT

ROW_ID = "_rowid"
"""The name of the column of row ids; no other column may have it."""
_NO_PARENT = -1
_MAX_DEPTH = 100
_EXTENSION = "ARROW:extension:name"
_BLOB = "lance-encoding:blob"
_PLAIN = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "large_string": pa.large_string(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
}
_LISTS = frozenset({"list", "large_list", "list.struct", "large_list.struct"})
_READ_AS_STORED = frozenset({"", "arrow.uuid", "arrow.bool8", "arrow.opaque"})
"""Extensions whose rows are returned with their storage type."""
_JSON = "lance.json"
"""Stored in a binary form, returned as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    id: int
    parent: int
    name: str
    logical_type: str
    extension: str
    is_blob: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        id: Of its field; `ids` also has those of its nested fields.
        stored: Its type in the manifest.
        type: Of the emitted rows; None if it is not supported: `reason` says why.
        is_blob: Its values may be very large.
        parts: The fields directly inside it, as in `type`: of a struct, the element of a list, the
            key and the value of a map.
    """

    id: int
    name: str
    ids: frozenset[int]
    stored: str
    type: pa.DataType | None
    reason: str = ""
    is_blob: bool = False
    parts: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Where the values of a column are in another version.

    Attributes:
        name: Its name there.
        parts: Of the fields inside it; None for one that does not exist there.
    """

    name: str
    parts: tuple[ColumnSource | None, ...] = ()


def parse_columns(messages: Iterable[bytes]) -> tuple[Column, ...]:
    """Return the columns of a version, in order.

    Raises:
        CorruptLogError: The messages are not fields.
    """
    found = [_field(message) for message in messages]
    children: dict[int, list[_Field]] = {}
    for each in found:
        children.setdefault(each.parent, []).append(each)
    return tuple(_column(each, children) for each in children.get(_NO_PARENT, ()))


def columns_schema(columns: Iterable[Column], requested: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of rows with the wanted columns, in the table's order; None for all.

    Raises:
        UnsupportedFeatureError: The type of a wanted one is not supported.
    """
    names = None if requested is None else frozenset(requested)
    chosen = [each for each in columns if names is None or each.name in names]
    for each in chosen:
        if each.type is None:
            raise UnsupportedFeatureError(
                f"The column {each.name} cannot be read: {each.reason}.",
                remedy=f"Drop it from the table, or {LEAVE_OUT}.",
            )
    return pa.schema([_field_with_id(each) for each in chosen])


def _field_with_id(column: Column) -> pa.Field:
    kind, parts = column.type, [_field_with_id(part) for part in column.parts]
    if pa.types.is_struct(kind):
        kind = pa.struct(parts)
    elif pa.types.is_list(kind) and parts:
        kind = pa.list_(parts[0].type)
    elif pa.types.is_map(kind):
        kind = pa.map_(*(part.type for part in parts))
    return pa.field(column.name, kind, metadata={COLUMN_ID: str(column.id).encode()})


def matching(column: Column, siblings: Sequence[Column], others: Sequence[Column]) -> Column | None:
    """Return the same column in another version: by id, or by name after a cast.

    A cast gives a column another type and another id. A column of the same type with another id was
    dropped and added again.

    Args:
        siblings: The columns of its version.
        others: Those of the other version.
    """
    found = next((each for each in others if each.id == column.id), None)
    if found is not None:
        return found
    known = {each.id for each in siblings}
    return next(
        (
            each
            for each in others
            if each.name == column.name and each.id not in known and each.stored != column.stored
        ),
        None,
    )


def find_sources(
    columns: Sequence[Column], siblings: Sequence[Column], others: Sequence[Column]
) -> tuple[ColumnSource | None, ...]:
    """Return where the values of columns are in another version; None for those it lacks.

    Args:
        columns: Some of `siblings`.
        siblings, others: As in `matching`.
    """
    found = (matching(each, siblings, others) for each in columns)
    return tuple(
        None
        if former is None
        else ColumnSource(former.name, find_sources(each.parts, each.parts, former.parts))
        for each, former in zip(columns, found, strict=True)
    )


def _field(message: bytes) -> _Field:
    id_, parent, name, kind, extension = 0, 0, "", "", ""
    metadata: dict[str, bytes] = {}
    for field_number, value in fields(message):
        match field_number:
            case 2:
                name = text(value)
            case 3:
                id_ = decode_signed(value)
            case 4:
                parent = decode_signed(value)
            case 5:
                kind = text(value)
            case 9:
                extension = text(value)
            case 10:
                key, reported = entry(content(value))
                metadata[key] = reported
            case 1 | 6 | 7:
                number(value)
    named = metadata.get(_EXTENSION, b"").decode(errors="replace")
    return _Field(
        id=id_,
        parent=parent,
        name=name,
        logical_type=kind,
        extension=extension or named,
        is_blob=metadata.get(_BLOB) == b"true",
    )


def _column(field: _Field, children: dict[int, list[_Field]]) -> Column:
    inside: list[_Field] = []
    left = [field]
    while left:
        each = left.pop()
        inside.append(each)
        if len(inside) > sum(map(len, children.values())):
            raise CorruptLogError(f"the fields of column {field.name} are in a circle")
        # An omitted parent is 0, which is also the id of the first column.
        left += [child for child in children.get(each.id, ()) if child is not each]
    kind, reason = None, ""
    try:
        kind = plain_type(_type(field, children))
    except _UnknownTypeError as error:
        reason = str(error)
    except RecursionError:
        reason = "its type is nested too deeply"
    return Column(
        id=field.id,
        name=field.name,
        ids=frozenset(each.id for each in inside),
        stored=field.logical_type,
        type=kind,
        reason=reason,
        is_blob=any(each.is_blob for each in inside),
        parts=() if kind is None else _parts(field, children),
    )


def _parts(field: _Field, children: dict[int, list[_Field]]) -> tuple[Column, ...]:
    inner = [child for child in children.get(field.id, ()) if child is not field]
    if field.logical_type == "map" and inner:
        # Entries are a struct of key and value.
        inner = [child for child in children.get(inner[0].id, ()) if child is not inner[0]]
    return tuple(_column(child, children) for child in inner)


class _UnknownTypeError(Exception):
    """A field's type is not supported."""


def _type(field: _Field, children: dict[int, list[_Field]], depth: int = 0) -> pa.DataType:
    if depth > _MAX_DEPTH:
        raise _UnknownTypeError(f"it is nested deeper than {_MAX_DEPTH} levels")
    if field.extension == _JSON:
        return pa.string()
    if field.extension not in _READ_AS_STORED:
        raise _UnknownTypeError(f"it has the extension type {field.extension}")
    inner = [child for child in children.get(field.id, ()) if child is not field]
    kind = field.logical_type
    if kind == "struct":
        return pa.struct([pa.field(each.name, _type(each, children, depth + 1)) for each in inner])
    if kind in _LISTS and len(inner) == 1:
        return pa.list_(_type(inner[0], children, depth + 1))
    if kind == "map" and len(inner) == 1:
        entries = _type(inner[0], children, depth + 1)
        if pa.types.is_struct(entries) and entries.num_fields == 2:
            return pa.map_(entries.field(0).type, entries.field(1).type)
    if kind.startswith("fixed_size_list:") and inner:
        return pa.list_(_type(inner[0], children, depth + 1))
    return _leaf(kind)


def _leaf(kind: str) -> pa.DataType:
    """Return the type for its text form."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    family, _, rest = kind.partition(":")
    try:
        match family:
            case "fixed_size_list":
                return pa.list_(_leaf(rest.rpartition(":")[0]))
            case "dict":
                return _leaf(rest.rsplit(":", 2)[0])
            case "fixed_size_binary":
                return pa.binary(int(rest))
            case "timestamp":
                unit, _, zone = rest.partition(":")
                return pa.timestamp(unit, None if zone in ("", "-") else zone)
            case "decimal":
                bits, precision, scale = map(int, rest.split(":"))
                make = pa.decimal256 if bits == 256 else pa.decimal128
                return make(precision, scale)
            case "time32" | "time64" | "duration":
                make_time = {"time32": pa.time32, "time64": pa.time64, "duration": pa.duration}
                return make_time[family](rest)
    except ValueError as error:
        raise _UnknownTypeError(f"its type {kind!r} makes no sense") from error
    raise _UnknownTypeError(f"this release does not know its type {kind!r}")
