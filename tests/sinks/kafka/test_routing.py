"""Which topic and partition records go to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.errors import ConfigError, SinkRefusedError
from tailerd.records.base import FormatOptions
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.routing import Router, TopicShape
from tailerd.sinks.record_formats import record_format

SECTION = {"kind": "kafka", "bootstrap_servers": ["127.0.0.1:9092"], "topic": "changes"}


def batch(**columns: Any) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.record_batch({name: pa.array(values) for name, values in columns.items()}),
        change_type=ChangeType.INSERT,
        version=Version(5),
        timestamp_us=1_000_000,
        change_source=ChangeSourceKind.FILES,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )


def routed(
    rows: ChangeBatch,
    partitions: int = 4,
    *,
    retention_ms: int | None = None,
    now_ms: int = 1000,
    **fields: Any,
) -> list[ProduceRequest]:
    config = KafkaSinkConfig.model_validate({**SECTION, **fields})
    options = FormatOptions(
        name="n", table="orders", key=config.key, routed_by=config.routing_columns
    )
    records = record_format(config.format, options).records(rows)
    shape = TopicShape(partitions=partitions, max_bytes=1000, retention_ms=retention_ms)
    router = Router(config, "orders")
    return list(router.route(rows, records, lambda _: shape, now_ms=now_ms))


def test_the_name_of_the_table_makes_the_topic() -> None:
    [out] = routed(batch(id=[1]), topic="lake.{table}")
    assert (out.topic, out.timestamps_ms, len(out.records)) == ("lake.orders", 1000, 1)


def test_each_value_of_a_column_has_its_topic_with_its_rows_in_order() -> None:
    rows = batch(id=[1, 2, 3, 4], kind=["b", "a", "b", "b"])
    found = {
        out.topic: [text.decode()[6] for text in out.records.values.to_pylist()]
        for out in routed(rows, topic="t.{column:kind}")
    }
    assert found == {"t.b": ["1", "3", "4"], "t.a": ["2"]}


@pytest.mark.parametrize(
    ("fields", "old", "new"),
    [
        ({"topic": "t.{column:shard}"}, ("t.0", 0), ("t.1", 0)),
        ({"topic": "t", "partition": {"column": "shard"}}, ("t", 0), ("t", 1)),
    ],
    ids=["topic", "partition"],
)
def test_an_update_of_the_column_that_chooses_removes_the_row_where_it_was(
    fields: dict[str, Any], old: tuple[str, int], new: tuple[str, int]
) -> None:
    images = pa.array(["update_preimage", "update_postimage"])
    rows = replace(batch(id=[1, 1], shard=[0, 1]), change_type=images)
    ops = {
        (out.topic, partition): json.loads(value)["op"] if value else "tombstone"
        for out in routed(rows, **fields, key=["id"], format="debezium")
        for value, partition in zip(
            out.records.values.to_pylist(), number_positions(out), strict=True
        )
    }
    assert ops == {old: "tombstone", new: "c"}


def number_positions(out: ProduceRequest) -> list[int]:
    number = out.partitions
    return [number] * len(out.records) if isinstance(number, int) else number.tolist()


@pytest.mark.parametrize(
    ("rows", "fields", "error", "reported"),
    [
        (batch(id=[1]), {"topic": "{column:kind}"}, ConfigError, "'kind'"),
        (
            batch(id=[1, 2], kind=["a", None]),
            {"topic": "{column:kind}"},
            SinkRefusedError,
            "no value",
        ),
        (
            batch(id=list(range(2000)), kind=[f"k{n}" for n in range(2000)]),
            {"topic": "{column:kind}"},
            ConfigError,
            "more than 1000",
        ),
        (batch(id=[1]), {"partition": 4}, ConfigError, "partitions 0 to 3"),
        (batch(id=["x"]), {"partition": {"column": "id"}}, ConfigError, "integers"),
        (batch(id=[1]), {"partition": {"column": "no"}}, ConfigError, "not in the table"),
    ],
    ids=["no column", "no value", "too many topics", "no partition", "no number", "no shard"],
)
def test_rows_that_belong_nowhere_are_refused(
    rows: ChangeBatch, fields: dict[str, Any], error: type[Exception], reported: str
) -> None:
    with pytest.raises(error, match=reported):
        routed(rows, **fields)


@pytest.mark.parametrize(
    ("value", "reported"),
    [({"a": "x"}, "struct<a: string>"), (["x"], "list<"), (b"\xff", "not text")],
    ids=str,
)
def test_a_column_whose_values_are_no_texts_chooses_no_topic(value: object, reported: str) -> None:
    with pytest.raises(ConfigError, match=f"'c' cannot choose the topic.*{reported}") as raised:
        routed(batch(c=[value]), topic="o.{column:c}")
    assert (
        raised.value.remedy
        == "Choose the topic by a column of texts or numbers, or name one topic."
    )


def test_bytes_that_are_text_choose_the_topic() -> None:
    [out] = routed(batch(c=[b"eu"]), topic="o.{column:c}")
    assert out.topic == "o.eu"


def test_a_value_that_makes_no_topic_is_not_shown() -> None:
    with pytest.raises(
        SinkRefusedError, match=r"'kind' does not choose a topic: with it 'o\."
    ) as raised:
        routed(batch(id=[1], kind=["bob@example.org"]), topic="o.{column:kind}")
    shown: BaseException | None = raised.value
    while shown is not None:
        assert "bob" not in str(shown)
        shown = shown.__cause__


def test_records_without_a_key_fill_all_partitions_over_time() -> None:
    [out] = routed(batch(id=list(range(10_000))), partitions=3)
    assert not isinstance(out.partitions, int)
    assert set(out.partitions.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("retention_ms", [None, 500])
def test_rows_as_old_as_the_topic_keeps_them_are_sent_with_the_time_of_the_commit(
    retention_ms: int | None,
) -> None:
    [out] = routed(batch(id=[1]), retention_ms=retention_ms, now_ms=1500)
    assert out.timestamps_ms == 1000


def test_rows_that_the_topic_would_delete_at_once_are_refused() -> None:
    with pytest.raises(SinkRefusedError, match=r"Version 5 is dated 1970-.*deletes records"):
        routed(batch(id=[1]), retention_ms=500, now_ms=1501)


def test_with_the_time_of_delivery_no_row_is_too_old() -> None:
    [out] = routed(batch(id=[1]), retention_ms=500, now_ms=10**12, timestamp="delivery")
    assert out.timestamps_ms == 10**12
