"""From configuration to objects: the only module that knows which concrete parts there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.backoff import ATTEMPTS_ONCE, RetryPolicy
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES, BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset, Phase
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import OffsetStore
from tailerd.clock import Clock, SystemClock
from tailerd.config import Config, TableConfig
from tailerd.config.values import check_start
from tailerd.errors import (
    BugError,
    ChecksumMismatchError,
    ConfigError,
    OffsetError,
    TailerdError,
    UnsupportedFeatureError,
    UsageError,
    ZoneAssumedError,
)
from tailerd.formats.base import ChangeSource, NetSteps, OpenRequest, ScratchPlace, TableFormat
from tailerd.formats.detect import find_format, open_table
from tailerd.formats.ledger import LedgerPlace
from tailerd.formats.parts import required
from tailerd.formats.placement import place_at
from tailerd.formats.statistics import TableStatistics
from tailerd.maintenance.settings import policies_of
from tailerd.maintenance.table_maintainer import KeptTable
from tailerd.pipeline.claim import HeldOffset, PipelineClaim
from tailerd.pipeline.delivery_loop import DeliveryParts, DeliverySpec
from tailerd.pipeline.identity import OffsetKeeper
from tailerd.pipeline.memory_budget import MemoryBudget
from tailerd.pipeline.newest_rows import NewestRows
from tailerd.pipeline.pipeline import Pipeline
from tailerd.pipeline.pipeline_manager import Member, PipelineRunner
from tailerd.pipeline.pipeline_records import PipelineRecord
from tailerd.pipeline.policies import OnCorruptCommit, OnGap
from tailerd.pipeline.remote_rows import Place
from tailerd.pipeline.state_place import BucketState, FolderState, State
from tailerd.pipeline.table_explorer import OpenedLog, TableExplorer
from tailerd.pipeline.watched_folders import log_folder
from tailerd.registry import is_remote
from tailerd.sinks.base import Sink
from tailerd.sinks.opening import open_sink
from tailerd.sinks.resources import pipeline_identity
from tailerd.spark.checkpoint_offsets import delivered_until, stream_checkpoint
from tailerd.storage.base import ObjectStore
from tailerd.storage.metered import MeteredStore, RequestKind
from tailerd.storage.shared_reads import hearing, telling
from tailerd.storage.stores import Stores, StoreSettings
from tailerd.telemetry import Handler, Telemetry, events
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry

if TYPE_CHECKING:
    from tailerd.spark.engine import SparkEngine


_STREAM = "stream"
"""The kind of sink that Spark itself writes to."""


async def open_source(
    config: TableConfig,
    telemetry: Telemetry,
    scratch: ScratchPlace | None = None,
    *,
    stores: Stores,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    warned: set[str] | None = None,
    ledger: LedgerPlace | None = None,
    pipeline: str = "",
) -> ChangeSource:
    """Open a table for its changes.

    Args:
        pipeline: Told what the table is, where one is named.
        stores: How its files are reached.
        ledger: Where a format without history keeps the states it observed; see `ledger_of`.
        memory_bytes: The configured `memory`, which readers of its log keep within.
        scratch: For what a snapshot that is being delivered needs after a restart.
        warned: Places whose users know that a zone is guessed; pipelines open theirs often.

    Raises:
        TableError, StorageError: It is none, cannot be read, or asks for what is not known here.
        ConfigError: Its `identity` names a column that is not there.
    """
    request = OpenRequest(
        stores=stores,
        changes=ChangeMode(config.changes),
        allowed_paths=config.allowed_paths,
        identity=config.pairing_columns,
        wrap_store=lambda store: telling(_metered(store, telemetry), stores.shared_reads),
        on_warning=_warnings_of(config.path, telemetry, set() if warned is None else warned),
        scratch=scratch,
        options=config.options_of_format(),
        ledger=ledger,
        memory_bytes=memory_bytes,
        on_format=_teller_of(pipeline, telemetry) if pipeline else None,
        net_above=None if config.net is None else config.net.above_versions,
    )
    source = await open_table(config.path, request, config.format)
    if config.reads_net and not isinstance(source, NetSteps):
        raise UnsupportedFeatureError(
            f"{config.path} is of a format whose commits cannot be given as one difference.",
            remedy="Leave `net` out of `changes`, `net` and `on_gap`.",
        )
    await _check_identity(config, source)
    return source


def _teller_of(pipeline: str, telemetry: Telemetry) -> Callable[[TableFormat], None]:
    """Return what emits of which format a pipeline's table is."""

    def tell(found: TableFormat) -> None:
        capabilities = asdict(found.capabilities)
        telemetry.emit(
            events.TableOpened(table=pipeline, format=found.name, capabilities=capabilities)
        )

    return tell


