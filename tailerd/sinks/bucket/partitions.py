"""Hive partitions: the folder of each row, by the values of columns or their dates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import SinkRefusedError
from tailerd.sinks.file.config import column_of, name_of

EPOCH = "epoch"
"""Name of the outermost partition, which every file has."""
_NULL = "__HIVE_DEFAULT_PARTITION__"


def check_columns(rows: pa.Schema, partitions: Sequence[str]) -> None:
    """Check that rows of a schema can be partitioned, and read again with their own values.

    Raises:
        SinkRefusedError: A column is missing, has no text, or has the name of a partition.
    """
    for partition in partitions:
        name = column_of(partition)
        if rows.get_field_index(name) < 0:
            raise SinkRefusedError(
                f"`partition_by` names {name}, and the rows have no such column.",
                remedy="Correct `partition_by`, or add the column to `columns`.",
            )
        is_date, kind = partition != name, rows.field(name).type
        if not (_has_dates(kind) if is_date else _has_texts(kind)):
            raise SinkRefusedError(
                f"`partition_by` names {partition}, but {name} has the type {kind}.",
                remedy="Partition by texts, integers, booleans, dates or timestamps, and use"
                " `date(...)` with dates and timestamps.",
            )
    taken = {EPOCH, *(name_of(each) for each in partitions if each != column_of(each))}
    for name in taken.intersection(rows.names):
        raise SinkRefusedError(
            f"The rows have a column {name}, and readers would take its values from the folder"
            f" {name}=..., which the sink writes.",
            remedy=f"Give the column another name with `rename`, such as `{name}: its_{name}`.",
        )


def split_rows(batch: ChangeBatch, partitions: Sequence[str]) -> Iterator[tuple[str, ChangeBatch]]:
    """Yield the rows of each partition, in their order, with its folder, `a=1/b=2`; "" for none."""
    if not partitions:
        yield "", batch
        return
    labels = [_label(batch.rows.column(column_of(each)), each) for each in partitions]
    folders = pc.binary_join_element_wise(*labels, "/").dictionary_encode()
    numbers = folders.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(numbers, minlength=len(folders.dictionary)))
    start = 0
    for folder, end in zip(folders.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield folder, batch.take(order[start:end])
        start = end


def _label(values: pa.Array, partition: str) -> pa.Array:
    """Return `name=value` of each row, escaped as in URLs."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if partition != column_of(partition):
        values = values.cast(pa.date32(), safe=False)
    found = values.cast(pa.string()).dictionary_encode()
    name = quote(name_of(partition), safe="")
    texts = [f"{name}={quote(each, safe='') or _NULL}" for each in found.dictionary.to_pylist()]
    labels = pa.array(texts, pa.string()).take(found.indices)
    return pc.fill_null(labels, f"{name}={_NULL}")


def _has_dates(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _has_texts(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_text or types.is_integer(kind) or types.is_boolean(kind) or _has_dates(kind))
