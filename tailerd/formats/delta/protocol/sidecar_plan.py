"""Which sidecars of the last checkpoint the next one names again.

A sidecar that no commit touched is as true as on its first day, so a checkpoint costs what changed
and not what there is. Each brings a sidecar of its own with the files that came, and when there are
too many small ones, they become one.

Protocol: PROTOCOL.md#v2-spec, #sidecar-files
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind

SIDECAR_FILES = 50_000
"""File actions of a full sidecar: smaller ones are touched less, larger ones are fewer."""
SMALL_FILES = SIDECAR_FILES // 4
MAX_SMALL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """A file of the checkpoint below.

    Attributes:
        first_row, rows: Its place among the rows of the checkpoint.
        adds, removes: Actions in it; None where that is not known.
        live_adds: How many of `adds` are live now.
        has_sound_removes: Whether none of its removes was undone or repeated since, and not all
            of them expired; True without any.
    """

    file: LogFile
    first_row: int
    rows: int
    adds: int | None
    removes: int | None
    live_adds: int
    has_sound_removes: bool = True

    @property
    def is_untouched(self) -> bool:
        """Whether its rows are as true as when they were written."""
        return (
            self.file.kind is LogFileKind.SIDECAR
            and self.adds is not None
            and self.removes is not None
            and self.adds == self.live_adds
            and self.rows == self.adds + self.removes > 0
            and self.has_sound_removes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarPlan:
    """What the next checkpoint does with each file of the one below; parts keep their order."""

    reused: tuple[StoredPart, ...]
    rewritten: tuple[StoredPart, ...]

    @classmethod
    def of(cls, parts: Sequence[StoredPart], *, max_small: int = MAX_SMALL) -> SidecarPlan:
        """Decide: untouched sidecars are reused, unless there are too many small ones."""
        untouched = [part for part in parts if part.is_untouched]
        small = [part for part in untouched if part.rows < SMALL_FILES]
        folded = {part.file.name for part in small} if len(small) >= max_small else set()
        reused = tuple(part for part in untouched if part.file.name not in folded)
        names = {part.file.name for part in reused}
        return cls(
            reused=reused,
            rewritten=tuple(part for part in parts if part.file.name not in names),
        )

    @property
    def next_row(self) -> int:
        """First row number that no reused part has."""
        return max((part.first_row + part.rows for part in self.reused), default=0)
