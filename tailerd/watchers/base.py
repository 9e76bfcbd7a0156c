"""The contract of a watcher. Events may be lost, late, doubled or wrong."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

_NUMBERED = re.compile(r"(\d{20})\.json", re.ASCII)

VersionOf = Callable[[str], int | None]
"""Returns the version that a file's name says it is a commit of; None where it is no commit's."""

Names = Mapping[str, VersionOf]
"""How commits are named, by watched folder; `numbered_name` in folders that are not there."""


def numbered_name(name: str) -> int | None:
    """Return the number of a name of twenty digits and `.json`, as commits have."""
    found = _NUMBERED.fullmatch(name)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class StorageEvent:
    """Something may have happened to a table.

    Attributes:
        folder: The `_delta_log` folder concerned, as the watcher was given it.
        version: The version that is said to be there, where the event says so.
        on_seen: Called once, when everybody concerned has looked at the log since: a watcher that
            keeps its events elsewhere may let go of this one.
    """

    folder: str
    version: int | None = None
    on_seen: Callable[[], None] | None = None


class Watcher(Protocol):
    """Tells when it is worth looking at a table's log.

    A watcher survives folders that do not exist yet, vanish or come back, and storages that send
    nothing: it may miss events, it never raises because of them. Closing the generator or
    cancelling the task that waits in it frees threads and handles promptly.
    """

    def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield events until closed. Several events may arrive as one, in any order."""
        ...


@runtime_checkable
class HearsLooks(Protocol):
    """A watcher that compares what it told with what was there."""

    def looked(self, folder: str, is_untold: bool) -> None:
        """Note that a log was looked at, and whether commits were there nobody had told of."""
        ...
