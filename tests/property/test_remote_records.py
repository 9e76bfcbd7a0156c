"""Records that an engine's process sends are what the format and the routes say, one by one."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.records.base import FormatOptions, Header
from tailerd.records.json import JsonEncoder
from tailerd.sinks.kafka import remote_writer
from tailerd.sinks.kafka.acknowledgements import SendWindow
from tailerd.sinks.kafka.client_internals import SharedTransaction
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.remote_writer import IdleProducer, RecordsWriter
from tailerd.sinks.kafka.routing import Router, TopicShape
from tailerd.sinks.kafka.topics import TopicFacts
from tailerd.sinks.record_formats import record_format
from tests.contracts.test_sink import offset
from tests.doubles.kafka_client import ClientDouble
from tests.property.test_records import Made, batches
from tests.records.batches import change_batch

BASE: dict[str, Any] = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9092"}
SHAPE = TopicShape(partitions=4, max_bytes=1 << 20)
NOW_US = 2_000_000_000_000_000
TRANSACTION = SharedTransaction(transactional_id="x", producer_id=7, epoch=3, sequences={})

Sent = list[tuple[str, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]


def sent_elsewhere(config: KafkaSinkConfig, topics: list[str], *given_batches: ChangeBatch) -> Sent:
    """Return topic, partition, key, value and headers of each record, in order."""
    client = ClientDouble("x" if config.is_exactly_once else None, partitions=4)
    facts = tuple(TopicFacts(name=name, partitions=4, replicas=1) for name in topics)
    writer = RecordsWriter(
        config=config,
        pipeline=PipelineIdentity(table="orders"),
        start=offset(3),
        end=offset(4),
        facts=facts,
        window=SendWindow(1 << 20, seconds=1.0),
        transaction=TRANSACTION if config.is_exactly_once else None,
    )
    opened = IdleProducer(connection=Connection(config), client=client.client)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(remote_writer, "_open_producer", lambda *_: opened)
        patches.setattr(remote_writer, "_idle", {})
        patches.setattr(remote_writer, "_schemas", OrderedDict())
        patches.setattr("tailerd.sinks.kafka.session.time.time_ns", lambda: NOW_US * 1000)
        pickle.loads(pickle.dumps(writer))(iter(given_batches))
    return client.sent


def value_at(header: Header, number: int) -> bytes | None:
    """Return what a header of a record says, by the record's number."""
    if not isinstance(header.value, pa.Array):
        return header.value
    return bytes(header.value.cast(pa.binary())[number].as_py())


@settings(max_examples=100, deadline=None)
@given(
    batches(),
    st.integers(0, 2),
    st.sampled_from(["json", "debezium"]),
    st.sampled_from(["at-least-once", "exactly-once"]),
)
def test_a_batch_gives_the_records_that_its_format_makes_of_it(
    made: Made, key_columns: int, name: str, delivery: str
) -> None:
    batch, _, _ = made
    key = batch.rows.schema.names[:key_columns]
    config = KafkaSinkConfig.model_validate(
        {
            **BASE,
            "topic": "{table}.changes",
            "key": key,
            "format": name,
            "delivery": delivery,
            "headers": {"v": "{commit_version}"},
        }
    )
    options = FormatOptions(
        name="tailerd",
        table="orders",
        table_id=offset(3).table_id,
        key=tuple(key),
        # Readers need them only where a record may come twice.
        has_ids=delivery == "at-least-once",
    )
    records = record_format(name, options).records(batch, now_us=NOW_US)
    expected = [
        (each.topic, record_key, value, [(h.name, value_at(h, number)) for h in each.headers])
        for each in Router(config, "orders").route(
            batch, records, lambda _: SHAPE, now_ms=NOW_US // 1000
        )
        for number, (record_key, value) in enumerate(
            zip(
                each.records.keys.to_pylist() if each.records.keys else [None] * len(each.records),
                each.records.values.to_pylist(),
                strict=True,
            )
        )
    ]
    sent = sent_elsewhere(config, ["orders.changes"], batch)
    # Each key has one partition, in which its records keep their order.
    assert len(
        {(record_key, location) for _, location, record_key, _, _ in sent if record_key}
    ) == len({record_key for _, _, record_key, _, _ in sent if record_key})
    for record_key in {each[1] for each in expected}:
        found = [(t, k, value, headers) for t, _, k, value, headers in sent if k == record_key]
        assert found == [each for each in expected if each[1] == record_key]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=9))
@settings(deadline=None)
def test_columns_choose_topic_and_partition_and_order_holds_in_each(
    given_rows: list[tuple[str, int]],
) -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"where": w, "shard": s, "n": n} for n, (w, s) in enumerate(given_rows)],
        schema=pa.schema({"where": pa.string(), "shard": pa.int64(), "n": pa.int64()}),
    )
    config = KafkaSinkConfig.model_validate(
        {**BASE, "topic": "t.{column:where}", "partition": {"column": "shard"}}
    )
    batch = change_batch(rows, ["insert"] * len(given_rows))
    lines = JsonEncoder().encode_lines(batch).splitlines()
    sent = sent_elsewhere(config, ["t.a", "t.b"], batch)
    for where in "ab":
        for shard in range(4):
            mine = [value for topic, p, _, value, _ in sent if (topic, p) == (f"t.{where}", shard)]
            chosen = zip(given_rows, lines, strict=True)
            assert mine == [line for location, line in chosen if location == (where, shard)]
    assert len(sent) == len(given_rows)


def test_an_update_that_changes_topic_or_partition_removes_the_row_where_it_was() -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1, 1], "where": ["eu", "us"], "shard": [0, 1]})
    batch = change_batch(rows, ["update_preimage", "update_postimage"])
    for locations, topics, expected in (
        (
            {"topic": "t.{column:where}"},
            ["t.eu", "t.us"],
            [("t.eu", False), ("t.eu", True), ("t.us", False)],
        ),
        (
            {"topic": "t", "partition": {"column": "shard"}},
            ["t"],
            [("t", False), ("t", True), ("t", False)],
        ),
    ):
        config = KafkaSinkConfig.model_validate(
            {**BASE, **locations, "key": ["id"], "format": "debezium"}
        )
        sent = sent_elsewhere(config, topics, batch)
        assert [(topic, value is None) for topic, _, _, value, _ in sent] == expected
        if len(topics) == 1:
            assert [partition for _, partition, *_ in sent] == [0, 0, 1]
