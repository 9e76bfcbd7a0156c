"""What a task reads: small, picklable, without anything of the library."""

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
    """What differs between `after_ms` and `until_ms`."""
    LATE = enum.auto()
    """What a commit of `until_ms` changed that appeared when later ones were delivered."""


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
        after_ms, until_ms: Between which states; below 0 there was nothing.
        schema: The columns of its rows, as `plain_schema.encode_schema` has them.
        has_writes: Whether cells were written in between.
        deletes: What was deleted in between; of a late commit its own.
        later_deletes, later_writes: For a late commit, what was delivered behind it: deletes, and
            times (first, last) of writes.
        seen_ms, seen: Up to which time commits may be seen, and their `commits_digest`; empty where
            others do no harm, because nothing remembers which were delivered. They depend on how
            far the delivery goes, as nothing else of a task does.
        first_ranges: First and last coordinates of the first dimension that are read one after the
            other, ascending: of a snapshot's share its own; empty for everything at once.
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


def payload_of(task: ChangeTask) -> TileScan:
    """Return the payload of a task that was planned here."""
    if not isinstance(task.payload, TileScan):
        raise BugError(f"A task of the format {task.format} was given to TileDB's reader.")
    return task.payload
