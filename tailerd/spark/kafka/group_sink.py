"""The Kafka sink of a query over many tables: the driver's side of every micro-batch. Blocking."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tailerd.errors import (
    BatchRetryError,
    BugError,
    ConfigError,
    SinkRefusedError,
    TailerdError,
    TopicRecreatedError,
)
from tailerd.pipeline.pipeline_records import PipelineRecord, PipelineRecords
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.offset_topic import check_offset_topic
from tailerd.sinks.kafka.session import wanted_topics, writes_into
from tailerd.sinks.kafka.shared_transaction import SharedTransaction
from tailerd.sinks.kafka.topics import MAX_AGE_SECONDS, NewTopic, Topics
from tailerd.sinks.kafka.transactions import Claim
from tailerd.spark.arrow_functions import map_batches
from tailerd.spark.delivered_batch import DeliveredBatch
from tailerd.spark.deliveries import TableDelivery, Tally, summed
from tailerd.spark.kafka.batch_transaction import BatchTransaction
from tailerd.spark.kafka.group_identity import checkpoint_identity
from tailerd.spark.kafka.grouping import check_group, check_speculation
from tailerd.spark.kafka.placement import Placement, placed
from tailerd.spark.kafka.write_task import (
    REPORT_SCHEMA,
    TaskReport,
    WriteTask,
)
from tailerd.spark.query_errors import error_of
from tailerd.telemetry import Telemetry, events

_ATTEMPTS = 3
_LOOK_EVERY_SECONDS = 2.0
_SPECULATION = "spark.speculation"

Sinks = Mapping[str, KafkaSinkConfig]


class KafkaGroupSink:
    """Writes micro-batches of encoded records, as `foreachBatch` gives them, from executors.

    At least once: `write` returns when everything is acknowledged; records carry the number of
    their micro-batch in the header `tailerd.batch`. A repeated one comes again, in order.

    Exactly once: everything of a micro-batch becomes visible together, once (`batch_transaction`);
    a repeated one is not even read if it is visible already, and another one with its number is
    refused: the checkpoint was put back from a copy.

    Either way the records of each Kafka partition are written by one task, in order of version and
    `_order` within each table. Errors that are one table's alone say so (`group/attribution`).

    One process uses a group at a time; calls come one after the other, from any thread. For each
    start of a query: `recover`, then `write` by `foreachBatch`, at last `close`.
    """

    def __init__(
        self,
        sinks: Callable[[], Sinks],
        checkpoint: Path,
        group: str,
        end_of: Callable[[int], str],
        telemetry: Telemetry | None = None,
        records: PipelineRecords | None = None,
    ) -> None:
        """Prepare; no broker is asked yet.

        Args:
            sinks: Asked at every micro-batch for the section of each table it may have rows of,
                by the configured name; all, and always, with one `sharing_key`.
            checkpoint: Folder of the query's checkpoint, of this machine, in the group's folder.
            group: What brokers know the query as, the same in every run (`writer_name`).
            end_of: Returns, for a micro-batch's number, what tells it from another one of that
                number; blocking.
            telemetry: Hears of dead letters.
            records: What the state remembers of the tables' pipelines, their topics among it.
        """
        self._ask_sinks = sinks
        self._sinks: Sinks = {}
        self._faults: Mapping[str, TailerdError] = {}
        self._checkpoint = checkpoint
        self._group = group
        self._end_of = end_of
        self._telemetry = telemetry or Telemetry()
        self._records = records
        self._looked = 0.0
        self._recreated: Mapping[str, TopicRecreatedError] = {}
        self._brokers: _Brokers | None = None
        self._session: BatchTransaction | None = None
        self._claim: Claim | None = None
        self._last: DeliveredBatch | None = None
        self._identity = ""

    def recover(self) -> int | None:
        """Exactly once, settle what a predecessor left: what it did not commit never counts.

        Called before the query starts; another process that still writes for this group is shut
        out. Asks brokers only where there is a table.

        Returns:
            The last micro-batch that counts, exactly once and of this checkpoint; None where
            nothing is known of one.

        Raises:
            TailerdError: No micro-batch could be delivered.
        """
        self._drop()
        config = next(iter(self._ask_sinks().values()), None)
        if config is not None and config.is_exactly_once:
            self._open(config)
        return None if self._last is None else self._last.batch_id

    def write(self, records: DataFrame, batch_id: int) -> list[TableDelivery]:
        """Deliver a micro-batch.

        Args:
            records: Encoded records, packed (`packed_records.PACKED_SCHEMA`).
            batch_id: Spark's number of it.

        Returns:
            What was delivered of each table; nothing where all of it was delivered before.

        Raises:
            OffsetError: Exactly once, another one was delivered under this number.
            TailerdError: Exactly once, it does not count; else some of it may be there. It is to
                be given again.
        """
        for attempt in range(_ATTEMPTS):
            try:
                tallies = self._delivered(records, batch_id)
            except TailerdError as error:
                self._drop()
                if isinstance(error, BatchRetryError) and attempt + 1 < _ATTEMPTS:
                    continue
                raise
            except BaseException:
                self._drop()
                raise
            for table, tally in tallies.items():
                self._tell_dead_letters(table, tally)
            return [tally.delivery(table) for table, tally in tallies.items()]
        raise BugError("A micro-batch was given up without an error.")

    def close(self) -> None:
        """End the producer; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            self._claim = session.close(is_clean=True)

    def _delivered(self, records: DataFrame, batch_id: int) -> dict[str, Tally]:
        conf = records.sparkSession.sparkContext.getConf()
        config = self._look_at_sinks(conf.get(_SPECULATION) or "")
        if config is None:
            raise BugError("A micro-batch came for a group without tables.")
        if not config.is_exactly_once:
            return summed(each.tables for each in self._run(records, batch_id, None))
        session = self._session or self._open(config)
        end = self._end_of(batch_id)
        if self._last is not None and self._last.covers(batch_id, end, self._checkpoint):
            return {}
        reports = self._run(records, batch_id, session)
        delivered = DeliveredBatch(checkpoint=self._identity, batch_id=batch_id, end=end)
        # Also without rows: the time of the transaction runs.
        session.commit(
            delivered,
            [report.sequences for report in reports],
            [letters for report in reports for letters in report.letters],
        )
        self._last = delivered
        return summed(report.tables for report in reports)

    def _run(
        self, records: DataFrame, batch_id: int, session: BatchTransaction | None
    ) -> list[TaskReport]:
        """Let executors write; return what their tasks report."""
        assert self._brokers is not None
        topics = self._brokers.topics
        try:
            topics.renew(MAX_AGE_SECONDS)
        except TailerdError:
            # The task that has rows for the topic finds out whose it is.
            topics.forget()
        transaction = None if session is None else session.begin()
        task = WriteTask(
            sinks=self._sinks,
            faults=self._faults,
            facts=topics.known,
            group=self._group,
            batch_id=batch_id,
            transaction=transaction,
        )
        try:
            frame = self._in_place(records, batch_id, transaction)
            rows = map_batches(frame, task.run, REPORT_SCHEMA).collect()
        except (PySparkException, Py4JJavaError) as error:
            reason = error_of(str(error))
            raise (reason if session is None else session.explained(reason)) from error
        reports: list[TaskReport] = [pickle.loads(row["report"]) for row in rows]
        known = set(topics.expected)
        for report in reports:
            topics.learn(report.facts)
        if not known.issuperset(topics.expected):
            self._remember(self._known(self._sinks))
        if transaction is not None:
            _check_writers(reports)
        return reports

    def _in_place(
        self, records: DataFrame, batch_id: int, transaction: SharedTransaction | None
    ) -> DataFrame:
        """Return the records in tasks as they may be written."""
        assert self._brokers is not None
        tasks = records.sparkSession.sparkContext.defaultParallelism
        if transaction is None and not any(config.key for config in self._sinks.values()):
            return records.coalesce(tasks)
        # The one partition of a micro-batch that is not large has everything in order.
        if records.rdd.getNumPartitions() <= 1:
            return records
        placement = Placement(
            sinks=self._sinks,
            faults=self._faults,
            facts=self._brokers.topics.known,
            batch_id=batch_id,
        )
        return placed(records, placement, tasks)

    def _look_at_sinks(self, speculation: str) -> KafkaSinkConfig | None:
        """Take the tables that there are now; return the section of one."""
        sinks = dict(self._ask_sinks())
        config = next(iter(sinks.values()), None)
        is_recent = time.monotonic() - self._looked < _LOOK_EVERY_SECONDS
        if config is None or (sinks == self._sinks and not self._recreated and is_recent):
            return config
        faults = {**check_speculation(speculation, sinks), **check_group(sinks)}
        if self._recreated:
            # A table that was reset takes the topics that are there now.
            self._brokers = None
        brokers = self._at(config)
        known = self._known(sinks)
        self._recreated = self._changed_topics(brokers.topics, sinks, known)
        self._looked = time.monotonic()
        self._faults = {**faults, **self._recreated}
        wanted: dict[str, NewTopic | None] = {}
        for table, section in sinks.items():
            # A topic of theirs is not made by whoever comes first.
            if table not in self._faults:
                wanted |= wanted_topics(section, table)
        # One look at all topics is fast. Where one of them is wrong, the task that has rows for it
        # finds out whose it is, and the tables beside it go on.
        with suppress(ConfigError, SinkRefusedError):
            brokers.topics.ensure(wanted)
        self._remember(known)
        self._sinks = sinks
        return config

    def _known(self, sinks: Sinks) -> dict[str, PipelineRecord]:
        """Return what the state remembers of tables."""
        if self._records is None:
            return {}
        found = {name: asyncio.run(self._records.load(name)) for name in sinks}
        return {name: record for name, record in found.items() if record is not None}

    def _changed_topics(
        self, topics: Topics, sinks: Sinks, known: Mapping[str, PipelineRecord]
    ) -> dict[str, TopicRecreatedError]:
        """Return the tables with a topic that is gone, or was made again, since it was written."""
        for record in known.values():
            topics.expect(record.topics)
        changed = topics.changed()
        return {
            table: error
            for topic, error in changed.items()
            for table, record in known.items()
            if table in sinks and topic in record.topics
        }

    def _remember(self, known: Mapping[str, PipelineRecord]) -> None:
        """Let the state keep the ids of topics that tables may have written."""
        if self._records is None or self._brokers is None:
            return
        ids = self._brokers.topics.expected
        for table, record in known.items():
            if table in self._faults:
                continue
            may_write = partial(writes_into, self._ask_sinks()[table], table)
            topics = {**record.topics, **{n: i for n, i in ids.items() if may_write(n)}}
            if topics != record.topics:
                changed = replace(record, topics=topics)
                asyncio.run(self._records.save(table, changed))

    def _at(self, config: KafkaSinkConfig) -> _Brokers:
        if self._brokers is None:
            self._brokers = _Brokers(config)
        return self._brokers

    def _open(self, config: KafkaSinkConfig) -> BatchTransaction:
        self._identity = checkpoint_identity(self._checkpoint)
        brokers, topic = self._at(config), config.offsets_topic
        facts = brokers.topics.ensure({topic: wanted_topics(config, "")[topic]})[topic]
        check_offset_topic(facts)
        # A claim that fails may have succeeded: how the id was held before says nothing then.
        before, self._claim = self._claim, None
        session = BatchTransaction(
            brokers.connection,
            config.transactional_id or f"tailerd-spark-{self._group}",
            key=f"spark/{self._group}",
            topic=topic,
            max_bytes=brokers.topics.max_batch_bytes(facts),
        )
        last = session.claim(before)
        is_ours = last is not None and last.checkpoint == self._identity
        self._last = last if is_ours else None
        self._session = session
        return session

    def _drop(self) -> None:
        """Give up what is open; the next micro-batch looks at everything again."""
        session, self._session = self._session, None
        self._sinks, self._brokers = {}, None
        if session is not None:
            self._claim = session.close(is_clean=False)

    def _tell_dead_letters(self, table: str, tally: Tally) -> None:
        for (topic, reason), records in tally.dead_letters.items():
            self._telemetry.emit(
                events.DeadLettersStored(
                    table=table,
                    sink="kafka",
                    error_code=reason,
                    topic=topic,
                    records=records,
                )
            )


class _Brokers:
    """Where a group writes, and what is known of the topics there."""

    def __init__(self, config: KafkaSinkConfig) -> None:
        self.connection = Connection(config)
        self.topics = Topics(self.connection)


def _check_writers(reports: Sequence[TaskReport]) -> None:
    """Make sure that each partition had one writer.

    Raises:
        BugError: One had two; brokers may have taken one's records for the other's.
    """
    seen: set[tuple[str, int]] = set()
    for report in reports:
        both = seen.intersection(report.sequences)
        if both:
            topic, partition = min(both)
            raise BugError(f"Two tasks wrote partition {partition} of {topic} in one transaction.")
        seen.update(report.sequences)
