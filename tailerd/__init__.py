"""`tail -f` for lakehouse tables: row changes in Python, on the command line, as a daemon.

`tailerd.changes(location, since=0)`, `tailerd.follow(location)` and `tailerd.table(location)` are
described in `tailerd.api`. They are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tailerd.api import (
        Changes,
        FollowedBatch,
        Follower,
        SchemaChange,
        Table,
        changes,
        follow,
        table,
    )
    from tailerd.errors import TailerdError

__all__ = [
    "Changes",
    "FollowedBatch",
    "Follower",
    "SchemaChange",
    "Table",
    "TailerdError",
    "changes",
    "follow",
    "table",
]


def __getattr__(name: str) -> object:
    """Load the library when one of its names is used: commands start without it."""
    from importlib import import_module

    if name == "TailerdError":
        return import_module("tailerd.errors").TailerdError
    if name in __all__:
        return getattr(import_module("tailerd.api"), name)
    raise AttributeError(f"module 'tailerd' has no attribute {name!r}")
