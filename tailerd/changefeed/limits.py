"""Limits that bound memory: how much one step admits, how large one Arrow batch is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_MEMORY_BYTES = 256 * 1024 * 1024
"""`memory` of commands, and of a daemon whose configuration does not set it."""

ALLOWANCE_BYTES = 128 * 1024 * 1024
"""What a process may use in addition to `memory`, whatever a table's files contain."""

_COPIES = 6
"""Copies of a value at one time: in its page, decoded, buffered, cast, encoded and written."""


def largest_piece_bytes(memory_bytes: int) -> int:
    """Return the maximum size of what cannot be divided: a line of the log, a page, a row."""
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
    """Upper bounds of one Arrow batch; a single row larger than `max_bytes` is still returned.

    Attributes:
        memory_bytes: The configured `memory`, which must hold a single row and a file's pages.
        working_bytes: What a reader that compares rows may use in addition to its batches.
        is_abandoned: Polled by readers that take long before their first batch; once it returns
            true, the consumer has stopped reading and the reader may raise any error.
    """

    max_rows: int = 65_536
    max_bytes: int = 32 * 1024 * 1024
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    working_bytes: int = DEFAULT_MEMORY_BYTES // 2
    is_abandoned: Callable[[], bool] = never


DEFAULT_READ_LIMIT = ReadLimit()
DEFAULT_BATCH_LIMIT = BatchLimit()
