"""A gap: commits that can no longer be delivered, and where delivery resumes instead."""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.changefeed.offset import Offset
from tailerd.errors import MissingDataFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A pipeline's offset was moved by policy, not by delivery.

    Attributes:
        table: Configured name of the table.
        start: The offset before the gap; commits between `start` and `end` are not delivered.
        end: Where delivery resumes: a snapshot, or the next available commit.
        reason: Code of the error that caused it.
    """

    table: str
    start: Offset
    end: Offset
    reason: str

    @property
    def is_other_history(self) -> bool:
        """Return whether `end` belongs to another log than `start`.

        This is the case if the table was dropped and created again, or restored from a copy. If
        files of the newest commit are missing, its snapshot has the same version in the same log.
        """
        if self.start.table_id != self.end.table_id:
            return True
        is_same_version = self.end.version == self.start.version and not self.start.position
        if self.reason == MissingDataFileError.code and is_same_version:
            return False
        return not self.start.is_before(self.end)
