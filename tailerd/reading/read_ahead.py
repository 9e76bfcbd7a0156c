"""Reads the next part in another thread while the current one is processed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

from tailerd.threads import release_memory

T = TypeVar("T")

RELEASE_BYTES = 8 * 1024 * 1024
"""Between two releases of free memory: two parts at a time are large already."""


def read_ahead(
    parts: Generator[T, None, None], size: Callable[[T], int]
) -> Generator[T, None, None]:
    """Yield the values of a generator, which runs in its own thread, one part ahead.

    The generator is always closed, also if the consumer stops early; its errors are raised here.

    Args:
        size: Returns how many bytes a part has.
    """

    def work() -> tuple[T] | None:
        for part in parts:
            release_memory(size(part), RELEASE_BYTES)
            return (part,)
        release_memory()
        return None

    with closing(parts), ThreadPoolExecutor(1, "read-ahead") as pool:
        following = pool.submit(work)
        while part := following.result():
            following = pool.submit(work)
            yield part[0]
