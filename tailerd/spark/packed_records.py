"""Encoded records on their way through Spark: many of them in one row, as Arrow's own bytes.

Spark's Java takes rows one by one, and a row of ten columns costs it several times what reading and
encoding it costs. So it gets one row for each piece of encoded records, with only the columns that
it needs to bring pieces into place: in the order of `_commit_version` and `_order`, pieces are
records in that order. The bytes are compressed: they are copied about ten times before they are
sent, and each copy costs as much as LZ4. Pure.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
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
from tailerd.records.base import Header
from tailerd.spark.arrow_schema import declared_schema
from tailerd.spark.encoded_records import ENCODED_ARROW, PARTITION, RecordPiece

TABLE, TOPIC, ORDER, COMMON, RECORDS = "table", "topic", "_order", "common", "records"
PIECE_BYTES: Final = 384 * 1024
"""A larger piece is cut: Java keeps objects of half a megabyte apart, which costs it much time."""
_BYTES_AT_ONCE = 256 * 1024
_ROWS_AT_ONCE = 256
_CODEC = "lz4_raw"

PACKED_SCHEMA: Final = StructType(
    [
        StructField(TABLE, StringType(), False),
        StructField(TOPIC, StringType(), False),
        StructField(PARTITION, IntegerType(), True),
        StructField(COMMIT_VERSION, LongType(), False),
        StructField(ORDER, LongType(), False),
        StructField(COMMON, BinaryType(), False),
        StructField(RECORDS, BinaryType(), False),
    ]
)
"""`_order` is that of the first record; `common` is what else the records have in common, and the
size of `records` before it was compressed."""

_PACKED_ARROW: Final[pa.Schema] = declared_schema(PACKED_SCHEMA)
_Common = tuple[int, tuple[tuple[str, bytes | pa.Array | None], ...], str, int]


def packed(pieces: Iterable[RecordPiece]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces, in their order, in batches of about a quarter of a megabyte."""
    codec = pa.Codec(_CODEC)
    rows: list[dict[str, object]] = []
    size = 0
    for piece in pieces:
        for part in _cut(piece):
            row, row_size = _row(part, codec)
            rows.append(row)
            size += row_size
            if size >= _BYTES_AT_ONCE or len(rows) == _ROWS_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=_PACKED_ARROW)
                rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=_PACKED_ARROW)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[RecordPiece]:
    """Yield the pieces in batches of rows, in their order."""
    codec = pa.Codec(_CODEC)
    for batch in batches:
        for values in zip(*(batch.column(name) for name in PACKED_SCHEMA.names), strict=True):
            table, topic, partition, version, order, common, body = values
            timestamp_us, headers, reason, size = pickle.loads(common.as_py())
            plain = codec.decompress(body.as_buffer(), size)
            yield RecordPiece(
                table=table.as_py(),
                topic=topic.as_py(),
                version=version.as_py(),
                timestamp_us=timestamp_us,
                order=order.as_py(),
                headers=tuple(Header(name=name, value=value) for name, value in headers),
                records=pa.ipc.read_record_batch(plain, ENCODED_ARROW),
                partition=partition.as_py(),
                reason=reason,
            )


def _row(piece: RecordPiece, codec: pa.Codec) -> tuple[dict[str, object], int]:
    """Return the row of a piece, and the size of its records."""
    plain = piece.records.serialize()
    body = codec.compress(plain, asbytes=True)
    headers = tuple((each.name, _alone(each.value)) for each in piece.headers)
    common: _Common = piece.timestamp_us, headers, piece.reason, plain.size
    row = {
        TABLE: piece.table,
        TOPIC: piece.topic,
        PARTITION: piece.partition,
        COMMIT_VERSION: piece.version,
        ORDER: piece.order,
        COMMON: pickle.dumps(common),
        RECORDS: body,
    }
    return row, len(body)


def _alone(value: bytes | pa.Array | None) -> bytes | pa.Array | None:
    """Return a header's value without what it was cut from: pickle would take that along."""
    return pa.concat_arrays([value, value[:0]]) if isinstance(value, pa.Array) else value


def _cut(piece: RecordPiece) -> Iterator[RecordPiece]:
    records = piece.records
    if records.num_rows <= 1 or records.nbytes <= PIECE_BYTES:
        yield piece
        return
    middle = records.num_rows // 2
    rest = records.num_rows - middle
    for start, count in ((0, middle), (middle, rest)):
        headers = tuple(header.slice(start, count) for header in piece.headers)
        part = records.slice(start, count)
        yield from _cut(replace(piece, records=part, headers=headers, order=piece.order + start))
