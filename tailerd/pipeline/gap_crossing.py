"""Moves a pipeline's offset over a gap, and reports the gap to the sink and to telemetry."""

from __future__ import annotations

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset
from tailerd.errors import MissingDataFileError, TailerdError
from tailerd.formats.base import ChangeSource, NetSteps, SupportsFileLookup
from tailerd.pipeline.delivery_loop import DeliverySpec
from tailerd.pipeline.identity import OffsetKeeper
from tailerd.pipeline.policies import OnGap
from tailerd.sinks.base import GapTaker, Sink
from tailerd.telemetry import Telemetry, events


async def is_gap(error: TailerdError, source: ChangeSource) -> bool:
    """Return whether an error that policy may cross is a gap in the table as it is now.

    A data file that the newest version still has is lost, which no policy can cross.

    Args:
        source: Newly opened.

    Raises:
        TailerdError: The newest version cannot be read.
    """
    if not isinstance(error, MissingDataFileError):
        return True
    if not error.path or not isinstance(source, SupportsFileLookup):
        return False
    return not await source.has_live_file(error.path)


async def cross_gap(
    plan: DeliverySpec,
    error: TailerdError,
    start: Offset,
    *,
    source: ChangeSource,
    sink: Sink,
    offsets: OffsetKeeper,
    telemetry: Telemetry,
) -> None:
    """Save the offset that `plan.on_gap` names, after the sink has recorded the gap.

    The sink comes first: after a crash between the two the gap is met and reported again, whereas a
    saved offset would hide it. Before that, the sink removes what it can of deliveries after
    `start` that finished before earlier ones failed: the gap declares them missing.

    Args:
        plan: Its `on_gap` is not `stop`.
        error: The error that the gap caused.
        start: The offset that was saved before.
        source: Newly opened, so that it reads the table that exists now.
        sink, offsets, telemetry: The pipeline's.

    Raises:
        TailerdError: The gap could not be crossed; nothing is saved.
    """
    if plan.on_gap is OnGap.NET:
        await _net_over_gap(plan, error, start, source, offsets, telemetry)
        return
    end = await source.initial_offset(plan.on_gap.value)
    gap = Gap(table=plan.table, start=start, end=end, reason=error.code)
    await sink.resume(start)
    if isinstance(sink, GapTaker):
        await sink.note_gap(gap)
    await offsets.save_after_gap(end, source)
    _emit_gap(plan, error, start, end, telemetry)


async def _net_over_gap(
    plan: DeliverySpec,
    error: TailerdError,
    start: Offset,
    source: ChangeSource,
    offsets: OffsetKeeper,
    telemetry: Telemetry,
) -> None:
    """Save an offset from which the versions up to the head come as one complete net change."""
    if not isinstance(source, NetSteps):
        raise error
    marked = await source.over_gap(start)
    await offsets.save(marked, source)
    end = await source.latest_offset(marked, plan.read_limit)
    _emit_gap(plan, error, start, end, telemetry)


def _emit_gap(
    plan: DeliverySpec, error: TailerdError, start: Offset, end: Offset, telemetry: Telemetry
) -> None:
    telemetry.emit(
        events.GapMet(
            table=plan.table,
            engine=plan.engine,
            start_version=start.version,
            end_version=end.version,
            error_code=error.code,
            error=f"on_gap: {plan.on_gap.value}. {error.message}",
        )
    )
