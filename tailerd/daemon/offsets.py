"""Read, reset and rebind the offsets of a configuration's pipelines while they do not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import OffsetStore
from tailerd.clock import Clock, SystemClock
from tailerd.config import Config
from tailerd.config.values import check_start
from tailerd.daemon.tables import locate_ledger, open_source, view_digest
from tailerd.errors import OffsetError, UsageError
from tailerd.pipeline.claim import HeldOffset, PipelineClaim
from tailerd.pipeline.identity import PipelineOffsets
from tailerd.pipeline.reset import Reset, plan_reset
from tailerd.registry import is_remote
from tailerd.remedies import reset_command
from tailerd.sinks.base import Sink
from tailerd.sinks.opening import open_sink
from tailerd.sinks.resources import pipeline_identity
from tailerd.spark.checkpoints import delivered_until, stream_checkpoint
from tailerd.state.leased_files import LeasedFiles, make_lease
from tailerd.state.locked_files import LockedFiles
from tailerd.state.pipeline_records import PipelineRecord
from tailerd.state.state import State
from tailerd.storage.metered import MeteredStore, RequestKind
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events

_STREAM = "stream"
"""The kind of sink that Spark itself writes to."""


def open_state(
    config: Config,
    *,
    clock: Clock,
    stores: Stores | None = None,
    on_request: Callable[[RequestKind], None] | None = None,
) -> State:
    """Return the state that a configuration names; sends no request yet.

    Args:
        clock: For the lease of a state in a bucket.
        stores: By default those of the configuration.
        on_request: Called for each request to that bucket.
    """
    if not is_remote(config.state):
        return State(LockedFiles(Path(config.state)))
    located, root = (stores or Stores.from_config(config.storage)).locate(config.state)
    store = MeteredStore(located, on_request)
    return State(LeasedFiles(store, root, make_lease(store, root, clock=clock)))


def derive_identity(config: Config, name: str) -> PipelineIdentity:
    """Return the identity of a table's pipeline, without the cluster, which only brokers know."""
    return pipeline_identity(config.tables[name].sink, name, daemon=config.name)


@asynccontextmanager
async def open_offsets(config: Config, name: str, state: State) -> AsyncIterator[PipelineOffsets]:
    """Yield the offsets of a table on the Arrow engine, while its pipeline does not run."""
    table_sink, stores = config.tables[name].sink, Stores.from_config(config.storage)
    sink = open_sink(name, table_sink, daemon=config.name, state=config.state, stores=stores)
    try:
        yield PipelineOffsets(
            offset_store(state, sink),
            name,
            ChangeMode(config.tables[name].changes),
            identity=derive_identity(config, name),
            sink=sink,
            view=view_digest(config.tables[name]),
        )
    finally:
        if sink is not None:
            await sink.aclose()


def offset_store(state: State, sink: Sink | None) -> OffsetStore:
    """Return the store of an Arrow engine's offsets: its sink's own, or the state's."""
    return state.offsets if sink is None or sink.offsets is None else sink.offsets


async def held_offset(config: Config, name: str, state: State | None = None) -> HeldOffset | None:
    """Return the offset where a pipeline resumes; None before its first run.

    Args:
        state: By default the configured one, read-only.

    Raises:
        OffsetError: The saved offset cannot be read.
    """
    state = state or open_state(config, clock=SystemClock())
    known = await state.pipelines.load(name)
    identity = derive_identity(config, name) if known is None else known.identity
    return await _read_held_offset(config, name, identity, state)


async def _read_held_offset(
    config: Config, name: str, identity: PipelineIdentity, state: State
) -> HeldOffset | None:
    """Return the offset of a pipeline with the identity that the state has recorded."""
    if identity.sink == _STREAM:
        checkpoint = stream_checkpoint(config, name)
        offset = delivered_until(checkpoint)
        return None if offset is None else HeldOffset(offset=offset, location=str(checkpoint))
    async with open_offsets(config, name, state) as offsets:
        saved = await offsets.load_former(identity)
    if saved is None:
        return None
    location = config.tables[name].sink.offsets_location() or f"{config.state}/offsets"
    return HeldOffset(offset=saved.offset, location=location, beginning=saved.beginning)


def build_claim(config: Config, name: str, state: State) -> PipelineClaim:
    """Return a pipeline's claim on its name in the state."""

    async def has_offset(known: PipelineRecord) -> bool:
        # An offset outside a checkpoint may be unreachable, for example in another cluster.
        return known.identity.sink != _STREAM or (
            await _read_held_offset(config, name, known.identity, state) is not None
        )

    return PipelineClaim(state.pipelines, name, has_offset)


async def saved_offset(config: Config, name: str) -> Offset | None:
    """Return the offset where a pipeline resumes, on any engine; None before its first run.

    Raises:
        OffsetError: The saved offset cannot be read.
    """
    held = await held_offset(config, name)
    return None if held is None else held.offset


async def check_pipeline(config: Config, name: str) -> None:
    """Check that a pipeline may resume from its record in the state.

    Raises:
        PipelineReboundError: It may not.
    """
    state = open_state(config, clock=SystemClock())
    async with open_offsets(config, name, state) as offsets:
        claim = build_claim(config, name, state)
        await claim.check(await offsets.identity())


