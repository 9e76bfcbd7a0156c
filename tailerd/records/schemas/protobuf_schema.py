"""Convert a record's shape to Protobuf messages, with the types of Confluent's ProtobufConverter.

| column | Protobuf |
|---|---|
| integers up to 32 bits | `int32`, unsigned ones `uint32` |
| other integers | `int64`, `uint64` |
| decimal(p,s) | `confluent.type.Decimal` |
| date | `google.type.Date` |
| time of day | `google.type.TimeOfDay` |
| timestamp with zone | `google.protobuf.Timestamp` |
| timestamp without zone | `google.type.DateTime` without offset or zone |
| UUID; variant | `string`; the latter contains JSON |
| struct | a message nested in the one that contains the field |
| list | `repeated`; inside another list or map a message with `repeated items` |
| map | `map`; if Protobuf does not allow the key type, `repeated` messages with `key` and `value` |
| always null | no field; its number is reserved |

Scalars are `optional`, so that null and zero differ. `repeated` and `map` have no null: a null list
becomes an empty one, and a null item is an error. `wrapped` collections are messages, and so are
items that may be null: nothing is lost, but readers have one more level.

Field numbers are field ids if every field of a struct has one; otherwise those of an earlier schema
of the record, with new fields above all of them; otherwise positions. 18997 to 18999 are the change
columns; numbers from there on are moved above Protobuf's reserved range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from tailerd.records.schemas.adjusted_names import (
    adjusted_fields,
    adjusted_record,
    allowed_full_name,
    field_names,
)
from tailerd.records.schemas.column_kind import Kind, choose_kind, stored_type, unsupported_error
from tailerd.records.schemas.record_shape import (
    FIRST_CHANGE_NUMBER,
    NUMBER,
    AdjustedName,
    RecordShape,
    read_comment,
    read_field_id,
    read_record_name,
)

Collections = Literal["repeated", "wrapped"]
Label = Literal["optional", "repeated", "map"]
Content = Literal["struct", "collection", "item"]

_FIRST_FREE_NUMBER = 20_000

IS_VARIANT = "A variant as JSON."
"""Comment of variant fields, which distinguishes them from other strings."""

WELL_KNOWN: Mapping[Kind, tuple[str, str]] = MappingProxyType(
    {
        Kind.DATE: ("google.type.Date", "google/type/date.proto"),
        Kind.TIME: ("google.type.TimeOfDay", "google/type/timeofday.proto"),
        Kind.DECIMAL: ("confluent.type.Decimal", "confluent/type/decimal.proto"),
    }
)
_INSTANT = ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto")
_NAIVE = ("google.type.DateTime", "google/type/datetime.proto")
_SCALARS = {
    Kind.BOOLEAN: "bool",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.UUID: "string",
    Kind.VARIANT: "string",
    Kind.BINARY: "bytes",
}
_KEYS = (Kind.INTEGER, Kind.BOOLEAN, Kind.STRING, Kind.UUID)


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        name: Its own name.
        full_name: With package and enclosing messages, without a leading dot.
        fields: In column order.
        content: Its kind: a struct, the items of one list or map, or one item.
        reserved: Numbers of former fields.
    """

    name: str
    full_name: str
    fields: tuple[MessageField, ...]
    content: Content = "struct"
    reserved: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a field.

    Attributes:
        name: A scalar's name, or a message's full name.
        kind: Of the values.
        message: The message, if it is part of this schema.
        imported: The file with the message, if it is imported.
        is_shared: Whether the message is at the top level, not nested.
    """

    name: str
    kind: Kind
    message: Message | None = None
    imported: str = ""
    is_shared: bool = False

    @property
    def is_scalar(self) -> bool:
        """Whether it is not a message."""
        return self.message is None and not self.imported


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field of a message.

    Attributes:
        name, number: As in the schema.
        index: Index of its column in the struct.
        label: For map entries, `map` and `repeated` differ only in the schema.
        value: Type of the value, or of each item of a repeated field.
        column: Its column.
        key: Key type of a `map`; None otherwise.
    """

    name: str
    number: int
    index: int
    label: Label
    value: ValueType
    column: pa.Field
    key: ValueType | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The field numbers of a message in an earlier schema."""

    by_name: Mapping[str, int] = field(default_factory=dict)
    reserved: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ProtobufFile:
    """A schema, with the record's own message first.

    Attributes:
        package: Of all messages.
        messages: The top-level messages.
        imports: Imported files, sorted.
        adjusted: Names that differ from the table's.
    """

    package: str
    messages: tuple[Message, ...]
    imports: tuple[str, ...]
    adjusted: tuple[AdjustedName, ...]


def protobuf_file(
    shape: RecordShape,
    *,
    collections: Collections = "repeated",
    earlier: Mapping[str, Numbers] = MappingProxyType({}),
) -> ProtobufFile:
    """Return the messages for records of a shape.

    Args:
        shape: Their name and fields.
        collections: How lists and maps are encoded.
        earlier: Field numbers of the previous schema, by message full name.

    Raises:
        UnsupportedFeatureError: A column has no Protobuf type.
    """
    name = allowed_full_name(shape.name)
    package, _, short = name.rpartition(".")
    writer = _Writer(package, collections, earlier)
    message = writer.struct(short, package, shape.fields, ())
    return ProtobufFile(
        package,
        (message, *writer.shared.values()),
        tuple(sorted(writer.imports)),
        (*adjusted_record(shape.name), *writer.adjusted),
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """A field without its type, which is added later.

    Attributes:
        name, number, index, column: As in `MessageField`.
    """

    name: str
    number: int
    index: int
    column: pa.Field

    def make_field(
        self, label: Label, value: ValueType, key: ValueType | None = None
    ) -> MessageField:
        """Return the field with its type."""
        return MessageField(self.name, self.number, self.index, label, value, self.column, key)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The message that contains fields and nested messages.

    Attributes:
        message: Its full name.
        taken: Names used in it; grows.
        path: The enclosing columns, outermost first.
    """

    message: str
    taken: set[str]
    path: tuple[str, ...]

    def below(self, column: pa.Field) -> _Scope:
        """Return the scope of a column's content."""
        return _Scope(self.message, self.taken, (*self.path, column.name))

    def inside(self, name: str, *fields: str) -> _Scope:
        """Return the scope of a nested message that has fields with these names."""
        taken = {*fields, *(f"_{field}" for field in fields)}
        return _Scope(_join_names(self.message, name), taken, self.path)


