"""Files of this machine whose writers are known to have finished: the kernel said so.

Watchers note them, readers ask: of files of another user nothing else tells that at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

_MOST_FILES = 4096


class FinishedFiles:
    """Paths that were closed by a writer, or appeared by rename or link; the oldest go first."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: OrderedDict[str, None] = OrderedDict()
        self._awaited: dict[str, list[asyncio.Event]] = {}

    def note(self, path: str) -> None:
        """Remember a file, and let those go on who wait for it; in the loop they wait in."""
        self._known[path] = None
        if len(self._known) > _MOST_FILES:
            self._known.popitem(last=False)
        for waiting in self._awaited.get(path, ()):
            waiting.set()

    def forget(self, path: str) -> None:
        """Note that somebody writes to a file."""
        self._known.pop(path, None)

    def __contains__(self, path: str) -> bool:
        """Return whether a file was noted."""
        return path in self._known

    async def wait(self, path: str, seconds: float) -> bool:
        """Wait until a file is noted, or so long; return whether it is."""
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
