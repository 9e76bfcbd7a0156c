"""Offsets as Spark keeps them: the fields of `Offset`, and where the query once began.

The end of a micro-batch also says how it was planned: for the schema of which version, because a
query with another one may have to repeat it; and with which changes, because a position within a
commit counts something else with others.

Spark's checkpoint holds the end of every micro-batch but not the start of the first one: when
that one must be repeated, the source is asked again where to begin, and the table has moved on
meanwhile. So the end of the first micro-batch remembers its start. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import OffsetError

OffsetFields = dict[str, str | int | bool]

_IS_INITIAL = "is_initial"
_BEGAN_AT = "began_at"
_SCHEMA_VERSION = "schema_version"
_CHANGES = "changes"


def initial_fields(offset: Offset) -> OffsetFields:
    """Return what a query without a checkpoint begins with."""
    return {**fields_of(offset), _IS_INITIAL: True}


def end_fields(
    start: Mapping[str, str | int | bool],
    end: Offset,
    schema_version: int | None = None,
    changes: ChangeMode | None = None,
) -> OffsetFields:
    """Return the end of a micro-batch; `start` itself, key by key, when nothing is new.

    Spark compares offsets as text.
    """
    if end == offset_of(start):
        return dict(start)
    fields = fields_of(end)
    if schema_version is not None:
        fields[_SCHEMA_VERSION] = schema_version
    if changes is not None:
        fields[_CHANGES] = changes.value
    if start.get(_IS_INITIAL):
        fields[_BEGAN_AT] = offset_of(start).to_json()
    return fields


def planned_with(end: Mapping[str, str | int | bool]) -> int | None:
    """Return the version whose schema a micro-batch was planned for; None when it is not said."""
    version = end.get(_SCHEMA_VERSION)
    return version if isinstance(version, int) else None


def planned_changes(end: Mapping[str, str | int | bool]) -> str | None:
    """Return the changes a micro-batch was planned with; None where it is not said."""
    changes = end.get(_CHANGES)
    return changes if isinstance(changes, str) else None


def check_continues(start: Offset, planned: str | None, changes: ChangeMode) -> None:
    """Make sure that `start`, which was planned with some changes, means the same with these.

    At the beginning of a commit it does, and among the files of a snapshot.

    Raises:
        OffsetError: It lies within a commit.
    """
    is_within = start.phase is Phase.FOLLOW and start.position > 0
    if is_within and planned not in (None, changes.value):
        raise _counts_others(
            f"ends within version {start.version} and counts changes {planned!r} there",
            planned,
            changes,
        )


def check_repeats(start: Offset, end: Offset, planned: str | None, changes: ChangeMode) -> None:
    """Make sure that [start, end) has the rows again that were planned with some changes.

    Raises:
        OffsetError: These give others.
    """
    has_commits = end.phase is Phase.FOLLOW and start.is_before(end)
    if has_commits and planned not in (None, changes.value):
        raise _counts_others(
            f"from version {start.version} until version {end.version} is not done and was"
            f" planned with changes {planned!r}",
            planned,
            changes,
        )


def _counts_others(what: str, planned: str | None, changes: ChangeMode) -> OffsetError:
    return OffsetError(
        f"The last micro-batch of the checkpoint {what}, but the query now has"
        f" {changes.value!r}, which divides commits into other parts: rows would be left out or"
        " come twice.",
        remedy=f"Set changes back to {planned}; at the beginning of a commit it may change.",
    )


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
