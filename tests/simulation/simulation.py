"""A daemon's life in a seed: tables that grow, processes that die, and what is left at the end."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from unittest.mock import patch

from tailerd.backoff import RetryPolicy
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.errors import AccessDeniedError, TailerdError
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.comparing_source import ComparingSource
from tailerd.formats.delta.changes.log import open_delta_log
from tailerd.formats.delta.changes.task_reader import DeltaTaskReader
from tailerd.pipeline import change_stream
from tailerd.pipeline.delivery_loop import DeliveryParts, DeliverySpec
from tailerd.pipeline.memory_budget import SMALLEST_PIECE, MemoryBudget
from tailerd.pipeline.pipeline import Pipeline
from tailerd.pipeline.policies import OnGap
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import Event
from tailerd.watchers.poll import PollWatcher
from tailerd.watchers.wakeups import WakeupRegistry
from tests.doubles.scripted_watcher import ScriptedWatcher
from tests.simulation.chaos import CURRENT, Chaos, Life, thread_seconds
from tests.simulation.sim_offsets import OffsetDisk, OffsetLink
from tests.simulation.sim_sink import SimSink, SinkDisk
from tests.simulation.sim_store import SimStore, StoreLink
from tests.simulation.sim_table import SimTable
from tests.simulation.virtual_time import LoopClock, VirtualLoop

POLL_SECONDS = 15.0
LOOK_SECONDS = 0.5
SETTLE_SECONDS = 1200.0
END_SECONDS = 120.0
OPERATOR_SECONDS = 5.0
FALSE_ALARMS = ("missing_version", "table_recreated", "not_a_table")
"""What a pipeline may call a listing that lies. It stops then, and must not have lost a row."""


class ViolationError(AssertionError):
    """A law was broken."""


@dataclass(slots=True)
class World:
    """One table with everything around it that outlives processes.

    Attributes:
        commits: How many versions will be written.
        clean_rate: Share of commits behind which the log is cleaned up.
        stores_offsets: Whether the sink keeps the offset together with the rows.
        doom: What is hopelessly wrong with it: nothing, `hung` sink, `refused` storage.
    """

    name: str
    table: SimTable
    chaos: Chaos
    sink: SinkDisk
    plan: DeliverySpec
    max_in_flight: int
    is_piecemeal: bool
    commits: int
    writer: random.Random
    clean_rate: float = 0.0
    stores_offsets: bool = False
    doom: str = ""
    offsets: OffsetDisk = field(default_factory=OffsetDisk)
    is_written: bool = False

    @property
    def is_done(self) -> bool:
        """Whether everything is written and delivered."""
        saved = self.offsets.saved
        return self.is_written and saved is not None and saved.offset.order == self.table.end


@dataclass(slots=True)
class Settings:
    """What tests may change about a simulation.

    Attributes:
        source_class: The source's class; planted bugs bring their own.
        tables: Numbers of the tables that take part; None lets the seed say.
        crashes: How many processes die; None lets the seed say.
        has_doom: Whether a table may be hopeless.
        memory_bytes: Memory of a process; None lets the seed say.
    """

    source_class: type[ComparingSource] = ComparingSource
    tables: tuple[int, ...] | None = None
    crashes: int | None = None
    has_doom: bool = True
    memory_bytes: int | None = None


class Process:
    """One life of the daemon: all pipelines, one board of hints, one memory budget."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.life = Life(number)
        self.budget = MemoryBudget(simulation.memory_bytes)
        self.pipelines: dict[str, Pipeline] = {}
        self._simulation = simulation
        self._board = WakeupRegistry()
        self.watcher = ScriptedWatcher()
        self.task: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Start everything."""
        for world in self._simulation.worlds:
            self.pipelines[world.name] = self._pipeline(world)
        self.task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Ask all pipelines to end."""
        self._is_stopping = True
        for pipeline in self.pipelines.values():
            pipeline.stop()

    def kill(self) -> None:
        """Die: nothing of this process touches the world any more."""
        self.life.is_dead = True
        self.cancel()

    def cancel(self) -> None:
        """End at once, but in order."""
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> None:
        clock = self._simulation.clock
        folders = [world.table.log for world in self._simulation.worlds]
        poll = PollWatcher(folders, interval_seconds=POLL_SECONDS, clock=clock)
        listening = asyncio.create_task(self._board.run([self.watcher, poll]))
        try:
            async with asyncio.TaskGroup() as group:
                for world in self._simulation.worlds:
                    group.create_task(self._run_one(world))
        finally:
            listening.cancel()

    async def _run_one(self, world: World) -> None:
        """Run a table; an operator starts it again where it stopped for a reason."""
        CURRENT.set(world.chaos)
        while True:
            await self.pipelines[world.name].run()
            error = self.pipelines[world.name].error
            if error is None or world.doom:
                return
            self._simulation.check_may_fail(world, error)
            await asyncio.sleep(OPERATOR_SECONDS)
            if self._is_stopping:
                return
            self.pipelines[world.name] = self._pipeline(world)

    def _pipeline(self, world: World) -> Pipeline:
        simulation, chaos, life = self._simulation, world.chaos, self.life

        async def open_source() -> ChangeSource:
            if world.doom == "refused":
                raise AccessDeniedError("This table is not for you.")
            request = OpenRequest(
                wrap_store=lambda _: StoreLink(simulation.store, chaos, life),
                clock=simulation.clock,
            )
            location = locate_table(world.table.location, stores=simulation.stores)
            log = await open_delta_log(location.wrap(request.wrap_store), request)
            return simulation.settings.source_class(log, log, DeltaTaskReader(), request)

        offsets = OffsetLink(world.offsets, chaos, life)
        sink = SimSink(
            world.sink,
            chaos,
            life,
            max_in_flight=world.max_in_flight,
            is_piecemeal=world.is_piecemeal,
            hangs=world.doom == "hung",
            ledger=offsets if world.stores_offsets else None,
        )
        return Pipeline(
            world.plan,
            DeliveryParts(
                sink=sink,
                wakeup=self._board.subscribe(world.table.log),
                telemetry=Telemetry([simulation.heard]),
                clock=simulation.clock,
                memory=self.budget.join(world.max_in_flight),
            ),
            source_location=world.table.location,
            open_source=open_source,
            offsets=offsets,
            retries=RetryPolicy(
                jitter=random.Random(f"{simulation.seed}/{world.name}/jitter/{life.number}")
            ),
        )


