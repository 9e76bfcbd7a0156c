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
    from tailerd.errors import (
        AccessDeniedError,
        ConfigError,
        CorruptLogError,
        MissingDataFileError,
        MissingVersionError,
        NotATableError,
        OffsetError,
        SchemaChangedError,
        StorageError,
        TableError,
        TableRecreatedError,
        TailerdError,
        UnsupportedFeatureError,
        UsageError,
    )

__all__ = [
    "AccessDeniedError",
    "Changes",
    "ConfigError",
    "CorruptLogError",
    "FollowedBatch",
    "Follower",
    "MissingDataFileError",
    "MissingVersionError",
    "NotATableError",
    "OffsetError",
    "SchemaChange",
    "SchemaChangedError",
    "StorageError",
    "Table",
    "TableError",
    "TableRecreatedError",
    "TailerdError",
    "UnsupportedFeatureError",
    "UsageError",
    "changes",
    "follow",
    "table",
]


def __getattr__(name: str) -> object:
    """Load the library when one of its names is used: commands start without it."""
    from importlib import import_module

    if name in __all__:
        home = "tailerd.errors" if name.endswith("Error") else "tailerd.api"
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'tailerd' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the library, for completion."""
    return [*__all__, "__version__"]
