"""What is read next, read in another thread while what was read before is worked on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import pyarrow as pa

RELEASE_BYTES = 12 * 1024 * 1024
"""Decoded between two times that free memory is given back, which takes about a millisecond."""

T = TypeVar("T")


def read_ahead(
    parts: Generator[T, None, None], size: Callable[[T], int]
) -> Generator[T, None, None]:
    """Yield what a generator yields; it runs in a thread of its own, one part ahead.

    It is closed in the end, also where nobody wants the rest; what it raises is raised here.

    Args:
        size: Returns how many bytes a part has.
    """
    decoded_bytes = 0

    def work() -> tuple[T] | None:
        nonlocal decoded_bytes
        for part in parts:
            decoded_bytes += size(part)
            if decoded_bytes >= RELEASE_BYTES:
                # The allocator keeps what a thread frees, hundreds of megabytes, until the thread
                # itself says so.
                pa.default_memory_pool().release_unused()
                decoded_bytes = 0
            return (part,)
        pa.default_memory_pool().release_unused()
        return None

    with closing(parts), ThreadPoolExecutor(1, "read-ahead") as pool:
        following = pool.submit(work)
        while part := following.result():
            following = pool.submit(work)
            yield part[0]
