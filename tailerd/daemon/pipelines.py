"""Build objects from the configuration: the only module that knows all concrete parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tailerd.backoff import RetryPolicy
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.saved_offset import Beginning
from tailerd.clock import Clock
from tailerd.config import Config, TableConfig
from tailerd.config.roll import Rolls
from tailerd.daemon.offsets import (
    build_claim,
    derive_identity,
    held_offset,
    offset_store,
    preview_reset,
    reset_offset,
)
from tailerd.daemon.tables import (
    locate_ledger,
    log_folder,
    open_log,
    open_source,
    sinks_of,
    view_digest,
)
from tailerd.errors import BugError, ConfigError, TailerdError, UsageError
from tailerd.formats.base import ChangeSource
from tailerd.pipeline.backlog_report import BacklogReport
from tailerd.pipeline.delivery_loop import DeliveryParts, DeliverySpec
from tailerd.pipeline.memory_budget import MemoryBudget
from tailerd.pipeline.newest_rows import NewestRows
from tailerd.pipeline.pipeline import Pipeline
from tailerd.pipeline.pipeline_manager import Member, PipelineRunner
from tailerd.pipeline.policies import OnCorruptCommit, OnGap
from tailerd.pipeline.remote_rows import TaskRunner
from tailerd.pipeline.reset import Reset
from tailerd.pipeline.table_explorer import OpenedLog, TableExplorer
from tailerd.pipeline_names import table_of
from tailerd.registry import is_remote
from tailerd.sinks.base import Sink
from tailerd.sinks.opening import open_sink
from tailerd.state.ledger import LedgerLocation
from tailerd.state.state import State
from tailerd.storage.stores import Stores, StoreSettings
from tailerd.telemetry import Handler, Telemetry, events
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry

if TYPE_CHECKING:
    from tailerd.spark.engine import SparkEngine


IDLE_SECONDS = 5.0
"""How often the log of a paused or failed pipeline is polled, without `poll_interval`."""


class Assembly:
    """Builds the pipelines of a running daemon, per table, and again after every change.

    Attributes:
        wakeups: The registry through which pipelines wait for the watchers' events.
        memory: The memory budget for rows that are read ahead of the sinks.
        rows: The newest rows of each table; None if showing rows is disabled.
    """

    def __init__(
        self,
        config: Config,
        *,
        state: State,
        stores: Stores,
        telemetry: Telemetry,
        clock: Clock,
        executor: Executor,
        is_once: bool,
        retry_seconds: float | None = None,
    ) -> None:
        """Initialize.

        Args:
            config: For the process-wide settings: memory, Spark.
            state: Locked while pipelines run.
            stores: Access to files.
            telemetry, clock: As elsewhere.
            executor: Threads for reading.
            is_once: Whether pipelines stop at the current latest versions of their tables.
            retry_seconds: How long each retries without progress; None: without end.
        """
        self.wakeups = WakeupRegistry()
        self._config = config
        self._state = state
        self._stores = stores
        self._telemetry = telemetry
        self._clock = clock
        self._executor = executor
        self._is_once = is_once
        self._retry_seconds = retry_seconds
        self._warned: set[str] = set()
        # By table and pipeline: the number below which it needs no entry of the ledger.
        self._needed: dict[str, dict[str, int]] = {}
        self.memory = MemoryBudget(config.memory)
        web = config.web
        self.rows = NewestRows(web.rows, web.mask, telemetry) if web.rows else None
        self._wakeups: dict[str, tuple[str, Wakeup]] = {}
        self._spark: SparkEngine | None = None
        self._runner: TaskRunner | None = None

    def check_reload(self, after: Config) -> None:
        """Refuse a configuration that changes settings of running Spark queries.

        Raises:
            ConfigError: It changes such settings; the message names the tables.
        """
        if self._spark is not None:
            check_storage(self._spark.storage, after)

    def members(self, config: Config) -> dict[str, Member]:
        """Return how to run each table of a configuration that has a sink."""
        return {
            name: self._member(config, name)
            for name, table in config.tables.items()
            if table.has_sink
        }

    def explorer(self, config: Callable[[], Config]) -> TableExplorer:
        """Return the explorer of the tables in the configuration that `config` returns."""
        quiet = Telemetry([_only_requests(self._telemetry)])

        async def source(name: str) -> ChangeSource:
            return await self._open_quietly(name, config())

        async def log(name: str) -> OpenedLog:
            now = config()
            ledger = locate_ledger(now, name, is_read_only=True)
            table = _require_table(now, name)
            return await open_log(table, stores=self._stores, telemetry=quiet, ledger=ledger)

        web = self._config.web
        return TableExplorer(
            open_source=source,
            open_log=log,
            mask=web.mask,
            is_showing_rows=bool(web.rows),
            clock=self._clock,
        )

    async def _open_quietly(self, name: str, config: Config) -> ChangeSource:
        """Open a table in addition to its pipeline; changes no state."""
        return await open_source(
            _require_table(config, name),
            Telemetry([_only_requests(self._telemetry)]),
            stores=self._stores,
            memory_bytes=self.memory.total_bytes,
            ledger=locate_ledger(config, name, is_read_only=True),
        )

    async def close(self) -> None:
        """End the Spark session, if there is one."""
        if self._spark is not None:
            await self._spark.close()

    def _member(self, config: Config, name: str) -> Member:
        table, engine = config.tables[name], config.select_engine(name)
        build: Callable[[], PipelineRunner] = partial(self._pipeline, name, config)
        reset: Callable[[str], Awaitable[Reset]] | None = None
        preview: Callable[[str], Awaitable[Reset]] | None = None
        if table.is_stream:
            build = partial(self._stream_pipeline, name, config)
        else:
            preview = partial(preview_reset, config, name, state=self._state, stores=self._stores)
            reset = partial(
                reset_offset,
                config,
                name,
                state=self._state,
                stores=self._stores,
                telemetry=self._telemetry,
            )
        return Member(
            settings=(engine, config.name, table),
            engine=engine,
            path=table.path,
            build=build,
            reset=reset,
            preview=preview,
            idle=partial(self._watch_idle, name, config),
            ended=partial(self._release_wakeup, name),
        )

    async def _watch_idle(self, name: str, config: Config) -> None:
        """Report the backlog of a pipeline that does not run, until cancelled.

        Errors are left out: the pipeline has its own, or reports them when it starts.
        """
        table, engine = config.tables[name], config.select_engine(name)
        pause = table.poll_interval or IDLE_SECONDS
        while True:
            with suppress(TailerdError):
                source = await self._open_quietly(name, config)
                held = await held_offset(config, name, self._state)
                at = await source.initial_offset(table.start) if held is None else held.offset
                begins = Beginning(offset=at) if held is None else held.beginning
                first = None if begins is None else begins.offset
                report = BacklogReport(name, engine, source, self._telemetry, is_idle=True)
                while True:
                    source.notify(None)
                    await report.measure(at, first)
                    await self._clock.sleep(pause)
            await self._clock.sleep(pause)

    def _open_sink(self, name: str, config: Config) -> Sink:
        sink = open_sink(
            name,
            config.tables[name].sink,
            self._telemetry,
            daemon=config.name,
            state=config.state,
            stores=self._stores,
        )
        if sink is None:
            raise BugError(f"The sink of {name} takes no deliveries.")
        return sink

    def _pipeline(self, name: str, config: Config) -> Pipeline:
        table, engine = config.tables[name], config.select_engine(name)
        sink = self._open_sink(name, config)
        return Pipeline(
            _delivery_spec(
                name, config, is_once=self._is_once, memory_bytes=self.memory.total_bytes
            ),
            DeliveryParts(
                sink=sink,
                wakeup=self._wakeup(name, log_folder(table)),
                telemetry=self._telemetry,
                clock=self._clock,
                executor=self._executor,
                corrupt_commits=self._state.corrupt_commits,
                memory=self.memory.join(sink.max_in_flight),
                on_batch=None if self.rows is None else self.rows.listener(name),
                runner=self._spark_runner() if engine == "spark" else None,
            ),
            source_location=table.path,
            open_source=partial(
                open_source,
                table,
                self._telemetry,
                self._state.scratch(name),
                stores=self._stores,
                warned=self._warned,
                memory_bytes=self.memory.total_bytes,
                ledger=self._shared_ledger(config, name),
                pipeline=name,
                is_shared=len(sinks_of(config, name)) > 1,
            ),
            offsets=offset_store(self._state, sink),
            retries=RetryPolicy(max_attempts=table.max_attempts, max_seconds=self._retry_seconds),
            claim=build_claim(config, name, self._state),
        )

    def _shared_ledger(self, config: Config, name: str) -> LedgerLocation:
        """Return the ledger of a pipeline, which drops what no sink of the table needs."""
        sinks, needed = sinks_of(config, name), self._needed.setdefault(table_of(name), {})
        # Until it says so itself: its offset may have been moved back.
        needed.pop(name, None)

        def agree(number: int) -> int:
            needed[name] = number
            return min(needed.get(each, 0) for each in sinks)

        return replace(locate_ledger(config, name), agree=agree)

    def _stream_pipeline(self, name: str, config: Config) -> PipelineRunner:
        # Imports PySpark, which a daemon without Spark does not need.
        from tailerd.spark.claim import SparkClaim
        from tailerd.spark.supervisor import SparkPipeline

        table = _with_ledger(config, name)
        claim = SparkClaim(build_claim(config, name, self._state), derive_identity(config, name))
        return SparkPipeline(self._spark_engine(), name, table, claim)

    def _spark_engine(self) -> SparkEngine:
        from tailerd.spark.engine import SparkEngine

        if self._spark is None:
            self._spark = SparkEngine(
                self._config,
                self._telemetry,
                once=self._is_once,
                retry_seconds=self._retry_seconds,
                storage=self._stores.settings,
            )
        return self._spark

    def _spark_runner(self) -> TaskRunner:
        from tailerd.spark.task_runner import SparkTaskRunner

        if self._runner is None:
            self._runner = SparkTaskRunner(self._spark_engine(), lambda: self._stores.settings)
        return self._runner

    def _wakeup(self, name: str, folder: str) -> Wakeup:
        """Return a new wakeup for a table's pipeline, replacing that of the previous pipeline."""
        self._release_wakeup(name)
        wakeup = self.wakeups.subscribe(folder)
        self._wakeups[name] = (folder, wakeup)
        return wakeup

    def _release_wakeup(self, name: str) -> None:
        """Unsubscribe an ended pipeline; otherwise events of its folder would wait for its poll."""
        if name in self._wakeups:
            self.wakeups.unsubscribe(*self._wakeups.pop(name))


