"""Parses names of fragments, commit files and schemas: `__t1_t2_uuid_v` and its older forms.

Format specification: timestamped_name.md, fragment.md (names before format 5).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

COMMITS = "__commits"
FRAGMENTS = "__fragments"
SCHEMA = "__schema"
OLD_SCHEMA = "__array_schema.tdb"
OLD_FRAGMENT_METADATA = "__fragment_metadata.tdb"
"""Marks a fragment as committed before format 5, in the fragment's folder."""
GROUP_MARKS = ("__tiledb_group.tdb",)
GROUP = "__group"

_NAME = re.compile(r"__(\d+)_(\d+)_([0-9a-f]{32})(?:_(\d+))?", re.ASCII)
_OLDEST_NAME = re.compile(r"__([0-9a-f]{32})_(\d+)(?:_(\d+))?", re.ASCII)


class CommitKind(enum.Enum):
    """The kind of a file in `__commits` or in the top folder; the value is its suffix."""

    WRITE = ".wrt"
    OLD_WRITE = ".ok"
    DELETE = ".del"
    UPDATE = ".upd"
    CONSOLIDATED = ".con"
    IGNORED = ".ign"
    VACUUM = ".vac"


@dataclass(frozen=True, slots=True, order=True)
class TimedName:
    """A name with its times.

    Attributes:
        first_ms, last_ms: Of its content, milliseconds since 1970; equal unless it is merged.
        text: The name itself, without a suffix.
    """

    last_ms: int
    first_ms: int
    text: str

    @property
    def is_merged(self) -> bool:
        """Whether it has cells of several times."""
        return self.first_ms < self.last_ms

    @property
    def uuid(self) -> str:
        """The UUID in the name."""
        return next(part for part in self.text.split("_") if len(part) == 32)


def timed_name(text: str) -> TimedName | None:
    """Parse a name without its suffix; None if it is not such a name."""
    match = _NAME.fullmatch(text)
    if match is not None:
        return TimedName(first_ms=int(match[1]), last_ms=int(match[2]), text=text)
    match = _OLDEST_NAME.fullmatch(text)
    if match is None:
        return None
    first = int(match[2])
    return TimedName(first_ms=first, last_ms=int(match[3] or first), text=text)


def commit_file(name: str) -> tuple[TimedName, CommitKind] | None:
    """Parse the name of a commit file; None for other files."""
    stem, dot, suffix = name.rpartition(".")
    timed = timed_name(stem)
    if timed is None or not dot:
        return None
    try:
        return timed, CommitKind(f".{suffix}")
    except ValueError:
        return None


def last_part(location: str) -> str:
    """Return the last part of a path or URL, for vacuum files of older writers with full paths."""
    return location.rstrip("/").rpartition("/")[2]
