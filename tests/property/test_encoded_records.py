"""Encoded records are what the Arrow engine would send, record for record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.records.base import FormatOptions
from tailerd.records.json import JsonEncoder
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.routing import Router, TopicShape
from tailerd.sinks.record_formats import record_format
from tailerd.spark.encoded_records import ENCODED_ARROW, RecordEncoder
from tests.property.test_records import Made, batches
from tests.records.batches import change_batch
from tests.unit.spark.record_rows import rows_of, value_at

BASE: dict[str, Any] = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9092"}
SHAPE = TopicShape(partitions=1, max_bytes=1 << 20)


def encoded(config: KafkaSinkConfig | None, batch: ChangeBatch) -> list[dict[str, Any]]:
    parts = list(RecordEncoder("orders", "id-1", config).encoded(batch, first_order=5))
    assert all(part.records.schema.equals(ENCODED_ARROW, check_metadata=True) for part in parts)
    assert all(part.records.num_rows for part in parts)
    rows = [row for part in parts for row in rows_of(part)]
    assert [row["_order"] for row in rows] == list(range(5, 5 + len(rows)))
    assert all(row["_commit_version"] == batch.version for row in rows)
    return rows


@settings(max_examples=100)
@given(batches(), st.integers(0, 2), st.sampled_from(["json", "debezium"]))
def test_a_batch_gives_the_records_that_the_arrow_engine_sends(
    made: Made, key_columns: int, name: str
) -> None:
    batch, _, changes = made
    key = batch.rows.schema.names[:key_columns]
    config = KafkaSinkConfig.model_validate(
        {
            **BASE,
            "topic": "{table}.changes",
            "key": key,
            "format": name,
            "headers": {"v": "{commit_version}"},
        }
    )
    options = FormatOptions(
        name="tailerd", table="orders", table_id="id-1", key=tuple(key), has_ids=True
    )
    records = record_format(name, options).records(batch)
    sent = list(Router(config, "orders").route(batch, records, lambda _: SHAPE, now_ms=0))

    rows = encoded(config, batch)

    wanted = [
        (each.topic, key, value)
        for each in sent
        for key, value in zip(
            each.records.keys.to_pylist() if each.records.keys else [None] * len(each.records),
            each.records.values.to_pylist(),
            strict=True,
        )
    ]
    assert [(row["topic"], row["key"], row["value"]) for row in rows] == wanted
    assert [row["headers"] for row in rows] == [
        [(header.name, value_at(header, number)) for header in each.headers]
        for each in sent
        for number in range(len(each.records))
    ]
    assert all(row["partition"] is None for row in rows)
    places = range(len(rows)) if records.rows is None else records.rows
    assert [row["_change_type"] for row in rows] == [changes[place] for place in places]


@settings(max_examples=50)
@given(batches())
def test_json_lines_are_the_lines_of_the_file_sink(made: Made) -> None:
    batch, _, _ = made
    rows = encoded(None, batch)
    assert b"".join(row["value"] + b"\n" for row in rows) == JsonEncoder().encode_lines(batch)
    assert all(row["topic"] == "" and row["key"] is None for row in rows)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=9))
def test_columns_choose_topic_and_partition_and_order_holds_in_each_topic(
    given_rows: list[tuple[str, int]],
) -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"where": w, "shard": s, "n": n} for n, (w, s) in enumerate(given_rows)],
        schema=pa.schema({"where": pa.string(), "shard": pa.int64(), "n": pa.int64()}),
    )
    config = KafkaSinkConfig.model_validate(
        {**BASE, "topic": "t.{column:where}", "partition": {"column": "shard"}}
    )
    found = encoded(config, change_batch(rows, ["insert"] * len(given_rows)))
    for topic in "ab":
        mine = [row for row in found if row["topic"] == f"t.{topic}"]
        assert [row["partition"] for row in mine] == [s for w, s in given_rows if w == topic]


def test_an_update_that_changes_topic_or_partition_removes_the_row_where_it_was() -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1, 1], "where": ["eu", "us"], "shard": [0, 1]})
    batch = change_batch(rows, ["update_preimage", "update_postimage"])
    for places, wanted in (
        ({"topic": "t.{column:where}"}, [("t.eu", None), ("t.eu", None), ("t.us", None)]),
        ({"topic": "t", "partition": {"column": "shard"}}, [("t", 0), ("t", 0), ("t", 1)]),
    ):
        config = KafkaSinkConfig.model_validate(
            {**BASE, **places, "key": ["id"], "format": "debezium"}
        )
        found = encoded(config, batch)
        assert [(row["topic"], row["partition"]) for row in found] == wanted
        assert [row["value"] is None for row in found] == [False, True, False]
