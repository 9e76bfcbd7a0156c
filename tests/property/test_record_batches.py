"""Record batches built of columns, read back and compared with kafka-python's own builder."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_one
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import encode_varint

from tailerd.records.base import Header, Records
from tailerd.records.short_bytes import constant, varint, varints
from tailerd.sinks.kafka.record_batches.compression import Compression
from tailerd.sinks.kafka.record_batches.partitioning import RUN_RECORDS, assign_partitions, murmur2
from tailerd.sinks.kafka.record_batches.record_batch import (
    BuiltBatches,
    RecordBatch,
    RecordBatchLimit,
    record_batches,
)

# (key, value, headers, timestamp in ms)
Plain = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

COLUMNS_OR_ONE_BY_ONE = st.sampled_from([-1, 1000])
NOW_MS = 1_709_210_096_123
TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
# Below, at and above the twelve bytes of a view, and beyond what one and two varint bytes count.
BLOBS = st.one_of(
    st.binary(max_size=3),
    st.binary(min_size=10, max_size=15),
    st.binary(min_size=60, max_size=70),
    st.integers(8180, 8200).map(lambda size: b"v" * size),
)
BLOBS_OR_NONE = st.none() | BLOBS
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Records, list[Header], int | np.ndarray, list[Plain]]:
    """Records in any layout, a slice of a longer array; and the same as Python values."""
    count = draw(st.integers(0, 12))
    cut = draw(st.integers(0, 2))

    def column(some: st.SearchStrategy[bytes | None]) -> tuple[pa.Array, list[bytes | None]]:
        items = draw(st.lists(some, min_size=count + cut, max_size=count + cut))
        return pa.array(items, draw(st.sampled_from(TYPES))).slice(cut), items[cut:]

    values, plain_values = column(BLOBS_OR_NONE)
    keys: pa.Array | None = None
    plain_keys: list[bytes | None] = [None] * count
    if draw(st.booleans()):
        keys, plain_keys = column(BLOBS_OR_NONE)
    headers: list[Header] = []
    plain_headers: list[list[tuple[str, bytes | None]]] = [[] for _ in range(count)]
    for name in draw(st.lists(NAMES, max_size=3)):
        if draw(st.booleans()):
            value, plain = column(BLOBS_OR_NONE)
        else:
            value = draw(BLOBS_OR_NONE)
            plain = [value] * count
        headers.append(Header(name=name, value=value))
        for row, item in enumerate(plain):
            plain_headers[row].append((name, item))
    time = draw(st.integers(0, 2**50))
    times: int | np.ndarray = time
    plain_times = [time] * count
    if draw(st.booleans()):
        spread = st.integers(-(2**20), 2**20) | st.integers(0, 2**62)
        plain_times = draw(st.lists(spread, min_size=count, max_size=count))
        times = np.array(plain_times, dtype=np.int64)
    rows = list(zip(plain_keys, plain_values, plain_headers, plain_times, strict=True))
    return Records(keys=keys, values=values), headers, times, rows


def built_one_by_one(
    rows: Sequence[Plain], state: tuple[int, int, int], transactional: bool
) -> bytes:
    """The bytes of kafka-python's own builder."""
    producer_id, epoch, sequence = state
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=2**31 - 1,
    )
    for offset, (key, value, headers, time) in enumerate(rows):
        assert builder.append(offset, time, key, value, headers) is not None
    return bytes(builder.build())


def read(batch: RecordBatch) -> list[Plain]:
    """What kafka-python's reader finds in a batch, its checksum verified."""
    whole = MemoryRecords(batch.finish(producer_id=9, producer_epoch=1, base_sequence=5))
    inner = whole.next_batch()
    assert inner.validate_crc()
    assert inner.is_transactional is False
    assert (inner.producer_id, inner.producer_epoch, inner.base_sequence) == (9, 1, 5)
    assert inner.compression_type == batch.compression.attribute
    assert inner.records_count == batch.num_records
    assert inner.size_in_bytes == batch.size_bytes
    records = list(inner)
    assert [record.offset for record in records] == list(range(batch.num_records))
    assert inner.max_timestamp == max(record.timestamp for record in records)
    assert not whole.has_next()
    return [(record.key, record.value, record.headers, record.timestamp) for record in records]


@settings(max_examples=300)
@given(columns(), st.booleans(), COLUMNS_OR_ONE_BY_ONE)
def test_one_batch_is_byte_for_byte_that_of_kafka_python(
    made: tuple[Records, list[Header], int | np.ndarray, list[Plain]],
    transactional: bool,
    max_few: int,
) -> None:
    records, headers, times, rows = made

    with patch("tailerd.sinks.kafka.record_batches.record_batch.MAX_FEW_RECORDS", max_few):
        built = record_batches(records, timestamps_ms=times, headers=headers)

    if not rows:
        assert built == BuiltBatches(batches=())
        return
    [batch] = built.batches
    state = (7, 3, 41)
    finished = batch.finish(
        producer_id=7, producer_epoch=3, base_sequence=41, is_transactional=transactional
    )
    assert bytes(finished) == built_one_by_one(rows, state, transactional)
    assert batch.uncompressed_bytes == batch.size_bytes == len(finished)


