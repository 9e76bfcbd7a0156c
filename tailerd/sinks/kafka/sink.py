"""The Kafka sink: the asynchronous wrapper of a blocking session.

At least once: rows, their acknowledgement, then the offset. Exactly once: rows and offset in one
transaction per delivery, committed once all is acknowledged. A failed or cancelled delivery ends
the session; the next delivery loop opens another, which fences off the old one, and resumes from
the committed offset.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self, TypeVar

from kafka.errors import KafkaTimeoutError

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import OffsetStore, SavedOffset
from tailerd.errors import BugError, SinkError, SinkFencedError, SinkTooSlowError, TailerdError
from tailerd.sinks.base import Delivery, RemoteDelivery
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.destinations import TableSchemas
from tailerd.sinks.kafka.errors import build_fenced_error
from tailerd.sinks.kafka.offset_topic import OffsetTopic, check_offset_topic
from tailerd.sinks.kafka.read_back import read_back_format, read_values
from tailerd.sinks.kafka.remote_writer import RecordsWriter
from tailerd.sinks.kafka.routing import schema_record
from tailerd.sinks.kafka.session import Session, WrittenRecords, list_required_topics, new_window
from tailerd.sinks.kafka.topics import PROBLEM_HINT, NewTopic, Topics, check_writable, topic_missing
from tailerd.sinks.kafka.transactions import Claim
from tailerd.sinks.resources import DAEMON_NAME, SinkResources, pipeline_identity
from tailerd.sinks.topics.control_records import ControlRecord, gap_record, heartbeat
from tailerd.telemetry import Telemetry, events

_WATCH_SECONDS = 5.0
_START_SECONDS = 5.0
"""How soon after it has claimed the transactional id another process saves its epoch."""


class KafkaSink:
    """Writes the changes of one table to Kafka."""

    def __init__(
        self,
        config: KafkaSinkConfig,
        *,
        table: str,
        telemetry: Telemetry | None = None,
        daemon: str = DAEMON_NAME,
    ) -> None:
        """Initialize; connects to no broker before first use."""
        self._telemetry = telemetry or Telemetry()
        self._config = config
        self._table = table
        self._connection = Connection(config)
        self._daemon = daemon
        # Losing a heartbeat topic loses no data.
        heartbeats = config.name_topic(config.heartbeat_topic, table)
        self._topics = Topics(self._connection, untracked=[heartbeats])
        self._schemas = TableSchemas(config, table)
        self._worker = Worker(table)
        self._busy = asyncio.Lock()
        self._session: Session | None = None
        self._offsets = KafkaOffsets(self) if config.stores_offsets else None
        self._heart: asyncio.Task[None] | None = None
        self._window = new_window(config, self._connection)
        self._claim: Claim | None = None
        # The newest epoch that this process has read or saved.
        self._epoch: int | None = None
        self._abandoned = threading.Event()
        self._lost: TailerdError | None = None
        self._next_version = 0

    @classmethod
    def from_config(cls, config: KafkaSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        return cls(
            config,
            table=resources.table,
            telemetry=resources.telemetry,
            daemon=resources.daemon,
        )

    @property
    def max_in_flight(self) -> int:
        """One: deliveries of one key must not overtake each other."""
        return 1

    @property
    def offsets(self) -> OffsetStore | None:
        """The offsets topic, if the configuration stores offsets in Kafka."""
        return self._offsets

    @property
    def key(self) -> Sequence[str]:
        """The columns of a record's key and those that choose its topic or partition."""
        return self._config.ordering_key

    async def cluster_id(self) -> str:
        """Return the id of the cluster; cached.

        Raises:
            SinkError: The brokers cannot be reached.
        """
        async with self._busy:
            return await self._worker.run(self._topics.cluster_id)

    def expect(self, topics: Mapping[str, str]) -> None:
        """Expect topics to have these ids."""
        self._topics.expect(topics)

    @property
    def topics(self) -> Mapping[str, str]:
        """The expected topic ids."""
        return self._topics.ids

    def learn_schemas(self, schemas: Mapping[str, str]) -> None:
        """Use the ids of these schemas while the registry cannot be reached."""
        self._schemas.known.learn(schemas, is_confirmed=False)

    @property
    def schemas(self) -> Mapping[str, str]:
        """The known schemas by subject."""
        return self._schemas.known.to_texts()

    async def watch(self) -> None:
        """Check the topics' ids every few seconds, also when there is nothing to deliver.

        Raises:
            TopicRecreatedError: A topic was deleted or recreated.
        """
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            async with self._busy:
                session = self._session
                failure = None if session is None else await self._worker.run(session.check_brokers)
            if failure is not None:
                raise failure

    async def healthcheck(self) -> None:
        """Check with the brokers whether deliveries would succeed; create nothing.

        Raises:
            TailerdError: They would not.
        """
        async with self._busy:
            await self._worker.run(self._examine)

    async def fence(self) -> None:
        """Open the producer; for exactly-once that fences off earlier ones of the pipeline.

        Raises:
            TailerdError: The brokers cannot be reached, or refuse.
        """
        async with self._busy:
            if self._lost is not None and not self._lost.retryable:
                # Fenced while idle: claiming the id again would fence off its current owner.
                raise self._lost
            self._lost = None
            try:
                await self._open()
            except SinkError as error:
                await self._raise_cause(error)
                raise

    async def resume(self, offset: Offset) -> None:
        """Check or create the topics.

        Raises:
            TailerdError: A topic is missing and may not be created, or may not be written.
        """
        async with self._busy:
            session = await self._open()
            await self._worker.run(session.prepare, offset.table_id)
        self._next_version = offset.version
        if self._config.heartbeat_interval is not None and self._heart is None:
            self._heart = asyncio.create_task(self._beat(self._config.heartbeat_interval))

    async def write(self, delivery: Delivery) -> int:
        """Deliver all rows, and the offset if it is stored in Kafka; return the number of rows.

        Raises:
            TailerdError: The delivery does not count; it is repeated after `resume`.
        """
        rows = 0

        async def deliver(session: Session) -> None:
            nonlocal rows
            rows = await self._deliver(session, delivery)

        await self._deliver_within(deliver, delivery.end)
        return rows

    async def write_remotely(self, delivery: RemoteDelivery) -> None:
        """Have another process deliver all rows, then save the offset as `write` does.

        Raises:
            TailerdError: As `write`, or the error of the reading process.
        """
        await self._deliver_within(lambda s: self._deliver_remotely(s, delivery), delivery.end)

    async def _deliver_within(
        self, deliver: Callable[[Session], Awaitable[None]], end: Offset
    ) -> None:
        async with self._busy:
            session = self._session
            if session is None:
                # Nothing may be written before the offset is loaded again.
                raise self._lost or SinkError(
                    f"The connection to Kafka at {self._connection.address} was lost."
                )
            try:
                await deliver(session)
            except BaseException as error:
                # Also when cancelled: records in flight must not follow the repeated delivery.
                await self._drop()
                await self._raise_cause(error)
                raise
        self._next_version = end.version
        for topic, code, records in session.take_set_aside():
            self._telemetry.emit(
                events.DeadLettersStored(
                    table=self._table,
                    sink=self._config.kind,
                    error_code=code,
                    topic=topic,
                    records=records,
                )
            )

    async def note_gap(self, gap: Gap) -> None:
        """Record a gap in the transaction topic, if there is one; readers of rows expect only rows.

        Raises:
            TailerdError: It could not be written.
        """
        if self._config.transaction_topic is None:
            return
        topic = self._config.name_topic(self._config.transaction_topic, self._table)
        async with self._busy:
            session = await self._open()
            await self._worker.run(session.prepare, gap.end.table_id)
            now_ms = time.time_ns() // 1_000_000
            await self._send(session, gap_record(gap, topic=topic, now_ms=now_ms))

    @property
    def value_format(self) -> str:
        """`json` or `debezium`, to which `read_back` also decodes other formats; else its name."""
        return read_back_format(self._config)

    @property
    def has_decimal_numbers(self) -> bool:
        """Whether `decimals` is `number` in the configuration."""
        return self._config.decimals == "number"

    @property
    def empty_is_null(self) -> bool:
        """True for Protobuf's `repeated`, which has no null."""
        config = self._config
        return config.data_format == "protobuf" and config.collections == "repeated"

    def read_back(self) -> AsyncGenerator[Sequence[bytes]]:
        """Yield the committed values of the table's topics.

        Raises:
            TailerdError: They cannot be read, or the first records no longer exist.
        """
        return read_values(self._connection, self._config, self._table, self._schemas)

    async def aclose(self) -> None:
        """Close the producer within bounded time; drops unacknowledged records. Idempotent."""
        if self._heart is not None:
            self._heart.cancel()
            with suppress(asyncio.CancelledError):
                await self._heart
            self._heart = None
        async with self._busy:
            session, self._session = self._session, None
            if session is not None:
                await self._worker.run(lambda: session.close(is_clean=True))
            self._schemas.close()
        self._worker.close()

    async def load_offset(
        self, pipeline: str, identity: PipelineIdentity | None = None
    ) -> SavedOffset | None:
        """Return the last committed offset of the pipeline, or of `identity` if given.

        Once this process has fenced off others, waits until earlier transactions end; a read-only
        command returns the present state.
        """
        abandoned = threading.Event()
        is_settled = self._session is not None
        async with self._busy:

            def read() -> SavedOffset | None:
                key = identity or self._identity(pipeline)
                return self._read_offset(key, is_settled=is_settled, abandoned=abandoned)

            saved = await self._worker.run(read, on_cancel=abandoned.set)
            if is_settled and identity is None and saved is not None:
                if self._has_later_start(saved):
                    # It claimed the id between the check and this process's claim. It claims the id
                    # again, because its own epoch is unchanged.
                    await self._drop()
                    raise build_fenced_error(f"The pipeline {pipeline} cannot continue")
                self._note_epoch(saved)
            return saved

    async def save_offset(self, pipeline: str, saved: SavedOffset) -> None:
        """Save an offset outside a delivery."""
        self._note_epoch(saved)
        async with self._busy:
            was_open = self._session is not None
            session = await self._open()
            identity = await self._worker.run(self._identity, pipeline)
            try:
                await self._in_delivery(session, lambda: session.keep(identity, saved))
            finally:
                if not was_open:
                    # Called by a command that resets an offset while the pipeline does not run.
                    await self._drop(is_clean=True)

    async def _deliver(self, session: Session, delivery: Delivery) -> int:
        rows = 0
        abandon = session.begin().abandon
        async for batch in delivery.batches:
            if delivery.schema_changes:
                await self._tell(session, delivery, abandon)
            if batch.num_rows:
                await self._worker.run(session.send, delivery.start, batch, on_cancel=abandon)
                rows += batch.num_rows
        if delivery.schema_changes:
            await self._tell(session, delivery, abandon)
        await self._worker.run(session.send_rest, delivery.end, on_cancel=abandon)
        await self._worker.run(session.finish, delivery.saved, on_cancel=abandon)
        return rows

    async def _tell(
        self,
        session: Session,
        delivery: Delivery | RemoteDelivery,
        abandon: Callable[[], None],
    ) -> None:
        """Send a record of each pending change of the columns, if there is a topic for them."""
        now_ms, config = time.time_ns() // 1_000_000, self._config
        changes, table_id = list(delivery.schema_changes), delivery.start.table_id
        delivery.schema_changes.clear()
        if config.schema_change_topic is None:
            return
        records = [schema_record(config, self._table, table_id, each, now_ms) for each in changes]
        await self._worker.run(session.tell, records, on_cancel=abandon)

    async def _deliver_remotely(self, session: Session, delivery: RemoteDelivery) -> None:
        abandon = session.begin().abandon
        # In the same transaction, and acknowledged before another process writes.
        await self._tell(session, delivery, abandon)
        transaction = await self._worker.run(session.share)
        writer = RecordsWriter(
            config=self._config,
            pipeline=await self._worker.run(self._identity, self._table),
            start=delivery.start,
            end=delivery.end,
            facts=self._topics.known,
            schemas=self._schemas.known.to_texts(),
            window=self._window,
            transaction=transaction,
        )
        try:
            found = await delivery.run(writer)
        except SinkFencedError as error:
            raise await self._worker.run(session.explain_failure, error) from error
        except SinkTooSlowError:
            self._window.shrink()
            raise
        if not isinstance(found, WrittenRecords):
            raise BugError(f"Records were written, and {found!r} does not say which.")
        await self._worker.run(session.take_over, found)
        self._window = found.window
        await self._worker.run(session.finish, delivery.saved, on_cancel=abandon)

    async def _raise_cause(self, error: BaseException) -> None:
        """Raise an error with the cause, if the client only reports a timeout."""
        # More specific errors, and those without a timeout, already name their cause.
        if type(error) is not SinkError or not isinstance(error.__cause__, KafkaTimeoutError):
            return
        if problem := await self._worker.run(self._topics.problem):
            raise SinkError(f"{error.message} {problem}", remedy=PROBLEM_HINT) from error

    async def _send(self, session: Session, record: ControlRecord) -> None:
        await self._in_delivery(session, lambda: session.tell([record]))

    async def _in_delivery(self, session: Session, hand_over: Callable[[], None]) -> None:
        def step() -> None:
            hand_over()
            session.flush()

        abandon = session.begin().abandon
        try:
            await self._worker.run(step, on_cancel=abandon)
        except BaseException:
            await self._drop()
            raise

    async def _open(self) -> Session:
        if self._session is None:
            # The claim is kept until the next one: an attempt may fail before it claims anything.
            abandoned = self._abandoned = threading.Event()
            self._session = await self._worker.run(
                self._new_session, self._claim, on_cancel=abandoned.set
            )
        return self._session

    def _new_session(self, before: Claim | None) -> Session:
        identity = self._identity(self._table)
        return Session.open(
            self._config,
            identity,
            connection=self._connection,
            topics=self._topics,
            schemas=self._schemas,
            window=self._window,
            before=before,
            is_latest=lambda: self._is_latest(identity),
        )

    def _is_latest(self, identity: PipelineIdentity) -> bool:
        """Return whether no other process has started this pipeline since this one did; blocking.

        A process that starts claims the transactional id, and saves its epoch soon after that.
        """
        self._abandoned.wait(_START_SECONDS)
        saved = self._read_offset(identity, is_settled=True, abandoned=self._abandoned)
        return not self._has_later_start(saved)

    def _has_later_start(self, saved: SavedOffset | None) -> bool:
        if saved is None or self._epoch is None or not self._config.is_exactly_once:
            return False
        return saved.epoch > self._epoch

    def _note_epoch(self, saved: SavedOffset) -> None:
        self._epoch = max(saved.epoch, self._epoch or 0)

    def _read_offset(
        self, identity: PipelineIdentity, *, is_settled: bool, abandoned: threading.Event
    ) -> SavedOffset | None:
        topic = self._config.offsets_topic
        facts = self._topics.describe([topic])[topic]
        self._topics.check_facts(topic, facts)
        if facts is None:
            return None
        reader = OffsetTopic(self._connection, topic)
        return reader.read(identity, is_settled=is_settled, abandoned=abandoned)

    def _identity(self, pipeline: str) -> PipelineIdentity:
        """Return the identity of a pipeline that writes here; blocking, may query the cluster."""
        cluster = self._topics.cluster_id()
        return pipeline_identity(self._config, pipeline, daemon=self._daemon, cluster=cluster)

    async def _drop(self, *, is_clean: bool = False) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._claim = await self._worker.run(lambda: session.close(is_clean=is_clean))

    def _examine(self) -> None:
        self._schemas.check()
        address = self._connection.address
        requested = list_required_topics(self._config, self._table)
        missing: dict[str, NewTopic] = {}
        for name, facts in self._topics.describe(requested).items():
            new = requested[name]
            if facts is None and new is not None:
                missing[name] = new
            elif facts is not None:
                check_writable(facts, address)
                if name == self._config.offsets_topic and self._config.stores_offsets:
                    check_offset_topic(facts)
            else:
                raise topic_missing(name, address)
        self._topics.try_creation(missing)

    async def _beat(self, interval_seconds: float) -> None:
        topic = self._config.name_topic(self._config.heartbeat_topic, self._table)
        while True:
            await asyncio.sleep(interval_seconds)
            async with self._busy:
                if self._session is None:
                    continue
                record = heartbeat(
                    topic=topic,
                    table=self._table,
                    version=self._next_version,
                    now_ms=time.time_ns() // 1_000_000,
                )
                try:
                    await self._send(self._session, record)
                except TailerdError as error:
                    # The next delivery raises it.
                    self._lost = error


