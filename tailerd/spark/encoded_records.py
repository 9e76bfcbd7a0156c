"""Encoded records: what rows of many tables are on their way through one Spark query.

A piece has records of one table, one topic and one commit, in order, none of another piece between
them; what they have in common is said once.

Bytes do not depend on when or how often they are made: a repeated micro-batch gives the same ones.
What a row gives is the Arrow engine's record for it, but for the processing time that the Debezium
envelope tells (`ts_ms`), which is the commit's here. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.change_batch import CHANGE_TYPE, ChangeBatch
from tailerd.records.base import Header, Records
from tailerd.records.json import JsonEncoder
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.routing import (
    TOPIC,
    Destination,
    RoutedRecords,
    Router,
    format_options,
)
from tailerd.sinks.record_formats import TableRecords
from tailerd.spark.given_formats import GivenFormats

PARTITION, KEY, VALUE = "partition", "key", "value"

ENCODED_ARROW: Final = pa.schema(
    [
        pa.field(PARTITION, pa.int32()),
        pa.field(KEY, pa.binary()),
        pa.field(VALUE, pa.binary()),
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    ]
)
"""Of each record: the partition that a column names, null where none does; key, null without one;
value, null for a tombstone, which follows the record of its row and is no row of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPiece:
    """Encoded records of one table, topic and commit; at least one.

    Attributes:
        table: The configured name of the table.
        topic: Where they go; empty where there are no topics.
        version, timestamp_us: Of the commit.
        order: Number of the first record among the table's in the commit; the others count on. In
            a part of a piece that of the piece: all of it is before the pieces behind.
        headers: Of each of them: one value for all, or a column.
        records: With the schema `ENCODED_ARROW`.
        partition: The one they all go to; None where nobody, or a column, has chosen.
        reason: Why they are dead letters; empty where they are none.
    """

    table: str
    topic: str
    version: int
    timestamp_us: int
    order: int
    headers: tuple[Header, ...]
    records: pa.RecordBatch
    partition: int | None = None
    reason: str = ""


class RecordEncoder:
    """Makes the encoded records of one table."""

    def __init__(
        self,
        table: str,
        table_id: str,
        kafka: KafkaSinkConfig | None,
        formats: GivenFormats | None = None,
    ) -> None:
        """Prepare.

        Args:
            table: The configured name.
            table_id: `metaData.id`, which the Debezium envelope tells.
            kafka: How records and topics are made; None gives JSON lines without topics.
            formats: What makes the records, where their schemas are registered.
        """
        self._table, self._table_id = table, table_id
        self._formats = formats
        self._router: Router | None = None
        self._lines = JsonEncoder()
        if kafka is not None:
            self._router = Router(kafka, table)
            self._records = TableRecords(kafka.format, format_options(kafka, table, table_id))

    def encoded(self, batch: ChangeBatch, first_order: int = 0) -> Iterator[RecordPiece]:
        """Yield the records of a batch, those of one topic after those of another.

        Args:
            batch: Rows of one commit.
            first_order: `order` of the first record; the others count on from it.

        Raises:
            ConfigError, SinkRefusedError: A column that chooses key, topic or partition is missing,
                or has a value that chooses none.
            TableError: A value cannot be carried.
        """
        if self._router is None:
            lines = Records(keys=None, values=self._lines.encode(batch))
            if len(lines):
                routed = RoutedRecords(topic="", records=lines, headers=())
                yield self._piece(batch, routed, None, order=first_order)
            return
        destination, records = self._made(batch)
        for routed in self._router.by_topic(batch, records, destination):
            if len(routed.records):
                partition = self._router.named_partitions(batch, routed)
                yield self._piece(batch, routed, partition, order=first_order)
            first_order += len(routed.records)

    def _made(self, batch: ChangeBatch) -> tuple[Destination, Records]:
        """Return where records of a batch go, and the records."""
        if self._formats is None:
            return TOPIC, self._records.records(batch)
        destination, form = self._formats.of_rows(self._table_id, batch.rows.schema)
        return destination, form.records(batch)

    def _piece(
        self,
        batch: ChangeBatch,
        routed: RoutedRecords,
        partition: int | npt.NDArray[np.integer] | None,
        *,
        order: int,
    ) -> RecordPiece:
        records, count = routed.records, len(routed.records)
        is_one = partition is None or isinstance(partition, int)
        columns = {
            PARTITION: pa.nulls(count, pa.int32()) if is_one else pa.array(partition, pa.int32()),
            KEY: pa.nulls(count, pa.binary()) if records.keys is None else records.keys,
            VALUE: records.values,
            CHANGE_TYPE: records.of_rows(batch.change_types()),
        }
        return RecordPiece(
            table=self._table,
            topic=routed.topic,
            version=batch.version,
            timestamp_us=batch.timestamp_us,
            order=order,
            headers=routed.headers,
            reason=routed.reason,
            records=pa.RecordBatch.from_arrays(
                [columns[field.name].cast(field.type) for field in ENCODED_ARROW],
                schema=ENCODED_ARROW,
            ),
            partition=partition if isinstance(partition, int) else None,
        )
