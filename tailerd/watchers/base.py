"""The contract of a watcher. Events may be lost, late, duplicated or wrong."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

_NUMBERED = re.compile(r"(\d{20})\.json", re.ASCII)

VersionOf = Callable[[str], int | None]
"""Returns the version in the name of a commit file; None for other files."""

Names = Mapping[str, VersionOf]
"""How commits are named, by watched folder; `numbered_name` for folders that are not in it."""


def numbered_name(name: str) -> int | None:
    """Return the version in a commit's file name: twenty digits and `.json`; None for others."""
    found = _NUMBERED.fullmatch(name)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class StorageEvent:
    """A table may have changed.

    Attributes:
        folder: The table's `_delta_log` folder, as passed to the watcher.
        version: The new version, if the event names one.
        on_seen: Called once, after every waiter has polled the log since the event: a watcher with
            a persistent queue may then delete it.
    """

    folder: str
    version: int | None = None
    on_seen: Callable[[], None] | None = None


class Watcher(Protocol):
    """Reports when a table's log should be polled.

    A watcher tolerates folders that do not exist yet, disappear or reappear, and storages that send
    no events: it may miss events, but never raises because of them. Closing the generator, or
    cancelling the task that waits in it, releases threads and handles promptly.
    """

    def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield events until closed. Several events may arrive as one, in any order."""
        ...


@runtime_checkable
class PollObserver(Protocol):
    """A watcher that compares its events with the commits that polls find."""

    def on_poll(self, folder: str, is_unannounced: bool) -> None:
        """Record a poll of a log, and whether it found commits without an event."""
        ...
