"""Encoded records: the one schema in which rows of many tables go through one Spark query.

| column | meaning |
|---|---|
| `table` | the configured name of the table |
| `topic` | where the record goes; empty where there are no topics |
| `partition` | the partition that configuration or a column names; null: the key chooses |
| `key` | null: a record without a key |
| `value` | null: a tombstone, which follows the record of its row and is no row of its own |
| `headers` | of the record; null: none |
| `_change_type`, `_commit_version`, `_commit_timestamp` | of the row |
| `_order` | order of a table's records within one commit; across commits, the version is it |

Bytes do not depend on when or how often they are made: a repeated micro-batch gives the same ones.
What a row gives is the Arrow engine's record for it, but for the processing time that the Debezium
envelope tells (`ts_ms`), which is the commit's here. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailerd.changefeed.change_batch import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeBatch,
)
from tailerd.encoding.formats import record_format
from tailerd.encoding.json import JsonEncoder
from tailerd.encoding.record_layout import Header
from tailerd.encoding.records import FormatOptions, Records
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.routing import Router
from tailerd.spark.arrow_schema import declared_schema

TABLE, TOPIC, PARTITION = "table", "topic", "partition"
KEY, VALUE, HEADERS, ORDER = "key", "value", "headers", "_order"

ENCODED_SCHEMA: Final = StructType(
    [
        StructField(TABLE, StringType(), False),
        StructField(TOPIC, StringType(), False),
        StructField(PARTITION, IntegerType(), True),
        StructField(KEY, BinaryType(), True),
        StructField(VALUE, BinaryType(), True),
        StructField(
            HEADERS,
            ArrayType(
                StructType(
                    [
                        StructField("key", StringType(), False),
                        StructField("value", BinaryType(), True),
                    ]
                ),
                False,
            ),
            True,
        ),
        StructField(CHANGE_TYPE, StringType(), False),
        StructField(COMMIT_VERSION, LongType(), False),
        StructField(COMMIT_TIMESTAMP, TimestampType(), False),
        StructField(ORDER, LongType(), False),
    ]
)
"""What the source of many tables gives, as Spark has it."""

ENCODED_ARROW: Final[pa.Schema] = declared_schema(ENCODED_SCHEMA)
"""The same as Arrow has it; batches have it exactly."""


class RecordEncoder:
    """Makes the encoded records of one table."""

    def __init__(self, table: str, table_id: str, kafka: KafkaSinkConfig | None) -> None:
        """Prepare.

        Args:
            table: The configured name.
            table_id: `metaData.id`, which the Debezium envelope tells.
            kafka: How records and topics are made; None gives JSON lines without topics.
        """
        self._table = table
        self._router: Router | None = None
        self._lines = JsonEncoder()
        if kafka is not None:
            self._router = Router(kafka, table)
            self._format = record_format(
                kafka.format,
                FormatOptions(
                    name=kafka.topic_prefix,
                    table=table,
                    table_id=table_id,
                    key=kafka.key,
                    decimals=kafka.decimals,
                    tombstones=kafka.tombstones,
                    schemas=kafka.schemas,
                ),
            )

    def encoded(self, batch: ChangeBatch, first_order: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the records of a batch, those of one topic after those of another.

        Args:
            batch: Rows of one commit.
            first_order: `_order` of the first record; the others count on from it.

        Raises:
            ConfigError, SinkRefusedError: A column that chooses key, topic or partition is missing,
                or has a value that chooses none.
            TableError: A value cannot be carried.
        """
        if self._router is None:
            lines = Records(keys=None, values=self._lines.encode(batch))
            yield self._rows(batch, lines, topic="", partition=None, headers=(), order=first_order)
            return
        records = self._format.records(batch)
        headers = self._router.headers_of(batch)
        for topic, part in self._router.by_topic(batch, records):
            yield self._rows(
                batch,
                part,
                topic=topic,
                partition=self._router.named_partitions(batch, part),
                headers=headers,
                order=first_order,
            )
            first_order += len(part)

    def _rows(
        self,
        batch: ChangeBatch,
        records: Records,
        *,
        topic: str,
        partition: int | npt.NDArray[np.integer] | None,
        headers: tuple[Header, ...],
        order: int,
    ) -> pa.RecordBatch:
        count = len(records)
        timestamp = pa.scalar(batch.timestamp_us, pa.timestamp("us", tz="UTC"))
        columns = {
            TABLE: pa.repeat(self._table, count),
            TOPIC: pa.repeat(topic, count),
            PARTITION: _numbers(partition, count),
            KEY: pa.nulls(count, pa.binary()) if records.keys is None else records.keys,
            VALUE: records.values,
            HEADERS: _headers(headers, count),
            CHANGE_TYPE: records.of_rows(batch.change_types()),
            COMMIT_VERSION: pa.repeat(pa.scalar(int(batch.version), pa.int64()), count),
            COMMIT_TIMESTAMP: pa.repeat(timestamp, count),
            ORDER: pa.array(np.arange(order, order + count, dtype=np.int64)),
        }
        arrays = [columns[field.name].cast(field.type) for field in ENCODED_ARROW]
        return pa.RecordBatch.from_arrays(arrays, schema=ENCODED_ARROW)


def _numbers(partition: int | npt.NDArray[np.integer] | None, count: int) -> pa.Array:
    if partition is None:
        return pa.nulls(count, pa.int32())
    if isinstance(partition, int):
        return pa.repeat(pa.scalar(partition, pa.int32()), count)
    return pa.array(partition, pa.int32())


def _headers(headers: tuple[Header, ...], count: int) -> pa.Array:
    kind = ENCODED_ARROW.field(HEADERS).type
    if not headers:
        return pa.nulls(count, kind)
    one = pa.array([[{"key": each.name, "value": each.value} for each in headers]], kind)
    return one.take(pa.array(np.zeros(count, dtype=np.int64)))