async def preview_reset(
    config: Config, name: str, to: str, *, state: State | None = None, stores: Stores | None = None
) -> Reset:
    """Return what `reset_offset` would do; changes nothing, and a daemon may run.

    Args:
        state, stores: By default those of the configuration.

    Raises:
        TailerdError: As `reset_offset`.
    """
    check_destination(to)
    state = state or open_state(config, clock=SystemClock())
    source = await open_source(
        config.tables[name],
        Telemetry(),
        stores=stores or Stores.from_config(config.storage),
        memory_bytes=config.memory,
        ledger=locate_ledger(config, name, is_read_only=True),
    )
    async with open_offsets(config, name, state) as offsets:
        return await plan_reset(to, table=name, source=source, offsets=offsets)


def check_destination(to: str) -> None:
    """Check the form of the point to which an offset is reset.

    Raises:
        UsageError: It is none.
    """
    try:
        check_start(to)
    except ValueError as error:
        raise UsageError(f"--to is {to!r}, but {error}.") from error


async def reset_offset(
    config: Config,
    name: str,
    to: str,
    *,
    state: State,
    stores: Stores | None = None,
    telemetry: Telemetry | None = None,
) -> Reset:
    """Save and return the offset where a stopped pipeline starts next, and record the gap.

    Args:
        state: Locked by the caller.
        stores: By default those of the configuration.
        telemetry: Of a running daemon; without it, the next one reports the gap.

    Raises:
        UsageError: `to` is invalid.
        TailerdError: An error of the table, the sink or the offset store.
    """
    check_destination(to)
    table = config.tables[name]
    opened = partial(
        open_source,
        table,
        telemetry or Telemetry(),
        stores=stores or Stores.from_config(config.storage),
        memory_bytes=config.memory,
        ledger=locate_ledger(config, name),
    )
    source = await opened()
    async with open_offsets(config, name, state) as offsets:
        reset = await plan_reset(to, table=name, source=source, offsets=offsets)
        offset = reset.offset
        if not table.is_stream:
            await offsets.begin_at(offset, source, reset.gap)
        identity = await offsets.identity()
    gap = _describe_gap(reset, to)
    start = to if to == "snapshot" else str(offset.version)
    unreported = {} if telemetry is not None else gap or await _find_gap(state, name, offset)
    await state.pipelines.save(name, PipelineRecord(identity=identity, start=start, gap=unreported))
    if offset.phase is Phase.SNAPSHOT:
        # After the offset is saved: until then the stored file list may be the only remaining
        # record of the current snapshot. The new snapshot is of the newest version, which can be
        # listed again.
        again = await opened(state.scratch(name))
        await again.latest_offset(offset, ReadLimit(max_files=1, max_bytes=1))
    if telemetry is not None:
        _emit_reset(telemetry, name, config.select_engine(name), offset, gap)
    return reset


async def _find_gap(state: State, name: str, offset: Offset) -> Mapping[str, str]:
    """Return the gap that an earlier reset left, unless a later one undid it by `offset`."""
    known = await state.pipelines.load(name)
    is_before = known is not None and known.gap and int(known.gap["end_version"]) <= offset.version
    return known.gap if known is not None and is_before else {}


def _describe_gap(reset: Reset, to: str) -> dict[str, str]:
    """Return the record of a reset's gap, for `GapMet.from_record`; empty without a gap."""
    if reset.gap is None:
        return {}
    if reset.skipped is not None:
        missing = f"skipped {reset.skipped}"
    else:
        missing = f"left out the changes before the snapshot of version {reset.offset.version}"
    return {
        "start_version": str(reset.gap.start.version),
        "end_version": str(reset.gap.end.version),
        "error_code": reset.gap.reason,
        "error": f"`tailerd offsets reset --to {to}` {missing}.",
    }


def _emit_reset(
    telemetry: Telemetry, name: str, engine: str, offset: Offset, gap: Mapping[str, str]
) -> None:
    if gap:
        telemetry.emit(events.GapMet.from_record(name, engine, gap))
    # A paused pipeline does not report it, and the versions it will read must not be cleaned up.
    telemetry.emit(
        events.OffsetChosen(
            table=name,
            engine=engine,
            version=offset.version,
            is_resumed=False,
            offset=offset.to_json(),
        )
    )


async def accept_view(config: Config, name: str, *, state: State) -> HeldOffset:
    """Keep the offset of a stopped pipeline for the columns, rows and values configured now.

    Args:
        state: Locked by the caller.

    Returns:
        The offset where it resumes.

    Raises:
        OffsetError: There is no offset.
        TailerdError: An error of the state or the offset store.
    """
    async with open_offsets(config, name, state) as offsets:
        saved = await offsets.accept_view()
    return HeldOffset(offset=saved.offset, location="", beginning=saved.beginning)


async def rebind_offset(config: Config, name: str, *, state: State) -> HeldOffset:
    """Rebind a stopped pipeline, with its offset, to the configured destination.

    Args:
        state: Locked by the caller.

    Returns:
        The offset where it resumes.

    Raises:
        OffsetError: The state has no pipeline with this name, or its offset is not found.
        TailerdError: An error of the state or the offset store.
    """
    known = await state.pipelines.load(name)
    if known is None:
        raise OffsetError(
            f"The state {config.state} has no pipeline {name}, so there is no offset to keep.",
            remedy=f"Run it; or {reset_command(name)}.",
        )
    async with open_offsets(config, name, state) as offsets:
        identity = await offsets.identity()
        if config.tables[name].is_stream:
            held = await _read_held_offset(config, name, known.identity, state)
        else:
            saved = await offsets.rebind(known.identity, state.offsets)
            held = HeldOffset(offset=saved.offset, location="")
    record = PipelineRecord(identity=identity, start=known.start)
    await state.pipelines.save(name, record)
    if held is None:
        raise OffsetError(f"{name} has no offset yet.", remedy="Run it.")
    return held
