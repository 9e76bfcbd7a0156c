"""The delivery loop of one table: wait, plan, read, write, save the offset; repeat.

It begins at the saved offset, and ends at its target, when stopped, or with an error. The next loop
resumes after the last acknowledged delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.delivery import DeliveryTracker
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, DEFAULT_READ_LIMIT, BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset, Version, clip_end, is_past
from tailerd.changefeed.pipeline_identity import UNKNOWN_PIPELINE, PipelineIdentity
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.clock import Clock, wait_at_most
from tailerd.errors import BugError, SinkError, TableError, TailerdError
from tailerd.formats.base import ChangeSource, NetSteps
from tailerd.pipeline.backlog_report import BacklogReport
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.delivered_schemas import DeliveredSchemas, SchemaWatch
from tailerd.pipeline.identity import PipelineOffsets
from tailerd.pipeline.memory_budget import TableMemory
from tailerd.pipeline.policies import CommitCheck, OnCorruptCommit, OnGap
from tailerd.pipeline.remote_rows import RemoteRows, TaskRunner
from tailerd.pipeline.rolling import Rolling
from tailerd.remedies import Reader
from tailerd.sinks.base import (
    Delivery,
    Fencer,
    HasTopics,
    Keyed,
    PinsEnds,
    RecordsDeliveries,
    RemoteDelivery,
    Sink,
    WritesRemotely,
)
from tailerd.state.corrupt_commits import CorruptCommitLog, CorruptCommitRecord
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.wakeups import Wakeup


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySpec:
    """The configuration of a table's delivery.

    Attributes:
        table: Configured name; the offset is kept under it.
        engine: Where rows are read and written, for telemetry.
        sink, guarantee: Kind of the sink and what it promises, for telemetry.
        start: Where to begin when nothing is saved, as `ChangeSource.initial_offset` reads it.
        changes: Change mode of the source.
        read_limit: What one delivery may hold.
        batch_limit: Size of one Arrow batch.
        is_once: End at the version that is the head when the first delivery loop begins.
        on_gap: What to do if the next version is gone or the table was replaced.
        on_corrupt_commit: What to do with a commit whose rows cannot be read.
        identity: Identity of the pipeline; the sink supplies the cluster.
        deferred_version: A version whose commit the sink cannot accept yet: deliveries that begin
            before it end before it.
        reader: The words of remedies.
        view: Digest of the view that is delivered; empty for the table itself.
        roll_seconds: Age of the oldest undelivered commit at which a delivery begins, unless it is
            full before; None: at once.
    """

    table: str
    sink: str
    start: str
    changes: ChangeMode
    engine: str = "arrow"
    guarantee: str = ""
    read_limit: ReadLimit = DEFAULT_READ_LIMIT
    batch_limit: BatchLimit = DEFAULT_BATCH_LIMIT
    is_once: bool = False
    on_gap: OnGap = OnGap.STOP
    on_corrupt_commit: OnCorruptCommit = OnCorruptCommit.STOP
    identity: PipelineIdentity = UNKNOWN_PIPELINE
    deferred_version: Version | None = None
    reader: Reader = field(default_factory=dict)
    view: str = ""
    roll_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryParts:
    """The components that deliver a table, shared by all attempts.

    Attributes:
        sink: Where rows go.
        wakeup: Set when the log may have new commits.
        telemetry, clock: As everywhere.
        executor: Threads that read; the loop's own by default.
        corrupt_commits: Takes the records of commits that `on_corrupt_commit` leaves out.
        memory: The table's part of the process's budget; without it, only the table's own limits
            apply.
        on_batch: Called with every batch that this process passes to the sink.
        runner: Where rows are read and written; None for this process. Sinks that cannot write
            remotely always use this process.
    """

    sink: Sink
    wakeup: Wakeup
    telemetry: Telemetry
    clock: Clock
    executor: Executor | None = None
    corrupt_commits: CorruptCommitLog | None = None
    memory: TableMemory | None = None
    on_batch: Callable[[ChangeBatch], None] | None = None
    runner: TaskRunner | None = None


class DeliveryLoop:
    """Owns the offset of one table while it lasts. `run` once."""

    def __init__(
        self,
        plan: DeliverySpec,
        parts: DeliveryParts,
        *,
        source: ChangeSource,
        offsets: PipelineOffsets,
        on_progress: Callable[[], None],
    ) -> None:
        """Initialize; nothing is read or written before `run`.

        Args:
            plan: What to do.
            parts: What to do it with.
            source, offsets: The table, and the offset up to which it is delivered.
            on_progress: Called whenever an offset was saved.
        """
        self._plan = plan
        self._parts = parts
        self._source = source
        self._offsets = offsets
        self._on_progress = on_progress
        self._check = (
            CommitCheck(
                source, limit=plan.batch_limit, executor=parts.executor, memory=parts.memory
            )
            if plan.on_corrupt_commit is OnCorruptCommit.SKIP_AND_RECORD
            else None
        )
        self._rolling = Rolling(plan.roll_seconds, source, parts.clock)
        self._schemas = DeliveredSchemas(source)
        self._slots = asyncio.Semaphore(parts.sink.max_in_flight)
        self._tracker = DeliveryTracker()
        self._saving = asyncio.Lock()
        self._saved: Offset | None = None
        self._is_stopping = False
        self._backlog = BacklogReport(plan.table, plan.engine, source, parts.telemetry)

    @property
    def saved(self) -> Offset | None:
        """The offset that was saved last; None before the loop has begun."""
        return self._saved

    def stop(self) -> None:
        """Ask `run` to begin nothing new, finish pending deliveries, and return."""
        self._is_stopping = True
        self._parts.wakeup.set()

    async def run(self, target: Version | None) -> bool:
        """Deliver; return whether the target was reached (False: stopped before).

        Args:
            target: Last version to deliver; None follows the table until stopped.

        Raises:
            TailerdError: Of the source, the sink or the offset store, unchanged.
        """
        offset = await self._begin()
        failure: TableError | None = None
        delivery: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as deliveries:
            watching = (
                deliveries.create_task(self._parts.sink.watch())
                if isinstance(self._parts.sink, HasTopics)
                else None
            )
            while True:
                await self._slots.acquire()
                try:
                    step = await self._next_step(offset, target)
                except TableError as error:
                    # Commits before it can be delivered, and policy may continue after it.
                    failure = error
                    break
                if step is None:
                    break
                start, offset = step
                self._tracker.begin(offset)
                delivery = deliveries.create_task(self._deliver_after(delivery, start, offset))
                delivery.add_done_callback(lambda _: self._slots.release())
            is_complete = not self._is_stopping
            # Inside the group: a delivery that fails while the group exits would leave this task
            # marked as cancelled although no caller cancelled it.
            await self._wait_for_deliveries()
            if watching is not None:
                watching.cancel()
        if failure is not None:
            raise failure
        return is_complete

    async def _begin(self) -> Offset:
        plan = self._plan
        # Before fencing: a pipeline that must not run must not stop another one.
        is_known = await self._offsets.claim()
        if isinstance(self._parts.sink, Fencer):
            await self._parts.sink.fence()
        saved = await self._offsets.resume(is_known=is_known, source=self._source)
        if saved is None:
            if isinstance(self._parts.sink, RecordsDeliveries):
                # Before an offset is saved: it would look like the offset of a delivery.
                await self._parts.sink.check_first_start()
            offset = await self._source.initial_offset(plan.start)
            # Before the offset is saved: nothing is bound yet to a location that cannot be written,
            # so the operator can correct it.
            await self._parts.sink.resume(offset)
            # Saved before the first row is delivered: after a crash before the first
            # acknowledgement, another snapshot would add its rows to those of the first.
            await self._offsets.save(offset, self._source)
        else:
            offset = saved.offset
            await self._parts.sink.resume(offset)
        self._saved = offset
        if gap := self._offsets.reset_gap:
            telemetry = self._parts.telemetry
            telemetry.emit(events.GapMet.from_record(plan.table, plan.engine, gap))
        await self._offsets.note()
        self._parts.telemetry.emit(
            events.OffsetChosen(
                table=plan.table,
                engine=self._plan.engine,
                version=offset.version,
                is_resumed=saved is not None,
                offset=offset.to_json(),
            )
        )
        return offset

    async def _next_step(
        self, offset: Offset, target: Version | None
    ) -> tuple[Offset, Offset] | None:
        """Return start and end of the next delivery, after skipped commits."""
        while (end := await self._next_end(offset, target)) is not None:
            offset = await self._pin_end(offset, end)
            if isinstance(self._parts.sink, PinsEnds):
                # A wider or narrower limit since must not move the end of files that are there.
                end = await self._parts.sink.pinned_end(offset) or end
            if self._check is None:
                return offset, end
            until, error = await self._check.reach(offset, end)
            if error is None or until != offset:
                return offset, until
            offset = await self._leave_out(offset, error)
        return None

    async def _pin_end(self, start: Offset, end: Offset) -> Offset:
        """Return the start of a step; the end of a net step is saved before its first row."""
        if not isinstance(self._source, NetSteps):
            return start
        pinned = self._source.pin_end(start, end)
        if pinned != start:
            await self._wait_for_deliveries()
            await self._offsets.save(pinned, self._source)
            self._saved = pinned
        return pinned

    async def _wait_for_deliveries(self) -> None:
        """Wait until nothing is in flight; the caller holds one slot."""
        others = self._parts.sink.max_in_flight - 1
        for _ in range(others):
            # A slot is free once its delivery's offset is saved.
            await self._slots.acquire()
        for _ in range(others):
            self._slots.release()

    async def _leave_out(self, offset: Offset, error: TailerdError) -> Offset:
        """Record the commit at `offset` as damaged and return the offset after it."""
        await self._wait_for_deliveries()
        if self._parts.corrupt_commits is None:
            raise BugError(f"Nothing keeps the record of damaged commits of {self._plan.table}.")
        record = CorruptCommitRecord.from_error(offset, error, self._parts.clock.now_ms())
        path = await self._parts.corrupt_commits.record(self._plan.table, record)
        after = offset.after_version(self._source)
        await self._save(after)
        self._schemas.forget(after)
        if offset.position:
            # Its first files were intact and were delivered before the damage was found.
            await self._parts.sink.resume(offset.at(0))
        self._parts.telemetry.emit(
            events.CommitSkipped(
                table=self._plan.table,
                engine=self._plan.engine,
                version=offset.version,
                error_code=error.code,
                path=path,
                error=str(error),
            )
        )
        return after

    async def _next_end(self, offset: Offset, target: Version | None) -> Offset | None:
        """Wait for new commits and return the end of the next delivery; None if it is the last."""
        while not self._is_stopping:
            if target is not None and is_past(offset, target):
                if offset.version > self._source.next_version(target):
                    # The log is shorter than it was; the source raises the error for that.
                    await self._source.latest_offset(offset, self._plan.read_limit)
                await self._backlog.measure(offset, self._offsets.first)
                return None
            began = self._parts.clock.monotonic()
            end = await self._poll(offset)
            if end != offset:
                if target is None and (seconds := await self._rolling.wait_seconds(offset, end)):
                    await self._backlog.measure(offset, self._offsets.first)
                    await wait_at_most(self._parts.clock, self._parts.wakeup.wait(), seconds)
                    continue
                self._emit_advance(offset, end, self._parts.clock.monotonic() - began)
                await self._backlog.measure(offset, self._offsets.first)
                deferred_version = self._plan.deferred_version
                if deferred_version is not None and offset.version < deferred_version:
                    end = clip_end(end, self._source.version_before(deferred_version), self._source)
                return clip_end(end, target, self._source)
            self._backlog.emit_idle(offset, self._offsets.first)
            if self._plan.is_once:
                return None
            await self._parts.wakeup.wait()
        return None

    async def _poll(self, offset: Offset) -> Offset:
        poll = self._parts.wakeup.begin_poll()
        if poll.is_woken or poll.version is not None:
            self._source.notify(poll.version)
        end = await self._source.latest_offset(offset, self._plan.read_limit)
        self._parts.wakeup.end_poll(poll, is_news=end != offset)
        return end

    async def _deliver_after(
        self, before: asyncio.Task[None] | None, start: Offset, end: Offset
    ) -> None:
        """Deliver; raise an error of the table only after all earlier deliveries have ended."""
        try:
            await self._deliver(start, end)
        except TableError:
            if before is not None:
                # If that delivery fails, this wait is cancelled.
                await asyncio.wait({before})
            raise

    async def _deliver(self, start: Offset, end: Offset) -> None:
        began = self._parts.clock.monotonic()
        saved = await self._offsets.make_saved(end, self._source)
        schemas = await self._schemas.watch(start, end, self._offsets.first, saved.schema_id)
        sink, runner = self._parts.sink, self._parts.runner
        rows: ChangeStream | RemoteRows | None = None
        if runner is not None and isinstance(sink, WritesRemotely):
            rows = await self._deliver_at(runner, sink, start, end, saved, schemas)
        if rows is None:
            rows = await self._deliver_here(start, end, saved, schemas)
        self._emit_delivery(rows, start, end, self._parts.clock.monotonic() - began)
        if schemas.changes:
            self._emit_schemas(schemas)
        safe = self._tracker.acknowledge(end)
        if safe is not None:
            await self._save(safe, is_stored=self._parts.sink.offsets is not None)
        await self._offsets.note_changes()

    async def _deliver_here(
        self, start: Offset, end: Offset, saved: SavedOffset, schemas: SchemaWatch
    ) -> ChangeStream:
        stream = ChangeStream(
            self._source,
            start,
            end,
            limit=self._plan.batch_limit,
            key=self._key,
            executor=self._parts.executor,
            memory=self._parts.memory,
            on_batch=self._parts.on_batch,
        )
        async with (
            aclosing(stream.batches()) as rows_read,
            aclosing(schemas.watch(rows_read, stream.commits)) as batches,
        ):
            delivery = Delivery(
                table=self._plan.table,
                start=start,
                end=end,
                saved=saved,
                batches=batches,
                is_net=self._is_net(start),
                schema_changes=schemas.pending,
            )
            with self._detecting_sink_cancel():
                rows = await self._parts.sink.write(delivery)
        if rows != stream.total_rows or not stream.is_complete:
            raise BugError(
                f"The sink {self._plan.sink} acknowledged {rows} rows of {self._plan.table} after"
                f" taking {stream.total_rows}, not all there were."
            )
        return stream

    async def _deliver_at(
        self,
        runner: TaskRunner,
        sink: WritesRemotely,
        start: Offset,
        end: Offset,
        saved: SavedOffset,
        schemas: SchemaWatch,
    ) -> RemoteRows | None:
        """Deliver with `runner`; None if there are no rows, so nothing to run there."""
        rows = RemoteRows(
            self._source,
            start,
            end,
            table=self._plan.table,
            limit=self._plan.batch_limit,
            key=self._key,
            runner=runner,
        )
        if not await rows.plan():
            return None
        schemas.plan(rows.tasks, rows.commits)
        delivery = RemoteDelivery(
            table=self._plan.table,
            start=start,
            end=end,
            saved=saved,
            run=rows.run,
            is_net=self._is_net(start),
            schema_changes=schemas.pending,
        )
        with self._detecting_sink_cancel():
            await sink.write_remotely(delivery)
        return rows

    def _is_net(self, start: Offset) -> bool:
        return isinstance(self._source, NetSteps) and self._source.is_net(start)

    @property
    def _key(self) -> Sequence[str]:
        return self._parts.sink.key if isinstance(self._parts.sink, Keyed) else ()

    def _emit_delivery(
        self, stream: ChangeStream | RemoteRows, start: Offset, end: Offset, duration_seconds: float
    ) -> None:
        if stream.rows.total():
            self._parts.telemetry.emit(
                events.DeliveryAcknowledged(
                    table=self._plan.table,
                    sink=self._plan.sink,
                    engine=self._plan.engine,
                    start_version=start.version,
                    end_version=end.last_version(self._source),
                    rows=dict(stream.rows),
                    bytes=stream.bytes,
                    duration_seconds=duration_seconds,
                )
            )
        if stream.commits.kinds or stream.unchanged:
            self._parts.telemetry.emit(
                events.CommitsDelivered(
                    table=self._plan.table,
                    engine=self._plan.engine,
                    commits=dict(stream.commits.kinds),
                    details=tuple(stream.commits.details),
                    unchanged_updates=stream.unchanged,
                )
            )

    def _emit_schemas(self, schemas: SchemaWatch) -> None:
        for change in schemas.changes:
            if change.changes:
                self._parts.telemetry.emit(
                    events.SchemaChanged(
                        table=self._plan.table,
                        engine=self._plan.engine,
                        version=change.version,
                        summary=change.summary,
                    )
                )

    @contextmanager
    def _detecting_sink_cancel(self) -> Iterator[None]:
        """Raise `SinkError` if the sink cancels a delivery by itself; pass on a caller's cancel."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Only the sink itself cancelled this delivery; a task group would take that for a
            # normal end, and its rows would never be delivered.
            raise SinkError(
                f"The sink {self._plan.sink} cancelled a delivery of {self._plan.table}."
            ) from None

    async def _save(self, offset: Offset, *, is_stored: bool = False) -> None:
        """Save an offset, unless the sink has stored it with the rows, and report it."""
        began = self._parts.clock.monotonic()
        async with self._saving:
            # A later delivery may have saved its offset while this one waited for the lock.
            if self._saved is not None and not self._saved.is_before(offset):
                return
            if not is_stored:
                await self._offsets.save(offset, self._source)
            self._saved = offset
        self._on_progress()
        self._parts.telemetry.emit(
            events.OffsetSaved(
                table=self._plan.table,
                engine=self._plan.engine,
                version=offset.version,
                offset=offset.to_json(),
                duration_seconds=self._parts.clock.monotonic() - began,
            )
        )
        await self._source.commit(offset)

    def _emit_advance(self, offset: Offset, end: Offset, duration_seconds: float) -> None:
        self._parts.telemetry.emit(
            events.SnapshotAdvanced(
                table=self._plan.table,
                start_version=offset.version,
                end_version=end.last_version(self._source),
                duration_seconds=duration_seconds,
            )
        )
