"""One table's pipeline: delivery loops in sequence, with a wait after each failed one.

Case table of how a delivery loop ends:

    A  target reached, or stopped as asked      -> PipelineStopped
    B  retryable error, attempts left           -> RetryScheduled, wait, next delivery loop
    C  permanent error, or no attempts left     -> PipelineFailed; other tables continue
    D  an unexpected exception                  -> as C, as a BugError
    E  a gap, and a policy that crosses it      -> GapMet, next delivery loop from the new offset
    G  a commit the sink cannot accept yet      -> commits before it are delivered, then as B
    F  as E, but asked to stop meanwhile        -> PipelineStopped; the next run meets the gap

    By policy, two permanent errors count as B: a missing table, if `on_gap` waits for it; and rows
    that disappear between the check of a commit and its delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from tailerd.backoff import Attempts, RetryPolicy
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.saved_offset import OffsetStore
from tailerd.clock import wait_at_most
from tailerd.errors import (
    BucketMissingError,
    CommitAheadError,
    MissingDataFileError,
    NotATableError,
    SinkTooSlowError,
    TableError,
    TailerdError,
)
from tailerd.formats.base import ChangeSource, NetSteps, SupportsFileLookup
from tailerd.pipeline.backlog_report import BacklogReport
from tailerd.pipeline.claim import PipelineClaim
from tailerd.pipeline.delivery_loop import DeliveryLoop, DeliveryParts, DeliverySpec
from tailerd.pipeline.identity import PipelineOffsets
from tailerd.pipeline.policies import (
    CORRUPT_COMMIT_ERRORS,
    GAP_ERRORS,
    OnCorruptCommit,
    OnGap,
    give_up,
)
from tailerd.pipeline.unexpected import as_bug
from tailerd.sinks.base import GapTaker, Sink
from tailerd.telemetry import Telemetry, events

OpenSource = Callable[[], Awaitable[ChangeSource]]


class Pipeline:
    """Runs one table until it is done, stopped or failed.

    Attributes:
        error: Why it failed; None while it runs and when it ended well.
    """

    def __init__(
        self,
        plan: DeliverySpec,
        parts: DeliveryParts,
        *,
        source_location: str,
        open_source: OpenSource,
        offsets: OffsetStore,
        retries: RetryPolicy | None = None,
        claim: PipelineClaim | None = None,
    ) -> None:
        """Initialize; the table is opened by `run`.

        Args:
            plan: What to do.
            parts: What to do it with; `run` closes the sink and the memory.
            source_location: The table's location, for telemetry.
            open_source: Opens the table; retried like everything else.
            offsets: Stores the offset up to which rows were delivered.
            retries: Waits between attempts, and the number of attempts.
            claim: The pipeline's name in the state.
        """
        self.error: TailerdError | None = None
        self._plan, self._parts = plan, parts
        self._source_location = source_location
        self._open_source = open_source
        self._source: ChangeSource | None = None
        self._offsets = PipelineOffsets(
            offsets,
            plan.table,
            plan.changes,
            identity=plan.identity,
            sink=parts.sink,
            claim=claim,
            view=plan.view,
        )
        self._attempts = Attempts(retries or RetryPolicy(), parts.clock.monotonic)
        self._delivery_loop: DeliveryLoop | None = None
        self._stopping = asyncio.Event()
        self._has_crossed = False
        self._saved_phase: Phase | None = None
        self._is_over_gap = False
        self._target: Version | None = None
        self._met_ahead: set[Version] = set()
        self._last_saved: Offset | None = None

    @property
    def table(self) -> str:
        """Configured name of the table."""
        return self._plan.table

    def stop(self) -> None:
        """Ask `run` to finish pending deliveries and return; idempotent."""
        self._stopping.set()
        if self._delivery_loop is not None:
            self._delivery_loop.stop()

    async def run(self) -> None:
        """Run to the end; failures are in `error`, not raised. Cancelling drops pending deliveries.

        A dropped delivery is delivered again by the next run: its offset was not saved.
        """
        table = self._plan.table
        self._parts.telemetry.emit(
            events.PipelineStarted(
                table=table,
                source=self._source_location,
                sink=self._plan.sink,
                engine=self._plan.engine,
                guarantee=self._plan.guarantee,
            )
        )
        try:
            while not self._stopping.is_set():
                error, is_complete = await self._try()
                if error is None:
                    self._emit_stopped(is_complete)
                    return
                if self._delivers_before(error):
                    continue
                error.address(self._plan.reader)
                self._attempts.begin()
                if not error.retryable:
                    error = await self._with_saved_phase(error)
                if await self._may_cross(error):
                    error = await self._cross(error)
                    if error is None:
                        continue
                self._attempts.count()
                if not self._may_retry(error) or self._attempts.are_exhausted:
                    self._fail(give_up(error, self._attempts))
                    return
                await self._wait_before_retry(error)
            self._emit_stopped(False)
        finally:
            if self._parts.memory is not None:
                self._parts.memory.close()
            await self._parts.sink.aclose()

    async def _may_cross(self, error: TailerdError) -> bool:
        """Return whether `error` is a gap and policy crosses it, waiting if it did so just now."""
        if not self._is_crossable(error):
            return False
        if self._has_crossed and not self._attempts.are_exhausted:
            await self._wait_before_retry(error)
        return not self._stopping.is_set() and not self._attempts.are_exhausted

    def _is_crossable(self, error: TailerdError) -> bool:
        if self._plan.on_gap is OnGap.STOP:
            return False
        if isinstance(error, MissingDataFileError):
            # Skipping a commit has precedence. And a difference over a gap that needs the file
            # would need it again.
            is_skipped = self._skips(error) and self._saved_phase is Phase.FOLLOW
            is_repeated = self._plan.on_gap is OnGap.NET and self._is_over_gap
            if is_skipped or is_repeated:
                return False
        elif not isinstance(error, GAP_ERRORS):
            return False
        # Nothing saved: the version that `from` names does not exist, which is no gap. And
        # retryable errors are retried first.
        return self._saved_phase is not None and not error.retryable

    async def _cross(self, error: TailerdError) -> TailerdError | None:
        """Move the offset over the gap; return why that failed, if it did."""
        self._source = self._target = None
        try:
            await self._offsets.claim()
            saved = await self._offsets.load()
            if saved is None:
                return error
            self._source = await self._open_source()
            if not await _is_gap(error, self._source):
                return error
            await _cross_gap(
                self._plan,
                error,
                saved.offset,
                source=self._source,
                sink=self._parts.sink,
                offsets=self._offsets,
                telemetry=self._parts.telemetry,
            )
        except TailerdError as failure:
            return failure
        except Exception as failure:  # noqa: BLE001 - Case D
            return as_bug(failure)
        # A gap right after this one waits like a failed attempt: a log may be deleted as fast as
        # it is read.
        self._attempts.count()
        self._has_crossed = True
        return None

    def _may_retry(self, error: TailerdError) -> bool:
        if error.retryable:
            return True
        if self._stopping.is_set() and self._is_crossable(error):
            # Case F
            return True
        if (
            isinstance(error, NotATableError | BucketMissingError)
            and self._plan.on_gap is not OnGap.STOP
        ):
            return self._saved_phase is not None
        return self._skips(error) and self._saved_phase is Phase.FOLLOW

    def _skips(self, error: TailerdError) -> bool:
        is_skipping = self._plan.on_corrupt_commit is OnCorruptCommit.SKIP_AND_RECORD
        return is_skipping and isinstance(error, CORRUPT_COMMIT_ERRORS)

    async def _with_saved_phase(self, error: TailerdError) -> TailerdError:
        """Read the phase of the saved offset, for policies; return `error`, or why that failed.

        The next delivery loop meets `error` again.
        """
        self._saved_phase = None
        try:
            saved = await self._offsets.load()
        except TailerdError as failure:
            return failure if failure.retryable else error
        except Exception as failure:  # noqa: BLE001 - Case D
            return as_bug(failure)
        self._saved_phase = None if saved is None else saved.offset.phase
        self._is_over_gap = saved is not None and bool(saved.offset.mark)
        return error

    async def _try(self) -> tuple[TailerdError | None, bool]:
        try:
            return None, await self._run_delivery_loop()
        except ExceptionGroup as group:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # A task group raises its tasks' errors instead of a concurrent cancellation.
                raise asyncio.CancelledError from group
            return self._note_error(_first(group)), False
        except TailerdError as error:
            return self._note_error(error), False
        except Exception as error:  # noqa: BLE001 - Case D: one table's bug must not stop the others
            return as_bug(error), False

    def _note_error(self, error: TailerdError) -> TailerdError:
        if isinstance(error, SinkTooSlowError):
            # The same delivery would fail every time. Deliveries stay small until the next start: a
            # size that was too slow once is not retried at every commit.
            self._plan = replace(self._plan, read_limit=self._plan.read_limit.halve())
        if isinstance(error, TableError):
            # The cached state of the table may be wrong: open it again.
            self._source = None
        return error

    def _delivers_before(self, error: TailerdError) -> bool:
        """Let the next delivery loop deliver the commits before one that has to wait."""
        if not isinstance(error, CommitAheadError) or error.version is None:
            return False
        version = Version(error.version)
        self._plan = replace(self._plan, deferred_version=version)
        # If it is met again, the commits before it are delivered or wait too.
        is_new = version not in self._met_ahead
        self._met_ahead.add(version)
        return is_new

    async def _run_delivery_loop(self) -> bool:
        if self._source is None:
            self._source = await self._open_source()
        delivery_loop = DeliveryLoop(
            self._plan,
            self._parts,
            source=self._source,
            offsets=self._offsets,
            on_progress=self._made_progress,
        )
        self._delivery_loop = delivery_loop
        if self._stopping.is_set():
            return False
        return await delivery_loop.run(await self._known_target(self._source))

    async def _known_target(self, source: ChangeSource) -> Version | None:
        if self._plan.is_once and self._target is None:
            latest = await source.initial_offset("latest")
            self._target = source.version_before(latest.version)
        return self._target

    def _made_progress(self) -> None:
        self._attempts.reset()
        self._has_crossed = False

    async def _wait_before_retry(self, error: TailerdError) -> None:
        wait_seconds = self._attempts.wait_seconds()
        self._parts.telemetry.emit(
            events.RetryScheduled(
                table=self._plan.table,
                engine=self._plan.engine,
                attempt=self._attempts.failed,
                wait_seconds=wait_seconds,
                error_code=error.code,
                error=str(error),
            )
        )
        await self._report_backlog()
        await wait_at_most(self._parts.clock, self._stopping.wait(), wait_seconds)

    async def _report_backlog(self) -> None:
        """Report the backlog after the last saved offset: writers do not wait for a sink."""
        if self._delivery_loop is not None:
            self._last_saved = self._delivery_loop.saved or self._last_saved
        if self._source is None or self._last_saved is None or self._plan.is_once:
            return
        plan, telemetry = self._plan, self._parts.telemetry
        report = BacklogReport(plan.table, plan.engine, self._source, telemetry, is_idle=True)
        # The next attempt meets an error of the table again.
        with suppress(TailerdError):
            self._source.notify(None)
            await report.measure(self._last_saved, self._offsets.first)

    def _fail(self, error: TailerdError) -> None:
        self.error = error.address(self._plan.reader)
        self._parts.telemetry.emit(
            events.PipelineFailed(
                table=self._plan.table,
                engine=self._plan.engine,
                error_code=error.code,
                error=str(error),
            )
        )

    def _emit_stopped(self, is_complete: bool) -> None:
        self._parts.telemetry.emit(
            events.PipelineStopped(
                table=self._plan.table, engine=self._plan.engine, is_complete=is_complete
            )
        )


def _first(group: ExceptionGroup) -> TailerdError:
    """Return the decisive error: a permanent one before a retryable one."""
    found: list[TailerdError] = []
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            found.append(_first(error))
        else:
            found.append(error if isinstance(error, TailerdError) else as_bug(error))
    return min(found, key=lambda error: error.retryable)


async def _is_gap(error: TailerdError, source: ChangeSource) -> bool:
    """Return whether an error that policy may cross is a gap in the present table.

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


async def _cross_gap(
    plan: DeliverySpec,
    error: TailerdError,
    start: Offset,
    *,
    source: ChangeSource,
    sink: Sink,
    offsets: PipelineOffsets,
    telemetry: Telemetry,
) -> None:
    """Save the offset that `plan.on_gap` names, after the sink has recorded the gap.

    The sink comes first: after a crash between the two the gap is met and reported again, whereas a
    saved offset would hide it. Before that, the sink removes deliveries after `start`, if it can,
    that finished before earlier ones failed: the gap declares them missing.

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
    offsets: PipelineOffsets,
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