def _warnings_of(
    path: str, telemetry: Telemetry, known_guesses: set[str]
) -> Callable[[TailerdError], None]:
    """Return what emits the warnings of a table; that of a guessed zone once a place."""

    def warn(error: TailerdError) -> None:
        if isinstance(error, ZoneAssumedError):
            if path in known_guesses:
                return
            known_guesses.add(path)
            told: events.Event = events.ZoneAssumed(
                path=path, error_code=error.code, error=str(error)
            )
        else:
            is_checksum = isinstance(error, ChecksumMismatchError)
            event = events.ChecksumDiffered if is_checksum else events.CheckpointSkipped
            told = event(path=path, error_code=error.code, error=str(error))
        telemetry.emit(told)

    return warn


async def _check_identity(config: TableConfig, source: ChangeSource) -> None:
    """Refuse an identity of columns that the table does not have."""
    names = (await source.arrow_schema()).names if config.identity else []
    if unknown := [name for name in config.identity if name not in names]:
        raise ConfigError(
            f"`identity` names {unknown[0]!r}, and {config.path} has no such column: it has"
            f" {', '.join(names)}.",
            remedy="Check the spelling; names are case-sensitive.",
        )


def _metered(store: ObjectStore, telemetry: Telemetry) -> ObjectStore:
    return MeteredStore(store, lambda verb: telemetry.emit(events.StorageRequested(operation=verb)))


def ledger_of(config: Config, name: str, *, is_read_only: bool = False) -> LedgerPlace:
    """Return where a pipeline keeps what it observed of a table without history.

    One that a pattern found has its own below the state.
    """
    # Spark's processes may work in another folder.
    state = config.state if is_remote(config.state) else str(Path(config.state).absolute())
    table = config.tables.get(name)
    named = None if table is None else table.ledger
    place = named or f"{state.rstrip('/')}/ledger/{name}"
    return LedgerPlace(place, is_read_only)


async def open_statistics(
    place: str,
    *,
    stores: Stores,
    telemetry: Telemetry,
    allowed: Sequence[str] = (),
    ledger: LedgerPlace | None = None,
) -> TableStatistics | None:
    """Return what measures the table at a place; None where its format has no statistics.

    Checksums that differ are reported by the pipeline's own reader.

    Args:
        stores: How its files are reached.
        allowed: Places that symbolic links in the log may lead to.
        ledger: What was observed of a table without history; only read.

    Raises:
        NotATableError: There is no table.
        ConfigError: No store serves this place.
        StorageError: It cannot be looked at.
    """
    found = await find_format(place, allowed=allowed, stores=stores)
    if found.statistics is None:
        return None
    folder = found.folder(place)
    return found.statistics(
        place_at(
            place,
            stores=stores,
            allowed=allowed,
            commits=folder,
            ledger=ledger,
            wrap_store=lambda store: hearing(
                _metered(store, telemetry), folder, stores.shared_reads
            ),
        )
    )


