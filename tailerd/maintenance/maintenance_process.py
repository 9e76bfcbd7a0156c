"""The daemon's side of log maintenance: supervises the separate process that does it.

Deliveries share no interpreter with it, and have priority in the system. The offsets of pipelines
stay here, and the process requests them; its events are emitted here as if they had happened here.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from tailerd.backoff import Backoff
from tailerd.changefeed.offset import Offset
from tailerd.clock import Clock
from tailerd.errors import MaintenanceProcessError, OffsetError, TailerdError
from tailerd.formats.maintenance import RetentionFloor
from tailerd.maintenance import messages
from tailerd.maintenance.messages import FromKeeper, ToKeeper, line_of
from tailerd.maintenance.needs import Reader, floor_of
from tailerd.maintenance.running_jobs import RunningJobs
from tailerd.maintenance.table_maintainer import KeptTable
from tailerd.storage.stores import StoreSettings
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry

ALONE = "none"
"""Name of the engine of a table without pipeline, for telemetry."""
CANCEL_SECONDS = 1.5
"""How long a cancelled job may take to end before its process is killed, which is safe: a daemon
that shuts down waits a little longer before it treats its own threads as stuck."""
_PROGRAM = "tailerd.maintenance.maintenance_worker"
_RESTART = Backoff(first_seconds=0.5, max_seconds=60.0)
_LAST_WORDS_BYTES = 4000
_FIGURES = events.LogAssessed | events.TableMeasured | events.GrowthUnavailable
# Freed arrays are returned to the system at once, as in the daemon itself.
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(4 * 1024 * 1024), "MALLOC_ARENA_MAX": "2"}


class _Position(NamedTuple):
    """The last reported position of a pipeline; the offset as text may be empty."""

    version: int | None
    offset: str


class _ProcessWakeup(Wakeup):
    """A wakeup that is forwarded to the process."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def ring(self) -> None:
        self._ring()

    def notify(self, version: int | None, seen: Callable[[], None]) -> None:
        # Maintenance may be delayed: the commit counts as seen at once.
        self._ring()
        seen()


