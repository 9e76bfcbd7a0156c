"""Compare the columns that a feed had with those that it has now, and describe the difference.

Fields are paired by their ids, if both schemas have ids (column mapping of Delta, Lance); then by
name. So a rename is one change with ids, and without them a drop and an addition. A cast in Lance
gives a column another id: of the same name and another type, it is the same column. Of the same
type, it was dropped and added again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tailerd.changefeed.change_batch import (
    COLUMN_ID,
    COMMENT,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FIELD_ID,
    TYPE,
    ChangeBatch,
    value_schema,
)
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Version
from tailerd.records.json_text import timestamp_text
from tailerd.rows.schema_cast import is_widened

EVENT = "_event"
"""Member that tells an event from a row in JSON lines."""

Path = tuple[str, ...]
"""Names from a column down to a field: `element` of lists, `key` and `value` of maps."""


class Kind(enum.StrEnum):
    """What happened to a column or a field."""

    ADDED = "added"
    DROPPED = "dropped"
    RENAMED = "renamed"
    WIDENED = "widened"
    RETYPED = "retyped"
    NULLABLE = "nullable"
    COMMENT = "comment"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One difference. All differences of two schemas apply together.

    Attributes:
        kind: What happened.
        path: Where, by the new names; the last name of a dropped field is its old one. Of
            `reordered`, the struct; empty: the table.
        before, after: What differs: a `pa.Field` that was dropped or added, or got another type; a
            name; whether nulls are allowed; a comment; for `reordered`, the names of the remaining
            fields.
        position: Of an added field among the new ones.
    """

    kind: Kind
    path: Path
    before: object = None
    after: object = None
    position: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the form for readers."""
        found: dict[str, object] = {"change": self.kind.value}
        if self.path:
            found["column"] = path_text(self.path)
        if self.kind in (Kind.ADDED, Kind.DROPPED):
            place = {"position": self.position} if self.kind is Kind.ADDED else {}
            return found | describe_field(self._field, has_name=False) | place
        for name, value in (("from", self.before), ("to", self.after)):
            if value is not None:
                found[name] = type_text(value) if isinstance(value, pa.Field) else value
        return found

    @property
    def _field(self) -> pa.Field:
        return self.after if self.before is None else self.before

    def __str__(self) -> str:
        """Return the difference in words."""
        name, found = path_text(self.path), self.to_json()
        match self.kind:
            case Kind.ADDED | Kind.DROPPED:
                return f"{self.kind} {name} ({found['type']})"
            case Kind.RENAMED:
                return f"renamed {path_text((*self.path[:-1], str(self.before)))} to {name}"
            case Kind.WIDENED | Kind.RETYPED:
                return f"{self.kind} {name} from {found['from']} to {found['to']}"
            case Kind.NULLABLE:
                return f"{name} {'may be' if self.after else 'is never'} null"
            case Kind.COMMENT:
                return f"changed the comment of {name}"
            case Kind.REORDERED:
                return f"reordered {f'the fields of {name}' if name else 'the columns'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """The columns of a feed from a commit on.

    Attributes:
        version, timestamp_us, change_source: As `ChangeBatch` has them: of the first row with these
            columns.
        schema: The columns; those that are not delivered are left out.
        changes: How they differ from the columns before; empty if these are the first.
    """

    version: Version
    timestamp_us: int
    schema: pa.Schema
    changes: tuple[FieldChange, ...] = ()
    change_source: ChangeSourceKind = ChangeSourceKind.NONE

    def to_json(self) -> dict[str, object]:
        """Return the plain form for readers."""
        return {
            EVENT: "schema",
            COMMIT_VERSION: self.version,
            COMMIT_TIMESTAMP: timestamp_text(self.timestamp_us),
            "changes": [change.to_json() for change in self.changes],
            "columns": [describe_field(field) for field in self.schema],
        }

    @property
    def summary(self) -> str:
        """The differences in words; the columns if they are the first."""
        if self.changes:
            return ", ".join(map(str, self.changes))
        return ", ".join(f"{field.name} ({type_text(field)})" for field in self.schema)


class SchemaTracker:
    """Notices where the columns of a feed change.

    Args:
        told: The columns that readers know; None: none yet.
    """

    def __init__(self, told: pa.Schema | None = None) -> None:
        self.told = told

    def observe(self, batch: ChangeBatch) -> SchemaChange | None:
        """Return what readers must be told before the rows of a batch; None: nothing."""
        found = self.compare(batch.rows.schema, batch.version, batch.timestamp_us)
        return found and replace(found, change_source=batch.change_source)

    def compare(
        self, schema: pa.Schema, version: Version, timestamp_us: int
    ) -> SchemaChange | None:
        """Return what readers must be told before a row with these columns; None: nothing."""
        told, self.told = self.told, schema
        if told is not None and (schema is told or schema.equals(told, check_metadata=True)):
            return None
        changes = () if told is None else compare_schemas(told, schema)
        if told is not None and not changes:
            return None
        return SchemaChange(
            version=version,
            timestamp_us=timestamp_us,
            schema=value_schema(schema),
            changes=changes,
        )


def compare_schemas(old: pa.Schema, new: pa.Schema) -> tuple[FieldChange, ...]:
    """Return the differences of two schemas of a feed, without hidden columns.

    For each struct: what was dropped, changes of the remaining fields, their order, what was added
    at which position.
    """
    return tuple(_compare(list(value_schema(old)), list(value_schema(new)), ()))


def _compare(
    old: Sequence[pa.Field], new: Sequence[pa.Field], above: Path
) -> Iterator[FieldChange]:
    pairs = _pair(old, new)
    for index, field in enumerate(old):
        if index not in pairs.values():
            yield FieldChange(kind=Kind.DROPPED, path=(*above, field.name), before=field)
    for position, index in pairs.items():
        yield from _compare_field(old[index], new[position], (*above, new[position].name))
    if list(pairs.values()) != sorted(pairs.values()):
        names = [new[position].name for position in pairs]
        yield FieldChange(kind=Kind.REORDERED, path=above, after=names)
    for position, field in enumerate(new):
        if position not in pairs:
            path = (*above, field.name)
            yield FieldChange(kind=Kind.ADDED, path=path, after=field, position=position)


def _pair(old: Sequence[pa.Field], new: Sequence[pa.Field]) -> dict[int, int]:
    """Return the index of the old field of each new one that has one, by ascending position."""
    ids = {_id(field): index for index, field in enumerate(old) if _id(field)}
    names = {field.name: index for index, field in enumerate(old)}
    pairs = {at: ids[_id(field)] for at, field in enumerate(new) if _id(field) in ids}
    for position, field in enumerate(new):
        index = names.get(field.name)
        if position in pairs or index is None or index in pairs.values():
            continue
        if not (_id(old[index]) and _id(field)) or old[index].type != field.type:
            pairs[position] = index
    return dict(sorted(pairs.items()))


def _compare_field(old: pa.Field, new: pa.Field, path: Path) -> Iterator[FieldChange]:
    if old.name != new.name:
        yield FieldChange(kind=Kind.RENAMED, path=path, before=old.name, after=new.name)
    yield from _compare_types(old, new, path)
    for kind, before, after in (
        (Kind.NULLABLE, old.nullable, new.nullable),
        (Kind.COMMENT, _comment(old), _comment(new)),
    ):
        if before != after:
            yield FieldChange(kind=kind, path=path, before=before, after=after)


def _compare_types(old: pa.Field, new: pa.Field, path: Path) -> Iterator[FieldChange]:
    before, after = old.type, new.type
    is_same_mark = _mark(old) == _mark(new)
    if is_same_mark and pa.types.is_struct(before) and pa.types.is_struct(after):
        if not _mark(old):
            yield from _compare(list(before), list(after), path)
    elif pa.types.is_list(before) and pa.types.is_list(after):
        yield from _compare_part("element", before.value_field, after.value_field, path)
    elif pa.types.is_map(before) and pa.types.is_map(after):
        yield from _compare_part("key", before.key_field, after.key_field, path)
        yield from _compare_part("value", before.item_field, after.item_field, path)
    elif not is_same_mark or before != after:
        is_wider = is_same_mark and is_widened(before, after) and not is_widened(after, before)
        kind = Kind.WIDENED if is_wider else Kind.RETYPED
        yield FieldChange(kind=kind, path=path, before=old, after=new)


def _compare_part(name: str, old: pa.Field, new: pa.Field, path: Path) -> Iterator[FieldChange]:
    yield from _compare_field(old.with_name(name), new.with_name(name), (*path, name))


def path_text(path: Path) -> str:
    """Return a path as `columns` has it: a name with a dot is in backticks."""
    return ".".join(f"`{name}`" if "." in name else name for name in path)


def describe_field(field: pa.Field, *, has_name: bool = True) -> dict[str, object]:
    """Return name, type, `nullable` and comment of a column."""
    comment = _comment(field)
    return {
        **({"name": field.name} if has_name else {}),
        "type": type_text(field),
        "nullable": field.nullable,
        **({"comment": comment} if comment else {}),
    }


def type_text(field: pa.Field) -> str:
    """Return the type of a column as text."""
    kind, mark = field.type, _mark(field)
    if mark:
        return mark.decode()
    if pa.types.is_struct(kind):
        inside = [f"{each.name}: {type_text(each)}" for each in kind]
        return f"struct<{', '.join(inside)}>"
    if pa.types.is_list(kind):
        return f"list<{type_text(kind.value_field)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_field)}, {type_text(kind.item_field)}>"
    return str(kind)


def _metadata(field: pa.Field, key: bytes) -> bytes:
    found: bytes = (field.metadata or {}).get(key, b"")
    return found


def _id(field: pa.Field) -> bytes:
    """Return what identifies a field in all versions of its table; empty if nothing does."""
    return _metadata(field, FIELD_ID) or _metadata(field, COLUMN_ID)


def _mark(field: pa.Field) -> bytes:
    return _metadata(field, TYPE)


def _comment(field: pa.Field) -> str:
    return _metadata(field, COMMENT).decode("utf-8", "replace")
