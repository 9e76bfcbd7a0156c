"""Maintains the logs of all tables, one at a time.

It runs when it is notified that tables change, and at times that policies name; it does not poll
the storage. One job runs at a time, and after each table it pauses for as long as the table took.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial

from tailerd.backoff import Backoff
from tailerd.clock import Clock, wait_at_most
from tailerd.errors import BugError, TailerdError
from tailerd.formats.maintenance import RetentionFloor
from tailerd.maintenance.needs import PipelinePositions
from tailerd.maintenance.opening import MaintainedTable, open_maintained
from tailerd.maintenance.programs import MaintenanceTarget, Measurement, TableJobs
from tailerd.maintenance.table_maintainer import SURVEY, TableMaintainer
from tailerd.storage.metered import MeteredStore, RequestKind
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry

ALONE = "none"
"""Name of the engine of a table without pipeline, for telemetry."""
POLL_SECONDS = 1.0
"""Shortest time between two turns of a table that changes continuously."""
LONGEST_REST_SECONDS = 30.0
MEASURE = "measure"
"""Name of the measurement of a table's size among its jobs."""
MEASURE_SHARE = 10
"""A measurement reads the whole table again: the pause after it is so many times as long."""
_MEASURE_RETRY = Backoff(first_seconds=60.0, max_seconds=3600.0)
_FIGURES = events.LogAssessed | events.TableMeasured | events.GrowthUnavailable