async def open_log(
    table: TableConfig, *, stores: Stores, telemetry: Telemetry, ledger: LedgerPlace
) -> OpenedLog:
    """Open a table's log for a look at its commits; what is unexpected in it becomes notes.

    Raises:
        UnsupportedFeatureError: Its format has no inspection.
        NotATableError: There is no table.
        StorageError: It cannot be looked at.
    """
    found = await find_format(table.path, table.format, table.allowed_paths, stores=stores)
    notes: list[str] = []
    place = place_at(
        table.path,
        stores=stores,
        allowed=table.allowed_paths,
        commits=found.folder(table.path),
        ledger=ledger,
        wrap_store=lambda store: _metered(store, telemetry),
        warn=lambda error: notes.append(str(error)),
    )
    inspector = required(found.inspector, found.name, "inspection")
    return OpenedLog(inspection=inspector(place), notes=notes)


def _only_requests(telemetry: Telemetry) -> Handler:
    """Return what passes on nothing but requests: a look says itself what it meets."""

    def handle(event: events.Event) -> None:
        if isinstance(event, events.StorageRequested):
            telemetry.emit(event)

    return handle


def _table_of(config: Config, name: str) -> TableConfig:
    table = config.tables.get(name)
    if table is None:
        raise UsageError(f"The configuration names no table {name!r} now.")
    return table


def ledgers_of(config: Config) -> tuple[str, ...]:
    """Return where all pipelines keep what they observed."""
    return tuple(ledger_of(config, name).place for name in config.tables)


def open_state(
    config: Config,
    *,
    clock: Clock,
    stores: Stores | None = None,
    on_request: Callable[[RequestKind], None] | None = None,
) -> State:
    """Return the state a configuration names; nothing is asked of it yet.

    Args:
        clock: For the lease of one in a bucket.
        stores: By default as the configuration says.
        on_request: Hears of each request to that bucket.
    """
    if not is_remote(config.state):
        return FolderState(Path(config.state))
    store, root = (stores or Stores.of_config(config.storage)).locate(config.state)
    return BucketState(MeteredStore(store, on_request), root, clock=clock)


def identity_of(config: Config, name: str) -> PipelineIdentity:
    """Return which pipeline delivers a table; without the cluster, which only brokers know."""
    return pipeline_identity(config.tables[name].sink, name, daemon=config.name)


@asynccontextmanager
async def opened_keeper(config: Config, name: str, state: State) -> AsyncIterator[OffsetKeeper]:
    """Give what keeps one table's offset on the Arrow engine, while no pipeline runs it."""
    sink = open_sink(name, config.tables[name].sink, daemon=config.name)
    try:
        yield OffsetKeeper(
            _offset_store(state, sink),
            name,
            ChangeMode(config.tables[name].changes),
            identity=identity_of(config, name),
            sink=sink,
        )
    finally:
        if sink is not None:
            await sink.aclose()


def _offset_store(state: State, sink: Sink | None) -> OffsetStore:
    """Return the store of an Arrow engine's offsets: its sink's own, or the state's."""
    return state.offsets() if sink is None or sink.offsets is None else sink.offsets


async def held_offset(config: Config, name: str, state: State | None = None) -> HeldOffset | None:
    """Return where a pipeline goes on; None before its first run.

    Args:
        state: By default the configured one, to look at.

    Raises:
        OffsetError: What is saved cannot be read.
    """
    state = state or open_state(config, clock=SystemClock())
    known = await state.pipelines.load(name)
    identity = identity_of(config, name) if known is None else known.identity
    return await _offset_of(config, name, identity, state)


async def _offset_of(
    config: Config, name: str, identity: PipelineIdentity, state: State
) -> HeldOffset | None:
    """Return the offset of a pipeline as it was when the state remembered it."""
    if identity.sink == _STREAM:
        checkpoint = stream_checkpoint(config, name)
        offset, place = delivered_until(checkpoint), str(checkpoint)
    else:
        async with opened_keeper(config, name, state) as keeper:
            saved = await keeper.load_former(identity)
        offset = None if saved is None else saved.offset
        place = config.tables[name].sink.offsets_place() or f"{config.state}/offsets"
    return None if offset is None else HeldOffset(offset=offset, place=place)


