"""Encoded records written down row by row, with what tests compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tailerd.records.base import Header
from tailerd.spark.encoded_records import ENCODED_ARROW, RecordPiece

Row = dict[str, Any]
"""`table`, `topic`, `partition` (that a column names), `key`, `value`, `headers` (name and value),
`_change_type`, `_commit_version`, `_commit_timestamp` (microseconds), `_order`; of dead letters
also `reason`."""


def piece_of(rows: Sequence[Row]) -> RecordPiece:
    """Return rows of one table, topic and commit, in order, as a piece."""
    first = rows[0]
    columns = [{name: row[name] for name in ENCODED_ARROW.names} for row in rows]
    return RecordPiece(
        table=first["table"],
        topic=first["topic"],
        version=first["_commit_version"],
        timestamp_us=first["_commit_timestamp"],
        order=first["_order"],
        headers=tuple(Header(name=name, value=value) for name, value in first["headers"]),
        records=pa.RecordBatch.from_pylist(columns, schema=ENCODED_ARROW),
        partition=0 if first.get("reason") else None,
        reason=first.get("reason", ""),
    )


def rows_of(piece: RecordPiece) -> list[Row]:
    """Return the rows of a piece."""
    return [
        {
            "table": piece.table,
            "topic": piece.topic,
            "headers": [(each.name, value_at(each, number)) for each in piece.headers],
            "_commit_version": piece.version,
            "_commit_timestamp": piece.timestamp_us,
            "_order": piece.order + number,
            **record,
        }
        for number, record in enumerate(piece.records.to_pylist())
    ]


def value_at(header: Header, number: int) -> bytes | None:
    """Return what a header of a record says, by the record's number."""
    if not isinstance(header.value, pa.Array):
        return header.value
    return bytes(header.value.cast(pa.binary())[number].as_py())
