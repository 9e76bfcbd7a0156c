"""Starts Arrow in tailerd's own processes: without pandas, and without huge pages.

Arrow imports pandas, if it is installed, when it makes its first array or scalar, only to check
whether its input is a pandas object. That takes 0.2 s of CPU and 35 MiB in every process, and
tailerd never passes pandas objects.

With huge pages, Arrow's allocator holds a tenth to a third more memory for the same rows, and
memory that the machine has not used yet takes up to twice the time of a short run to touch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """Hides pandas, as long as it is on `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden here.", name=name)
        return None


def start_arrow() -> None:
    """Set the allocator, unless the user did; let Arrow search for pandas now, and find none.

    Does nothing where pandas is loaded. Later conversions to pandas still work: Arrow then searches
    again. Not for users' programs, which may pass pandas objects to Arrow; call it before other
    threads import anything.
    """
    if "pandas" in sys.modules:
        return
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)
