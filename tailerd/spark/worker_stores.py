"""The stores of a Python worker of Spark, which reads one task after another.

Spark keeps worker processes but unpickles the closure for each task, so that no object of one task
reaches the next: connections can only be kept by the process.
"""

from __future__ import annotations

import functools

from tailerd.storage.stores import Stores, StoreSettings


@functools.lru_cache(maxsize=4)
def worker_stores(settings: StoreSettings) -> Stores:
    """Return this process's stores with these settings; the same for equal ones."""
    return Stores(settings)
