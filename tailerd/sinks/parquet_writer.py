"""Open Parquet files for delivered rows, and choose the encoding of each column."""

from __future__ import annotations

import io
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_SAMPLE_ROWS = 8192
_FEWEST_ROWS = 256
"""Below that the encoding matters little, and the sample says little."""


def open_writer(target: IO[bytes], rows: pa.Table, *, compression: str) -> pq.ParquetWriter:
    """Return a writer of rows such as these, which the caller writes first.

    A dictionary of values that do not repeat takes half of the time of writing, and makes files
    larger after compression. So columns have one unless most values of the sample differ; text
    gains from one also where few values repeat.
    """
    plain = {
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if not _may_have_parts(column.type) and _differ(column.slice(0, _SAMPLE_ROWS))
    }
    paths = [path for path in _leaf_paths(rows.schema) if path not in plain] if plain else True
    return pq.ParquetWriter(target, rows.schema, compression=compression, use_dictionary=paths)


def _differ(sample: pa.ChunkedArray) -> bool:
    """Return whether most values are different ones."""
    if len(sample) < _FEWEST_ROWS or pa.types.is_null(sample.type):
        return False
    most = 0.5 if pa.types.is_primitive(sample.type) else 0.9
    return len(pc.unique(sample)) > most * len(sample)


def _may_have_parts(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)


def _leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the columns as Parquet names them: those of nested columns one by one."""
    if not any(_may_have_parts(field.type) for field in schema):
        return list(schema.names)
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    leaves = pq.ParquetFile(empty).schema
    return [leaves.column(number).path for number in range(len(leaves))]
