"""The stores of a Python worker of Spark, which reads one task after another.

Spark keeps worker processes and gives each task its closure again, so that nothing which a task
makes is there for the next: connections can only be kept by the process.
"""

from __future__ import annotations

import functools

from tailerd.storage.stores import Stores, StoreSettings


@functools.lru_cache(maxsize=4)
def worker_stores(settings: StoreSettings) -> Stores:
    """Return this process's stores with these settings; the same for equal ones."""
    return Stores(settings)
