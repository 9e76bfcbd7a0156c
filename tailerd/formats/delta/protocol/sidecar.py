"""Resolves the files of sidecars of V2 checkpoints.

Protocol: PROTOCOL.md#sidecar-files, #sidecar-file-information
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from tailerd.errors import PathOutsideTableError
from tailerd.formats.delta.protocol.actions import Sidecar
from tailerd.formats.delta.protocol.log_path import SIDECAR_FOLDER, LogFile, LogFileKind
from tailerd.remedies import KEEP_CHECKPOINT


def sidecar_file(sidecar: Sidecar, version: int) -> LogFile:
    """Return the log file that a `sidecar` action references.

    Sidecars are always in the table's own `_sidecars` folder; of an absolute path only the last
    part is used, because writers use both forms.

    Raises:
        PathOutsideTableError: The name would leave the folder.
    """
    name = unquote(sidecar.path).rpartition("/")[2]
    if name in ("", ".", ".."):
        raise PathOutsideTableError(
            f"The checkpoint of version {version} names the sidecar {sidecar.path!r}, which is not"
            f" a file in {SIDECAR_FOLDER}.",
            remedy=f"The checkpoint is damaged. {KEEP_CHECKPOINT}",
        )
    return LogFile(
        name=f"{SIDECAR_FOLDER}/{name}",
        kind=LogFileKind.SIDECAR,
        version=version,
        end_version=version,
        size_bytes=sidecar.size_in_bytes,
        mtime_ms=sidecar.modification_time,
    )


# A sidecar that no commit affected is still valid, so the cost of a checkpoint is proportional to
# the changes and not to the table. Each checkpoint adds a sidecar with the new files; when there
# are too many small ones, they are merged.
#
# Protocol: PROTOCOL.md#v2-spec, #sidecar-files

SIDECAR_FILES = 50_000
"""File actions of a full sidecar: smaller ones are rewritten less often, larger ones are fewer."""
SMALL_FILES = SIDECAR_FILES // 4
MAX_SMALL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """A file of the previous checkpoint.

    Attributes:
        first_row, rows: Its range in the rows of the checkpoint.
        adds, removes: Number of its actions; None if not known.
        live_adds: Number of `adds` that are live now.
        has_sound_removes: Whether none of its removes was undone or repeated since, and not all
            of them expired; True without removes.
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
        """Whether all its rows are still valid."""
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
    """Which files of the previous checkpoint are reused or rewritten; parts keep their order."""

    reused: tuple[StoredPart, ...]
    rewritten: tuple[StoredPart, ...]

    @classmethod
    def decide(cls, parts: Sequence[StoredPart], *, max_small: int = MAX_SMALL) -> SidecarPlan:
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
        """First row number after those of reused parts."""
        return max((part.first_row + part.rows for part in self.reused), default=0)
