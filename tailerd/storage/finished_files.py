"""Local files whose writers have finished, as reported by the kernel.

Watchers record them and readers look them up: for files of another user, nothing else reports it
at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

_MAX_FILES = 4096


class FinishedFiles:
    """Paths that a writer closed, or that appeared by rename or link; the oldest are evicted."""

    def __init__(self) -> None:
        """Start empty."""
        self._known: OrderedDict[str, None] = OrderedDict()
        self._awaited: dict[str, list[asyncio.Event]] = {}

    def note(self, path: str) -> None:
        """Record a file and wake its waiters; called in the event loop in which they wait."""
        self._known[path] = None
        if len(self._known) > _MAX_FILES:
            self._known.popitem(last=False)
        for waiting in self._awaited.get(path, ()):
            waiting.set()

    def forget(self, path: str) -> None:
        """Note that a process is writing to a file."""
        self._known.pop(path, None)

    def __contains__(self, path: str) -> bool:
        """Return whether a file is recorded."""
        return path in self._known

    async def wait(self, path: str, seconds: float) -> bool:
        """Wait up to `seconds` until a file is recorded; return whether it is."""
        noted = asyncio.Event()
        self._awaited.setdefault(path, []).append(noted)
        try:
            if path not in self._known:
                async with asyncio.timeout(seconds):
                    await noted.wait()
        except TimeoutError:
            return False
        finally:
            self._awaited[path].remove(noted)
            if not self._awaited[path]:
                del self._awaited[path]
        return True
