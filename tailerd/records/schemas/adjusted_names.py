"""Names that Avro and Protobuf allow: letters, digits and underscores of ASCII.

A field keeps its name under every later schema: what is not allowed in it is written as its code
(`a-b` becomes `a_x2Db`, `1st` becomes `_1st`, as Iceberg does), which depends on the name alone.
Names of records follow Debezium: one underscore for each character that is not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa

from tailerd.records.schemas.record_shape import AdjustedName, is_change_column

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_]")


def allowed_name(name: str) -> str:
    """Return a field's name as Avro allows it, the same for the same name always."""
    if _NAME.fullmatch(name):
        return name
    coded = _NOT_ALLOWED.sub(lambda found: f"_x{ord(found[0]):X}", name)
    return coded if _NAME.fullmatch(coded) else f"_{coded}"


def allowed_full_name(name: str) -> str:
    """Return a record's full name as Debezium adjusts it: each part between dots by itself."""
    parts = [_NOT_ALLOWED.sub("_", part) for part in name.split(".") if part]
    return ".".join(part if _NAME.fullmatch(part) else f"_{part}" for part in parts)


def field_names(
    fields: Sequence[pa.Field], *, compared: Callable[[str], str] = lambda name: name
) -> list[str]:
    """Return the names that the fields of one record have in a schema; no two are alike.

    Change columns keep their names, then allowed names theirs; of others that would be alike the
    later ones get a number.

    Args:
        fields: In order.
        compared: Names are alike where this is equal.
    """
    wanted = [allowed_name(field.name) for field in fields]
    ranks = [
        (not is_change_column(field), name != field.name, place)
        for place, (field, name) in enumerate(zip(fields, wanted, strict=True))
    ]
    taken: set[str] = set()
    names = dict.fromkeys(range(len(wanted)), "")
    for *_, place in sorted(ranks):
        name, number = wanted[place], 2
        while compared(name) in taken:
            name, number = f"{wanted[place]}_{number}", number + 1
        taken.add(compared(name))
        names[place] = name
    return list(names.values())


def adjusted_fields(
    path: tuple[str, ...], fields: Sequence[pa.Field], names: Sequence[str]
) -> list[AdjustedName]:
    """Return which names differ from the table's."""
    return [
        AdjustedName(path=path, name=field.name, adjusted=name)
        for field, name in zip(fields, names, strict=True)
        if field.name != name
    ]


def adjusted_record(name: str) -> list[AdjustedName]:
    """Return the record's own name where it is not allowed."""
    allowed = allowed_full_name(name)
    return [] if allowed == name else [AdjustedName(path=(), name=name, adjusted=allowed)]
