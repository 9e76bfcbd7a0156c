"""Masks columns of a table: whole columns, and fields inside them. Pure.

Names are compared case-insensitively. `customer.email` is the field `email` of the struct
`customer`, or of the structs in a list or map of that name, or a column with exactly that name.
So are `customer.element.email` and `customer.value.email`, as in Spark, and
`customer.key_value.value.email`, as in Parquet; the key of a map entry may replace `value`. Without
`email` they are the whole element or value. If a path is ambiguous, all its meanings are masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tailerd.records.json_columns import is_any_list, is_variant

Paths = Sequence[str]
"""Casefolded, relative to where they are used."""

_ELEMENT = "element"
_KEYS = ("key", "key_value.key")
_VALUES = ("value", "key_value.value")
_ENTRIES = {"key_value", *_KEYS, *_VALUES}
"""Each names a part of every map entry: if one is masked, the map is shown empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMask:
    """The mask for rows of one schema.

    Attributes:
        shown: Columns that are shown, at least in part.
        masked: The columns left out, by name in the table or dotted path as configured.
        unknown: Configured names that no column of this schema has. Map entries with such a key are
            left out anyway.
    """

    shown: tuple[str, ...]
    masked: tuple[str, ...]
    unknown: tuple[str, ...]
    _within: Mapping[str, tuple[pa.Field, Paths]]

    @classmethod
    def from_names(cls, names: Iterable[str], schema: pa.Schema) -> ColumnMask:
        """Return the mask of configured names for a schema."""
        known = {name.casefold(): name for name in names}
        whole = [column.name for column in schema if _is_hit(column.name, known)]
        within: dict[str, tuple[pa.Field, Paths]] = {}
        partly: dict[str, str] = {}
        for column in schema:
            paths = _below(column.name, known)
            if paths and pa.types.is_nested(column.type) and column.name not in whole:
                within[column.name] = (column, paths)
                reaching = (path for path in known if _reaches_into(column, path))
                partly |= {path: known[path] for path in reaching}
        found = {name.casefold() for name in whole} | {
            path for path in known for column in schema if _reaches_into(column, path)
        }
        return cls(
            shown=tuple(column.name for column in schema if column.name not in whole),
            masked=(*whole, *partly.values()),
            unknown=tuple(name for path, name in known.items() if path not in found),
            _within=within,
        )

    def hides_within(self) -> bool:
        """Return whether `without` leaves anything out."""
        return bool(self._within)

    def hides_part(self, column: str) -> bool:
        """Return whether something inside a column that is shown is left out."""
        return column in self._within

    def without(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row, as `JsonEncoder` writes it, without the fields that are masked."""
        return {
            name: _hide_value(value, *self._within[name]) if name in self._within else value
            for name, value in row.items()
        }


def _is_hit(name: str, paths: Iterable[str]) -> bool:
    return name.casefold() in paths


def _below(name: str, paths: Iterable[str]) -> list[str]:
    """Return the rests of the paths that go through a field."""
    start = f"{name.casefold()}."
    return [path.removeprefix(start) for path in paths if path.startswith(start)]


def _reaches_into(column: pa.Field, path: str) -> bool:
    """Return whether a path may name something inside a column."""
    return any(_reaches(column, rest) for rest in _below(column.name, [path]))


def _reaches(field: pa.Field, path: str) -> bool:
    kind = field.type
    # The schema does not list the fields of a variant.
    if is_variant(field):
        return True
    if pa.types.is_map(kind):
        return _reaches_entries(kind, path)
    if is_any_list(kind):
        return path == _ELEMENT or any(
            _reaches(kind.value_field, rest) for rest in (path, *_below(_ELEMENT, [path]))
        )
    return pa.types.is_struct(kind) and any(
        _is_hit(child.name, [path]) or _reaches_into(child, path) for child in kind
    )


def _reaches_entries(kind: pa.MapType, path: str) -> bool:
    if pa.types.is_nested(kind.key_type) or path in _ENTRIES:
        return True
    if not pa.types.is_nested(kind.item_type):
        # It may be a key, and the schema does not list the keys of a map.
        return not any(_below(word, [path]) for word in _ENTRIES)
    # The part before the rest is a word for all entries or the key of one; keys may have dots.
    steps = path.split(".")
    rests = (".".join(steps[index:]) for index in range(len(steps)))
    return any(_reaches(kind.item_field, rest) for rest in rests)


def _hide_value(value: Any, field: pa.Field, paths: Paths) -> Any:
    kind = field.type
    if value is None or not paths:
        return value
    if is_variant(field):
        return _hidden_anywhere(value, paths)
    if is_any_list(kind):
        inside = [*paths, *_below(_ELEMENT, paths)]
        is_whole = _is_hit(_ELEMENT, paths)
        return [] if is_whole else [_hide_value(each, kind.value_field, inside) for each in value]
    if pa.types.is_struct(kind):
        return {
            child.name: _hide_value(value[child.name], child, _below(child.name, paths))
            for child in kind
            if not _is_hit(child.name, paths)
        }
    if pa.types.is_map(kind):
        # Nested keys are texts here, and may hold what is masked.
        if pa.types.is_nested(kind.key_type) or not _ENTRIES.isdisjoint(paths):
            return {}
        inside = [*paths, *(rest for word in _VALUES for rest in _below(word, paths))]
        return {
            key: _hide_value(each, kind.item_field, [*inside, *_below(key, paths)])
            for key, each in value.items()
            if not _is_hit(key, paths)
        }
    return value


def _hidden_anywhere(value: Any, paths: Paths) -> Any:
    if isinstance(value, list):
        inside = [*paths, *_below(_ELEMENT, paths)]
        is_whole = _is_hit(_ELEMENT, paths)
        return [] if is_whole else [_hidden_anywhere(each, inside) for each in value]
    if isinstance(value, dict):
        return {
            key: _hidden_anywhere(each, _below(key, paths))
            for key, each in value.items()
            if not _is_hit(key, paths)
        }
    return value
