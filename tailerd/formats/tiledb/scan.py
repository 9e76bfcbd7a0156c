"""The payload of tasks: small, picklable, without TileDB objects."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError

FORMAT = "tiledb"


class Part(enum.Enum):
    """Which rows."""

    SNAPSHOT = enum.auto()
    """All cells as of `until_ms`."""
    STEP = enum.auto()
    """The difference between `after_ms` and `until_ms`."""
    LATE = enum.auto()
    """The changes of a late commit at `until_ms`: it appeared after later ones were delivered."""


@dataclass(frozen=True, slots=True)
class StoredDelete:
    """A delete: its name, for errors, and its file's content."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TileScan:
    """The payload of a task.

    Attributes:
        url: The array.
        part: Which of its rows.
        after_ms, until_ms: The times of the two states; the state before 0 is empty.
        schema: The columns of its rows, as encoded by `plain_schema.encode_schema`.
        has_writes: Whether cells were written in between.
        deletes: The deletes in between; for a late commit, its own.
        later_deletes, later_writes: For a late commit, the later commits already delivered:
            deletes, and times (first, last) of writes.
        seen_ms, seen: The time up to which commits may be read, and their `commits_digest`; empty
            if delivered commits are not recorded, so that further ones do no harm. Only these
            fields depend on the end of the delivery.
        first_ranges: Ranges (first, last) of the first dimension that are read one after the
            other, ascending; for a share of a snapshot, its own; empty to read everything at once.
    """

    url: str
    part: Part
    after_ms: int
    until_ms: int
    schema: bytes
    has_writes: bool = True
    deletes: tuple[StoredDelete, ...] = ()
    later_deletes: tuple[StoredDelete, ...] = ()
    later_writes: tuple[tuple[int, int], ...] = ()
    seen_ms: int = field(default=0, compare=False)
    seen: str = field(default="", compare=False)
    first_ranges: tuple[tuple[Any, Any], ...] = ()


def decode_payload(task: ChangeTask) -> TileScan:
    """Return the payload of a task that was planned here."""
    if not isinstance(task.payload, TileScan):
        raise BugError(f"A task of the format {task.format} was given to TileDB's reader.")
    return task.payload
