"""Maintains the logs of all tables, one after another, in an event loop of its own.

It runs when it is notified that tables change, and at times that policies name; it does not poll
the storage. One job runs at a time, and after each table it pauses for as long as the table took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from tailerd.clock import Clock
from tailerd.errors import TailerdError
from tailerd.formats.maintenance import RetentionFloor
from tailerd.maintenance.opening import MaintainedTable
from tailerd.maintenance.table_maintainer import KeptTable, TableMaintainer
from tailerd.maintenance.table_size import MeasuredTable
from tailerd.telemetry import Telemetry

LOOK_SECONDS = 1.0
"""Shortest time between two turns of a table that changes continuously."""
LONGEST_REST_SECONDS = 30.0


class MaintenanceScheduler:
    """Runs the maintenance of a changing set of tables. `run` once; all of it in one event loop.

    Args:
        open_table: Opens a table with the maintenance that its format has.
        ask_needs: Asks which versions pipelines still need, by log folder and table id, before
            each cleanup.
        on_turn: Called after each completed table.
        is_once: Assess each table once, do what is due, and end.

    Attributes:
        errors: Of tables that could not be maintained, while `is_once`.
    """

    def __init__(
        self,
        open_table: Callable[[KeptTable], Awaitable[MaintainedTable]],
        *,
        ask_needs: Callable[[str, str], Awaitable[RetentionFloor]],
        telemetry: Telemetry,
        clock: Clock,
        on_turn: Callable[[str], None] = lambda _: None,
        is_once: bool = False,
    ) -> None:
        self.errors: list[TailerdError] = []
        self._open_table = open_table
        self._ask_needs = ask_needs
        self._telemetry = telemetry
        self._clock = clock
        self._on_turn = on_turn
        self._is_once = is_once
        self._wanted: dict[str, KeptTable] = {}
        self._keepers: dict[str, TableMaintainer] = {}
        self._sizes: dict[str, MeasuredTable] = {}
        self._dirty: dict[str, None] = {}
        self._asked: set[str] = set()
        self._due_at: dict[str, float] = {}
        self._skipped_until: dict[str, float] = {}
        self._wakeup, self._halt = asyncio.Event(), asyncio.Event()

    def set_tables(self, tables: Mapping[str, KeptTable]) -> None:
        """Maintain exactly these from now on; a running job is finished with its old settings."""
        altered = [name for name, kept in tables.items() if self._wanted.get(name) != kept]
        self._wanted = dict(tables)
        for name in altered:
            self.ring(name)

    def ring(self, name: str) -> None:
        """Assess a table soon: its folder may have changed."""
        self._dirty[name] = None
        self._wakeup.set()

    def ask(self, name: str) -> None:
        """Assess a table's log soon, do what is due, and write a checkpoint if it is useful."""
        self._asked.add(name)
        self._skipped_until.pop(name, None)
        self.ring(name)

    def skip(self, name: str, seconds: float) -> None:
        """Skip a table for so long, whatever happens to it."""
        self._skipped_until[name] = self._clock.monotonic() + seconds

    def stop(self) -> None:
        """Begin no more jobs; `run` returns when the running one has ended."""
        self._halt.set()
        self._wakeup.set()

    async def run(self) -> None:
        """Work until stopped, or once; a cancelled job leaves nothing visible to readers."""
        while not self._halt.is_set():
            if not self._is_once:
                await self._wait()
            for name in self._take_due():
                await self._turn(name)
            if self._is_once:
                return
            await self._first_of(self._halt, LOOK_SECONDS)

    async def _wait(self) -> None:
        """Wait for a wakeup, or for the next time that a policy named."""
        at = min(self._due_at.values(), default=None)
        await self._first_of(self._wakeup, None if at is None else at - self._clock.monotonic())
        if not self._halt.is_set():
            self._wakeup.clear()

    async def _first_of(self, event: asyncio.Event, seconds: float | None) -> None:
        """Wait for an event, but not longer than so many seconds."""
        if seconds is None:
            await event.wait()
            return
        waiting = asyncio.ensure_future(event.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    def _take_due(self) -> list[str]:
        now = self._clock.monotonic()
        names = dict.fromkeys(self._dirty)
        self._dirty.clear()
        names.update({name: None for name, at in self._due_at.items() if at <= now})
        for name in {*self._keepers, *self._due_at} - self._wanted.keys():
            self._keepers.pop(name, None)
            self._sizes.pop(name, None)
            self._due_at.pop(name, None)
        due = [name for name in names if name in self._wanted]
        for name in [name for name in due if self._skipped_until.get(name, now) > now]:
            self._due_at[name] = self._skipped_until[name]
            due.remove(name)
        return due

    async def _turn(self, name: str) -> None:
        keeper = self._keeper(name)
        if keeper is None or self._halt.is_set():
            return
        if name in self._asked:
            self._asked.discard(name)
            keeper.ask()
        began = self._clock.monotonic()
        waits = [await keeper.turn()]
        size = self._size(name, keeper)
        if size is not None and keeper.found is not None and not self._halt.is_set():
            waits.append(await size.look(*keeper.found))
        self._on_turn(name)
        ended = self._clock.monotonic()
        again = min((wait for wait in waits if wait is not None), default=None)
        if again is None:
            self._due_at.pop(name, None)
        else:
            self._due_at[name] = ended + again
        if self._is_once:
            if keeper.error is not None:
                self.errors.append(keeper.error)
            return
        # At most half of the time is used here, however many tables there are.
        await self._first_of(self._halt, min(ended - began, LONGEST_REST_SECONDS))

    def _size(self, name: str, keeper: TableMaintainer) -> MeasuredTable | None:
        """Return what measures a table; None if it is not to be measured, or its format cannot."""
        table = keeper.table
        if not keeper.kept.is_measured or self._is_once or table is None:
            return None
        if name not in self._sizes and table.statistics is not None:
            self._sizes[name] = MeasuredTable(
                name,
                partial(table.statistics, table.place),
                telemetry=self._telemetry,
                clock=self._clock,
            )
        return self._sizes.get(name)

    def _keeper(self, name: str) -> TableMaintainer | None:
        kept = self._wanted.get(name)
        if kept is None:
            return None
        known = self._keepers.get(name)
        if known is None or known.kept != kept:
            self._sizes.pop(name, None)
            known = self._keepers[name] = TableMaintainer(
                name,
                kept,
                lambda: self._open_table(kept),
                telemetry=self._telemetry,
                clock=self._clock,
                needs=lambda table_id: self._ask_needs(kept.folder, table_id),
                is_wanted=lambda: not self._halt.is_set() and self._wanted.get(name) == kept,
            )
        return known