class MaintenanceProcess:
    """Maintains the logs of a changing set of tables in another process. `run` once.

    All but `handle` belongs to one event loop.

    Args:
        wakeups: Wakes tables when their folders change.
        storage: Returns how files are reached now; sent with the tables.
        is_once: Assess each table once, do what is due, and end.

    Attributes:
        errors: Of tables that could not be maintained, while `is_once`.
        pid: Of the process while it runs.
    """

    def __init__(
        self,
        *,
        wakeups: WakeupRegistry,
        telemetry: Telemetry,
        clock: Clock,
        storage: Callable[[], StoreSettings] = StoreSettings,
        is_once: bool = False,
    ) -> None:
        self.errors: list[TailerdError] = []
        self.pid: int | None = None
        self._registry = wakeups
        self._telemetry = telemetry
        self._clock = clock
        self._storage = storage
        self._is_once = is_once
        self._wakeups: dict[str, tuple[str, Wakeup]] = {}
        self._wanted: dict[str, KeptTable] = {}
        self._jobs = RunningJobs()
        self._process: Process | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = asyncio.Event()
        self._is_cancelled = asyncio.Event()
        self._attempt = 0
        self._random = random.Random()
        # The fields below are shared with other threads, under the lock.
        self._lock = threading.Lock()
        self._readers: dict[str, str] = {}
        self._folder_of: dict[str, str] = {}
        self._offsets: dict[str, _Position] = {}

    # ------------------------------------------------------------------ what is to be maintained

    def handle(self, event: events.Event) -> None:
        """Handle an event, from any thread: the offsets of pipelines limit what is deleted."""
        match event:
            case events.OffsetChosen() | events.OffsetSaved():
                self._note_position(event.table, event.version, event.offset)
            case events.GapMet():
                # The table may have been replaced by another.
                self._note_position(event.table, event.end_version, "")
            case events.PipelineStarted():
                # The position of the last run may have been reset, or be of another table.
                with self._lock:
                    self._offsets.pop(event.table, None)
            case events.TableAltered():
                with self._lock:
                    self._offsets.pop(event.table, None)
                    # Later events belong to the folder that `set_tables` names next.
                    self._folder_of.pop(event.table, None)
            case _:
                return

    def _note_position(self, name: str, version: int, offset: str) -> None:
        with self._lock:
            before = self._offsets.get(name)
            self._offsets[name] = _Position(version, offset)
            loop = self._loop
        is_news = before is None or not before.offset
        if is_news and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_cleanups)

    def _wake_cleanups(self) -> None:
        """Wake tables with cleanups, which may have waited for the reported position."""
        for name, kept in self._wanted.items():
            if kept.policies.cleanup.is_enabled:
                self._ring(name)

    def remove_all_but(self, tables: Mapping[str, KeptTable]) -> None:
        """Drop tables that are not among these, before pipelines with their names begin."""
        gone = {n: t for n, t in self._wanted.items() if _identity(t) != _named(tables, n)}
        for name, kept in gone.items():
            del self._wanted[name]
            self._registry.unsubscribe(*self._wakeups.pop(name))
            if kept.is_alone:
                self._telemetry.emit(
                    events.TableRemoved(
                        table=name,
                        engine=ALONE,
                        path=kept.place,
                        reason="It is no longer maintained.",
                    )
                )
        if gone:
            self._say(self._tables())

    def set_tables(self, tables: Mapping[str, KeptTable], pipelines: Mapping[str, str]) -> None:
        """Maintain exactly these from now on; a running job is finished with its old settings.

        Args:
            tables: By name.
            pipelines: Log folder of every table that is delivered, by name.
        """
        self.remove_all_but(tables)
        for name, kept in tables.items():
            if name not in self._wakeups:
                wakeup = _ProcessWakeup(lambda name=name: self._ring(name))  # type: ignore[misc]
                self._wakeups[name] = (kept.folder, self._registry.subscribe(kept.folder, wakeup))
                if kept.is_alone:
                    self._telemetry.emit(
                        events.TableAdded(table=name, engine=ALONE, path=kept.place)
                    )
        self._wanted = dict(tables)
        with self._lock:
            self._readers = dict(pipelines)
            known, self._folder_of = self._folder_of, dict(pipelines)
            self._offsets = {
                name: position
                for name, position in self._offsets.items()
                # An offset of another table does not apply to the table that has its name now.
                if name in pipelines and known.get(name, pipelines[name]) == pipelines[name]
            }
        self._say(self._tables())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tables that are maintained."""
        return tuple(self._wanted)

    def ask(self, name: str) -> None:
        """Assess a table's log soon, do what is due, and write a checkpoint if it is useful."""
        self._say(messages.Maintain(table=name))

    def _needs(self, folder: str, table_id: str) -> RetentionFloor:
        """Return which versions of a log pipelines still need; blocking."""
        with self._lock:
            offsets = dict(self._offsets)
            folders = dict(self._readers)
        nothing = _Position(None, "")
        readers = (
            Reader(
                name=name,
                folder=place,
                version=offsets.get(name, nothing).version,
                table_id=_table_id(offsets.get(name, nothing).offset),
            )
            for name, place in folders.items()
        )
        return floor_of(readers, folder, table_id)

    async def _answer(self, ask: messages.Ask) -> None:
        # In a thread: it also reads folders, which may be on a server that hangs.
        floor = await asyncio.to_thread(self._needs, ask.folder, ask.table_id)
        self._say(messages.Answer(number=ask.number, floor=floor))

    # ------------------------------------------------------------------ the process

    async def run(self) -> None:
        """Run the process until stopped, or once; if cancelled, end the process and its job."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        while not self._is_stopping.is_set():
            why = await self._live()
            if self._is_stopping.is_set() or not why:
                return
            if self._is_once:
                self.errors.append(MaintenanceProcessError(_sentence(why)))
                return
            await self._on_worker_exit(why)

    def stop(self) -> None:
        """Begin no more jobs; `run` returns when the running one has ended."""
        self._is_stopping.set()
        self._say(messages.Stop())

    def cancel(self) -> None:
        """Cancel the running job; it leaves nothing visible to readers."""
        self._is_stopping.set()
        self._is_cancelled.set()
        self._say(messages.Cancel())

    async def _live(self) -> str:
        """Run one process to its end; return why it ended, empty if its work was done."""
        try:
            process = await self._start()
        except OSError as error:
            return f"it could not be started: {error}"
        last_words = asyncio.create_task(_last_words(process))
        deadline = asyncio.create_task(self._kill_late(process))
        try:
            # `stop` and `cancel` may have come while it started.
            self._say(self._tables(self._jobs.skipped(self._clock.monotonic())))
            if self._is_stopping.is_set():
                self._say(messages.Cancel() if self._is_cancelled.is_set() else messages.Stop())
            await self._relay(process)
            status = await process.wait()
            is_done = status == 0 and (self._is_once or self._is_stopping.is_set())
            return "" if is_done else _reason(status, await last_words)
        finally:
            self._process = self.pid = None
            for answering in self._answering:
                answering.cancel()
            deadline.cancel()
            last_words.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()

    async def _start(self) -> Process:
        # The same modules as here, and none from the current folder of the daemon.
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)  # noqa: PTH109
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            _PROGRAM,
            *(["--once"] if self._is_once else []),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**_ENVIRONMENT, **os.environ, "PYTHONPATH": path},
            # Ctrl-C is for the daemon, which lets the job end.
            start_new_session=True,
            limit=messages.LONGEST_LINE_BYTES,
        )
        self.pid = process.pid
        return process

    async def _relay(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):
                self._on_message(messages.from_keeper(line))

    def _on_message(self, message: FromKeeper) -> None:
        match message:
            case messages.EventMessage():
                event = messages.event_of(message)
                self._jobs.handle(event)
                # A table that was removed meanwhile must not be shown again.
                if not isinstance(event, _FIGURES) or event.table in self._wanted:
                    self._telemetry.emit(event)
            case messages.Requested(counts=counts):
                for operation, count in counts.items():
                    self._telemetry.emit(events.StorageRequested(operation=operation, count=count))
            case messages.Ask():
                task = asyncio.create_task(self._answer(message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case messages.TurnEnded():
                self._attempt = 0
            case messages.Failed(error=data):
                self.errors.append(TailerdError.from_data(data))

    async def _kill_late(self, process: Process) -> None:
        await self._is_cancelled.wait()
        await self._clock.sleep(CANCEL_SECONDS)
        with suppress(ProcessLookupError):
            process.kill()

    async def _on_worker_exit(self, why: str) -> None:
        """Report the exit, and wait before the next start."""
        wait = _RESTART.wait_seconds(self._attempt, self._random)
        self._attempt += 1
        self._telemetry.emit(
            events.MaintenanceProcessEnded(
                attempt=self._attempt,
                error_code=MaintenanceProcessError.code,
                error=f"{_sentence(why)} It is started again in {wait:.1f} s.",
            )
        )
        if (
            failed := self._jobs.on_process_death(_sentence(why), self._clock.monotonic())
        ) is not None:
            self._telemetry.emit(failed)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._is_stopping.wait()

    def _tables(self, held_seconds: Mapping[str, float] | None = None) -> messages.SetTables:
        return messages.SetTables(
            tables=self._wanted,
            held_seconds=dict(held_seconds or {}),
            storage=self._storage().to_json(),
        )

    def _ring(self, name: str) -> None:
        self._say(messages.Ring(table=name))

    def _say(self, message: ToKeeper) -> None:
        """Send a message to the process, if it runs; a new one gets the full state at its start."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return
        process.stdin.write(line_of(message))


def _table_id(offset: str) -> str:
    try:
        return Offset.from_json(offset).table_id
    except OffsetError:
        return ""


async def _last_words(process: Process) -> str:
    """Return the end of what it wrote to standard error."""
    assert process.stderr is not None
    words = b""
    while more := await process.stderr.read(65536):
        words = (words + more)[-_LAST_WORDS_BYTES:]
    lines = words.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _reason(status: int, last_words: str) -> str:
    if status >= 0:
        return f"it ended with status {status}" + f" ({last_words})" * bool(last_words)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    is_killed = name == "SIGKILL"
    return f"it was ended by {name}" + ", as the system does where memory runs out" * is_killed


def _sentence(why: str) -> str:
    return (
        f"The maintenance process is not running: {why}. Its partial work is invisible to readers;"
        " deliveries continue."
    )


def _identity(kept: KeptTable) -> tuple[str, bool]:
    return kept.folder, kept.is_alone


def _named(tables: Mapping[str, KeptTable], name: str) -> tuple[str, bool] | None:
    return _identity(tables[name]) if name in tables else None
