"""Runs the tasks of a daemon: pipelines, watchers, the listener; and shuts them down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tailerd.backoff import ONCE_SECONDS
from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.daemon.config_file import ConfigFile
from tailerd.daemon.offsets import open_state
from tailerd.daemon.pipelines import Assembly
from tailerd.daemon.shutdown import CANCEL_SECONDS, SPARK_GRACE_SECONDS, Shutdown
from tailerd.daemon.tables import (
    delivered_folders,
    list_maintenance_targets,
    locate_ledger,
    make_watchers,
    open_statistics,
    watched_folders,
)
from tailerd.errors import BugError, StateInUseError, TailerdError
from tailerd.formats.statistics import TableStatistics
from tailerd.formats.table_search import TableSearch
from tailerd.maintenance.scheduler import MaintenanceScheduler
from tailerd.pipeline.growth_tracker import GrowthTracker
from tailerd.pipeline.pipeline_manager import PipelineManager
from tailerd.state.state import State
from tailerd.storage.metered import RequestKind
from tailerd.storage.stores import Stores, StoreSettings
from tailerd.telemetry import Handler, Telemetry, events
from tailerd.telemetry.bus import Handlers
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.web.control import ControlRoutes
from tailerd.web.daemon_page import Settings
from tailerd.web.dashboard import Dashboard
from tailerd.web.pages import Pages
from tailerd.web.server import Listener


class _StateReports:
    """Notifies telemetry and this daemon of what other processes do with the state.

    Args:
        path: The state's location.
        wait: Called before waiting for the state.
        lose: Called when another daemon has taken it over.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        path: str,
        *,
        wait: Callable[[], Awaitable[None]],
        lose: Callable[[StateInUseError], None],
    ) -> None:
        self._telemetry = telemetry
        self._path = path
        self._wait = wait
        self._lose = lose
        self._has_waited = False

    async def on_wait(self, holder: str, seconds: float) -> None:
        """Report why this daemon waits for the state, and how long at most."""
        self._has_waited = True
        reason = (
            f"{holder} has it. If that process has died, this daemon starts within {seconds:.0f}"
            " s; if it is alive, this one exits within that time."
        )
        self._telemetry.emit(
            events.StateAwaited(
                path=self._path, error_code=StateInUseError.code, attempt=1, error=reason
            )
        )
        await self._wait()

    def on_hold(self) -> None:
        """Report that the wait is over."""
        if self._has_waited:
            self._telemetry.emit(events.StateTaken(path=self._path))

    def on_lost(self, error: StateInUseError) -> None:
        """Report that another daemon took it over."""
        self._telemetry.emit(
            events.StateLeaseLost(
                path=self._path, error_code=error.code, attempt=1, error=str(error)
            )
        )
        self._lose(error)