class _Writer:
    def __init__(
        self, package: str, collections: Collections, earlier: Mapping[str, Numbers]
    ) -> None:
        self._package = package
        self._is_wrapped = collections == "wrapped"
        self._earlier = earlier
        self.shared: dict[str, Message] = {}
        self.imports: set[str] = set()
        self.adjusted: list[AdjustedName] = []

    def struct(
        self, name: str, scope: str, fields: Sequence[pa.Field], path: tuple[str, ...]
    ) -> Message:
        full_name = _join_names(scope, name)
        names = field_names(fields, compared=_fold_name)
        self.adjusted += adjusted_fields(path, fields, names)
        numbers, reserved = field_numbers(fields, names, self._earlier.get(full_name))
        own = _Scope(full_name, {*names, *(f"_{other}" for other in names)}, path)
        members = [
            self._field(_Slot(names[index], numbers[index], index, column), own.below(column))
            for index, column in enumerate(fields)
            if choose_kind(column) is not Kind.NULL
        ]
        return Message(name, full_name, tuple(members), "struct", reserved)

    def _field(self, slot: _Slot, scope: _Scope) -> MessageField:
        if choose_kind(slot.column) in (Kind.LIST, Kind.MAP) and not self._is_wrapped:
            return self._repeat_field(slot, scope)
        return slot.make_field("optional", self._value(slot.column, slot.name, scope))

    def _repeat_field(self, slot: _Slot, scope: _Scope) -> MessageField:
        stored = stored_type(slot.column.type)
        if choose_kind(slot.column) is Kind.LIST:
            return slot.make_field("repeated", self._item(stored.value_field, slot.name, scope))
        own_entry = entry_name(slot.name)
        is_map = choose_kind(stored.key_field) in _KEYS and own_entry not in scope.taken
        if is_map and not own_entry[0].isdigit():
            scope.taken.add(own_entry)
            key = self._value(stored.key_field, slot.name, scope)
            return slot.make_field("map", self._item(stored.item_field, slot.name, scope), key)
        own_entry = _free(f"{type_name(slot.name)}Entry", scope.taken)
        inside = scope.inside(own_entry, "key", "value")
        members = tuple(
            part.make_field("optional", self._value(part.column, part.name, inside))
            for part in (
                _Slot("key", 1, 0, stored.key_field),
                _Slot("value", 2, 1, stored.item_field),
            )
        )
        entry = Message(own_entry, inside.message, members)
        return slot.make_field("repeated", ValueType(inside.message, Kind.MAP, entry))

    def _item(self, column: pa.Field, name: str, scope: _Scope) -> ValueType:
        """Return the type of a list's or map's items."""
        if not (self._is_wrapped and column.nullable):
            return self._value(column, name, scope)
        item_name = _free(f"{type_name(name)}Item", scope.taken)
        inside = scope.inside(item_name, "value")
        member = _Slot("value", 1, 0, column).make_field(
            "optional", self._value(column, "value", inside)
        )
        item = Message(item_name, inside.message, (member,), "item")
        return ValueType(inside.message, choose_kind(column), item)

    def _value(self, column: pa.Field, name: str, scope: _Scope) -> ValueType:
        """Return the type of a column with one value per row."""
        kind, stored = choose_kind(column), stored_type(column.type)
        if kind is Kind.NULL:
            raise unsupported_error(column.with_name(".".join(scope.path)))
        if kind is Kind.STRUCT:
            if given := read_record_name(column):
                return self._share_message(given.rpartition(".")[2], tuple(stored), scope.path)
            free = _free(type_name(name), scope.taken)
            nested = self.struct(free, scope.message, tuple(stored), scope.path)
            return ValueType(nested.full_name, kind, nested)
        if kind in (Kind.LIST, Kind.MAP):
            list_name = _free(f"{type_name(name)}{kind.value.title()}", scope.taken)
            inside = scope.inside(list_name, "items")
            whole = column.with_name(".".join(scope.path))
            items = self._repeat_field(_Slot("items", 1, 0, whole), inside)
            held = Message(list_name, inside.message, (items,), "collection")
            return ValueType(inside.message, kind, held)
        return self._plain(kind, stored)

    def _share_message(
        self, name: str, fields: tuple[pa.Field, ...], path: tuple[str, ...]
    ) -> ValueType:
        if name not in self.shared:
            self.shared[name] = self.struct(name, self._package, fields, path)
        message = self.shared[name]
        return ValueType(message.full_name, Kind.STRUCT, message, is_shared=True)

    def _plain(self, kind: Kind, stored: pa.DataType) -> ValueType:
        if (scalar := _SCALARS.get(kind)) is not None:
            return ValueType(scalar, kind)
        if kind is Kind.INTEGER:
            sign = "u" if pa.types.is_unsigned_integer(stored) else ""
            return ValueType(f"{sign}int{64 if stored.bit_width > 32 else 32}", kind)
        if kind is Kind.TIMESTAMP:
            name, file = _NAIVE if stored.tz is None else _INSTANT
        else:
            name, file = WELL_KNOWN[kind]
        self.imports.add(file)
        return ValueType(name, kind, imported=file)