@settings(max_examples=300)
@given(
    columns(),
    st.sampled_from(list(Compression)),
    st.data(),
    st.integers(61, 9000),
    st.integers(1, 6),
    COLUMNS_OR_ONE_BY_ONE,
)
def test_every_record_arrives_once_in_order_in_its_partition_within_the_limit(
    made: tuple[Records, list[Header], int | np.ndarray, list[Plain]],
    compression: Compression,
    data: st.DataObject,
    max_bytes: int,
    max_records: int,
    max_few: int,
) -> None:
    records, headers, times, rows = made
    numbers = st.integers(0, 3) | st.just(70_000)
    chosen = data.draw(st.lists(numbers, min_size=len(rows), max_size=len(rows)))
    partitions = np.array(chosen, dtype=np.int32)
    limit = RecordBatchLimit(max_bytes=max_bytes, max_records=max_records)

    with patch("tailerd.sinks.kafka.record_batches.record_batch.MAX_FEW_RECORDS", max_few):
        built = record_batches(
            records,
            timestamps_ms=times,
            partitions=partitions,
            headers=headers,
            compression=compression,
            limit=limit,
        )

    left_out = {each.row for each in built.oversize}
    assert [each.row for each in built.oversize] == sorted(left_out)
    arrived: dict[int, list[int]] = {}
    for batch in built.batches:
        assert batch.size_bytes <= batch.uncompressed_bytes <= max_bytes
        assert 1 <= batch.num_records <= max_records
        assert read(batch) == [rows[row] for row in batch.rows.tolist()]
        arrived.setdefault(batch.partition, []).extend(batch.rows.tolist())
    assert arrived == {
        partition: of_it
        for partition in set(chosen)
        if (of_it := [r for r, p in enumerate(chosen) if p == partition and r not in left_out])
    }
    for each in built.oversize:
        alone = built_one_by_one([rows[each.row]], (-1, -1, -1), False)
        # Numbers of other records may be longer; ten bytes are the longest number.
        assert len(alone) <= each.size_bytes <= len(alone) + 12
        assert each.size_bytes > max_bytes


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_of_many_records_are_read_back_and_are_nearly_full(
    compression: Compression,
) -> None:
    random = np.random.default_rng(5)
    values = [
        bytes([65 + row % 26]) * int(size)
        for row, size in enumerate(random.integers(0, 400, 30_000))
    ]
    keys = [f"{row % 997}".encode() for row in range(len(values))]
    partitions = assign_partitions(pa.array(keys), len(keys), 3).partitions
    limit = RecordBatchLimit(max_bytes=100_000)

    built = record_batches(
        Records(keys=pa.array(keys), values=pa.array(values)),
        timestamps_ms=NOW_MS,
        partitions=partitions,
        compression=compression,
        limit=limit,
    )

    assert sum(batch.num_records for batch in built.batches) == len(values)
    for batch in built.batches:
        expected: list[Plain] = [
            (keys[row], values[row], [], NOW_MS) for row in batch.rows.tolist()
        ]
        assert read(batch) == expected
        assert batch.compression is compression
        assert (batch.size_bytes < batch.uncompressed_bytes) == (
            compression is not Compression.NONE
        )
    full = [batch for batch in built.batches if batch.uncompressed_bytes > 98_500]
    assert len(full) >= len(built.batches) - 3
    again = record_batches(
        Records(keys=pa.array(keys), values=pa.array(values)),
        timestamps_ms=NOW_MS,
        partitions=partitions,
        compression=compression,
        limit=limit,
    )
    assert [batch.finish() for batch in again.batches] == [b.finish() for b in built.batches]


def test_bytes_that_do_not_compress_are_sent_as_they_are() -> None:
    noise = np.random.default_rng(1).bytes(5000)

    for compression in Compression:
        [batch] = record_batches(
            Records(keys=None, values=pa.array([noise])),
            timestamps_ms=NOW_MS,
            compression=compression,
        ).batches
        assert batch.compression is Compression.NONE
        assert read(batch) == [(None, noise, [], NOW_MS)]


