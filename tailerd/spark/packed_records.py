"""Encoded records on their way through Spark: many of them in one row, as Arrow's own bytes.

Spark's Java takes rows one by one, and a row of ten columns costs it several times what reading and
encoding it costs. So it gets one row for each piece of encoded records, and only the columns that
it needs to bring pieces into place. Pure.

A piece has records of one table, one topic and one commit, in the order of `_order`, none of
another piece between them: pieces in the order of `_commit_version` and `_order` are records in
that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tailerd.changefeed.change_batch import COMMIT_VERSION
from tailerd.spark.arrow_schema import declared_schema
from tailerd.spark.encoded_records import ENCODED_ARROW, ORDER, PARTITION, TABLE, TOPIC

RECORDS: Final = "records"
PIECE_BYTES: Final = 128 * 1024
"""A larger piece is cut: Java keeps objects of half a megabyte apart, which costs it much time."""
_BYTES_AT_ONCE = 1024 * 1024
_ROWS_AT_ONCE = 256

PACKED_SCHEMA: Final = StructType(
    [
        StructField(TABLE, StringType(), False),
        StructField(TOPIC, StringType(), False),
        StructField(PARTITION, IntegerType(), True),
        StructField(COMMIT_VERSION, LongType(), False),
        StructField(ORDER, LongType(), False),
        StructField(RECORDS, BinaryType(), False),
    ]
)
"""`partition` is the one all records of the piece go to, null where nobody has chosen yet;
`_commit_version` and `_order` are those of the first record."""

PACKED_DDL: Final = (
    f"{TABLE} string, {TOPIC} string, {PARTITION} int, {COMMIT_VERSION} bigint, {ORDER} bigint,"
    f" {RECORDS} binary"
)
"""The same, as Spark writes it."""

_PACKED_ARROW: Final[pa.Schema] = declared_schema(PACKED_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPiece:
    """Encoded records of one table, topic and commit; at least one.

    Attributes:
        table, topic: What they all have.
        records: With the schema `ENCODED_ARROW`.
        partition: Where they all go; None where nobody has chosen yet.
    """

    table: str
    topic: str
    records: pa.RecordBatch
    partition: int | None = None


def piece_of(records: pa.RecordBatch) -> RecordPiece:
    """Return records of one table, topic and commit as a piece."""
    return RecordPiece(
        table=records.column(TABLE)[0].as_py(),
        topic=records.column(TOPIC)[0].as_py(),
        records=records,
    )


def packed(pieces: Iterable[RecordPiece]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces, in their order, in batches of about a megabyte."""
    rows: list[dict[str, object]] = []
    size = 0
    for piece in pieces:
        for records in _cut(piece.records):
            body = records.serialize()
            rows.append(
                {
                    TABLE: piece.table,
                    TOPIC: piece.topic,
                    PARTITION: piece.partition,
                    COMMIT_VERSION: records.column(COMMIT_VERSION)[0].as_py(),
                    ORDER: records.column(ORDER)[0].as_py(),
                    RECORDS: body.to_pybytes(),
                }
            )
            size += body.size
            if size >= _BYTES_AT_ONCE or len(rows) == _ROWS_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=_PACKED_ARROW)
                rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=_PACKED_ARROW)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[RecordPiece]:
    """Yield the pieces in batches of rows, in their order."""
    for batch in batches:
        columns = (batch.column(name) for name in (TABLE, TOPIC, PARTITION, RECORDS))
        for table, topic, partition, body in zip(*columns, strict=True):
            yield RecordPiece(
                table=table.as_py(),
                topic=topic.as_py(),
                # A copy: within the column, numbers would not lie where numbers must.
                records=pa.ipc.read_record_batch(pa.py_buffer(body.as_py()), ENCODED_ARROW),
                partition=partition.as_py(),
            )


def _cut(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if records.num_rows <= 1 or records.nbytes <= PIECE_BYTES:
        yield records
        return
    middle = records.num_rows // 2
    yield from _cut(records.slice(0, middle))
    yield from _cut(records.slice(middle))