def _only_requests(telemetry: Telemetry) -> Handler:
    """Return a handler that forwards only requests: an exploration reports its own findings."""

    def handle(event: events.Event) -> None:
        if isinstance(event, events.StorageRequested):
            telemetry.emit(event)

    return handle


def _require_table(config: Config, name: str) -> TableConfig:
    table = config.tables.get(name)
    if table is None:
        raise UsageError(f"The configuration names no table {name!r} now.")
    return table


def _with_ledger(config: Config, name: str) -> TableConfig:
    """Return a table's section with its ledger set, for Spark's processes."""
    return config.tables[name].model_copy(update={"ledger": locate_ledger(config, name).location})


def _delivery_spec(name: str, config: Config, *, is_once: bool, memory_bytes: int) -> DeliverySpec:
    table = config.tables[name]
    roll = table.sink.roll if isinstance(table.sink, Rolls) else None
    return DeliverySpec(
        table=name,
        sink=table.sink.kind,
        engine=config.select_engine(name),
        guarantee=table.sink.guarantee(),
        start=table.start,
        changes=ChangeMode(table.changes),
        read_limit=ReadLimit(
            max_files=table.max_files_per_batch,
            max_bytes=roll.max_bytes if roll else table.max_bytes_per_batch,
        ),
        roll_seconds=roll.max_age if roll else None,
        batch_limit=BatchLimit(memory_bytes=memory_bytes),
        is_once=is_once,
        on_gap=OnGap(table.on_gap),
        on_corrupt_commit=OnCorruptCommit(table.on_corrupt_commit),
        identity=derive_identity(config, name),
        reader=config.reader(name),
        view=view_digest(table),
    )


def check_storage(started_with: StoreSettings, after: Config) -> None:
    """Refuse a changed `storage` while Spark streams follow tables in buckets.

    Args:
        started_with: The settings with which Spark's queries were started.

    Raises:
        ConfigError: It has changed, and there are such tables; the message names them.
    """
    if StoreSettings.from_config(after.storage) == started_with:
        return
    if names := list(_remote_on_spark(after)):
        raise ConfigError(
            "storage cannot change while Spark itself follows tables in buckets"
            f" ({', '.join(names)}), because its processes keep the settings they were started"
            " with, so the new file was rejected.",
            remedy="Set storage back, or restart the daemon.",
        )


def _remote_on_spark(config: Config) -> Iterator[str]:
    """Yield names of tables, and of patterns, in buckets whose sinks are Spark's own."""
    for name, table in config.tables.items():
        if table.is_stream and is_remote(table.path):
            yield name
    for name, group in config.discover.items():
        if group.template.is_stream and is_remote(group.path):
            yield name
