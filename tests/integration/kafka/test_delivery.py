"""The Kafka sink against the real broker: where records go, what a failure leaves, what is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeType
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import ConfigError, SinkError, SinkFencedError, SinkRefusedError
from tailerd.sinks.base import Delivery
from tailerd.sinks.kafka import offset_topic
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.sink import KafkaSink
from tailerd.telemetry import Telemetry, events
from tests.kafka.broker import Broker
from tests.kafka.reader import Record, read_topic
from tests.kafka.topics import Topics
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.kafka

BOTH = pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])


class KafkaTarget:
    """A topic with all that belongs to it, and sinks that write there."""

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self.broker = broker
        self.topics = topics
        self.reported: list[events.Event] = []
        self.topic = topics.new_name()
        self.offsets = topics.new_name("offsets")
        self.other = topics.new_name("other")

    def create(self, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        self.topics.create(self.topic, partitions=partitions, config=config)

    def sink(self, guarantee: str = "exactly-once", **fields: Any) -> KafkaSink:
        section = {
            "kind": "kafka",
            "bootstrap_servers": self.broker.plain,
            "topic": self.topic,
            "delivery": guarantee,
            "offsets": "kafka",
            "offsets_topic": self.offsets,
            **fields,
        }
        return KafkaSink(
            KafkaSinkConfig.model_validate(section),
            table=self.topic,
            telemetry=Telemetry([self.reported.append]),
        )

    @asynccontextmanager
    async def open(
        self, guarantee: str = "exactly-once", **fields: Any
    ) -> AsyncIterator[KafkaSink]:
        """Give a sink that is ready to write."""
        sink = self.sink(guarantee, **fields)
        try:
            await sink.fence()
            await sink.resume(offset(0))
            yield sink
        finally:
            await sink.aclose()

    def read(self, topic: str | None = None) -> list[Record]:
        return read_topic(self.broker.plain, topic or self.topic)

    def ids(self) -> list[int]:
        return [json.loads(record.value or b"")["id"] for record in self.read()]


@pytest.fixture
def target(kafka_broker: Broker, topics: Topics) -> KafkaTarget:
    return KafkaTarget(kafka_broker, topics)


@contextmanager
def paused(broker: Broker) -> Iterator[None]:
    broker.pause()
    try:
        yield
    finally:
        broker.resume()


def offset(version: int, position: int = 0) -> Offset:
    return Offset(table_id="table-1", version=Version(version), position=position)


def make_rows(version: int, change: ChangeType = ChangeType.INSERT, **columns: Any) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.record_batch({name: pa.array(values) for name, values in columns.items()}),
        change_type=change,
        version=Version(version),
        timestamp_us=1_700_000_000_123_456,
        change_source=ChangeSourceKind.FILES,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )


def make_ids(version: int, *ids: int) -> ChangeBatch:
    return make_rows(version, id=list(ids))


def delivery(start: Offset, end: Offset, *batches: ChangeBatch) -> Delivery:
    async def give() -> AsyncIterator[ChangeBatch]:
        for each in batches:
            yield each

    saved = SavedOffset(offset=end, changes=ChangeMode.AUTO)
    return Delivery(table="orders", start=start, end=end, saved=saved, batches=give())


def commit(version: int, *batches: ChangeBatch) -> Delivery:
    return delivery(offset(version), offset(version + 1), *batches)


async def kept(sink: KafkaSink, target: KafkaTarget) -> int | None:
    """Return the version of the saved offset."""
    assert sink.offsets is not None
    saved = await sink.offsets.load(target.topic)
    return None if saved is None else saved.offset.version


async def test_records_have_key_headers_and_the_time_of_the_commit(target: KafkaTarget) -> None:
    target.create()
    headers = {"origin": "lake", "version": "{table}/{commit_version}"}
    async with target.open(key=["id"], headers=headers, event_ids=True) as sink:
        await sink.write(commit(0, make_ids(0, 7)))
    [record] = target.read()
    assert record.key == b'{"id":7}'
    assert record.timestamp_ms == 1_700_000_000_123
    assert record.headers == (
        ("origin", b"lake"),
        ("version", f"{target.topic}/0".encode()),
        ("tailerd.id", b"id-1/0/0.0"),
    )
    assert json.loads(record.value or b"")["_commit_version"] == 0


async def test_headers_stay_with_their_rows_where_a_batch_is_larger_than_what_is_built_at_once(
    target: KafkaTarget,
) -> None:
    target.create()
    # Twice what `BatchProducer` lays out at once.
    wide = make_rows(0, id=list(range(160)), text=["x" * 100_000] * 160)
    async with target.open(key=["id"], event_ids=True) as sink:
        await sink.write(commit(0, wide))
    found = {record.key: dict(record.headers)["tailerd.id"] for record in target.read()}
    assert found == {b'{"id":%d}' % row: b"id-1/0/0.%d" % row for row in range(160)}


async def test_records_say_the_id_that_the_table_had_where_their_delivery_begins(
    target: KafkaTarget,
) -> None:
    target.create()
    replaced = replace(offset(1), table_id="table-2")
    async with target.open(format="debezium", key=["id"]) as sink:
        await sink.write(delivery(offset(0), replaced, make_ids(0, 1)))
        await sink.write(delivery(replaced, replace(replaced, version=Version(2)), make_ids(1, 2)))
    sources = [json.loads(record.value or b"")["source"] for record in target.read()]
    assert [source["table_id"] for source in sources] == ["table-1", "table-2"]


async def test_a_key_is_in_the_partition_where_other_producers_put_it(target: KafkaTarget) -> None:
    from kafka.partitioner.default import murmur2

    target.create(partitions=5)
    async with target.open(key=["id"]) as sink:
        await sink.write(commit(0, make_ids(0, *range(200))))
    records = target.read()
    assert len(records) == 200
    expected = {record.key: (murmur2(record.key) & 0x7FFFFFFF) % 5 for record in records}
    assert {record.key: record.partition for record in records} == expected


async def test_a_column_chooses_the_partition_or_the_topic(target: KafkaTarget) -> None:
    regions = ["eu", "us"]
    for region in regions:
        target.topics.create(f"{target.topic}.{region}", partitions=3)
    template = f"{target.topic}.{{column:region}}"
    rows = make_rows(0, id=[1, 2, 3, 4], region=["eu", "us", "eu", "us"], shard=[0, 1, 2, 0])
    async with target.open(topic=template, partition={"column": "shard"}) as sink:
        await sink.write(commit(0, rows))
        with pytest.raises(SinkRefusedError, match="does not choose a topic"):
            await sink.write(commit(1, make_rows(1, id=[5], region=["a/b"], shard=[0])))
        await sink.resume(offset(1))
        with pytest.raises(ConfigError, match="partition 3"):
            await sink.write(commit(1, make_rows(1, id=[5], region=["eu"], shard=[3])))
    found = {
        json.loads(record.value or b"")["id"]: (region, record.partition)
        for region in regions
        for record in target.read(f"{target.topic}.{region}")
    }
    assert found == {1: ("eu", 0), 2: ("us", 1), 3: ("eu", 2), 4: ("us", 0)}


async def test_a_row_that_moves_to_another_topic_is_gone_from_the_old_one(
    target: KafkaTarget,
) -> None:
    topics = [f"{target.topic}.{region}" for region in ("eu", "us")]
    for topic in topics:
        target.topics.create(topic)
    images = pa.array(["update_preimage", "update_postimage"])
    update = replace(make_rows(0, id=[1, 1], region=["eu", "us"]), change_type=images)
    fields: dict[str, Any] = {"topic": f"{target.topic}.{{column:region}}", "format": "debezium"}
    async with target.open(**fields, key=["id"]) as sink:
        await sink.write(commit(0, update))
    old, new = (
        [record.value and json.loads(record.value)["op"] for record in target.read(topic)]
        for topic in topics
    )
    assert (old, new) == (["d", None], ["c"])


async def test_topics_are_made_as_configured_and_only_by_deliveries(target: KafkaTarget) -> None:
    create = {"partitions": 3, "configs": {"max.message.bytes": 2_000_000}}
    sink = target.sink(create_topic=create)
    await sink.healthcheck()
    assert target.topic not in target.topics.names()
    await sink.resume(offset(0))
    await sink.aclose()
    assert len(target.topics.leaders(target.topic)) == 3
    assert len(target.topics.leaders(target.offsets)) == 1


async def test_a_topic_that_is_not_there_is_named_before_any_row_is_read(
    target: KafkaTarget,
) -> None:
    sink = target.sink()
    for attempt in (sink.healthcheck, lambda: sink.resume(offset(0))):
        with pytest.raises(SinkRefusedError, match=f"{target.topic} does not exist"):
            await attempt()
    await sink.aclose()


async def test_a_topic_of_offsets_that_would_forget_them_is_refused(target: KafkaTarget) -> None:
    target.create()
    target.topics.create(target.offsets, config={"cleanup.policy": "delete"})
    sink = target.sink()
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete"):
        await sink.healthcheck()
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete"):
        await sink.resume(offset(0))
    await sink.aclose()


@BOTH
async def test_a_row_that_is_too_large_stops_the_delivery_and_nothing_is_saved(
    target: KafkaTarget, guarantee: str
) -> None:
    target.create()
    large = make_rows(0, id=[1, 2], text=["small", "x" * 2_000_000])
    async with target.open(guarantee) as sink:
        with pytest.raises(SinkRefusedError, match="takes 1048576") as raised:
            await sink.write(commit(0, large))
        assert not raised.value.retryable
        assert await kept(sink, target) is None
    if guarantee == "exactly-once":
        assert target.read() == []


@BOTH
async def test_a_row_that_is_too_large_becomes_a_dead_letter_and_the_others_arrive(
    target: KafkaTarget, guarantee: str
) -> None:
    target.create(config={"max.message.bytes": "10000"})
    target.topics.create(target.other)
    rows = make_rows(0, id=[1, 2, 3], text=["a", "x" * 20_000, "c"])
    options = {"on_oversize": "dead-letter", "dead_letter_topic": target.other, "key": ["id"]}
    async with target.open(guarantee, **options) as sink:
        assert await sink.write(commit(0, rows)) == 3
        assert await kept(sink, target) == 1
    assert target.ids() == [1, 3]
    [letter] = target.read(target.other)
    headers = dict(letter.headers)
    assert letter.key == b'{"id":2}'
    assert json.loads(letter.value or b"")["text"] == "x" * 20_000
    assert headers["tailerd.reason"] == b"record_too_large"
    assert headers["tailerd.topic"] == target.topic.encode()
    assert headers["tailerd.commit_version"] == b"0"
    assert int(headers["tailerd.size_bytes"] or b"") > 20_000
    assert headers["tailerd.limit_bytes"] == b"10000"
    reported = [event for event in target.reported if isinstance(event, events.DeadLettersStored)]
    assert [(event.topic, event.records) for event in reported] == [(target.other, 1)]


@BOTH
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_that_the_broker_finds_too_large_are_split_and_each_row_comes_once(
    target: KafkaTarget, guarantee: str, compression: str
) -> None:
    target.create(partitions=2)
    import hashlib

    # Text that does not compress.
    texts = [hashlib.sha512(bytes([n % 256, n // 256])).hexdigest() * 4 for n in range(1000)]
    producer = {"compression_type": compression}
    async with target.open(guarantee, key=["id"], producer=producer) as sink:
        # Learned too late: the sink has asked what the topic takes.
        target.topics.configure(target.topic, {"max.message.bytes": "30000"})
        await sink.write(commit(0, make_rows(0, id=list(range(1000)), text=texts)))
        await sink.write(commit(1, make_ids(1, 1000)))
    assert sorted(target.ids()) == list(range(1001))


async def test_what_a_crash_leaves_between_rows_and_offset_is_seen_by_nobody(
    target: KafkaTarget,
) -> None:
    target.create()
    async with target.open() as sink:
        await sink.write(commit(0, make_ids(0, 1)))
        session = sink._session
        assert session is not None
        session.begin()
        session.send(offset(1), make_ids(1, 2))
        session.keep(session._pipeline, SavedOffset(offset=offset(2), changes=ChangeMode.AUTO))
        session._await_acknowledgements()
        # The process ends here: rows and offset are written, the transaction is open.
        session._client._sender.force_close()
        sink._session = None
        assert target.ids() == [1]
        assert await kept(sink, target) == 1
        async with target.open() as successor:
            assert await kept(successor, target) == 1
            await successor.write(commit(1, make_ids(1, 2)))
            assert await kept(successor, target) == 2
    assert target.ids() == [1, 2]


async def test_the_older_of_two_sinks_is_shut_out_and_does_not_come_back(
    target: KafkaTarget,
) -> None:
    target.create()
    saved = SavedOffset(offset=offset(0), changes=ChangeMode.AUTO)
    async with target.open() as older:
        assert older.offsets is not None
        # As every start does.
        await older.offsets.save(target.topic, replace(saved, epoch=1))
        async with target.open() as newer:
            assert newer.offsets is not None
            await newer.offsets.save(target.topic, replace(saved, epoch=2))
            with pytest.raises(SinkError, match="no longer accept this claim"):
                await older.write(commit(0, make_ids(0, 99)))
            with pytest.raises(SinkFencedError, match="another process"):
                await older.fence()
            await newer.write(commit(0, make_ids(0, 1)))
            await newer.write(commit(1, make_ids(1, 2)))
    assert target.ids() == [1, 2]


async def test_looking_at_the_offset_shuts_nobody_out(target: KafkaTarget) -> None:
    target.create()
    async with target.open() as running:
        await running.write(commit(0, make_ids(0, 1)))
        looking = target.sink()
        assert await kept(looking, target) == 1
        await looking.healthcheck()
        await looking.aclose()
        await running.write(commit(1, make_ids(1, 2)))
        assert await kept(running, target) == 2


async def test_an_offset_that_was_reset_is_where_the_next_run_begins(target: KafkaTarget) -> None:
    target.create()
    async with target.open() as sink:
        await sink.write(commit(0, make_ids(0, 1)))
    command = target.sink()
    assert command.offsets is not None
    await command.offsets.save(
        target.topic, SavedOffset(offset=offset(40), changes=ChangeMode.AUTO)
    )
    await command.aclose()
    async with target.open() as sink:
        assert await kept(sink, target) == 40


async def test_an_offset_far_behind_those_of_others_is_found(
    target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_topic, "_FIRST_WINDOW", 3)
    target.create()
    async with target.open("at-least-once") as sink:
        await sink.write(commit(0, make_ids(0, 1)))
        assert sink.offsets is not None
        for number in range(70):
            saved = SavedOffset(offset=offset(number), changes=ChangeMode.AUTO)
            await sink.offsets.save(f"other-{number % 3}", saved)
        assert await kept(sink, target) == 1
        assert await sink.offsets.load("nobody") is None


@BOTH
async def test_no_more_than_the_limit_is_in_flight_while_the_broker_does_not_answer(
    target: KafkaTarget, guarantee: str
) -> None:
    target.create()
    text = "x" * 1000
    # The first one alone is many times what may be in flight.
    batches = [make_rows(0, id=list(range(n)), text=[text] * n) for n in (8000, 500, 500, 500, 500)]
    async with target.open(guarantee, max_in_flight_bytes="1MiB") as sink:
        await sink.write(commit(0, make_ids(0, 1)))
        session = sink._session
        assert session is not None
        with paused(target.broker):
            writing = asyncio.create_task(sink.write(commit(1, *batches)))
            in_flight = session._delivery
            async with asyncio.timeout(PATIENCE_SECONDS):
                while in_flight is None or not in_flight.in_flight_bytes:
                    assert not writing.done() or await writing
                    await asyncio.sleep(0.05)
                    in_flight = session._delivery
            await asyncio.sleep(0.5)
            # One batch may go beyond it; the loop itself is free meanwhile.
            assert 0 < in_flight.in_flight_bytes <= 2 * 1024**2
            assert not writing.done()
        assert await writing == 10_000
    assert len(target.read()) == 10_001


@pytest.mark.full
@BOTH
async def test_a_write_that_is_cancelled_while_the_broker_hangs_ends_soon(
    target: KafkaTarget, guarantee: str
) -> None:
    target.create()
    async with target.open(guarantee) as sink:
        await sink.write(commit(0, make_ids(0, 1)))
        with paused(target.broker):
            writing = asyncio.create_task(sink.write(commit(1, make_ids(1, 2))))
            await asyncio.sleep(0.3)
            writing.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.wait({writing})
            assert writing.cancelled()
        with pytest.raises(SinkError, match="was lost"):
            await sink.write(commit(1, make_ids(1, 2)))
        await sink.fence()
        saved = await kept(sink, target)
        await sink.resume(offset(saved or 0))
        await sink.write(commit(1, make_ids(1, 2)))
    assert set(target.ids()) == {1, 2}
    assert guarantee == "at-least-once" or target.ids() == [1, 2]


async def test_commits_are_framed_as_debezium_frames_transactions(target: KafkaTarget) -> None:
    target.create()
    target.topics.create(target.other)
    part = make_ids(2, 4, 5)
    async with target.open(transaction_topic=target.other) as sink:
        await sink.write(delivery(offset(0), offset(2), make_ids(0, 1, 2), make_ids(1, 3)))
        # A huge commit in two deliveries: nobody knows its size in one target.
        await sink.write(delivery(offset(2), offset(2, 7), part))
        await sink.write(delivery(offset(2, 7), offset(3), part))
        gap = Gap(table=target.topic, start=offset(3), end=offset(9), reason="missing_version")
        await sink.note_gap(gap)
    reported = [json.loads(record.value or b"") for record in target.read(target.other)]
    assert [(each["status"], each["id"], each.get("event_count")) for each in reported] == [
        ("BEGIN", "table-1:0", None),
        ("END", "table-1:0", 2),
        ("BEGIN", "table-1:1", None),
        ("END", "table-1:1", 1),
        ("BEGIN", "table-1:2", None),
        ("END", "table-1:2", None),
        ("GAP", "table-1:gap:3", None),
    ]
    assert reported[1]["data_collections"] == [{"data_collection": target.topic, "event_count": 2}]


async def test_hearts_beat_while_nothing_changes(target: KafkaTarget) -> None:
    target.create()
    target.topics.create(target.other)
    async with target.open(heartbeat_interval="100ms", heartbeat_topic=target.other) as sink:
        await sink.write(commit(0, make_ids(0, 1)))
        await asyncio.sleep(0.6)
        await sink.write(commit(1, make_ids(1, 2)))
    beats = [json.loads(record.value or b"") for record in target.read(target.other)]
    assert len(beats) >= 2
    assert beats[-1]["next_version"] == 1
    assert target.ids() == [1, 2]


async def test_updates_are_one_record_and_deletes_leave_a_tombstone_in_debezium(
    target: KafkaTarget,
) -> None:
    target.create()
    rows = pa.record_batch({"id": pa.array([1, 1, 2]), "n": pa.array([10, 11, 5])})
    kinds = pa.array(["update_preimage", "update_postimage", "delete"])
    batch = ChangeBatch(
        rows=rows,
        change_type=kinds,
        version=Version(0),
        timestamp_us=1_700_000_000_000_000,
        change_source=ChangeSourceKind.CDC,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )
    async with target.open(format="debezium", key=["id"], topic_prefix="lake") as sink:
        assert await sink.write(commit(0, batch)) == 3
    records = target.read()
    by_key = {key: [r.value for r in records if r.key == key] for key in {r.key for r in records}}
    [update] = [json.loads(value or b"") for value in by_key[b'{"id":1}']]
    assert (update["op"], update["before"]["n"], update["after"]["n"]) == ("u", 10, 11)
    assert update["source"]["name"] == "lake"
    delete, tombstone = by_key[b'{"id":2}']
    assert json.loads(delete or b"")["op"] == "d"
    assert tombstone is None
