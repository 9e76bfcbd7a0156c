"""Offsets as Spark keeps them: the fields of `Offset`, and where the query once began.

The end of a micro-batch also says of which version the schema was that it was planned for: a query
with another one may have to repeat it.

Spark's checkpoint holds the end of every micro-batch but not the start of the first one: when
that one must be repeated, the source is asked anew where to begin, and the table has moved on
meanwhile. So the end of the first micro-batch remembers its start. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tailerd.changefeed.offset import Offset

OffsetFields = dict[str, str | int | bool]

_IS_INITIAL = "is_initial"
_BEGAN_AT = "began_at"
_SCHEMA_VERSION = "schema_version"


def initial_fields(offset: Offset) -> OffsetFields:
    """Return what a query without a checkpoint begins with."""
    return {**fields_of(offset), _IS_INITIAL: True}


def end_fields(
    start: Mapping[str, str | int | bool], end: Offset, schema_version: int | None = None
) -> OffsetFields:
    """Return the end of a micro-batch; `start` itself, key by key, when nothing is new.

    Spark compares offsets as text.
    """
    if end == offset_of(start):
        return dict(start)
    fields = fields_of(end)
    if schema_version is not None:
        fields[_SCHEMA_VERSION] = schema_version
    if start.get(_IS_INITIAL):
        fields[_BEGAN_AT] = offset_of(start).to_json()
    return fields


def planned_with(end: Mapping[str, str | int | bool]) -> int | None:
    """Return the version whose schema a micro-batch was planned for; None when it is not said."""
    version = end.get(_SCHEMA_VERSION)
    return version if isinstance(version, int) else None


def batch_start(
    start: Mapping[str, str | int | bool], end: Mapping[str, str | int | bool]
) -> Offset:
    """Return where a micro-batch really starts, the repeated first one included."""
    if not start.get(_IS_INITIAL):
        return offset_of(start)
    if end.get(_IS_INITIAL):
        return offset_of(end)
    began_at = end.get(_BEGAN_AT)
    return Offset.from_json(began_at) if isinstance(began_at, str) else offset_of(start)


def fields_of(offset: Offset) -> OffsetFields:
    """Return the offset's own fields."""
    fields: OffsetFields = json.loads(offset.to_json())
    return fields


def offset_of(fields: Mapping[str, str | int | bool]) -> Offset:
    """Read an offset, whatever is kept beside it.

    Raises:
        OffsetError: It is none, or a newer release wrote it.
    """
    return Offset.from_json(json.dumps(dict(fields)))
