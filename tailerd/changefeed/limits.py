"""Bounds that keep memory flat: how much one step admits, how large one Arrow batch is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_MEMORY_BYTES = 256 * 1024 * 1024
"""What commands read within, and a daemon whose configuration does not set `memory`."""

ALLOWANCE_BYTES = 128 * 1024 * 1024
"""What a process may take besides `memory`, whatever a table's files have in them."""

_COPIES = 6
"""A value is in its page, decoded, in a growing buffer, cast, encoded and written at once."""


def largest_piece_bytes(memory_bytes: int) -> int:
    """Return how large what cannot be divided may be: a line of the log, a page, a row."""
    return (memory_bytes + ALLOWANCE_BYTES) // _COPIES


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


def never() -> bool:
    """Return false."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """Upper bounds of one Arrow batch; a single row larger than `max_bytes` still comes.

    Attributes:
        memory_bytes: The configured `memory`: what a single row and a file's pages must fit.
        working_bytes: What a reader that compares rows may use besides its batches.
        is_abandoned: Asked now and then by readers that take long before their first batch; once
            it is true nobody wants their rows any more, and they may raise anything.
    """

    max_rows: int = 65_536
    max_bytes: int = 32 * 1024 * 1024
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    working_bytes: int = DEFAULT_MEMORY_BYTES // 2
    is_abandoned: Callable[[], bool] = never


DEFAULT_READ_LIMIT = ReadLimit()
DEFAULT_BATCH_LIMIT = BatchLimit()
