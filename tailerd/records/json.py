"""One JSON object per change row: the table's columns, then the change columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from tailerd.changefeed.change_batch import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeBatch,
    value_rows,
)
from tailerd.changefeed.change_task import ChangeType
from tailerd.records.json_columns import ColumnTexts, column_texts, join_pieces, object_pieces
from tailerd.records.json_rows import object_texts
from tailerd.records.json_text import quote_text, timestamp_text
from tailerd.records.record_parts import RowPart, encode_in_parts, lines_in_parts

DecimalStyle = Literal["string", "number"]

MAX_ROWS_OF_ROW_PATH = 100
"""Up to this many rows, pure Python is faster than kernels; measured on plain columns."""
MAX_BYTES_OF_ROW_PATH = 64 * 1024
"""A batch with few rows but more bytes, such as long lists, also uses kernels."""


class JsonEncoder:
    """Encodes rows as `tail --format jsonl` prints them.

    Args:
        decimals: `string` keeps every digit in any reader; `number` is the bare number.
        columns: The table's columns to write, in this order; None writes all in schema order. A
            name missing in the batch's schema is written as null, because a column that was added
            later is null before. The caller validates names from users.
    """

    def __init__(
        self, *, decimals: DecimalStyle = "string", columns: Sequence[str] | None = None
    ) -> None:
        self._quote_decimals = decimals == "string"
        self._columns = None if columns is None else tuple(columns)

    def encode(self, batch: ChangeBatch) -> pa.Array:
        """Return one JSON object per row, in the order of the rows."""
        return encode_in_parts(RowPart(batch), lambda part: self._texts(part.batch, ""))

    def encode_lines(self, batch: ChangeBatch) -> bytes:
        r"""Return the objects as lines, each ended by `\n`."""
        return lines_in_parts(RowPart(batch), lambda part: self._texts(part.batch, "\n"))

    def _texts(self, batch: ChangeBatch, end: str) -> pa.Array:
        arrays, fields = self._select_columns(value_rows(batch.rows))
        commit = f',"{COMMIT_VERSION}":{batch.version},"{COMMIT_TIMESTAMP}":"'
        tail = f'{commit}{timestamp_text(batch.timestamp_us)}"}}{end}'
        head = f'"{CHANGE_TYPE}":' if not fields else f',"{CHANGE_TYPE}":'
        change = batch.change_type
        if is_small(batch):
            bodies = object_texts(
                arrays, fields, batch.num_rows, quote_decimals=self._quote_decimals
            )
            return pa.array(_close_bodies(bodies, head, change, tail), pa.string())
        kind_piece: str | ColumnTexts
        if isinstance(change, ChangeType):
            kind_piece = quote_text(change.value)
        else:
            kind_piece = column_texts(
                change, pa.field(CHANGE_TYPE, pa.string()), quote_decimals=True
            )
        pieces = object_pieces(arrays, fields, quote_decimals=self._quote_decimals)
        return join_pieces(["{", *pieces, head, kind_piece, tail], batch.num_rows)

    def _select_columns(self, rows: pa.RecordBatch) -> tuple[list[pa.Array], list[pa.Field]]:
        if self._columns is None:
            return rows.columns, list(rows.schema)
        arrays, fields = [], []
        for name in self._columns:
            if name in CHANGE_COLUMNS:
                continue
            index = rows.schema.get_field_index(name)
            arrays.append(pa.nulls(rows.num_rows) if index < 0 else rows.column(index))
            fields.append(pa.field(name, pa.null()) if index < 0 else rows.schema.field(index))
        return arrays, fields


def _close_bodies(
    bodies: list[str], head: str, change: ChangeType | pa.Array, tail: str
) -> list[str]:
    if isinstance(change, ChangeType):
        tail = f"{head}{quote_text(change.value)}{tail}"
        return [f"{{{body}{tail}" for body in bodies]
    if pa.types.is_dictionary(change.type):
        change = change.dictionary_decode()
    kinds = change.to_pylist()
    # Not only the protocol's four: any change type in a change file is passed through.
    tails = {kind: f"{head}{quote_text(kind)}{tail}" for kind in set(kinds)}
    return [f"{{{body}{tails[kind]}" for body, kind in zip(bodies, kinds, strict=True)]


def is_small(batch: ChangeBatch) -> bool:
    """Return whether the row-by-row path is faster for this batch."""
    return batch.num_rows <= MAX_ROWS_OF_ROW_PATH and batch.rows.nbytes <= MAX_BYTES_OF_ROW_PATH
