"""What is read next, read in another thread while what was read before is worked on."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")


def read_ahead(parts: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield what a generator yields; it runs in a thread of its own, one part ahead.

    It is closed in the end, also where nobody wants the rest; what it raises is raised here.
    """
    with closing(parts), ThreadPoolExecutor(1, "read-ahead") as pool:
        following = pool.submit(_next, parts)
        while part := following.result():
            following = pool.submit(_next, parts)
            yield part[0]


def _next(parts: Generator[T, None, None]) -> tuple[T] | None:
    """Return the next part; None: there is none."""
    for part in parts:
        return (part,)
    return None