def _claim(config: Config, name: str, state: State) -> PipelineClaim:
    """Return a pipeline's name in the state."""

    async def has_offset(known: PipelineRecord) -> bool:
        # Elsewhere than in a checkpoint it may be out of sight, as in another cluster.
        return known.identity.sink != _STREAM or (
            await _offset_of(config, name, known.identity, state) is not None
        )

    return PipelineClaim(state.pipelines, name, has_offset)


async def saved_offset(config: Config, name: str) -> Offset | None:
    """Return where a pipeline goes on, whichever engine runs it; None before its first run.

    Raises:
        OffsetError: What is saved cannot be read.
    """
    held = await held_offset(config, name)
    return None if held is None else held.offset


async def check_pipeline(config: Config, name: str) -> None:
    """Make sure that a pipeline may go on from what the state remembers of it.

    Raises:
        PipelineReboundError: It may not.
    """
    state = open_state(config, clock=SystemClock())
    async with opened_keeper(config, name, state) as keeper:
        claim = _claim(config, name, state)
        await claim.check(await keeper.identity())


def kept_tables(config: Config) -> dict[str, KeptTable]:
    """Return the tables whose logs are maintained."""
    return {
        name: KeptTable(
            place=table.path,
            folder=log_folder(table),
            policies=policies_of(table.maintenance, config.spark),
            allowed=tuple(table.allowed_paths),
            format=table.format,
            ledgers=ledgers_of(config),
            is_alone=not table.has_sink,
            # Those with a sink are measured beside their pipelines; Spark's are too large for one.
            is_measured=(
                config.table_metrics and not table.has_sink and table.maintenance.runs_on != "spark"
            ),
        )
        for name, table in config.tables.items()
        if table.maintenance is not None
    }


def delivered_folders(config: Config) -> dict[str, str]:
    """Return the log folder of every table that a pipeline delivers."""
    return {name: log_folder(table) for name, table in config.tables.items() if table.has_sink}


def lacks_demo_table(config: TableConfig) -> bool:
    """Tell whether the table says `create: demo` and is not there yet."""
    return config.create == "demo" and not Path(log_folder(config)).exists()


