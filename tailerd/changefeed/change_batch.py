"""Change rows as Arrow: what reading produces, encoders encode and sinks deliver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import RowPositions

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)

TYPE = b"tailerd.type"
"""Name of the field metadata with a type that Arrow does not have."""

VARIANT_FIELD = {TYPE: b"variant"}
"""Metadata of an Arrow field struct<metadata: binary, value: binary> that is a Delta variant."""

FIELD_ID = b"PARQUET:field_id"
"""Key of the metadata of an Arrow field: its stable id, as text."""
COLUMN_ID = b"tailerd.column_id"
"""The same for tables whose ids are not numbers of fields in records: only versions compare it."""
COMMENT = b"comment"
"""Key of the metadata of an Arrow field: the column's comment, UTF-8."""
HIDDEN = b"tailerd.hidden"
"""Key of the metadata of a column that only keys, topics and partitions are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """Rows of one commit (or snapshot) under one schema.

    Attributes:
        rows: The table's columns by their logical names, in schema order. Timestamps are
            `timestamp[us, UTC]` or `timestamp[us]`; a variant is a struct marked by
            `VARIANT_FIELD`. Fields have `FIELD_ID` and `COMMENT` if the table has them. No change
            columns: they are constants, kept separately.
        change_type: One change for all rows, or an array of the same length: strings, or a
            dictionary of them, as readers return.
        version, timestamp_us: Commit version and timestamp (microseconds since the epoch, UTC).
        change_source: How the rows were found.
        positions: Their positions in the commit, from which row ids are derived. Task readers
            always set it; None only for rows of other origin.
    """

    rows: pa.RecordBatch
    change_type: ChangeType | pa.Array
    version: Version
    timestamp_us: int
    change_source: ChangeSourceKind
    positions: RowPositions | None = None

    @property
    def num_rows(self) -> int:
        """Number of change rows."""
        return int(self.rows.num_rows)

    @property
    def size_bytes(self) -> int:
        """Bytes of Arrow memory the rows refer to."""
        return int(self.rows.get_total_buffer_size())

    def take(self, numbers: npt.NDArray[np.int64]) -> Self:
        """Return the rows with these numbers, in that order."""
        requested = pa.array(numbers)
        kinds = self.change_type
        return replace(
            self,
            rows=self.rows.take(requested),
            change_type=kinds if isinstance(kinds, ChangeType) else kinds.take(requested),
            positions=self.positions and self.positions.take(numbers),
        )

    def slice(self, start: int, count: int) -> Self:
        """Return `count` rows from `start` on, without copying."""
        kinds = self.change_type
        return replace(
            self,
            rows=self.rows.slice(start, count),
            change_type=kinds if isinstance(kinds, ChangeType) else kinds.slice(start, count),
            positions=self.positions and self.positions.slice(start, count),
        )

    def ids(self) -> pa.Array | None:
        """Return the id of each row, `string`: the same in every run; None without positions."""
        return None if self.positions is None else self.positions.ids(self.version, self.num_rows)

    def change_types(self) -> pa.Array:
        """Return `_change_type` of each row as a string array."""
        if isinstance(self.change_type, ChangeType):
            return pa.repeat(pa.scalar(self.change_type.value, pa.string()), self.num_rows)
        if pa.types.is_dictionary(self.change_type.type):
            return self.change_type.dictionary_decode().cast(pa.string())
        return self.change_type

    def count_changes(self) -> dict[str, int]:
        """Return the number of rows of each change."""
        if isinstance(self.change_type, ChangeType):
            return {self.change_type.value: self.num_rows}
        return count_values(self.change_type)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows with `_change_type`, `_commit_version`, `_commit_timestamp` appended."""
        count = self.num_rows
        timestamp = pa.scalar(self.timestamp_us, pa.timestamp("us", tz="UTC"))
        rows = value_rows(self.rows)
        arrays = [
            *rows.columns,
            self.change_types(),
            pa.repeat(pa.scalar(self.version, pa.int64()), count),
            pa.repeat(timestamp, count),
        ]
        schema = with_change_columns(rows.schema)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def count_values(texts: pa.Array) -> dict[str, int]:
    """Return how often each text occurs."""
    pairs = pc.value_counts(texts).to_pylist()
    return {str(pair["values"]): int(pair["counts"]) for pair in pairs}


def join_columns(arrays: Sequence[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Return `count` rows of columns; there may be no column, if an older version lacks them all.

    A batch without columns must not be pickled: PyArrow 26 loses its row count.
    """
    if arrays:
        return pa.RecordBatch.from_arrays(list(arrays), schema=schema)
    # Without columns only a struct keeps the row count.
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))


def select_by_name(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return columns of rows, in the order of their names; there may be none."""
    schema = pa.schema([rows.schema.field(name) for name in names])
    return join_columns([rows.column(name) for name in names], schema, rows.num_rows)


def is_hidden(field: pa.Field) -> bool:
    """Return whether a column is not a part of values."""
    metadata = field.metadata
    return metadata is not None and HIDDEN in metadata


def value_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns that are a part of values."""
    if not any(map(is_hidden, schema)):
        return schema
    return pa.schema([field for field in schema if not is_hidden(field)])


def value_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns that are a part of values."""
    schema = value_schema(rows.schema)
    return rows if len(schema) == rows.num_columns else select_by_name(rows, schema.names)


def with_change_columns(schema: pa.Schema) -> pa.Schema:
    """Return `schema` followed by the three change columns."""
    return pa.schema(
        [
            *schema,
            pa.field(CHANGE_TYPE, pa.string(), nullable=False),
            pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
            pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
        ]
    )