def field_numbers(
    fields: Sequence[pa.Field], names: Sequence[str], earlier: Numbers | None
) -> tuple[list[int], tuple[int, ...]]:
    """Return the number of each field, and the numbers to reserve.

    Args:
        fields: Of one message, in order.
        names: Their names in the message.
        earlier: The message's earlier numbers, if it existed.
    """
    fixed = [(column.metadata or {}).get(NUMBER) for column in fields]
    ids = [read_field_id(column) for column in fields]
    if all(number is not None or fixed[index] for index, number in enumerate(ids)):
        found = [
            int(own) if own else allowed_number(number or 0)
            for own, number in zip(fixed, ids, strict=True)
        ]
    elif earlier is None:
        found = [int(own) if own else allowed_number(at + 1) for at, own in enumerate(fixed)]
    else:
        found = _after_earlier(fixed, names, earlier)
    if earlier is None:
        return found, ()
    used = {*earlier.reserved, *earlier.by_name.values()} - set(found)
    return found, tuple(sorted(used))


def _after_earlier(
    fixed: Sequence[bytes | None], names: Sequence[str], earlier: Numbers
) -> list[int]:
    used = {*earlier.reserved, *earlier.by_name.values()}
    indexes = [_find_index(number) for number in used if not _is_change_number(number)]
    index, found = max(indexes, default=0), []
    for name, own in zip(names, fixed, strict=True):
        if own:
            found.append(int(own))
        elif name in earlier.by_name:
            found.append(earlier.by_name[name])
        else:
            index += 1
            found.append(allowed_number(index))
    return found


def allowed_number(requested: int) -> int:
    """Return the field number for an id or position, from 1; skips numbers that are not free."""
    return requested if requested < FIRST_CHANGE_NUMBER else requested + _SHIFT


_SHIFT = _FIRST_FREE_NUMBER - FIRST_CHANGE_NUMBER


def _find_index(number: int) -> int:
    return number if number < FIRST_CHANGE_NUMBER else number - _SHIFT


def _is_change_number(number: int) -> bool:
    return FIRST_CHANGE_NUMBER <= number < _FIRST_FREE_NUMBER


def _fold_name(name: str) -> str:
    """Return the form in which names must differ: JSON readers ignore underscores and case."""
    return name.replace("_", "").lower()


def entry_name(name: str) -> str:
    """Return the name of the entry message of a `map`, as generated by protoc."""
    return f"{_camel(name)}Entry"


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def type_name(name: str) -> str:
    """Return the prefix of the names of a field's messages."""
    camel = _camel(name)
    return camel if camel and not camel[0].isdigit() else f"Field{camel}"


def _free(requested: str, taken: set[str]) -> str:
    name, number = requested, 2
    while name in taken:
        name, number = f"{requested}{number}", number + 1
    taken.add(name)
    return name


def _join_names(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def comment_lines(member: MessageField) -> list[str]:
    """Return a field's comment: its column's comment, and the column's name if it differs."""
    lines = read_comment(member.column).splitlines()
    if choose_kind(member.column) is Kind.VARIANT:
        lines.append(IS_VARIANT)
    is_inner = member.name in ("items", "key", "value") and member.index < 2
    if member.name != member.column.name and not is_inner:
        lines.append(f"Column {member.column.name!r}.")
    return lines
