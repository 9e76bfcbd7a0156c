"""Which topic and partition records go to."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.encoding.formats import record_format
from tailerd.encoding.records import FormatOptions
from tailerd.errors import ConfigError, SinkRefusedError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.outgoing import Outgoing
from tailerd.sinks.kafka.routing import Router, TopicShape

SECTION = {"kind": "kafka", "bootstrap_servers": ["127.0.0.1:9092"], "topic": "changes"}


def batch(**columns: Any) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.record_batch({name: pa.array(values) for name, values in columns.items()}),
        change_type=ChangeType.INSERT,
        version=Version(5),
        timestamp_us=1_000_000,
        change_source=ChangeSourceKind.FILES,
    )


def routed(rows: ChangeBatch, partitions: int = 4, **fields: Any) -> list[Outgoing]:
    config = KafkaSinkConfig.model_validate({**SECTION, **fields})
    options = FormatOptions(name="n", table="orders", key=config.key)
    records = record_format("json", options).records(rows)
    shape = TopicShape(partitions=partitions, max_bytes=1000)
    return list(Router(config, "orders").route(rows, records, lambda _: shape))


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
    ("rows", "fields", "error", "said"),
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
    rows: ChangeBatch, fields: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        routed(rows, **fields)


def test_records_without_a_key_fill_all_partitions_over_time() -> None:
    [out] = routed(batch(id=list(range(10_000))), partitions=3)
    assert not isinstance(out.partitions, int)
    assert set(out.partitions.tolist()) == {0, 1, 2}
