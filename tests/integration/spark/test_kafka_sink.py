"""Encoded records of Spark's queries, written by executors to a real broker."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailerd.errors import (
    BugError,
    ConfigError,
    OffsetError,
    SinkError,
    SinkFencedError,
    SinkRefusedError,
    SinkTooSlowError,
)
from tailerd.sinks.kafka.record_batches.partitioning import assign_partitions
from tailerd.spark.arrow_functions import BATCH_BYTES, map_batches
from tailerd.spark.group import record_partitions
from tailerd.spark.group.left_groups import delivered_by
from tailerd.spark.group.published import end_digest
from tailerd.spark.group.record_partitions import TableRows, pack_tables, read_records
from tailerd.spark.kafka import group_sink
from tailerd.spark.kafka.batch_transaction import BatchTransaction
from tailerd.spark.kafka.group_sink import KafkaGroupSink
from tailerd.spark.kafka.grouping import check_group
from tailerd.spark.packed_records import PACKED_SCHEMA, packed
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import DeadLettersStored, Event
from tests.integration.spark.encoded import DAY_2026_US, Rows, config
from tests.kafka.broker import Broker
from tests.kafka.reader import Record, read_topic
from tests.kafka.topics import Topics
from tests.property.key_histories import KeyHistory, Row, applied, rows_that_are_there
from tests.property.test_spark_key_order import tasks_of

pytestmark = pytest.mark.spark

DELIVERIES = ["at-least-once", "exactly-once"]


class Group:
    """A sink over one table `orders` unless said else, and what it told."""

    def __init__(self, broker: Broker, folder: Path, topic: str, **more: Any) -> None:
        self.events: list[Event] = []
        self.topic = topic
        self.sinks = more.pop("sinks", None) or {"orders": config(broker.plain, topic, **more)}
        self._broker = broker
        self._folder = folder
        self.sink = self.another()

    def another(self) -> KafkaGroupSink:
        """Return the sink of another process over the same checkpoint."""
        return KafkaGroupSink(
            lambda: self.sinks,
            self._folder,
            f"g-{self.topic}",
            partial(end_digest, self._folder.parent),
            Telemetry([self.events.append]),
        )

    def records(self, topic: str | None = None, **options: Any) -> list[Record]:
        return read_topic(self._broker.plain, topic or self.topic, **options)


@contextmanager
def started(group: Group) -> Iterator[KafkaGroupSink]:
    group.sink.recover()
    try:
        yield group.sink
    finally:
        group.sink.close()


def by_key(records: list[Record]) -> dict[bytes | None, list[bytes | None]]:
    found = defaultdict(list)
    for record in records:
        found[record.key].append(record.value)
    return found


@pytest.mark.full
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_changes_of_a_key_come_in_the_order_of_commits_from_many_partitions(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    topic = topics.create(partitions=3)
    rows = Rows()
    for version in range(1, 21):
        rows.add(version, range(50), topic=topic)
    group = Group(kafka_broker, tmp_path, topic, delivery=delivery)
    with started(group) as sink:
        [told] = sink.write(rows.frame(spark, partitions=5), 0)

    records = group.records()

    assert by_key(records) == {
        b"%d" % key: [b"v%d-%d" % (version, key) for version in range(1, 21)] for key in range(50)
    }
    assert len({record.partition for record in records}) == 3
    assert (told.table, told.rows, told.first_version, told.last_version) == (
        "orders",
        {"insert": 1000},
        1,
        20,
    )


@pytest.mark.parametrize("table_bytes", [1, 1 << 30], ids=["many tasks", "one task"])
def test_a_key_has_last_what_the_table_has_though_change_files_tear_its_images_apart(
    table_bytes: int,
    spark: SparkSession,
    kafka_broker: Broker,
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_partitions, "TABLE_BYTES", table_bytes)
    history = KeyHistory(tmp_path / "orders", random.Random(11))
    for _ in range(6):
        history.commit()
    group = Group(kafka_broker, tmp_path, topics.create(partitions=2), format="debezium")
    tasks = asyncio.run(tasks_of(tmp_path / "orders"))
    rows = TableRows(name="orders", table_id="", kafka=group.sinks["orders"], tasks=tasks)
    packed_rows = [
        batch
        for partition in pack_tables([rows])
        for batch in packed(read_records(partition, Stores()))
    ]
    frame = spark.createDataFrame(pa.Table.from_batches(packed_rows), PACKED_SCHEMA)
    # Each Spark task gets some of them, whichever they are.
    frame = frame.repartition(4) if table_bytes == 1 else frame.coalesce(1)
    with started(group) as sink:
        sink.write(frame, 0)
    state: dict[bytes, Row] = {}
    applied(state, ((each.key or b"", each.value) for each in group.records()))
    assert rows_that_are_there(state) == history.state


@pytest.mark.full
def test_keys_go_to_the_partitions_that_the_arrow_engine_gives_them(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=5)
    group = Group(kafka_broker, tmp_path, topic)
    keys = pa.array([b"%d" % key for key in range(200)])
    with started(group) as sink:
        sink.write(Rows().add(1, range(200), topic=topic).frame(spark, 3), 0)
        sink.write(Rows().add(2, range(200), topic=topic).frame(spark, 1), 1)

    chosen = assign_partitions(keys, 200, 5).partitions.tolist()
    wanted = {b"%d" % key: {partition} for key, partition in enumerate(chosen)}
    found = defaultdict(set)
    for record in group.records():
        found[record.key].add(record.partition)
    assert found == wanted


def test_records_keep_headers_tombstones_times_and_named_partitions(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=3)
    rows = Rows()
    for version in (1, 2):
        headers = [("v", b"%d" % version)]
        rows.add(version, [7], topic=topic, kind="delete", partition=2, headers=headers)
        rows.add(version, [7], topic=topic, kind="delete", partition=2, headers=headers, value=None)
    # What each record has is in the records; the section only says that there is something.
    group = Group(kafka_broker, tmp_path, topic, headers={"v": "{commit_version}"})
    with started(group) as sink:
        [told] = sink.write(rows.frame(spark), 3)

    records = group.records()

    batch = ("tailerd.batch", f"g-{topic}/3".encode())
    assert [(r.partition, r.value, r.headers, r.timestamp_ms) for r in records] == [
        (2, b"v1-7", (("v", b"1"), batch), DAY_2026_US // 1000),
        (2, None, (("v", b"1"), batch), DAY_2026_US // 1000),
        (2, b"v2-7", (("v", b"2"), batch), DAY_2026_US // 1000),
        (2, None, (("v", b"2"), batch), DAY_2026_US // 1000),
    ]
    assert told.rows == {"delete": 2}


def test_another_batch_with_the_number_of_a_delivered_one_is_refused(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic, checkpoint = topics.create(), tmp_path / "checkpoint"
    group = Group(kafka_broker, checkpoint, topic, delivery="exactly-once")
    frame = Rows().add(1, range(10), topic=topic).frame(spark)
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"number": 1}')
    with started(group) as sink:
        assert len(sink.write(frame, 0)) == 1
    with started(group) as sink:
        assert sink.write(frame, 0) == []
        # As in a copy from before it, put back.
        (checkpoint / "offsets/0").write_text('v1\n{}\n{"number": 1, "more": 1}')
        with pytest.raises(OffsetError, match="another batch 0: the folder was put back"):
            sink.write(frame, 0)
    assert len(group.records()) == 10


@pytest.mark.full
def test_a_repeated_batch_comes_once_exactly_once_and_twice_at_least_once(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    for delivery, times in (("exactly-once", 1), ("at-least-once", 2)):
        topic = topics.create(partitions=2)
        group = Group(kafka_broker, tmp_path / delivery, topic, delivery=delivery)
        frame = Rows().add(1, range(10), topic=topic).frame(spark)
        with started(group) as sink:
            assert len(sink.write(frame, 0)) == 1
        again = group.another()
        assert again.recover() == (0 if times == 1 else None)
        assert len(again.write(frame, 0)) == times - 1
        assert len(again.write(Rows().add(2, [0], topic=topic).frame(spark), 1)) == 1
        again.close()

        assert len(group.records()) == 10 * times + 1


def test_a_table_that_leaves_a_group_hears_what_that_has_delivered(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    group = Group(kafka_broker, tmp_path / "checkpoint", topic, delivery="exactly-once")
    name, now = f"g-{topic}", config(kafka_broker.plain, topic, delivery="exactly-once")
    # What brokers know this group as, as the daemon that ran it has kept it.
    (tmp_path / "writer.json").write_text(json.dumps({"name": name}))
    assert delivered_by(tmp_path, name, "orders", now) is None
    group.sink.recover()
    assert delivered_by(tmp_path, name, "orders", now) is None
    group.sink = group.another()
    group.sink.recover()
    group.sink.write(Rows().add(1, [1], topic=topic).frame(spark), 0)
    # Its process ends here, without a word to Spark or to brokers.
    told = now.model_copy(update={"producer": {"compression_type": "zstd"}})
    assert delivered_by(tmp_path, name, "orders", told) == 0
    assert delivered_by(tmp_path, name, "orders", config(kafka_broker.plain, topic)) is None
    with started(Group(kafka_broker, tmp_path / "checkpoint", topic, delivery="exactly-once")) as s:
        s.write(Rows().add(1, [1], topic=topic).frame(spark), 0)
    assert len(group.records()) == 1


def test_a_new_checkpoint_begins_anew(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    frame = Rows().add(1, range(5), topic=topic).frame(spark)
    for folder in ("first", "second"):
        with started(
            Group(kafka_broker, tmp_path / folder, topic, delivery="exactly-once")
        ) as sink:
            sink.write(frame, 0)

    assert len(read_topic(kafka_broker.plain, topic)) == 10


@pytest.mark.full
def test_all_tables_of_a_batch_become_visible_together_or_not_at_all(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    fine, small = topics.create(partitions=2), topics.create(config={"max.message.bytes": "2000"})
    plain = kafka_broker.plain
    sinks = {
        "fine": config(plain, fine, delivery="exactly-once"),
        "small": config(plain, small, delivery="exactly-once"),
    }
    group = Group(kafka_broker, tmp_path, fine, sinks=sinks)
    rows = Rows().add(1, range(100), table="fine", topic=fine)
    rows.add(1, [1], table="small", topic=small, value="x" * 5000)
    with started(group) as sink:
        with pytest.raises(SinkRefusedError, match=r"^A row of version 1") as refused:
            sink.write(rows.frame(spark, 4), 0)
        assert refused.value.table == "small"
        # It is undone at once: readers do not have to wait until its time is over.
        with started(Group(kafka_broker, tmp_path / "other", fine)) as other:
            other.write(Rows().add(1, [1000], topic=fine).frame(spark), 0)
        assert [record.key for record in group.records()] == [b"1000"]
        sink.write(Rows().add(1, range(100), table="fine", topic=fine).frame(spark), 0)

    assert len(group.records()) == 101
    assert len(group.records(isolation="read_uncommitted")) >= 100


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_records_that_are_too_large_become_dead_letters(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    topic = topics.create(partitions=4, config={"max.message.bytes": "2000"})
    dead = topics.create()
    group = Group(
        kafka_broker,
        tmp_path,
        topic,
        delivery=delivery,
        on_oversize="dead-letter",
        dead_letter_topic=dead,
    )
    rows = Rows().add(1, range(20), topic=topic, value="x" * 5000).add(2, range(20), topic=topic)
    with started(group) as sink:
        sink.write(rows.frame(spark, 4), 0)
        sink.write(Rows().add(3, [1], topic=topic, value="x" * 5000).frame(spark), 1)

    assert len(group.records()) == 20
    letters = group.records(dead)
    assert {letter.key for letter in letters} == {b"%d" % key for key in range(20)}
    assert len(letters) == 21
    assert {dict(letter.headers)["tailerd.commit_version"] for letter in letters} == {b"1", b"3"}
    told = [event for event in group.events if isinstance(event, DeadLettersStored)]
    assert sum(event.records for event in told) == 21


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_dead_letters_of_tasks_and_of_the_driver_are_there_once(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    topic = topics.create(partitions=2, config={"max.message.bytes": "2000"})
    dead = topics.create()
    letters = {"on_oversize": "dead-letter", "dead_letter_topic": dead}
    group = Group(kafka_broker, tmp_path, topic, delivery=delivery, **letters)
    with started(group) as sink:
        for batch in range(3):
            rows = Rows().add(batch, range(10), topic=dead, reason="incompatible_schema")
            rows.add(batch, range(10, 15), topic=topic, value="x" * 5000)
            sink.write(rows.frame(spark, 3), batch)

    assert Counter(letter.key for letter in group.records(dead)) == {
        b"%d" % k: 3 for k in range(15)
    }
    told: Counter[str] = Counter()
    for event in group.events:
        if isinstance(event, DeadLettersStored):
            told[event.error_code] += event.records
    assert told == {"incompatible_schema": 30, "record_too_large": 15}


def test_tables_that_share_a_topic_share_a_transaction(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    one = config(kafka_broker.plain, topic, delivery="exactly-once")
    group = Group(kafka_broker, tmp_path, topic, sinks={"a": one, "b": one})
    with started(group) as sink:
        for batch in range(3):
            rows = Rows().add(batch, range(30), table="a", topic=topic)
            rows.add(batch, range(30), table="b", topic=topic)
            sink.write(rows.frame(spark, 3), batch)

    assert Counter(record.key for record in group.records()) == {b"%d" % k: 6 for k in range(30)}


def test_two_writers_of_a_partition_are_noticed_before_anything_counts(
    spark: SparkSession,
    kafka_broker: Broker,
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = topics.create()
    group = Group(kafka_broker, tmp_path, topic, delivery="exactly-once")
    frame = Rows().add(1, range(40), topic=topic).frame(spark, 2)
    with started(group) as sink:
        with monkeypatch.context() as patched:
            # As if records were left where Spark has them.
            patched.setattr(group_sink, "placed", lambda records, *_: records)
            # Each task writes 20 records: brokers take one's for a repetition of the other's.
            with pytest.raises((BugError, SinkError)):
                sink.write(frame, 0)
        sink.write(frame, 0)

    assert len(group.records()) == 40


def test_a_task_gets_a_large_micro_batch_in_small_batches(spark: SparkSession) -> None:
    rows = Rows()
    for key in range(40):
        # Nothing that can be compressed.
        rows.add(1, [key], topic="t", value=random.Random(key).randbytes(100_000).hex())
    assert sum(len(row["value"]) for row in rows.rows) > 10 * BATCH_BYTES

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"size": pa.array([batch.nbytes], pa.int64())})

    given = map_batches(rows.frame(spark), sizes, "size bigint").collect()
    assert max(row["size"] for row in given) < 2 * BATCH_BYTES
    assert len(given) > 5


def test_a_process_that_was_shut_out_stops(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    group = Group(kafka_broker, tmp_path, topic, delivery="exactly-once")
    with started(group) as sink:
        sink.write(Rows().add(1, [1], topic=topic).frame(spark), 0)
        other = group.another()
        other.recover()
        for _ in range(2):
            with pytest.raises(SinkFencedError, match=r"another process .* Spark gave up"):
                sink.write(Rows().add(2, [2], topic=topic).frame(spark), 1)
        other.write(Rows().add(2, [2], topic=topic).frame(spark), 1)
        other.close()

    assert [record.key for record in group.records()] == [b"1", b"2"]


@pytest.mark.full
def test_a_transaction_whose_time_is_over_is_written_again(
    spark: SparkSession,
    kafka_broker: Broker,
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = topics.create(partitions=2)
    group = Group(
        kafka_broker,
        tmp_path,
        topic,
        delivery="exactly-once",
        producer={"transaction_timeout_ms": 1000},
    )
    rows = Rows().add(1, range(10), topic=topic).frame(spark)
    commit = BatchTransaction.commit

    def late(*arguments: Any) -> None:
        # A driver that stands still when its tasks are done, as on a machine that swaps.
        time.sleep(3)
        commit(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(BatchTransaction, "commit", late)
        with started(group), pytest.raises(SinkTooSlowError, match="transaction_timeout_ms"):
            group.sink.write(rows, 0)
    assert group.records() == []
    group.sinks = {"orders": config(kafka_broker.plain, topic, delivery="exactly-once")}
    with started(group):
        group.sink.write(rows, 0)

    assert len(group.records()) == 10


@pytest.mark.full
def test_a_column_chooses_topics_that_are_made(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    prefix = topics.new_name()
    group = Group(
        kafka_broker,
        tmp_path,
        prefix + "-{column:region}",
        delivery="exactly-once",
        create_topic={"partitions": 3},
    )
    rows = Rows()
    for each in "ab":
        topics.delete_later(f"{prefix}-{each}")
        rows.add(1, range(30), topic=f"{prefix}-{each}")
    with started(group) as sink:
        sink.write(rows.frame(spark, 3), 0)

    for each in "ab":
        records = group.records(f"{prefix}-{each}")
        assert len(records) == 30
        assert {record.partition for record in records} == {0, 1, 2}


@pytest.mark.full
def test_a_table_whose_rows_go_to_dead_letters_fails_alone(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic, dead = topics.create(), topics.create()
    exactly = {"delivery": "exactly-once", "on_oversize": "dead-letter", "dead_letter_topic": dead}
    sinks = {name: config(kafka_broker.plain, topic, **exactly) for name in ("fine", "wrong")}
    sinks["wrong"] = config(kafka_broker.plain, dead, **exactly)
    group = Group(kafka_broker, tmp_path, topic, sinks=sinks)
    rows = Rows().add(1, range(9), table="fine", topic=topic)
    both = Rows().add(1, range(9), table="fine", topic=topic).add(1, [1], table="wrong", topic=dead)
    with started(group) as sink:
        for partitions in (1, 2):
            with pytest.raises(ConfigError, match=r"topic of offsets or of dead") as wrong:
                sink.write(both.frame(spark, partitions), 0)
            assert wrong.value.table == "wrong"
        # Repeated without the one that is to blame, which is among the tables until it has left.
        sink.write(rows.frame(spark), 0)

    assert len(group.records()) == 9
    assert group.records(dead) == []


def test_what_spark_cannot_do_is_refused_with_the_table(kafka_broker: Broker) -> None:
    plain = kafka_broker.plain
    for option, value in {"transaction_topic": "t", "heartbeat_interval": "5s"}.items():
        faults = check_group({"orders": config(plain, "orders", **{option: value})})
        assert option in str(faults["orders"])
    with pytest.raises(ConfigError, match="different brokers"):
        check_group({"a": config(plain, "a"), "b": config("127.0.0.1:1", "b")})