def check_storage(started_with: StoreSettings, after: Config) -> None:
    """Refuse another `storage` while streams of Spark follow tables in buckets.

    Args:
        started_with: What Spark's queries were given.

    Raises:
        ConfigError: It is another, and there are such tables; the message names them.
    """
    if StoreSettings.of_config(after.storage) == started_with:
        return
    if names := list(_remote_on_spark(after)):
        raise ConfigError(
            f"storage cannot change while Spark itself follows tables in buckets"
            f" ({', '.join(names)}), because its processes have what they were started with, so"
            " nothing of the new file was taken.",
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


class Assembly:
    """Builds the pipelines of a running daemon, table by table and again after every change.

    Attributes:
        wakeups: Where pipelines wait for the watchers' events.
        memory: What their rows may take ahead of the sinks.
        rows: The newest rows of each table; None where nobody may see them.
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
    ) -> None:
        """Prepare.

        Args:
            config: For what belongs to the process: memory, Spark.
            state: Held while pipelines run.
            stores: How files are reached.
            telemetry, clock: As everywhere.
            executor: Threads that read.
            is_once: Whether pipelines end at the present heads of their tables.
        """
        self.wakeups = WakeupRegistry()
        self._config = config
        self._state = state
        self._stores = stores
        self._telemetry = telemetry
        self._clock = clock
        self._executor = executor
        self._is_once = is_once
        self._warned: set[str] = set()
        self.memory = MemoryBudget(config.memory)
        web = config.web
        self.rows = NewestRows(web.rows, web.mask, telemetry) if web.rows else None
        self._wakeups: dict[str, tuple[str, Wakeup]] = {}
        self._spark: SparkEngine | None = None
        self._place: Place | None = None

    def check_reload(self, after: Config) -> None:
        """Refuse a configuration that changes what Spark's running queries were started with.

        Raises:
            ConfigError: It does; the message names the tables.
        """
        if self._spark is not None:
            check_storage(self._spark.storage, after)

    def members(self, config: Config) -> dict[str, Member]:
        """Return how every table of a configuration is run that has a sink."""
        return {
            name: self._member(config, name)
            for name, table in config.tables.items()
            if table.has_sink
        }

    def explorer(self, config: Callable[[], Config]) -> TableExplorer:
        """Return what looks into the tables of the configuration that `config` gives."""
        quiet = Telemetry([_only_requests(self._telemetry)])

        async def source(name: str) -> ChangeSource:
            now = config()
            return await open_source(
                _table_of(now, name),
                quiet,
                stores=self._stores,
                memory_bytes=self.memory.total_bytes,
                ledger=ledger_of(now, name, is_read_only=True),
            )

        async def log(name: str) -> OpenedLog:
            now = config()
            ledger = ledger_of(now, name, is_read_only=True)
            table = _table_of(now, name)
            return await open_log(table, stores=self._stores, telemetry=quiet, ledger=ledger)

        web = self._config.web
        return TableExplorer(
            open_source=source, open_log=log, mask=web.mask, is_showing_rows=bool(web.rows)
        )

    async def close(self) -> None:
        """End the Spark session, if there is one."""
        if self._spark is not None:
            await self._spark.close()

    def _member(self, config: Config, name: str) -> Member:
        table, engine = config.tables[name], config.engine_of(name)
        build: Callable[[], PipelineRunner] = partial(self._pipeline, name, config)
        reset: Callable[[str], Awaitable[Offset]] | None = None
        if table.is_stream:
            build = partial(self._stream_pipeline, name, config)
        else:
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
            ended=partial(self._let_go, name),
        )

    def _pipeline(self, name: str, config: Config) -> Pipeline:
        table, engine = config.tables[name], config.engine_of(name)
        sink = open_sink(name, table.sink, self._telemetry, daemon=config.name)
        if sink is None:
            raise BugError(f"The sink of {name} takes no deliveries.")
        attempts_once = ATTEMPTS_ONCE if self._is_once else None
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
                place=self._spark_place() if engine == "spark" else None,
            ),
            source_place=table.path,
            open_source=partial(
                open_source,
                table,
                self._telemetry,
                self._state.scratch(name),
                stores=self._stores,
                warned=self._warned,
                memory_bytes=self.memory.total_bytes,
                ledger=ledger_of(config, name),
                pipeline=name,
            ),
            offsets=_offset_store(self._state, sink),
            retries=RetryPolicy(max_attempts=table.max_attempts or attempts_once),
            claim=_claim(config, name, self._state),
        )

    def _stream_pipeline(self, name: str, config: Config) -> PipelineRunner:
        # Loads pyspark, which a daemon without Spark does without.
        from tailerd.spark.claim import SparkClaim
        from tailerd.spark.supervisor import SparkPipeline

        table = _with_ledger(config, name)
        claim = SparkClaim(_claim(config, name, self._state), identity_of(config, name))
        return SparkPipeline(self._spark_engine(), name, table, claim)

    def _spark_engine(self) -> SparkEngine:
        from tailerd.spark.engine import SparkEngine

        if self._spark is None:
            self._spark = SparkEngine(
                self._config,
                self._telemetry,
                once=self._is_once,
                storage=self._stores.settings,
            )
        return self._spark

    def _spark_place(self) -> Place:
        from tailerd.spark.place import SparkPlace

        if self._place is None:
            self._place = SparkPlace(self._spark_engine(), lambda: self._stores.settings)
        return self._place

    def _wakeup(self, name: str, folder: str) -> Wakeup:
        """Return a new wakeup for a table's pipeline; the one of the pipeline before is gone."""
        self._let_go(name)
        wakeup = self.wakeups.subscribe(folder)
        self._wakeups[name] = (folder, wakeup)
        return wakeup

    def _let_go(self, name: str) -> None:
        """Ring no more for a pipeline that has ended, or others of its folder wait for its look."""
        if name in self._wakeups:
            self.wakeups.unsubscribe(*self._wakeups.pop(name))


def _with_ledger(config: Config, name: str) -> TableConfig:
    """Return a table's section that says its ledger, for Spark's processes."""
    return config.tables[name].model_copy(update={"ledger": ledger_of(config, name).place})


async def reset_offset(
    config: Config,
    name: str,
    to: str,
    *,
    state: State,
    stores: Stores | None = None,
    telemetry: Telemetry | None = None,
) -> Offset:
    """Save where a pipeline that does not run begins next; return it.

    Args:
        state: Held.
        stores: By default as the configuration says.

    Raises:
        UsageError: `to` says no place.
        TailerdError: The table or the offset store.
    """
    try:
        check_start(to)
    except ValueError as error:
        raise UsageError(f"--to is {to!r}, but {error}.") from error
    table = config.tables[name]
    stores = stores or Stores.of_config(config.storage)
    told, ledger = telemetry or Telemetry(), ledger_of(config, name)
    opened = partial(
        open_source, table, told, stores=stores, memory_bytes=config.memory, ledger=ledger
    )
    source = await opened()
    offset = await source.initial_offset(to)
    async with opened_keeper(config, name, state) as keeper:
        if not table.is_stream:
            await keeper.begin_at(offset, source)
        identity = await keeper.identity()
    start = to if to == "snapshot" else str(offset.version)
    await state.pipelines.save(name, PipelineRecord(identity=identity, start=start))
    if offset.phase is Phase.SNAPSHOT:
        # After the offset is saved: until then the list that is there may be all that is left of
        # the snapshot under way. This one's version is the newest, and can be listed again.
        again = await opened(state.scratch(name))
        await again.latest_offset(offset, ReadLimit(max_files=1, max_bytes=1))
    if telemetry is not None:
        # A paused pipeline will not say so, and what it is to read must not be cleaned up.
        telemetry.emit(_chosen(name, config.engine_of(name), offset))
    return offset


def _chosen(name: str, engine: str, offset: Offset) -> events.OffsetChosen:
    return events.OffsetChosen(
        table=name,
        engine=engine,
        version=offset.version,
        is_resumed=False,
        offset=offset.to_json(),
    )


async def rebind_offset(config: Config, name: str, *, state: State) -> HeldOffset:
    """Let a pipeline that does not run go on with its offset at the configured place.

    Args:
        state: Held.

    Returns:
        Where it goes on.

    Raises:
        OffsetError: The state knows no pipeline of this name, or its offset is not found.
        TailerdError: The state or the offset store.
    """
    known = await state.pipelines.load(name)
    if known is None:
        raise OffsetError(
            f"The state {config.state} knows no pipeline {name}, so there is no offset to keep.",
            remedy=f"Run it; or choose where it begins with `tailerd offsets reset {name} --to"
            " ...`.",
        )
    async with opened_keeper(config, name, state) as keeper:
        identity = await keeper.identity()
        if config.tables[name].is_stream:
            held = await _offset_of(config, name, known.identity, state)
        else:
            saved = await keeper.rebind(known.identity, state.offsets())
            held = HeldOffset(offset=saved.offset, place="")
    record = PipelineRecord(identity=identity, start=known.start)
    await state.pipelines.save(name, record)
    if held is None:
        raise OffsetError(f"{name} has no offset yet.", remedy="Run it.")
    return held


def _delivery_spec(name: str, config: Config, *, is_once: bool, memory_bytes: int) -> DeliverySpec:
    table = config.tables[name]
    return DeliverySpec(
        table=name,
        sink=table.sink.kind,
        engine=config.engine_of(name),
        guarantee=table.sink.guarantee(),
        start=table.start,
        changes=ChangeMode(table.changes),
        read_limit=ReadLimit(
            max_files=table.max_files_per_batch, max_bytes=table.max_bytes_per_batch
        ),
        batch_limit=BatchLimit(memory_bytes=memory_bytes),
        is_once=is_once,
        on_gap=OnGap(table.on_gap),
        on_corrupt_commit=OnCorruptCommit(table.on_corrupt_commit),
        identity=identity_of(config, name),
    )
