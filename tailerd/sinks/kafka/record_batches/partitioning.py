"""Assign a partition to each record, as Kafka's own producers do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import ConfigError
from tailerd.sinks.kafka.record_batches.murmur2 import murmur2

Partitions = npt.NDArray[np.int32]

RUN_RECORDS = 1024
"""Number of consecutive records without a key that get the same partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Partitions of some records.

    Attributes:
        partitions: One per record, from 0.
        num_keyless: Number of records without a key; the caller adds it to its counter.
    """

    partitions: Partitions
    num_keyless: int


def assign_partitions(
    keys: pa.Array | None, num_records: int, num_partitions: int, *, keyless_before: int = 0
) -> Assignment:
    """Assign partitions by key as Kafka's default partitioner does: equal keys, equal partitions.

    Records without a key are distributed round robin, in runs of `RUN_RECORDS`: this makes few
    large batches instead of many small ones, and depends only on the counter.

    Args:
        keys: `binary` or `large_binary`; None if no record has a key.
        num_records: Number of records.
        num_partitions: Number of the topic's partitions; at least 1.
        keyless_before: Number of earlier records without a key.
    """
    if keys is None:
        partitions = _in_turns(num_records, num_partitions, keyless_before)
        return Assignment(partitions=partitions, num_keyless=num_records)
    hashes = murmur2(keys) & np.uint32(0x7FFFFFFF)
    partitions = (hashes % np.uint32(num_partitions)).astype(np.int32)
    if keys.null_count:
        is_keyless = keys.is_null().to_numpy(zero_copy_only=False)
        partitions[is_keyless] = _in_turns(keys.null_count, num_partitions, keyless_before)
    return Assignment(partitions=partitions, num_keyless=int(keys.null_count))


def _in_turns(count: int, num_partitions: int, before: int) -> Partitions:
    places = np.arange(before, before + count, dtype=np.int64)
    return (places // RUN_RECORDS % num_partitions).astype(np.int32)


def explicit_partitions(numbers: pa.Array, num_partitions: int, *, column: str) -> Partitions:
    """Return the partitions given by a column.

    Raises:
        ConfigError: The column is not an integer column, or a value is null or not a partition of
            the topic.
    """
    if not pa.types.is_integer(numbers.type):
        raise ConfigError(
            f"The column {column!r} cannot choose the partition, because its type is"
            f" {numbers.type}.",
            remedy="Name a column of integers.",
        )
    is_partition = pc.and_(
        pc.greater_equal(numbers, pa.scalar(0, numbers.type)),
        pc.less(numbers.cast(pa.decimal128(20, 0)), num_partitions),
    ).fill_null(False)
    if not pc.all(is_partition).as_py() and len(numbers):
        wrong = numbers.filter(pc.invert(is_partition))[0].as_py()
        raise ConfigError(
            f"The column {column!r} says partition {wrong}, and the topic has the partitions 0 to"
            f" {num_partitions - 1}.",
            remedy="Correct the column, or give the topic more partitions.",
        )
    return np.asarray(numbers.cast(pa.int32()).to_numpy(zero_copy_only=False), dtype=np.int32)
