"""Assign a partition to each record, as Kafka's own producers do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import ConfigError
from tailerd.records.json_leaves import Bytes

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
    indexes = np.arange(before, before + count, dtype=np.int64)
    return (indexes // RUN_RECORDS % num_partitions).astype(np.int32)


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


Hashes = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.int64]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_M32 = np.uint32(_M)

_FEW_ROWS = 24
"""Up to this many keys, pure Python is faster than NumPy kernels."""
_BLOCK_ROWS = 16_384
"""The hashes of this many keys stay in the CPU cache from one word to the next."""


def murmur2(keys: pa.Array) -> Hashes:
    """Return the hash of each key; a null hashes like an empty key.

    Args:
        keys: `binary` or `large_binary`, any slice.
    """
    data, starts, lengths = _byte_ranges(keys)
    hashes = np.empty(len(keys), dtype=np.uint32)
    for first in range(0, len(keys), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        hashes[block] = _block(data, starts[block], lengths[block])
    return hashes


def _byte_ranges(keys: pa.Array) -> tuple[Bytes, Rows, Rows]:
    """Return the data, and each key's start and length in it."""
    kind = np.int64 if pa.types.is_large_binary(keys.type) else np.int32
    _, offset_buffer, data_buffer = keys.buffers()
    if offset_buffer is None or data_buffer is None or not len(keys):
        nothing = np.zeros(len(keys), dtype=np.int64)
        return np.empty(0, dtype=np.uint8), nothing, nothing
    offsets = np.frombuffer(offset_buffer, dtype=kind)[keys.offset : keys.offset + len(keys) + 1]
    lengths = np.diff(offsets).astype(np.int64)
    if keys.null_count:
        lengths[keys.is_null().to_numpy(zero_copy_only=False)] = 0
    return np.frombuffer(data_buffer, dtype=np.uint8), offsets[:-1].astype(np.int64), lengths


def _block(data: Bytes, starts: Rows, lengths: Rows) -> Hashes:
    """Hash a block of keys word by word, sorted by length so that long keys come last."""
    is_sorted = bool((lengths[1:] >= lengths[:-1]).all())
    order = None if is_sorted else np.argsort(lengths, kind="stable")
    if order is not None:
        starts, lengths = starts[order], lengths[order]
    hashes = lengths.astype(np.uint32) ^ np.uint32(_SEED)
    words = lengths >> 2
    # Unaligned words; those of a key never extend beyond its end.
    four_bytes = np.ndarray(max(len(data) - 3, 0), dtype="<u4", buffer=data, strides=(1,))
    num_words = int(words[-1])
    is_shorter = np.searchsorted(words, np.arange(num_words), side="right").tolist()
    for word, first in enumerate(is_shorter):
        if len(words) - first <= _FEW_ROWS:
            _finish_words(four_bytes, starts, words, hashes, first, word)
            break
        mixed = four_bytes[starts[first:] + 4 * word]
        mixed *= _M32
        mixed ^= mixed >> 24
        mixed *= _M32
        rest = hashes[first:]
        rest *= _M32
        rest ^= mixed
    _mix_tail(data, starts, lengths, hashes)
    hashes ^= hashes >> 13
    hashes *= _M32
    hashes ^= hashes >> 15
    if order is None:
        return hashes
    in_place = np.empty_like(hashes)
    in_place[order] = hashes
    return in_place


def _finish_words(
    four_bytes: npt.NDArray[np.uint32],
    starts: Rows,
    words: Rows,
    hashes: Hashes,
    first: int,
    word: int,
) -> None:
    """Mix the remaining words of few keys, which may be very long, key by key."""
    for row in range(first, len(words)):
        start = int(starts[row])
        mixed = four_bytes[start + 4 * word : start + 4 * int(words[row]) : 4] * _M32
        mixed ^= mixed >> 24
        mixed *= _M32
        value = int(hashes[row])
        for number in mixed.tolist():
            value = (value * _M & _MASK) ^ number
        hashes[row] = value


def _mix_tail(data: Bytes, starts: Rows, lengths: Rows, hashes: Hashes) -> None:
    """Mix the one to three bytes after the last whole word."""
    extra = lengths & 3
    ends = starts + lengths - extra
    for index in (2, 1, 0):
        rows = np.flatnonzero(extra > index)
        if len(rows):
            hashes[rows] ^= data[ends[rows] + index].astype(np.uint32) << np.uint32(8 * index)
    rows = np.flatnonzero(extra)
    hashes[rows] *= _M32
