"""Compare the columns that a feed had with those that it has now, and describe the difference.

Fields are paired by their ids, if both schemas have ids (column mapping of Delta, Lance); then by
name. So a rename is one change with ids, and without them a drop and an addition. A cast in Lance
gives a column another id: of the same name and another type, it is the same column. Of the same
type, it was dropped and added again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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

Path = tuple[str, ...]
"""Names from a column down to a field: `element` of lists, `key` and `value` of maps."""


_WORDS = {
    "added": "added {name} ({type})",
    "dropped": "dropped {name} ({type})",
    "renamed": "renamed {from} to {name}",
    "widened": "widened {name} from {from} to {to}",
    "retyped": "retyped {name} from {from} to {to}",
    "nullable": "{name} may be null",
    "required": "{name} is never null",
    "comment": "changed the comment of {name}",
    "reordered": "reordered {name}",
}


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One difference. All differences of two schemas apply together.

    Attributes:
        kind: What happened: `added`, `dropped`, `renamed`, `widened`, `retyped`, `nullable`,
            `required`, `comment` or `reordered`.
        path: Where, by the new names; the last name of a dropped field is its old one. Of
            `reordered`, the struct; empty: the table.
        facts: Details for readers: the former and the present state, as JSON values.
        field: The field that was added, dropped or renamed, or got another type, as it is then;
            as it was, if it was dropped or renamed.
    """

    kind: str
    path: Path
    facts: Mapping[str, object]
    field: pa.Field = None

    def to_json(self) -> dict[str, object]:
        """Return the form for readers."""
        column = {"column": path_text(self.path)} if self.path else {}
        return {"change": self.kind, **column, **self.facts}

    def __str__(self) -> str:
        """Return the difference in words."""
        return _WORDS[self.kind].format(name=path_text(self.path) or "columns", **self.facts)


@dataclass(frozen=True, slots=True)
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
            "_event": "schema",
            COMMIT_VERSION: self.version,
            COMMIT_TIMESTAMP: timestamp_text(self.timestamp_us),
            "changes": [change.to_json() for change in self.changes],
            "columns": [{"name": each.name, **describe_field(each)} for each in self.schema],
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
        """Return the change that comes before the rows of a batch; None for none."""
        source = batch.change_source
        return self.compare(batch.rows.schema, batch.version, batch.timestamp_us, source)

    def compare(
        self,
        schema: pa.Schema,
        version: Version,
        timestamp_us: int,
        source: ChangeSourceKind = ChangeSourceKind.NONE,
    ) -> SchemaChange | None:
        """Return the change that comes before a row with these columns; None for none."""
        told, self.told = self.told, schema
        changes = () if told is None else compare_schemas(told, schema)
        if told is not None and not changes:
            return None
        return SchemaChange(version, timestamp_us, value_schema(schema), changes, source)


def compare_schemas(old: pa.Schema, new: pa.Schema) -> tuple[FieldChange, ...]:
    """Return the differences of two schemas of a feed, without hidden columns.

    For each struct: dropped fields, changes of the remaining ones, their order, added fields
    at which position.
    """
    if old.equals(new, check_metadata=True):
        return ()
    return tuple(_compare(list(value_schema(old)), list(value_schema(new)), ()))


def _compare(
    old: Sequence[pa.Field], new: Sequence[pa.Field], above: Path
) -> Iterator[FieldChange]:
    pairs = _pair(old, new)
    for index, each in enumerate(old):
        if index not in pairs.values():
            yield FieldChange("dropped", (*above, each.name), describe_field(each), each)
    for position, index in pairs.items():
        yield from _compare_field(old[index], new[position], (*above, new[position].name))
    if list(pairs.values()) != sorted(pairs.values()):
        yield FieldChange("reordered", above, {"to": [new[at].name for at in pairs]})
    for position, each in enumerate(new):
        if position not in pairs:
            facts = {**describe_field(each), "position": position}
            yield FieldChange("added", (*above, each.name), facts, each)


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
        yield FieldChange("renamed", path, {"from": path_text((*path[:-1], old.name))}, old)
    yield from _compare_types(old, new, path)
    if old.nullable != new.nullable:
        yield FieldChange("nullable" if new.nullable else "required", path, {})
    if _comment(old) != _comment(new):
        yield FieldChange("comment", path, {"from": _comment(old), "to": _comment(new)})


def _compare_types(old: pa.Field, new: pa.Field, path: Path) -> Iterator[FieldChange]:
    before, after, marks = old.type, new.type, (_mark(old), _mark(new))
    if not any(marks) and pa.types.is_struct(before) and pa.types.is_struct(after):
        yield from _compare(list(before), list(after), path)
    elif pa.types.is_list(before) and pa.types.is_list(after):
        yield from _compare_part("element", before.value_field, after.value_field, path)
    elif pa.types.is_map(before) and pa.types.is_map(after):
        yield from _compare_part("key", before.key_field, after.key_field, path)
        yield from _compare_part("value", before.item_field, after.item_field, path)
    elif marks[0] != marks[1] or before != after:
        is_wider = not any(marks) and is_widened(before, after) and not is_widened(after, before)
        facts = {"from": type_text(old), "to": type_text(new)}
        yield FieldChange("widened" if is_wider else "retyped", path, facts, new)


def _compare_part(name: str, old: pa.Field, new: pa.Field, path: Path) -> Iterator[FieldChange]:
    yield from _compare_field(old.with_name(name), new.with_name(name), (*path, name))


def path_text(path: Path) -> str:
    """Return a path as `columns` has it: a name with a dot is in backticks."""
    return ".".join(f"`{name}`" if "." in name else name for name in path)


def describe_field(field: pa.Field) -> dict[str, object]:
    """Return type, `nullable` and comment of a column."""
    found = {"type": type_text(field), "nullable": field.nullable}
    return {**found, "comment": _comment(field)} if _comment(field) else found


def type_text(field: pa.Field) -> str:
    """Return the type of a column as text."""
    kind, mark = field.type, _mark(field)
    if mark:
        return mark.decode()
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{each.name}: {type_text(each)}' for each in kind)}>"
    if pa.types.is_list(kind):
        return f"list<{type_text(kind.value_field)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_field)}, {type_text(kind.item_field)}>"
    return str(kind)


def _metadata(field: pa.Field, key: bytes) -> bytes:
    found: bytes = (field.metadata or {}).get(key, b"")
    return found


def _id(field: pa.Field) -> bytes:
    """Return the id of a field in all versions of its table; empty if it has none."""
    return _metadata(field, FIELD_ID) or _metadata(field, COLUMN_ID)


def _mark(field: pa.Field) -> bytes:
    return _metadata(field, TYPE)


def _comment(field: pa.Field) -> str:
    return _metadata(field, COMMENT).decode("utf-8", "replace")
