"""The Kafka sink of a query over many tables: the driver's side of every micro-batch. Blocking."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tailerd.errors import BugError, TailerdError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.offset_topic import check_offset_topic
from tailerd.sinks.kafka.session import wanted_topics
from tailerd.sinks.kafka.shared_transaction import SharedTransaction
from tailerd.sinks.kafka.topics import NewTopic, Topics
from tailerd.sinks.kafka.transactions import Claim
from tailerd.spark.arrow_functions import map_batches
from tailerd.spark.kafka.batch_transaction import BatchTransaction, DeliveredBatch
from tailerd.spark.kafka.checkpoint_identity import checkpoint_identity
from tailerd.spark.kafka.delivered import BatchDelivery, summed
from tailerd.spark.kafka.grouping import check_group, has_shared_topics
from tailerd.spark.kafka.placement import Placement, placed
from tailerd.spark.kafka.write_task import (
    REPORT_SCHEMA,
    TaskReport,
    WriteTask,
    is_task_retry,
)
from tailerd.spark.query_errors import error_of

_ATTEMPTS = 3


class KafkaGroupSink:
    """Writes micro-batches of encoded records, as `foreachBatch` gives them, from executors.

    At least once: `write` returns when everything is acknowledged; records carry the number of
    their micro-batch in the header `tailerd.batch`. A repeated one comes again, in order.

    Exactly once: everything of a micro-batch becomes visible together, once (`batch_transaction`).

    Either way the records of each Kafka partition are written by one task, in order of version and
    `_order` within each table.

    One process uses a group at a time; calls come one after the other, from any thread.

        sink = KafkaGroupSink(sinks, checkpoint, group, on_delivered=tell)
        sink.recover()
        frame.writeStream.foreachBatch(sink.write).option("checkpointLocation", checkpoint)...
        sink.close()
    """

    def __init__(
        self,
        sinks: Mapping[str, KafkaSinkConfig],
        checkpoint: Path,
        group: str,
        *,
        on_delivered: Callable[[BatchDelivery], None] | None = None,
    ) -> None:
        """Prepare; no broker is asked yet.

        Args:
            sinks: The section of each table by its configured name; all with one `sharing_key`.
            checkpoint: Folder of the query's checkpoint, of this machine.
            group: Name of the query, the same in every run.
            on_delivered: Told of each micro-batch once it counts, also of one that counted before.

        Raises:
            ConfigError: The tables cannot share a query, or ask for what Spark cannot do.
        """
        check_group(sinks)
        self._sinks = dict(sinks)
        self._checkpoint = checkpoint
        self._group = group
        self._on_delivered = on_delivered or (lambda _: None)
        self._config = next(iter(sinks.values()))
        self._connection = Connection(self._config)
        self._topics = Topics(self._connection)
        self._is_shared_topic = has_shared_topics(sinks)
        self._session: BatchTransaction | None = None
        self._claim: Claim | None = None
        self._last: DeliveredBatch | None = None
        self._identity = ""

    def recover(self) -> int | None:
        """Make sure that topics are there; exactly once, settle what a predecessor left.

        Called before the query starts; disturbs another process that still writes for this group,
        so that it stops.

        Returns:
            The last micro-batch that counts, exactly once and of this checkpoint; None where
            nothing is known of one.

        Raises:
            TailerdError: Micro-batches could not be delivered.
        """
        self._drop()
        self._topics.forget()
        wanted: dict[str, NewTopic | None] = {}
        for table, config in self._sinks.items():
            wanted |= wanted_topics(config, table)
        found = self._topics.ensure(wanted)
        if not self._config.is_exactly_once:
            return None
        check_offset_topic(found[self._config.offsets_topic])
        self._identity = checkpoint_identity(self._checkpoint)
        self._open()
        return None if self._last is None else self._last.batch_id

    def write(self, records: DataFrame, batch_id: int, *, is_whole: bool | None = None) -> None:
        """Deliver a micro-batch.

        Args:
            records: Encoded records (`encoded_records.ENCODED_SCHEMA`).
            batch_id: Spark's number of it.
            is_whole: Whether each table's records are in one partition of the DataFrame, in order;
                then they are not sorted. None: they are if there is only one.

        Raises:
            TailerdError: Exactly once, it does not count; else some of it may be there. It is to
                be given again.
        """
        started = time.monotonic()
        for attempt in range(_ATTEMPTS):
            try:
                delivery = self._delivered(records, batch_id, is_whole, started)
            except TailerdError as error:
                self._drop()
                if is_task_retry(error) and attempt + 1 < _ATTEMPTS:
                    continue
                raise
            except BaseException:
                self._drop()
                raise
            self._on_delivered(delivery)
            return

    def close(self) -> None:
        """End the producer; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            self._claim = session.close(is_clean=True)

    def _delivered(
        self, records: DataFrame, batch_id: int, is_whole: bool | None, started: float
    ) -> BatchDelivery:
        if not self._config.is_exactly_once:
            reports = self._run(records, batch_id, is_whole, None)
            tables = summed(report.tables for report in reports)
        else:
            session = self._session or self._open()
            last = self._last
            if last is not None and batch_id <= last.batch_id:
                tables = dict(last.tables) if batch_id == last.batch_id else {}
                return BatchDelivery(batch_id=batch_id, tables=tables, is_repeat=True)
            reports = self._run(records, batch_id, is_whole, session)
            tables = summed(report.tables for report in reports)
            # Also without rows: the time of the transaction runs.
            self._commit(session, batch_id, reports)
        return BatchDelivery(
            batch_id=batch_id, tables=tables, duration_seconds=time.monotonic() - started
        )

    def _commit(
        self, session: BatchTransaction, batch_id: int, reports: Sequence[TaskReport]
    ) -> None:
        delivered = DeliveredBatch(
            checkpoint=self._identity,
            batch_id=batch_id,
            tables=summed(report.tables for report in reports),
        )
        topic = self._config.offsets_topic
        session.commit(
            delivered,
            [report.sequences for report in reports],
            [letters for report in reports for letters in report.letters],
            max_bytes=self._topics.max_batch_bytes(self._topics.ensure({topic: None})[topic]),
        )
        self._last = delivered

    def _run(
        self,
        records: DataFrame,
        batch_id: int,
        is_whole: bool | None,
        session: BatchTransaction | None,
    ) -> list[TaskReport]:
        """Let executors write; return what their tasks report."""
        transaction = None if session is None else session.begin()
        task = WriteTask(
            sinks=self._sinks,
            facts=self._topics.known,
            group=self._group,
            batch_id=batch_id,
            transaction=transaction,
        )
        try:
            frame = self._in_place(records, batch_id, is_whole, transaction)
            rows = map_batches(frame, task.run, REPORT_SCHEMA).collect()
        except (PySparkException, Py4JJavaError) as error:
            reason = error_of(str(error))
            raise (reason if session is None else session.explained(reason)) from error
        reports: list[TaskReport] = [pickle.loads(row["report"]) for row in rows]
        for report in reports:
            self._topics.learn(report.facts)
        if transaction is not None:
            _check_writers(reports)
        return reports

    def _in_place(
        self,
        records: DataFrame,
        batch_id: int,
        is_whole: bool | None,
        transaction: SharedTransaction | None,
    ) -> DataFrame:
        """Return the records in tasks as they may be written."""
        tasks = records.sparkSession.sparkContext.defaultParallelism
        if transaction is None and not any(config.key for config in self._sinks.values()):
            return records.coalesce(tasks)
        if is_whole is None:
            is_whole = records.rdd.getNumPartitions() <= 1
        elif transaction is not None and self._is_shared_topic:
            is_whole = False
        if is_whole:
            return records.coalesce(tasks)
        placement = Placement(sinks=self._sinks, facts=self._topics.known, batch_id=batch_id)
        return placed(records, placement, tasks)

    def _open(self) -> BatchTransaction:
        # A claim that fails may have succeeded: how the id was held before says nothing then.
        before, self._claim = self._claim, None
        session = BatchTransaction(
            self._connection,
            self._config.transactional_id or f"tailerd-spark-{self._group}",
            key=f"spark/{self._group}",
            topic=self._config.offsets_topic,
        )
        last = session.claim(before)
        is_ours = last is not None and last.checkpoint == self._identity
        self._last = last if is_ours else None
        self._session = session
        return session

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._claim = session.close(is_clean=False)


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