class Daemon:
    """Runs all tables of a configuration. `run` once.

    Attributes:
        shutdown: The state of its shutdown.
        manager: The pipelines, to pause, resume and reset.
    """

    _configured: Config
    """With the tables that patterns found, as of their last listing."""

    def __init__(
        self,
        config: Config,
        *,
        is_once: bool = False,
        retry_seconds: float | None = None,
        handlers: Sequence[Handler] = (),
        on_stuck: Callable[[], None] | None = None,
        config_path: Path | None = None,
        reload: Callable[[], Config] | None = None,
        is_watching_config: bool = False,
        is_own_process: bool = False,
    ) -> None:
        """Initialize.

        Args:
            config: What to run; `run` resolves its patterns.
            is_once: End when every table has been delivered up to its present head.
            retry_seconds: How long a pipeline retries without progress; None: without end, or for
                `ONCE_SECONDS` with `is_once`.
            handlers: Handle every event, in addition to the metrics and the status page.
            on_stuck: Called in a separate thread when a storage or a sink hangs and delays the
                shutdown beyond its time; a process ends itself there. With `is_own_process` also
                after `run` has ended, for threads may still hang.
            config_path: Where the configuration came from.
            reload: Reads it again, blocking; called at SIGHUP.
            is_watching_config: Whether a changed file is read without a request.
            is_own_process: Whether the process ends after `run`, so that signals no longer matter.
        """
        self._stores = Stores.from_config(config.storage)
        self._is_once = is_once
        self._retry_seconds = ONCE_SECONDS if is_once and retry_seconds is None else retry_seconds
        self._lost: TailerdError | None = None
        self._clock = SystemClock()
        self._status = StatusBoard(_engines(config), self._clock)
        self._metrics = Metrics(self._clock, self._status)
        self._state = self._open_state(config)
        self._dashboard = Dashboard(
            self._status, self._state.history, clock=self._clock, maintain=self._maintain_now
        )
        self._telemetry = Telemetry([*handlers, *self._own_handlers()])
        self._dashboard.telemetry = self._telemetry
        self._metrics.watch_freshness(self._dashboard.freshness)
        self._file = ConfigFile(
            config,
            self._telemetry,
            path=config_path,
            reload=reload,
            is_watched=is_watching_config,
        )
        self.shutdown = self._make_shutdown(on_stuck, is_own_process=is_own_process)
        self._search = TableSearch(self._stores, telemetry=self._telemetry, clock=self._clock)
        self._growth = self._make_growth(config) if config.table_metrics and not is_once else None
        self._scheduler: MaintenanceScheduler | None = None
        self._maintaining: asyncio.Task[None] | None = None
        self.manager = self._make_manager(config)

    def _own_handlers(self) -> list[Handlers]:
        shown = self._status.handle, self._on_event
        return [
            self._metrics.handlers(),
            *(dict.fromkeys(events.SHOWN, each) for each in shown),
            # The page comes last: it shows what the other handlers have recorded by then.
            *self._dashboard.handlers(),
        ]

    def _open_state(self, config: Config) -> State:
        return open_state(config, clock=self._clock, stores=self._stores, on_request=self._count)

    def _make_shutdown(
        self, on_stuck: Callable[[], None] | None, *, is_own_process: bool
    ) -> Shutdown:
        return Shutdown(
            self._telemetry,
            timeout=lambda: self._file.config.shutdown_timeout,
            has_spark=lambda: self.manager.has_engine("spark"),
            on_stuck=on_stuck,
            is_own_process=is_own_process,
        )

    def _make_growth(self, config: Config) -> GrowthTracker:
        # A location does not show its table's configuration, which a pattern may define.
        templates = (group.template for group in config.discover.values())
        tables = [*config.tables.values(), *templates]
        allowed = [location for table in tables for location in table.allowed_paths]

        async def open_table(table: str, location: str) -> TableStatistics | None:
            section = self._file.config.tables.get(table)
            return await open_statistics(
                location,
                stores=self._stores,
                telemetry=self._telemetry,
                allowed=allowed,
                ledger=locate_ledger(self._file.config, table, is_read_only=True),
                options=section.format_settings() if section is not None else None,
            )

        return GrowthTracker(open_table, telemetry=self._telemetry, clock=self._clock)

    def _make_manager(self, config: Config) -> PipelineManager:
        return PipelineManager(
            self._telemetry,
            patience_seconds=config.shutdown_timeout,
            is_lasting=self._is_lasting(config),
            is_once=self._is_once,
            pauses=self._state.pauses,
        )

    def _is_lasting(self, config: Config) -> bool:
        """Return whether the daemon keeps running when no pipeline runs."""
        is_open = (
            bool(config.discover) or self._file.is_watched or bool(list_maintenance_targets(config))
        )
        return is_open and not self._is_once

    def stop(self) -> None:
        """Begin the first phase of shutdown, or the second when the first has begun."""
        self.shutdown.begin()

    def ask_reload(self) -> None:
        """Request a reload of the configuration; before `run`, one as soon as it runs."""
        self._file.ask()

    def _count(self, verb: RequestKind) -> None:
        self._telemetry.emit(events.StorageRequested(operation=verb))

    def _on_event(self, event: events.Event) -> None:
        if self._growth is not None:
            self._growth.handle(event)
        if self._scheduler is not None:
            self._scheduler.handle(event)

    async def run(self) -> None:
        """Run until every pipeline has ended or `stop` was called.

        Raises:
            ConfigError: The state folder or the listener's address is in use.
            TailerdError: Of the first table, in the order of the configuration, that failed.
        """
        async with AsyncExitStack() as stack:
            listener, location = self._listener(), self._file.config.state
            on_wait = partial(listener.open, stack)
            observer = _StateReports(self._telemetry, location, wait=on_wait, lose=self._lose)
            await stack.enter_async_context(self._state.hold(observer))
            engine, reason = self._file.config.explain_engines()
            self._telemetry.emit(events.EngineChosen(engine=engine, reason=reason))
            on_hangup = self._file.ask if self._file.can_reload else None
            stack.enter_context(self.shutdown.signals(on_hangup))
            # Before the listener opens: a daemon without known tables would report itself ready.
            config = (await self._search.search(self._file.config, is_strict=self._is_once)).config
            self._status.expect(_engines(config))
            await listener.open(stack)
            failures = await self._run_pipelines(config)
        failures = failures if self._lost is None else [self._lost]
        if failures:
            raise failures[0]

    def _lose(self, error: TailerdError) -> None:
        """End at once: another daemon delivers the same commits by now."""
        self._lost = error
        self.shutdown.begin_at_once()

    def _listener(self) -> Listener:
        pages = Pages(metrics=self._metrics, status=self._status)

        def expire() -> None:
            pages.expire()
            self._dashboard.expire()

        control = ControlRoutes(self.manager, expire)
        routes = [*pages.routes(), *control.routes(), *self._dashboard.routes()]
        return Listener(self._file.config.http, routes, telemetry=self._telemetry)

    def _make_assembly(self, executor: ThreadPoolExecutor) -> Assembly:
        return Assembly(
            self._file.config,
            state=self._state,
            stores=self._stores,
            telemetry=self._telemetry,
            clock=self._clock,
            executor=executor,
            is_once=self._is_once,
            retry_seconds=self._retry_seconds,
        )

    async def _run_pipelines(self, config: Config) -> list[TailerdError]:
        executor = ThreadPoolExecutor(2 + (os.cpu_count() or 1), thread_name_prefix="tailerd-read")
        assembly = self._make_assembly(executor)
        scheduler = self._scheduler = self._make_scheduler(assembly)
        self._dashboard.rows = assembly.rows
        self._dashboard.explorer.explorer = assembly.explorer(lambda: self._configured)
        memory = assembly.memory
        self._metrics.watch_memory(memory.total_bytes, lambda: memory.used_bytes)
        self._publish_settings(config, assembly)
        try:
            async with asyncio.TaskGroup() as group:
                own = group.create_task(self.manager.run(assembly.members(config)))
                background = [
                    group.create_task(self._shut_down()),
                    group.create_task(self._follow(config, assembly, group)),
                    group.create_task(self._file.watch()),
                    group.create_task(self._dashboard.run()),
                ]
                if self._growth is not None:
                    background.append(group.create_task(self._growth.run()))
                await asyncio.wait([own])
                await self._end_maintenance(scheduler, config)
                for task in background:
                    task.cancel()
        except ExceptionGroup as error:
            raise BugError(
                f"A background task ended with {error.exceptions[0]!r}.",
                remedy="Please report it.",
            ) from error
        finally:
            # A read that hangs in the storage must not block the process.
            executor.shutdown(wait=False, cancel_futures=True)
            await assembly.close()
            await self._dashboard.close()
        return [*self.manager.errors, *scheduler.errors]

    def _make_scheduler(self, assembly: Assembly) -> MaintenanceScheduler:
        return MaintenanceScheduler(
            wakeups=assembly.wakeups,
            stores=self._stores,
            telemetry=self._telemetry,
            clock=self._clock,
            is_once=self._is_once,
        )

    async def _end_maintenance(self, scheduler: MaintenanceScheduler, config: Config) -> None:
        """Let the running job end; with `is_once` do now what is due."""
        if self._is_once and list_maintenance_targets(config):
            scheduler.set_tables(list_maintenance_targets(config), delivered_folders(config))
            await scheduler.run()
        elif self._maintaining is not None:
            scheduler.stop()
            await asyncio.wait([self._maintaining])

    def _maintain(self, config: Config, group: asyncio.TaskGroup) -> None:
        targets = list_maintenance_targets(config)
        self.manager.is_lasting = self._is_lasting(config)
        if self._is_once or self._scheduler is None or self.shutdown.is_begun:
            return
        self._scheduler.set_tables(targets, delivered_folders(config))
        if targets and self._maintaining is None:
            self._maintaining = group.create_task(self._scheduler.run())

    def _maintain_now(self, name: str) -> bool:
        """Request maintenance of a table now; return False if it is not maintained."""
        if self._scheduler is None or name not in self._scheduler.names:
            return False
        self._scheduler.ask(name)
        return True

    async def _follow(self, config: Config, assembly: Assembly, group: asyncio.TaskGroup) -> None:
        """Keep manager and watchers in line with the file and the folders, until cancelled."""
        watching: asyncio.Task[None] | None = None
        watched: object = None
        try:
            while True:
                requested = watched_folders(config), config.notifications
                if watching is None or requested != watched:
                    if watching is not None:
                        watching.cancel()
                        await asyncio.wait([watching])
                    watched = requested
                    watchers = make_watchers(
                        config,
                        finished=self._stores.local.finished,
                        telemetry=self._telemetry,
                        clock=self._clock,
                    )
                    watching = group.create_task(assembly.wakeups.run(watchers))
                self._maintain(config, group)
                before = config
                while config is before:
                    config = await self._next_config(assembly)
                self._publish_settings(config, assembly)
                if not self.shutdown.is_begun:
                    if self._scheduler is not None:
                        self._scheduler.remove_all_but(list_maintenance_targets(config))
                    reason = "The configuration no longer names it, or its folder no longer exists."
                    await self.manager.set_members(assembly.members(config), reason=reason)
        finally:
            if watching is not None:
                watching.cancel()

    async def _next_config(self, assembly: Assembly) -> Config:
        """Return the configuration of the next search: the same object if nothing changed.

        Members and folders of a thousand tables take a tenth of a second.
        """
        pause = None if self._is_once else self._search.wait_seconds()
        is_requested = await self._file.wait(pause)
        if is_requested:
            await self._file.read_again(assembly.check_reload, self._take)
        found = await self._search.search(self._file.config, is_requested=is_requested)
        return found.config

    def _publish_settings(self, config: Config, assembly: Assembly) -> None:
        """Let the page use the current configuration."""
        self._configured = config
        memory = assembly.memory
        self._dashboard.daemon.settings = Settings(
            config=config,
            memory_bytes=memory.total_bytes,
            memory_used_bytes=lambda: memory.used_bytes,
        )

    def _take(self, config: Config, storage: StoreSettings) -> None:
        # Also for open pipelines and state: connections stay, later requests use these settings.
        self._stores.reconfigure(storage)
        self.manager.patience_seconds = config.shutdown_timeout

    async def _shut_down(self) -> None:
        await self.shutdown.wait()
        self.manager.stop()
        if self._scheduler is not None:
            self._scheduler.stop()
        patience = self._file.config.shutdown_timeout
        await self.shutdown.patience(max(patience - CANCEL_SECONDS, patience / 2))
        # Whatever still runs now is cancelled.
        if self._scheduler is not None:
            self._scheduler.cancel()
        self.manager.cancel("arrow")
        if self.manager.has_engine("spark"):
            # Spark keeps the same deadline itself, then needs time to end its Java process.
            await self.shutdown.patience(SPARK_GRACE_SECONDS)
        self.manager.cancel()


def _engines(config: Config) -> list[tuple[str, str]]:
    """Return (name, engine) of every table that a pipeline delivers."""
    return [(n, config.select_engine(n)) for n, table in config.tables.items() if table.has_sink]
