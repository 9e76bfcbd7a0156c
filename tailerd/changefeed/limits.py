"""Bounds that keep memory flat: how much one step admits, how large one Arrow batch is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimit:
    """How much one step may admit. The first file or commit is always admitted, however large."""

    max_files: int = 1000
    max_bytes: int = 256 * 1024 * 1024

    def halved(self) -> ReadLimit:
        """Return a limit of half the size, never of nothing."""
        return ReadLimit(
            max_files=max(1, self.max_files // 2), max_bytes=max(1, self.max_bytes // 2)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """Upper bounds of one Arrow batch; a single row larger than `max_bytes` still comes."""

    max_rows: int = 65_536
    max_bytes: int = 32 * 1024 * 1024


DEFAULT_READ_LIMIT = ReadLimit()
DEFAULT_BATCH_LIMIT = BatchLimit()
