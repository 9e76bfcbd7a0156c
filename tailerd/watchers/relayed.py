"""Hints for another process of this machine: a small file each, in a folder for each table.

Whoever hears of a commit leaves a file; whoever follows the table removes it when it has looked at
the log since. So a file that is there is a hint nobody has seen yet, whichever of the two dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

from tailerd.watchers.base import StorageEvent
from tailerd.watchers.local import watch_folders

_UNTOLD = "untold"


def hint_name(number: int) -> str:
    """Return the name of a hint's file: watchers of file events know it, as that of a commit."""
    return f"{number:020}.json"


def leave_hint(folder: Path, number: int, version: int | None) -> None:
    """Leave a hint in a folder; blocking.

    Args:
        number: Not given to another hint of this folder that is still there.
        version: The version that is told of, if one is.

    Raises:
        OSError: The folder cannot be written.
    """
    draft = folder / f"{number}.tmp"
    draft.write_text("" if version is None else str(version))
    draft.replace(folder / hint_name(number))


def take_untold(folder: Path) -> bool:
    """Tell, once, whether a look found commits that nobody had left a hint of; blocking."""
    try:
        (folder / _UNTOLD).unlink()
    except OSError:
        return False
    return True


def hints_in(folder: Path) -> dict[str, int | None]:
    """Return the hints that are there, oldest first, with the versions they tell of; blocking."""
    found: dict[str, int | None] = {}
    with suppress(OSError):
        for path in sorted(folder.glob("*.json")):
            # One that was removed meanwhile was seen.
            with suppress(OSError):
                text = path.read_text()
                found[path.name] = int(text) if text.isdecimal() else None
    return found


class RelayedWatcher:
    """Tells of tables what another process has left in their folders of hints."""

    def __init__(
        self,
        folders: Mapping[str, str],
        *,
        on_unavailable: Callable[[str, str], None] | None = None,
    ) -> None:
        """Watch nothing before `events`.

        Args:
            folders: The `_delta_log` folder that is told of, by the folder of hints.
            on_unavailable: Told once (path, reason) when the system refuses to watch.
        """
        self._folders = dict(folders)
        self._files = watch_folders([*folders], on_unavailable=on_unavailable)
        self._told: set[Path] = set()

    def covers(self, folder: str) -> bool:
        """Tell whether somebody leaves hints of this folder, and all are noticed at present."""
        hints = [place for place, log in self._folders.items() if log == folder]
        return all(self._files.covers(place) for place in hints)

    def looked(self, folder: str, is_untold: bool) -> None:
        """Hear that a log was looked at, and pass on that commits were there unheard of."""
        for place, log in self._folders.items():
            if is_untold and log == folder:
                # Whoever leaves no hints there wants to know nothing.
                with suppress(OSError):
                    (Path(place) / _UNTOLD).touch()

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield the hints that are there, then those that come."""
        async with aclosing(self._files.events()) as changes:
            async for change in changes:
                place, folder = Path(change.folder), self._folders[change.folder]
                found = await asyncio.to_thread(hints_in, place)
                if not found:
                    # Perhaps another process has taken it, the one before this one for instance.
                    yield StorageEvent(folder)
                for name, version in found.items():
                    path = place / name
                    if path not in self._told:
                        self._told.add(path)
                        yield StorageEvent(folder, version, partial(self._seen, path))

    def _seen(self, path: Path) -> None:
        self._told.discard(path)
        # What cannot be removed is told again to the next process, which does no harm.
        with suppress(OSError):
            path.unlink()
