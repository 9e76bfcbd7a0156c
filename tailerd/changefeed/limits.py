"""Limits that bound memory: how much one step admits, how large one Arrow batch is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

DEFAULT_MEMORY_BYTES = 256 * 1024 * 1024
"""`memory` of commands, and of a daemon whose configuration does not set it."""

ALLOWANCE_BYTES = 128 * 1024 * 1024
"""Memory that a process may use in addition to `memory`, for any content of a table's files."""

_COPIES = 6
"""Copies of a value at one time: in its page, decoded, buffered, cast, encoded and written."""


def largest_piece_bytes(memory_bytes: int) -> int:
    """Return the maximum size of what cannot be divided: a line of the log, a page, a row."""
    return (memory_bytes + ALLOWANCE_BYTES) // _COPIES


def reader_bytes(memory_bytes: int) -> int:
    """Return how much the open readers of a process may hold in pages."""
    return ALLOWANCE_BYTES + memory_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimit:
    """How much one step may admit. The first file or commit is always admitted, however large."""

    max_files: int = 1000
    max_bytes: int = 256 * 1024 * 1024

    def halve(self) -> ReadLimit:
        """Return a limit of half the size, never of nothing."""
        return ReadLimit(
            max_files=max(1, self.max_files // 2), max_bytes=max(1, self.max_bytes // 2)
        )


class Readers(Protocol):
    """The memory that all open readers of a process may use for pages. Thread-safe.

    A reader that waits for its consumer still holds pages, so the readers of many tables together
    could take any amount. A reader that gets no share opens its file again for each part that it
    reads, which takes longer, and only one such reader works at a time. No reader ever waits for
    another one's consumer: that could take forever.
    """

    total_bytes: int

    def take(self, size_bytes: int) -> bool:
        """Take a share, to be given back; return False if less is left."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """Give back a share."""
        ...

    def alone(self) -> AbstractContextManager[object]:
        """Work without a share, while no other reader does."""
        ...


def never() -> bool:
    """Return false."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """Upper bounds of one Arrow batch; a single row larger than `max_bytes` is still returned.

    Attributes:
        memory_bytes: The configured `memory`, which must hold a single row and a file's pages.
        working_bytes: Memory that a reader that compares rows may use in addition to its batches.
        is_abandoned: Polled by readers that take long before their first batch; once it returns
            true, the consumer has stopped reading and the reader may raise any error.
        readers: Shared by the readers of the process; without it, one reader is bounded, but not
            the sum of several. Does not travel to other processes.
        on_unchanged: Called, from any thread, with the number of updates that a view left out.
    """

    max_rows: int = 65_536
    max_bytes: int = 32 * 1024 * 1024
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    working_bytes: int = DEFAULT_MEMORY_BYTES // 2
    is_abandoned: Callable[[], bool] = never
    readers: Readers | None = field(default=None, compare=False)
    on_unchanged: Callable[[int], None] | None = field(default=None, compare=False)


DEFAULT_READ_LIMIT = ReadLimit()
DEFAULT_BATCH_LIMIT = BatchLimit()
