"""Offsets as Spark keeps them: the fields of `Offset`, and the initial offset of the query.

The end of a micro-batch also records how it was planned: the version of its schema, because a query
with another schema may have to repeat it; and its `changes` mode, because a position within a
commit depends on that mode.

Spark's checkpoint holds the end of every micro-batch but not the start of the first one: when that
one must be repeated, Spark asks the source again for the initial offset, and the table has advanced
meanwhile. So the end of the first micro-batch includes its start. Pure.
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
    """Return the initial offset of a query without a checkpoint."""
    return {**list_fields(offset), _IS_INITIAL: True}


def end_fields(
    start: Mapping[str, str | int | bool],
    end: Offset,
    schema_version: int | None = None,
    changes: ChangeMode | None = None,
) -> OffsetFields:
    """Return the end of a micro-batch; exactly `start` if nothing is new.

    Spark compares offsets as text.
    """
    if end == read_offset(start):
        return dict(start)
    fields = list_fields(end)
    if schema_version is not None:
        fields[_SCHEMA_VERSION] = schema_version
    if changes is not None:
        fields[_CHANGES] = changes.value
    if start.get(_IS_INITIAL):
        fields[_BEGAN_AT] = read_offset(start).to_json()
    return fields


def planned_with(end: Mapping[str, str | int | bool]) -> int | None:
    """Return the version whose schema a micro-batch was planned for; None if not recorded."""
    version = end.get(_SCHEMA_VERSION)
    return version if isinstance(version, int) else None


def planned_changes(end: Mapping[str, str | int | bool]) -> str | None:
    """Return the changes a micro-batch was planned with; None if not recorded."""
    changes = end.get(_CHANGES)
    return changes if isinstance(changes, str) else None


def check_continues(start: Offset, planned: str | None, changes: ChangeMode) -> None:
    """Check that `start`, which was planned with some changes, means the same with these.

    It does at the beginning of a commit, and among the files of a snapshot.

    Raises:
        OffsetError: It is within a commit.
    """
    is_within = start.phase is Phase.FOLLOW and start.position > 0
    if is_within and planned not in (None, changes.value):
        raise _counts_others(
            f"ends within version {start.version} and counts changes {planned!r} there",
            planned,
            changes,
        )


def check_repeats(start: Offset, end: Offset, planned: str | None, changes: ChangeMode) -> None:
    """Check that [start, end) has the same rows as when it was planned with some changes.

    Raises:
        OffsetError: These changes yield other rows.
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
    """Return where a micro-batch really starts, also a repeated first one."""
    if not start.get(_IS_INITIAL):
        return read_offset(start)
    if end.get(_IS_INITIAL):
        return read_offset(end)
    began_at = end.get(_BEGAN_AT)
    return Offset.from_json(began_at) if isinstance(began_at, str) else read_offset(start)


def list_fields(offset: Offset) -> OffsetFields:
    """Return the offset's own fields."""
    fields: OffsetFields = json.loads(offset.to_json())
    return fields


def read_offset(fields: Mapping[str, str | int | bool]) -> Offset:
    """Read an offset, ignoring the additional fields.

    Raises:
        OffsetError: It is not an offset, or a newer release wrote it.
    """
    return Offset.from_json(json.dumps(dict(fields)))
