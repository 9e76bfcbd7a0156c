"""Starts Arrow without pandas, in processes that are tailerd's own.

Arrow imports pandas, where it is installed, when it makes its first array or scalar, only to tell
whether what it was given is a pandas object. That takes a fifth of a second of a processor and 35
MiB in every process, and nothing of ours is one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """Finds no pandas, for as long as it is on `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not looked for.", name=name)
        return None


def start_without_pandas() -> None:
    """Let Arrow look for pandas now, and find none; where pandas is loaded, nothing changes.

    Whoever converts to pandas later still can: then Arrow looks again. Not for programs of users,
    who may give Arrow pandas objects; and to be called before other threads import anything.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)