def test_a_record_beyond_the_limit_is_told_with_its_number_and_does_not_stop_the_others() -> None:
    values = pa.array([b"a", b"x" * 2000, b"b", None, b"y" * 3000])

    built = record_batches(
        Records(keys=None, values=values),
        timestamps_ms=NOW_MS,
        limit=RecordBatchLimit(max_bytes=1000),
    )

    assert [each.row for each in built.oversize] == [1, 4]
    assert [each.size_bytes // 1000 for each in built.oversize] == [2, 3]
    [batch] = built.batches
    assert [value for _, value, _, _ in read(batch)] == [b"a", b"b", None]


def test_the_same_batch_can_be_finished_for_another_producer() -> None:
    [batch] = record_batches(
        Records(keys=None, values=pa.array([b"value"])), timestamps_ms=NOW_MS
    ).batches

    first = batch.finish(producer_id=1, producer_epoch=0, base_sequence=0)
    second = batch.finish(producer_id=2, producer_epoch=0, base_sequence=0)

    for producer_id, whole in ((1, first), (2, second)):
        inner = MemoryRecords(whole).next_batch()
        assert inner.validate_crc()
        assert inner.producer_id == producer_id


def test_values_beyond_two_gibibytes_of_one_buffer_are_found() -> None:
    # The kernel gives zeros it has not to store; only the last bytes are written.
    half = 3 * 2**29
    data = np.zeros(2 * half + 20, dtype=np.uint8)
    data[2 * half :] = 65
    offsets = np.array([0, 5, half, 2 * half, 2 * half, 2 * half + 20], dtype=np.int64)
    validity = pa.array([True, True, True, False, True]).buffers()[1]
    whole = pa.Array.from_buffers(
        pa.large_binary(), 5, [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    )

    with patch("tailerd.sinks.kafka.record_batches.record_batch.MAX_FEW_RECORDS", 0):
        built = record_batches(Records(keys=None, values=whole), timestamps_ms=NOW_MS)

    assert [each.row for each in built.oversize] == [1, 2]
    [batch] = built.batches
    assert [value for _, value, _, _ in read(batch)] == [bytes(5), None, b"A" * 20]


# ---------------------------------------------------------------- numbers


@settings(max_examples=500)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.integers(8180, 8200)))
def test_varints_are_those_of_kafka_python(numbers: list[int]) -> None:
    made = varints(np.array(numbers, dtype=np.int64))

    if not numbers:
        return
    sizes = np.broadcast_to(made.sizes, len(numbers)).tolist()
    for row, number in enumerate(numbers):
        expected = bytearray()
        encode_varint(number, expected.append)
        raw = int(made.low[row]) | (int(made.high[row]) << 64 if made.high is not None else 0)
        assert raw.to_bytes(16, "little")[: sizes[row]] == bytes(expected) == varint(number)
        assert raw >> (8 * sizes[row]) == 0


@given(st.lists(st.tuples(st.integers(-(2**55), 2**55 - 1), st.integers(0, 2**26)), min_size=1))
def test_short_bytes_are_put_one_behind_the_other(pairs: list[tuple[int, int]]) -> None:
    left = varints(np.array([pair[0] for pair in pairs]))
    right = varints(np.array([pair[1] for pair in pairs]))
    assert left.fits_before(right) == (left.max_size + right.max_size <= 12)
    if not left.fits_before(right):
        return

    both = left.then(right)

    sizes = np.broadcast_to(both.sizes, len(pairs))
    for row, (one, other) in enumerate(pairs):
        high = 0 if both.high is None else int(both.high[row])
        raw = (int(both.low[row]) | high << 64).to_bytes(16, "little")
        assert raw[: sizes[row]] == varint(one) + varint(other)
        assert not any(raw[sizes[row] :])


def test_no_bytes_are_the_same_before_and_behind() -> None:
    nothing, some = constant(b""), constant(b"123456789012")

    assert nothing.then(some) == some


# ---------------------------------------------------------------- partitions

KEYS = st.binary(max_size=40) | st.binary(min_size=100, max_size=300)


@settings(max_examples=300)
@given(
    st.lists(KEYS, max_size=60),
    st.integers(0, 3),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
@example([b"k" * 30_001, b"", b"abc"], 0, pa.binary())
def test_murmur2_is_that_of_kafka_python(keys: list[bytes], cut: int, kind: pa.DataType) -> None:
    array = pa.array([b"cut"] * cut + keys, kind).slice(cut)

    assert murmur2(array).tolist() == [murmur2_of_one(key) for key in keys]


def test_murmur2_of_more_keys_than_one_block_of_all_lengths() -> None:
    random = np.random.default_rng(2)
    keys = [random.bytes(int(size)) for size in random.integers(0, 50, 40_000)]

    assert murmur2(pa.array(keys)).tolist() == [murmur2_of_one(key) for key in keys]


@given(st.lists(st.none() | KEYS, max_size=40), st.integers(1, 7), st.integers(0, 10 * RUN_RECORDS))
def test_keys_choose_as_kafkas_default_partitioner_and_the_others_take_turns(
    keys: list[bytes | None], num_partitions: int, before: int
) -> None:
    made = assign_partitions(
        pa.array(keys, pa.binary()), len(keys), num_partitions, keyless_before=before
    )

    counter = before
    for key, partition in zip(keys, made.partitions.tolist(), strict=True):
        if key is None:
            assert partition == counter // RUN_RECORDS % num_partitions
            counter += 1
        else:
            assert partition == (murmur2_of_one(key) & 0x7FFFFFFF) % num_partitions
    assert made.num_keyless == counter - before


def test_records_without_keys_are_spread_evenly_over_many_calls() -> None:
    counts = np.zeros(5, dtype=int)
    before = 0
    for size in (1, 100, 3000, 50_000, 7, 200_000):
        made = assign_partitions(None, size, 5, keyless_before=before)
        counts += np.bincount(made.partitions, minlength=5)
        before += made.num_keyless

    assert counts.sum() == before
    assert counts.max() - counts.min() <= RUN_RECORDS