class _TableWakeup(Wakeup):
    """A wakeup that makes a table due."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        self._wake()

    def notify(self, version: int | None, seen: Callable[[], None]) -> None:
        # Maintenance may be delayed: the commit counts as seen at once.
        self._wake()
        seen()


class _MeasuredTable:
    """Measures a table that no pipeline delivers, and that is not measured otherwise."""

    def __init__(
        self,
        name: str,
        measure: Callable[[], Awaitable[Measurement]],
        *,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._name = name
        self._measure = measure
        self._telemetry = telemetry
        self._clock = clock
        self._not_before = float("-inf")
        self._attempt = 0
        self._random = random.Random()

    async def turn(self) -> float | None:
        """Report the table's size, or why it is not known.

        Returns:
            Seconds until the next turn is useful without a change; None for never.
        """
        began = self._clock.monotonic()
        if began < self._not_before:
            return self._not_before - began
        self._telemetry.emit(events.MaintenanceStarted(table=self._name, job=MEASURE))
        try:
            found = await self._measure()
        except TailerdError as error:
            wait = _MEASURE_RETRY.wait_seconds(self._attempt, self._random)
            self._attempt += 1
            self._not_before = self._clock.monotonic() + wait
            self._telemetry.emit(
                events.GrowthUnavailable(table=self._name, error_code=error.code, error=str(error))
            )
            return wait
        ended, self._attempt = self._clock.monotonic(), 0
        self._not_before = ended + MEASURE_SHARE * (ended - began)
        self._telemetry.emit(
            events.TableMeasured(
                table=self._name, **asdict(found.size), pending_files=None, pending_bytes=None
            )
        )
        if found.due_seconds is None:
            return None
        return max(found.due_seconds, self._not_before - ended)


class MaintenanceScheduler:
    """Maintains the logs of a changing set of tables. `run` once.

    All but `handle` belongs to one event loop.

    Args:
        wakeups: Wakes tables when their folders change.
        stores: How files are reached.
        is_once: Assess each table once, run due jobs, and end.

    Attributes:
        errors: Of tables that could not be maintained, while `is_once`.
    """

    def __init__(
        self,
        *,
        wakeups: WakeupRegistry,
        telemetry: Telemetry,
        clock: Clock,
        stores: Stores,
        is_once: bool = False,
    ) -> None:
        self.errors: list[TailerdError] = []
        self._registry = wakeups
        self._telemetry = telemetry
        self._own = Telemetry([self._pass_on])
        self._clock = clock
        self._stores = stores
        self._is_once = is_once
        self._positions = PipelinePositions(self._on_first_position)
        self.handle = self._positions.handle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._targets: dict[str, MaintenanceTarget] = {}
        self._wakeups: dict[str, tuple[str, Wakeup]] = {}
        self._maintainers: dict[str, TableMaintainer] = {}
        self._jobs: dict[str, TableJobs] = {}
        self._sizes: dict[str, _MeasuredTable] = {}
        self._dirty: dict[str, None] = {}
        self._requested: set[str] = set()
        self._due_at: dict[str, float] = {}
        self._wakeup, self._halt = asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ what is to be maintained

    def _on_first_position(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_cleanups)

    def _wake_cleanups(self) -> None:
        """Wake tables with cleanups, which may have waited for the reported position."""
        for name, target in self._targets.items():
            if target.policies.cleanup.is_enabled:
                self.wake(name)

    def remove_all_but(self, tables: Mapping[str, MaintenanceTarget]) -> None:
        """Drop tables that are not among these, before pipelines with their names begin."""
        gone = {n: t for n, t in self._targets.items() if _identity(t) != _find_identity(tables, n)}
        for name, target in gone.items():
            del self._targets[name]
            self._registry.unsubscribe(*self._wakeups.pop(name))
            for each in (self._maintainers, self._jobs, self._sizes, self._due_at):
                each.pop(name, None)
            if target.is_alone:
                self._telemetry.emit(
                    events.TableRemoved(
                        table=name,
                        engine=ALONE,
                        path=target.location,
                        reason="It is no longer maintained.",
                    )
                )

    def set_tables(
        self, tables: Mapping[str, MaintenanceTarget], pipelines: Mapping[str, str]
    ) -> None:
        """Maintain exactly these from now on; a running job is finished with its old settings.

        Args:
            tables: By name.
            pipelines: Log folder of every table that is delivered, by name.
        """
        self.remove_all_but(tables)
        for name, target in tables.items():
            if name not in self._wakeups:
                wakeup = _TableWakeup(partial(self.wake, name))
                self._wakeups[name] = (
                    target.folder,
                    self._registry.subscribe(target.folder, wakeup),
                )
                if target.is_alone:
                    self._telemetry.emit(
                        events.TableAdded(table=name, engine=ALONE, path=target.location)
                    )
        altered = [name for name, target in tables.items() if self._targets.get(name) != target]
        self._targets = dict(tables)
        self._positions.set_pipelines(pipelines)
        for name in altered:
            self.wake(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tables that are maintained."""
        return tuple(self._targets)

    def wake(self, name: str) -> None:
        """Assess a table soon: its folder may have changed."""
        self._dirty[name] = None
        self._wakeup.set()

    def ask(self, name: str) -> None:
        """Assess a table's log soon, run due jobs, and write a checkpoint if it is useful."""
        self._requested.add(name)
        self.wake(name)

    # ------------------------------------------------------------------ turns

    def stop(self) -> None:
        """Begin no more jobs; `run` returns when the running one has ended."""
        self._halt.set()
        self._wakeup.set()

    def cancel(self) -> None:
        """Cancel the running job; it leaves nothing visible to readers."""
        self.stop()
        if self._running is not None:
            self._running.cancel()

    async def run(self) -> None:
        """Work until stopped, or once."""
        self._loop = asyncio.get_running_loop()
        while not self._halt.is_set():
            if not self._is_once:
                await self._wait()
            for name in self._take_due():
                self._running = asyncio.create_task(self._turn(name))
                try:
                    await asyncio.wait([self._running])
                finally:
                    # If this method is cancelled, so is the job.
                    self._running.cancel()
                if not self._running.cancelled() and (error := self._running.exception()):
                    self._on_bug(name, error)
            if self._is_once:
                return
            await self._wait_for_event(self._halt, POLL_SECONDS)

    def _on_bug(self, name: str, error: BaseException) -> None:
        """Report an unexpected error of a turn: deliveries must not end with it."""
        bug = BugError(f"Maintenance failed unexpectedly: {error!r}.", remedy="Please report it.")
        if self._is_once:
            self.errors.append(bug)
        self._due_at[name] = self._clock.monotonic() + LONGEST_REST_SECONDS
        self._telemetry.emit(
            events.MaintenanceFailed(table=name, job=SURVEY, error_code=bug.code, error=str(bug))
        )

    async def _wait(self) -> None:
        """Wait for a wakeup, or for the next time that a policy named."""
        at = min(self._due_at.values(), default=None)
        await self._wait_for_event(
            self._wakeup, None if at is None else at - self._clock.monotonic()
        )
        if not self._halt.is_set():
            self._wakeup.clear()

    async def _wait_for_event(self, event: asyncio.Event, seconds: float | None) -> None:
        """Wait for an event, but not longer than so many seconds."""
        if seconds is None:
            await event.wait()
            return
        await wait_at_most(self._clock, event.wait(), seconds)

    def _take_due(self) -> list[str]:
        now = self._clock.monotonic()
        names = dict.fromkeys(self._dirty)
        self._dirty.clear()
        names.update({name: None for name, at in self._due_at.items() if at <= now})
        return [name for name in names if name in self._targets]

    async def _turn(self, name: str) -> None:
        target = self._targets.get(name)
        if target is None or self._halt.is_set():
            return
        maintainer = self._maintainer(name, target)
        if name in self._requested:
            self._requested.discard(name)
            maintainer.ask()
        began = self._clock.monotonic()
        jobs = self._jobs[name]
        try:
            waits = [await maintainer.turn()]
            size = self._size(name, maintainer, jobs)
            if size is not None and maintainer.found is not None and not self._halt.is_set():
                waits.append(await size.turn())
        finally:
            await jobs.close()
        ended = self._clock.monotonic()
        again = min((wait for wait in waits if wait is not None), default=None)
        if again is None or name not in self._targets:
            self._due_at.pop(name, None)
        else:
            self._due_at[name] = ended + again
        if self._is_once:
            if maintainer.error is not None:
                self.errors.append(maintainer.error)
            return
        # At most half of the time is used here, however many tables there are.
        await self._wait_for_event(self._halt, min(ended - began, LONGEST_REST_SECONDS))

    def _size(
        self, name: str, maintainer: TableMaintainer, jobs: TableJobs
    ) -> _MeasuredTable | None:
        """Return what measures a table; None if it is not to be measured, or its format cannot."""
        target, table = maintainer.target, maintainer.table
        if not target.is_measured or self._is_once or table is None or table.statistics is None:
            return None
        if name not in self._sizes:
            self._sizes[name] = _MeasuredTable(
                name, jobs.measure, telemetry=self._own, clock=self._clock
            )
        return self._sizes[name]

    def _maintainer(self, name: str, target: MaintenanceTarget) -> TableMaintainer:
        known = self._maintainers.get(name)
        if known is None or known.target != target:
            self._sizes.pop(name, None)
            needs = partial(self._ask_needs, target.folder)
            jobs = self._jobs[name] = TableJobs(
                target, stores=self._stores, needs=needs, telemetry=self._telemetry
            )
            known = self._maintainers[name] = TableMaintainer(
                name,
                target,
                partial(self._open_table, target, jobs),
                telemetry=self._own,
                clock=self._clock,
                needs=needs,
                may_continue=lambda: not self._halt.is_set() and self._targets.get(name) == target,
            )
        return known

    async def _open_table(self, target: MaintenanceTarget, jobs: TableJobs) -> MaintainedTable:
        table = await open_maintained(
            target.location,
            stores=self._stores,
            table_format=target.format,
            allowed=target.allowed,
            ledgers=target.ledgers,
            wrap_store=lambda store: MeteredStore(store, self._count),
        )
        return replace(table, jobs=jobs)

    def _count(self, kind: RequestKind) -> None:
        self._telemetry.emit(events.StorageRequested(operation=kind))

    async def _ask_needs(self, folder: str, table_id: str) -> RetentionFloor:
        # In a thread: it also reads folders, which may be on a server that hangs.
        return await asyncio.to_thread(self._positions.floor, folder, table_id)

    def _pass_on(self, event: events.Event) -> None:
        # A table that was removed during its turn must not be shown again.
        if not isinstance(event, _FIGURES) or event.table in self._targets:
            self._telemetry.emit(event)


def _identity(target: MaintenanceTarget) -> tuple[str, bool]:
    return target.folder, target.is_alone


def _find_identity(tables: Mapping[str, MaintenanceTarget], name: str) -> tuple[str, bool] | None:
    return _identity(tables[name]) if name in tables else None
