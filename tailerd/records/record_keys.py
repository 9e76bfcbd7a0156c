"""Encode record keys as a JSON object of the key columns, like Debezium's converter."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.records.json import is_small
from tailerd.records.json_columns import joined, object_pieces
from tailerd.records.json_rows import object_texts
from tailerd.records.record_parts import RowPart, encode_in_parts
from tailerd.records.update_pairs import key_columns


def record_keys(
    batch: ChangeBatch,
    key: Sequence[str],
    *,
    quote_decimals: bool,
    opening: str = "",
    closing: str = "",
) -> pa.Array:
    """Return `{"name":value,...}` for each row; equal keys have equal bytes.

    Each key is between `opening` and `closing`.

    Raises:
        ConfigError: A key column is not among the table's columns.
    """

    def texts(part: RowPart) -> pa.Array:
        arrays, fields = key_columns(part.batch.rows, key)
        count = part.batch.num_rows
        head, tail = f"{opening}{{", f"}}{closing}"
        if is_small(part.batch):
            bodies = object_texts(arrays, fields, count, quote_decimals=quote_decimals)
            return pa.array([f"{head}{body}{tail}" for body in bodies], pa.string())
        pieces = object_pieces(arrays, fields, quote_decimals=quote_decimals)
        return joined([head, *pieces, tail], count)

    return encode_in_parts(RowPart(batch), texts)
