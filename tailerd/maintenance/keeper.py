"""Maintains the logs of all tables, beside the deliveries: a thread and an event loop of its own.

Watchers wake it, and the times that policies name; it asks no storage on a schedule of its own. One
job at a time, and as long as a table took it rests before the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

from tailerd.clock import Clock
from tailerd.delta.log_reader import LogReader
from tailerd.errors import BugError, TailerdError
from tailerd.maintenance.table_keeper import KeptTable, Needs, TableKeeper
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.hints import Hint, HintBoard

LOOK_SECONDS = 1.0
"""A table that changes all the time is looked at so often."""
LONGEST_REST_SECONDS = 30.0
ALONE = "none"
"""What telemetry calls the engine of a table without pipeline."""


class _Bell(Hint):
    """Rings through to the thread."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def ring(self) -> None:
        self._ring()

    def tell(self, version: int | None, seen: Callable[[], None]) -> None:
        # What is maintained a little later is none the worse.
        self._ring()
        seen()


class MaintenanceKeeper:
    """Runs the maintenance of tables that come and go. `run` once.

    Args:
        open_reader: Makes the reader of a place's log.
        hints: Wakes tables when their folders change.
        is_once: Look at each table once, do what is due, and end.

    Attributes:
        errors: Of tables that could not be maintained, while `is_once`.
    """

    def __init__(
        self,
        open_reader: Callable[[str], LogReader],
        *,
        hints: HintBoard,
        telemetry: Telemetry,
        clock: Clock,
        is_once: bool = False,
    ) -> None:
        self.errors: list[TailerdError] = []
        self._open_reader = open_reader
        self._hints = hints
        self._telemetry = telemetry
        self._clock = clock
        self._is_once = is_once
        self._bells: dict[str, tuple[str, Hint]] = {}
        # Below: shared with the thread, under the lock.
        self._lock = threading.Lock()
        self._wanted: dict[str, KeptTable] = {}
        self._readers_of: dict[str, list[str]] = {}
        self._offsets: dict[str, int] = {}
        self._dirty: dict[str, None] = {}
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        # Below: the thread's own.
        self._bell, self._halt = asyncio.Event(), asyncio.Event()
        self._keepers: dict[str, TableKeeper] = {}
        self._look_at: dict[str, float] = {}

    # ------------------------------------------------------------------ the daemon's side

    @property
    def is_idle(self) -> bool:
        """Tell whether there is no table to maintain."""
        return not self._wanted

    def handle(self, event: events.Event) -> None:
        """Hear an event, from any thread: where pipelines stand bounds what is deleted."""
        match event:
            case events.OffsetChosen() | events.OffsetSaved():
                with self._lock:
                    is_first = event.table not in self._offsets
                    self._offsets[event.table] = event.version
                    kept = self._wanted.items() if is_first else ()
                    waiting = [name for name, t in kept if t.policies.cleanup.is_enabled]
                for name in waiting:
                    self._ring(name)
            case _:
                return

    def remove_all_but(self, tables: Mapping[str, KeptTable]) -> None:
        """Let go of tables that are not among these, before pipelines of their names begin."""
        with self._lock:
            gone = {n: t for n, t in self._wanted.items() if _identity(t) != _named(tables, n)}
            for name in gone:
                del self._wanted[name]
        for name, kept in gone.items():
            self._hints.unsubscribe(*self._bells.pop(name))
            if kept.is_alone:
                self._telemetry.emit(
                    events.TableRemoved(
                        table=name, engine=ALONE, path=kept.place, hint="It is maintained no more."
                    )
                )

    def set_tables(self, tables: Mapping[str, KeptTable], pipelines: Mapping[str, str]) -> None:
        """Maintain exactly these from now on; jobs that run are finished as they were begun.

        Args:
            tables: By name.
            pipelines: Log folder of every table that is delivered, by name.
        """
        self.remove_all_but(tables)
        for name, kept in tables.items():
            if name not in self._bells:
                bell = _Bell(lambda name=name: self._ring(name))  # type: ignore[misc]
                self._bells[name] = (kept.folder, self._hints.subscribe(kept.folder, bell))
                if kept.is_alone:
                    self._telemetry.emit(
                        events.TableAdded(table=name, engine=ALONE, path=kept.place)
                    )
        with self._lock:
            altered = [n for n, kept in tables.items() if self._wanted.get(n) != kept]
            self._wanted = dict(tables)
            self._readers_of = {}
            for name, folder in pipelines.items():
                self._readers_of.setdefault(folder, []).append(name)
            self._offsets = {n: v for n, v in self._offsets.items() if n in pipelines}
        for name in altered:
            self._ring(name)

    async def run(self) -> None:
        """Work until stopped, or once; cancelled, it cancels what runs.

        Raises:
            BugError: The thread broke.
        """
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        broken: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(self._work())
            except BaseException as error:  # noqa: BLE001 - carried over to the daemon's thread
                broken.append(error)
            loop.call_soon_threadsafe(ended.set)

        # A daemon thread: storage that hangs must not keep the process.
        threading.Thread(target=work, name="tailerd-maintenance", daemon=True).start()
        try:
            await ended.wait()
        finally:
            if not ended.is_set():
                self.cancel()
        if broken:
            raise BugError(f"Log maintenance broke: {broken[0]!r}.", hint="Please report it.")

    def stop(self) -> None:
        """Begin no more jobs; `run` returns when the one that runs has ended."""
        with self._lock:
            self._is_stopping = True
        self._wake()

    def cancel(self) -> None:
        """Give up the job that runs; it leaves nothing that a reader would see."""
        self.stop()
        with self._lock:
            loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    def _ring(self, name: str) -> None:
        with self._lock:
            self._dirty[name] = None
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            loop = self._loop
            if loop is not None:
                loop.call_soon_threadsafe(self._bell.set)
                if self._is_stopping:
                    loop.call_soon_threadsafe(self._halt.set)

    # ------------------------------------------------------------------ the thread's side

    async def _work(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._dirty or self._is_stopping:
                self._bell.set()
            if self._is_stopping:
                self._halt.set()
        try:
            while not self._is_stopping:
                if not self._is_once:
                    await self._wait()
                for name in self._take_due():
                    await self._turn(name)
                if self._is_once:
                    return
                await self._first_of(self._halt, LOOK_SECONDS)
        except asyncio.CancelledError:
            # `cancel` asked for it.
            return
        finally:
            with self._lock:
                self._loop = self._task = None

    async def _wait(self) -> None:
        """Wait for a bell, or for the next time that a policy named."""
        at = min(self._look_at.values(), default=None)
        await self._first_of(self._bell, None if at is None else at - self._clock.monotonic())
        self._bell.clear()

    async def _first_of(self, event: asyncio.Event, seconds: float | None) -> None:
        """Wait for an event, but not longer than so many seconds."""
        if seconds is None:
            await event.wait()
            return
        hearing = asyncio.ensure_future(event.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait({hearing, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hearing.cancel()
            sleeping.cancel()

    def _take_due(self) -> list[str]:
        now = self._clock.monotonic()
        with self._lock:
            names = dict.fromkeys(self._dirty)
            self._dirty.clear()
            names.update({name: None for name, at in self._look_at.items() if at <= now})
            for name in [name for name in self._keepers if name not in self._wanted]:
                del self._keepers[name]
                self._look_at.pop(name, None)
            return [name for name in names if name in self._wanted]

    async def _turn(self, name: str) -> None:
        keeper = self._keeper(name)
        if keeper is None or self._is_stopping:
            return
        began = self._clock.monotonic()
        again = await keeper.turn()
        ended = self._clock.monotonic()
        if again is None:
            self._look_at.pop(name, None)
        else:
            self._look_at[name] = ended + again
        if self._is_once:
            if keeper.error is not None:
                self.errors.append(keeper.error)
            return
        # Half of the time belongs to others, however many tables there are.
        await self._first_of(self._halt, min(ended - began, LONGEST_REST_SECONDS))

    def _keeper(self, name: str) -> TableKeeper | None:
        with self._lock:
            kept = self._wanted.get(name)
        if kept is None:
            return None
        known = self._keepers.get(name)
        if known is None or known.kept != kept:
            known = self._keepers[name] = TableKeeper(
                name,
                kept,
                self._open_reader(kept.place),
                telemetry=self._telemetry,
                clock=self._clock,
                needs=lambda: self._needs(kept.folder),
                is_wanted=lambda: not self._is_stopping and self._wanted.get(name) == kept,
            )
        return known

    def _needs(self, folder: str) -> Needs:
        with self._lock:
            names = self._readers_of.get(folder, [])
            unknown = [name for name in names if name not in self._offsets]
            versions = [self._offsets[name] for name in names if name in self._offsets]
        if unknown:
            return Needs(obstacle=f"{unknown[0]} has not told yet what it has delivered.")
        # A commit is read together with the version before it.
        return Needs(from_version=max(0, min(versions) - 1) if versions else None)


def _identity(kept: KeptTable) -> tuple[str, bool]:
    return kept.folder, kept.is_alone


def _named(tables: Mapping[str, KeptTable], name: str) -> tuple[str, bool] | None:
    return _identity(tables[name]) if name in tables else None
