"""Columns of the target: their PostgreSQL types, and the changes that new rows need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailerd.changefeed.change_batch import COMMENT, value_schema
from tailerd.errors import ConfigError, UnsupportedFeatureError
from tailerd.records.json_columns import is_any_list, is_variant
from tailerd.remedies import LEAVE_OUT
from tailerd.sinks.postgres.config import check_name

BIGINT, INTEGER, SMALLINT = "bigint", "integer", "smallint"
DATE, TEXT, BYTEA, JSONB = "date", "text", "bytea", "jsonb"
TIMESTAMPTZ, TIMESTAMP = "timestamp with time zone", "timestamp without time zone"
MAX_COLUMNS = 1600

_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
_DIGITS = {SMALLINT: 5, INTEGER: 10, BIGINT: 19}
_WIDER: Mapping[str, frozenset[str]] = {
    SMALLINT: frozenset({INTEGER, BIGINT, "double precision"}),
    INTEGER: frozenset({BIGINT, "double precision"}),
    "real": frozenset({"double precision"}),
    TEXT: frozenset({"character varying"}),
    DATE: frozenset({TIMESTAMP}),
}
"""Type -> other types that hold all its values."""
_SYSTEM = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the target.

    Attributes:
        name: Its name, with its case.
        kind: Its type as `format_type` writes it: `numeric(10,2)`.
        comment: Its comment; empty if it has none.
        is_filled: Whether a row may leave it out: it may be null, has a default or is generated.
        is_generated: Whether it cannot be written.
    """

    name: str
    kind: str
    comment: str = ""
    is_filled: bool = True
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Changes of the target before it can hold rows.

    Attributes:
        added: Columns to add.
        widened: Columns to widen, with their new types.
        commented: Columns whose comment is another one.
        problems: Sentences about columns that cannot be adapted.
    """

    added: tuple[Column, ...]
    widened: tuple[Column, ...]
    commented: tuple[Column, ...]
    problems: tuple[str, ...]


def plan_columns(table: str, schema: pa.Schema, own: Sequence[Column] = ()) -> list[Column]:
    """Return the columns that the rows of a schema need, with those of the sink itself.

    Args:
        table: Configured name of the table, for errors.
        schema: The delivered columns.
        own: Columns that the sink adds.

    Raises:
        ConfigError: PostgreSQL cannot store a name, or two columns have the same.
        UnsupportedFeatureError: No PostgreSQL type holds a column.
    """
    found = [
        Column(name=field.name, kind=choose_type(field), comment=_comment(field))
        for field in value_schema(schema)
    ]
    found += own
    taken: set[str] = set()
    for column in found:
        _check(table, column.name, taken)
        taken.add(column.name)
    if len(found) > MAX_COLUMNS:
        raise ConfigError(
            f"{table} has {len(found)} columns, and a table of PostgreSQL at most {MAX_COLUMNS}.",
            remedy="Choose some with `columns`.",
        )
    return found


def _check(table: str, name: str, taken: set[str]) -> None:
    rename = "Give it another name with `rename`, or leave it out of `columns`."
    try:
        check_name(name)
    except ValueError as error:
        raise ConfigError(
            f"{table} has a column that cannot be delivered: {error}.", remedy=rename
        ) from error
    if name in _SYSTEM:
        raise ConfigError(
            f"The column {name!r} of {table} has the name of a system column of PostgreSQL.",
            remedy=rename,
        )
    if name in taken:
        raise ConfigError(
            f"{table} has a column {name!r}, and the sink adds a column of the same name.",
            remedy=rename,
        )


def choose_type(field: pa.Field) -> str:
    """Return the PostgreSQL type that holds all values of a column, as `format_type` writes it.

    Raises:
        UnsupportedFeatureError: There is none.
    """
    kind = field.type
    while isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    is_nested = pa.types.is_struct(kind) or pa.types.is_map(kind) or is_any_list(kind)
    if is_variant(field) or is_nested:
        return JSONB
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    for types, name in _TYPES:
        if any(test(kind) for test in types):
            return name
    raise UnsupportedFeatureError(
        f"Column {field.name!r} has the type {kind}, and no type of PostgreSQL is known for it.",
        remedy=f"Rewrite it in another type, or {LEAVE_OUT}.",
    )


_is = pa.types
_TYPES = (
    ((_is.is_boolean,), "boolean"),
    ((_is.is_int8, _is.is_int16, _is.is_uint8), SMALLINT),
    ((_is.is_int32, _is.is_uint16), INTEGER),
    ((_is.is_int64, _is.is_uint32, _is.is_duration), BIGINT),
    ((_is.is_uint64,), "numeric(20,0)"),
    ((_is.is_float16, _is.is_float32), "real"),
    ((_is.is_float64,), "double precision"),
    ((_is.is_string, _is.is_large_string, _is.is_string_view, _is.is_null), TEXT),
    ((_is.is_binary, _is.is_large_binary, _is.is_binary_view, _is.is_fixed_size_binary), BYTEA),
    ((_is.is_date,), DATE),
    ((_is.is_time,), "time without time zone"),
    ((lambda kind: _is.is_timestamp(kind) and kind.tz is not None,), TIMESTAMPTZ),
    ((_is.is_timestamp,), TIMESTAMP),
)


def _comment(field: pa.Field) -> str:
    raw = (field.metadata or {}).get(COMMENT, b"")
    return str(raw.decode("utf-8", "replace")).replace("\0", "")


def can_hold(target: str, values: str) -> bool:
    """Return whether a column of the type `target` holds all values of the type `values`."""
    if target == values or target in _WIDER.get(values, ()):
        return True
    room = _NUMERIC.fullmatch(target)
    if room is None:
        return False
    whole, scale = _DIGITS.get(values), 0
    if (decimal := _NUMERIC.fullmatch(values)) and decimal[1]:
        whole, scale = int(decimal[1]) - int(decimal[2]), int(decimal[2])
    if whole is None:
        return False
    if room[1] is None:
        return True
    return int(room[2]) >= scale and int(room[1]) - int(room[2]) >= whole


def compare_columns(
    needed: Sequence[Column], present: Mapping[str, Column], *, knows_all: bool = True
) -> Adaptation:
    """Return the changes that are needed so that the present columns hold the needed ones.

    Args:
        needed: Columns that rows have.
        present: Columns of the target by name.
        knows_all: Whether rows have no other columns: the others need a default.
    """
    added, widened, commented, problems = [], [], [], []
    for column in needed:
        found = present.get(column.name)
        if found is None:
            added.append(column)
            continue
        if found.is_generated:
            problems.append(f"column {column.name!r} is generated, so it cannot be written")
        elif not can_hold(found.kind, column.kind):
            if can_hold(column.kind, found.kind):
                widened.append(column)
            else:
                problems.append(
                    f"column {column.name!r} is {found.kind}, and its values are {column.kind}"
                )
        if column.comment and column.comment != found.comment:
            commented.append(column)
    names = {column.name for column in needed}
    for found in present.values():
        if knows_all and found.name not in names and not found.is_filled:
            problems.append(
                f"column {found.name!r} may not be null and has no default, and no row has it"
            )
    return Adaptation(tuple(added), tuple(widened), tuple(commented), tuple(problems))
