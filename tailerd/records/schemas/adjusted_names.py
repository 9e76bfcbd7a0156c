"""Convert names to those that Avro and Protobuf allow: ASCII letters, digits and underscores.

A character that is not allowed in a field's name is replaced by its code (`a-b` becomes `a_x2Db`,
`1st` becomes `_1st`, as in Iceberg). The result depends only on the name, so later schemas have the
same. In record names each such character becomes one underscore, as in Debezium.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa

from tailerd.records.schemas.record_shape import AdjustedName, is_change_column

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_]")


def allowed_name(name: str) -> str:
    """Return a field's name as Avro allows it; depends only on the name."""
    if _NAME.fullmatch(name):
        return name
    coded = _NOT_ALLOWED.sub(lambda found: f"_x{ord(found[0]):X}", name)
    return coded if _NAME.fullmatch(coded) else f"_{coded}"


def allowed_full_name(name: str) -> str:
    """Return a record's full name as Debezium adjusts it: each part between dots separately."""
    parts = [_NOT_ALLOWED.sub("_", part) for part in name.split(".") if part]
    return ".".join(part if _NAME.fullmatch(part) else f"_{part}" for part in parts)


def field_names(
    fields: Sequence[pa.Field], *, compared: Callable[[str], str] = lambda name: name
) -> list[str]:
    """Return the unique names of one record's fields in a schema.

    If names collide, change columns take precedence, then names that need no adjustment, then
    earlier fields; the others get a number.

    Args:
        fields: The fields, in order.
        compared: Names collide if this function returns equal values.
    """
    requested = [allowed_name(field.name) for field in fields]
    ranks = [
        (not is_change_column(field), name != field.name, index)
        for index, (field, name) in enumerate(zip(fields, requested, strict=True))
    ]
    taken: set[str] = set()
    names = dict.fromkeys(range(len(requested)), "")
    for *_, index in sorted(ranks):
        name, number = requested[index], 2
        while compared(name) in taken:
            name, number = f"{requested[index]}_{number}", number + 1
        taken.add(compared(name))
        names[index] = name
    return list(names.values())


def adjusted_fields(
    path: tuple[str, ...], fields: Sequence[pa.Field], names: Sequence[str]
) -> list[AdjustedName]:
    """Return the names that differ from the table's."""
    return [
        AdjustedName(path=path, name=field.name, adjusted=name)
        for field, name in zip(fields, names, strict=True)
        if field.name != name
    ]


def adjusted_record(name: str) -> list[AdjustedName]:
    """Return the record's own name if it was adjusted."""
    allowed = allowed_full_name(name)
    return [] if allowed == name else [AdjustedName(path=(), name=name, adjusted=allowed)]