class KafkaOffsets:
    """The `OffsetStore` of a Kafka sink."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return the last committed offset; does not disturb a running daemon."""
        return await self._sink.load_offset(pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Save an offset durably."""
        await self._sink.save_offset(pipeline, saved)

    async def load_former(self, identity: PipelineIdentity) -> SavedOffset | None:
        """Return the last committed offset of another identity."""
        return await self._sink.load_offset(identity.table, identity)


Result = TypeVar("Result")


class Worker:
    """A dedicated thread: waits for brokers must not occupy shared threads."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"kafka-{name}")

    async def run(
        self,
        function: Callable[..., Result],
        *arguments: object,
        on_cancel: Callable[[], None] | None = None,
    ) -> Result:
        """Run a blocking step; on cancellation, wait for its end before raising.

        Args:
            function: The step; it ends by itself in bounded time.
            arguments: Its arguments.
            on_cancel: Called immediately on cancellation, so that the step can end sooner.
        """
        loop = asyncio.get_running_loop()
        step = asyncio.ensure_future(loop.run_in_executor(self._pool, function, *arguments))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            if on_cancel is not None:
                on_cancel()
            await asyncio.gather(step, return_exceptions=True)
            raise

    def close(self) -> None:
        """End the thread once its steps are complete, without waiting; idempotent."""
        self._pool.shutdown(wait=False)
