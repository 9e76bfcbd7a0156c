"""A gap: commits that cannot be delivered any more, and where delivery goes on instead."""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.changefeed.offset import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A pipeline's offset was moved by policy, not by delivery.

    Attributes:
        table: Configured name of the table.
        start: Where delivery stood; what lies between `start` and `end` is not delivered.
        end: Where it goes on: a snapshot, or what comes next.
        reason: Code of the error that was met.
    """

    table: str
    start: Offset
    end: Offset
    reason: str

    @property
    def is_other_history(self) -> bool:
        """Return whether `end` belongs to another log than what was delivered before.

        So it is for a table that was dropped and created again, or restored from a copy.
        """
        return self.start.table_id != self.end.table_id or not self.start.is_before(self.end)
