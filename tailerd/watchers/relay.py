"""Passes the hints of this process on to others that look at the logs, and hears when they have."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from tailerd.watchers.relayed import hint_name, leave_hint, take_untold
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry

LOOK_SECONDS = 0.25
"""How often it is looked whether hints were seen, while there are any."""

_MOST_UNSEEN = 1000
"""Hints kept of a table that nobody looks at; the oldest of more count as seen: whoever begins to
look again, sees all there is."""


@dataclass(slots=True, kw_only=True)
class _Passed:
    """A hint that is not seen yet; `is_left` once its file is there."""

    version: int | None
    seen: Callable[[], None] | None
    is_left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """One table's hints that are not seen yet, oldest first, by the numbers of their files."""

    folder: str
    wakeup: Wakeup
    unseen: dict[int, _Passed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """What is heard of a look: which hints it saw, and whether there was more than these said."""

    numbers: tuple[int, ...]
    is_untold: bool


class _ForwardedWakeup(Wakeup):
    """A wakeup whose rings are written down: somebody else looks."""

    def __init__(self, on_hint: Callable[[int | None, Callable[[], None] | None], None]) -> None:
        super().__init__()
        self._on_hint = on_hint

    def ring(self) -> None:
        """Pass on that something may have happened."""
        self._on_hint(None, None)

    def tell(self, version: int | None, seen: Callable[[], None]) -> None:
        """Pass on what is said to be there."""
        self._on_hint(version, seen)


class NotificationForwarder:
    """Leaves the hints of a board in a folder for each table. Use it from one event loop."""

    def __init__(self, board: WakeupRegistry) -> None:
        """Listen to nothing yet."""
        self._board = board
        self._tables: dict[str, _Table] = {}
        self._numbers = itertools.count(1)
        self._gone: list[str] = []
        self._excess: list[tuple[str, int]] = []
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @cached_property
    def root(self) -> Path:
        """The folder of all tables' folders, which have the tables' names; made when asked for."""
        return Path(tempfile.mkdtemp(prefix="tailerd-hints-"))

    def set_tables(self, folders: Mapping[str, str]) -> None:
        """Pass on exactly the hints of these tables from now on.

        Args:
            folders: The `_delta_log` folder of each, by name.
        """
        for name, table in list(self._tables.items()):
            if folders.get(name) != table.folder:
                self._drop(name)
        for name, folder in folders.items():
            if name not in self._tables:
                wakeup = _ForwardedWakeup(partial(self._heard, name))
                self._tables[name] = _Table(folder=folder, wakeup=wakeup)
                self._board.subscribe(folder, wakeup)
                self._woken.set()
        if self._tables and self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Pass on nothing any more and remove the folders."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        if "root" in self.__dict__:
            await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)

    def _drop(self, name: str) -> None:
        table = self._tables.pop(name)
        self._board.unsubscribe(table.folder, table.wakeup)
        for hint in table.unseen.values():
            _let_go(hint)
        self._gone.append(name)
        self._woken.set()

    def _heard(self, name: str, version: int | None, seen: Callable[[], None] | None) -> None:
        unseen = self._tables[name].unseen
        unseen[next(self._numbers)] = _Passed(version=version, seen=seen)
        if len(unseen) > _MOST_UNSEEN:
            oldest = next(iter(unseen))
            self._excess.append((name, oldest))
            _let_go(unseen.pop(oldest))
        self._woken.set()

    async def _run(self) -> None:
        while True:
            is_waiting = any(table.unseen for table in self._tables.values())
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if is_waiting else None):
                    await self._woken.wait()
            self._woken.clear()
            gone, self._gone = self._gone, []
            excess, self._excess = self._excess, []
            hints = {name: dict(table.unseen) for name, table in self._tables.items()}
            await asyncio.to_thread(_remove, self.root, gone, excess)
            for name, looked in (await asyncio.to_thread(_exchange, self.root, hints)).items():
                if name in self._tables:
                    self._looked(self._tables[name], looked)

    def _looked(self, table: _Table, looked: _Looked) -> None:
        self._board.looked(table.folder, looked.is_untold)
        for number in looked.numbers:
            if number in table.unseen:
                _let_go(table.unseen.pop(number))


def _let_go(hint: _Passed) -> None:
    if hint.seen is not None:
        hint.seen()


def _remove(root: Path, gone: Iterable[str], excess: Iterable[tuple[str, int]]) -> None:
    for name in gone:
        shutil.rmtree(root / name, ignore_errors=True)
    for name, number in excess:
        with suppress(OSError):
            (root / name / hint_name(number)).unlink()


def _exchange(root: Path, hints: Mapping[str, Mapping[int, _Passed]]) -> dict[str, _Looked]:
    """Leave the hints that are not left yet; return, by table, what was seen of the others."""
    found: dict[str, _Looked] = {}
    for name, unseen in hints.items():
        folder = root / name
        # A disk that is full, for instance: these hints are left at the next try.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            left = [number for number, hint in unseen.items() if hint.is_left]
            there = {path.name for path in folder.iterdir()} if left else set()
            if seen := tuple(number for number in left if hint_name(number) not in there):
                found[name] = _Looked(numbers=seen, is_untold=take_untold(folder))
            for number, hint in unseen.items():
                if not hint.is_left:
                    leave_hint(folder, number, hint.version)
                    hint.is_left = True
    return found