class Simulation:
    """Runs one seed. `run` once.

    Attributes:
        trace: One line for everything that happened, with its time.
        counts: What happened how often, to see that a simulation is not too kind.
    """

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self.seed = seed
        self.settings = settings or Settings()
        self.random = random.Random(f"{seed}")
        self.trace: list[str] = []
        self.counts: dict[str, int] = {}
        self.worlds: list[World] = []
        memory_bytes = self.random.choice([1, 300_000, 64 * 1024 * 1024])
        self.memory_bytes = self.settings.memory_bytes or memory_bytes
        self._violation: ViolationError | None = None
        self._lives = 0

    def run(self) -> None:
        """Run to the end and check every law.

        Raises:
            ViolationError: One does not hold.
        """
        loop = VirtualLoop(thread_seconds)
        self.loop = loop
        self.clock = LoopClock(loop)
        self.store = SimStore(f"simulation-{self.seed}", self.clock)
        self.stores = Stores()
        self.stores.add(self.store)
        try:
            # The machine's number of processors must not matter.
            with patch.object(change_stream, "RUNS_AHEAD", 3):
                loop.run_until_complete(self._live())
        finally:
            _end(loop)

    def heard(self, event: Event) -> None:
        """Note what a pipeline tells."""
        self.note(f"{getattr(event, 'table', '')} {type(event).__name__}")

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.loop.time():.6f} {text}")
        self.counts[text.partition(" ")[2]] = self.counts.get(text.partition(" ")[2], 0) + 1

    # ------------------------------------------------------------------ the course of things

    async def _live(self) -> None:
        numbers = range(self.random.randint(1, 3))
        for number in numbers if self.settings.tables is None else self.settings.tables:
            self.worlds.append(self._world(number))
        if self.settings.has_doom and len(self.worlds) > 1 and self.random.random() < 0.3:
            self.worlds[-1].doom = self.random.choice(["hung", "refused"])
        for world in self.worlds:
            await world.table.create()
        writers = [asyncio.create_task(self._write(world)) for world in self.worlds]
        try:
            await self._supervise(writers)
        finally:
            for writer in writers:
                writer.cancel()

    def _world(self, number: int) -> World:
        name = f"t{number}"
        source = random.Random(f"{self.seed}/{name}")
        chaos = Chaos.of(random.Random(f"{self.seed}/{name}/chaos"))
        writer = random.Random(f"{self.seed}/{name}/writer")
        is_transactional = source.random() < 0.6
        start = source.choice(["snapshot", "snapshot", "0", "latest"])
        max_files = source.choice([1, 2, 5, 1000])
        max_in_flight = source.choice([1, 1, 2, 3]) if is_transactional else 1
        on_gap, clean_rate = OnGap.STOP, 0.0
        if source.random() < 0.2:
            # Whole commits, and listings that tell the truth: else nobody knows what to expect.
            on_gap, clean_rate = source.choice([OnGap.SNAPSHOT, OnGap.LATEST]), 0.15
            start, max_files, chaos.stale_rate = source.choice(["snapshot", "latest"]), 1000, 0.0
        is_piecemeal = source.random() < 0.7
        # Of a source of its own: what old seeds do stays as it was.
        stores_offsets = random.Random(f"{self.seed}/{name}/ledger").random() < 0.25
        if stores_offsets:
            is_transactional, is_piecemeal, max_in_flight = False, False, 1
        return World(
            name=name,
            table=SimTable(self.store, name, writer, chaos),
            chaos=chaos,
            sink=SinkDisk(is_transactional),
            plan=DeliverySpec(
                table=name,
                sink="simulated",
                start=start,
                changes=ChangeMode.AUTO,
                read_limit=ReadLimit(max_files=max_files),
                batch_limit=BatchLimit(max_rows=source.choice([1, 2, 1000])),
                on_gap=on_gap,
            ),
            max_in_flight=max_in_flight,
            clean_rate=clean_rate,
            stores_offsets=stores_offsets,
            is_piecemeal=is_piecemeal,
            commits=source.randint(3, 20),
            writer=writer,
        )

    async def _write(self, world: World) -> None:
        pace = world.writer.choice([0.0, 0.05, 1.0, 8.0])
        for _ in range(world.commits):
            if world.writer.random() < 0.7:
                await asyncio.sleep(world.writer.expovariate(1 / pace) if pace else 0)
            await world.table.change()
            self.note(f"{world.name} committed {world.table.version}")
            if world.clean_rate and world.writer.random() < world.clean_rate:
                await world.table.clean_up()
                self.note(f"{world.name} cleaned up")
            self._hint(world)
        world.is_written = True
        world.chaos.is_calm = True

    def _hint(self, world: World) -> None:
        """Tell of a commit: now, later, twice or never; once in a while of none."""
        for _ in range(world.writer.choice([0, 1, 1, 1, 2])):
            late = world.writer.choice([0.0, 0.0, 0.01, 0.5, 5.0, 40.0])
            self.loop.call_later(late, self._ring, world.table.log)

    def _ring(self, folder: str) -> None:
        if self._process is not None:
            self._process.watcher.hint(folder)

    async def _supervise(self, writers: list[asyncio.Task[None]]) -> None:
        crashes = self.settings.crashes
        crashes = self.random.randint(0, 6) if crashes is None else crashes
        graveyard: list[Process] = []
        deadline = float("inf")
        while True:
            process = self._process = Process(self, self._lives)
            self._lives += 1
            self.note(f"process {process.life.number} started")
            process.start()
            end = asyncio.Event()
            if crashes:
                crashes -= 1
                self._plan_crash(process, end)
            while not end.is_set():
                await asyncio.sleep(LOOK_SECONDS)
                if self._violation is not None:
                    raise self._violation
                if deadline == float("inf") and all(writer.done() for writer in writers):
                    for writer in writers:
                        writer.result()
                    deadline = self.loop.time() + SETTLE_SECONDS
                if all(world.is_done for world in self.worlds if not world.doom):
                    self.loop.call_off()
                    process.stop()
                    await self._bury(process)
                    for dead in graveyard:
                        await self._bury(dead)
                    return
                if self.loop.time() > deadline:
                    raise ViolationError(f"No end in sight: {self._standing()}")
            self.loop.call_off()
            graveyard.append(process)
            if not process.life.is_dead:
                # A killed one still twitches while the next is at work already.
                await self._bury(process)
            await asyncio.sleep(self.random.choice([0.0, 0.5, 5.0]))

    def _plan_crash(self, process: Process, end: asyncio.Event) -> None:
        kind = self.random.choice([process.kill, process.kill, process.cancel, process.stop])

        def strike() -> None:
            self.note(f"process {process.life.number} ends by {kind.__name__}")
            kind()
            end.set()

        self.loop.strike_after(int(10 ** self.random.uniform(0.5, 3.4)), strike)

    def check_may_fail(self, world: World, error: TailerdError) -> None:
        """Note that a pipeline gave up, and whether it had a reason.

        Listings that lie are one.
        """
        self.note(f"{world.name} gave up: {error.code}")
        is_false_alarm = error.code in FALSE_ALARMS and world.chaos.stale_rate > 0
        if not is_false_alarm:
            self._violation = ViolationError(f"{world.name} gave up without need: {error!r}")

    async def _bury(self, process: Process) -> None:
        """Wait for a process's end, at first gently.

        Raises:
            ViolationError: It does not end, or leaves memory behind.
        """
        assert process.task is not None
        done, _ = await asyncio.wait({process.task}, timeout=END_SECONDS)
        if not done:
            is_hung = any(world.doom == "hung" for world in self.worlds)
            if not is_hung:
                raise ViolationError(f"Process {process.life.number} does not end.")
            process.cancel()
            done, _ = await asyncio.wait({process.task}, timeout=END_SECONDS)
            if not done:
                raise ViolationError(f"Process {process.life.number} does not end when cancelled.")
        if not process.life.is_dead:
            if not process.task.cancelled() and (error := process.task.exception()):
                raise error
            self._check_memory(process.budget)

    def _check_memory(self, budget: MemoryBudget) -> None:
        if budget.used_bytes:
            raise ViolationError(f"{budget.used_bytes} bytes are still held by nobody.")
        streams = sum(world.max_in_flight for world in self.worlds)
        if budget.most_used_bytes > budget.total_bytes + streams * SMALLEST_PIECE:
            raise ViolationError(f"{budget.most_used_bytes} bytes were more than the budget.")

    def _standing(self) -> str:
        parts = []
        for world in self.worlds:
            saved = world.offsets.saved
            at = None if saved is None else saved.offset.order
            parts.append(f"{world.name} {world.doom} at {at} of {world.table.end}")
        return ", ".join(parts)

    _process: Process | None = None


def _end(loop: VirtualLoop) -> None:
    """Let go of everything, whatever happened."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
