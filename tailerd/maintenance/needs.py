"""What others still want of a log: a cleanup deletes nothing that somebody has yet to read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What readers want of a log.

    Attributes:
        from_version: The oldest version one of them may have to rebuild; None where none does.
        obstacle: Why that is not known yet; empty where it is.
        error_code: Of an obstacle that an operator should hear of; empty for one that passes.
        by: Whose version that is, for people.
    """

    from_version: int | None = None
    obstacle: str = ""
    error_code: str = ""
    by: str = "a pipeline"

    def and_also(self, other: Needs) -> Needs:
        """Return what satisfies both."""
        if self.obstacle or other.obstacle:
            return self if self.obstacle else other
        if other.from_version is None:
            return self
        if self.from_version is None or other.from_version < self.from_version:
            return other
        return self
