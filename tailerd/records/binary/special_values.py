"""Convert columns of decimals, UUIDs, dates and times to the numbers and bytes of formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import TableError
from tailerd.records.binary.byte_pieces import fixed_values, read_numbers, valid_rows
from tailerd.records.byte_rows import ByteColumn, byte_column
from tailerd.records.short_bytes import ShortBytes
from tailerd.remedies import LEAVE_OUT

Numbers = npt.NDArray[np.int64]

MICROS_PER_SECOND = 1_000_000
_MICROS = {"s": 10**6, "ms": 10**3, "us": 1}
_MAX_DIGITS_OF_INT64 = 18
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
UUID_BYTES = 16


def wide_decimals(array: pa.Array) -> pa.Array:
    """Return decimals of at least 128 bits."""
    kind = array.type
    if kind.bit_width >= 128:
        return array
    return array.cast(pa.decimal128(kind.precision, kind.scale))


def decimal_bytes(array: pa.Array) -> ShortBytes | ByteColumn:
    """Return unscaled decimals as big-endian two's complement, in as few bytes as possible.

    Equal numbers have equal bytes, with any other values in the column.
    """
    kind = array.type
    width = kind.bit_width // 8
    words = read_fixed_words(array, width)
    low = words[:, 0].view(np.int64)
    fits = kind.precision <= _MAX_DIGITS_OF_INT64 or bool(
        (words[:, 1:] == (low >> 63)[:, None].view(np.uint64)).all()
    )
    if fits:
        return _short_decimals(low)
    return _long_decimals(words, width)


def read_fixed_words(array: pa.Array, width: int) -> npt.NDArray[np.uint64]:
    """Return values of a multiple of eight bytes as 64-bit words, lowest first; zero for null."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros((len(array), width // 8), np.uint64)
    words = np.frombuffer(
        buffer, np.uint64, offset=array.offset * width, count=len(array) * width // 8
    )
    words = words.reshape(-1, width // 8)
    valid = valid_rows(array)
    return words if valid is None else words * valid[:, None]


def _short_decimals(numbers: Numbers) -> ShortBytes:
    magnitude = (numbers ^ (numbers >> 63)).view(np.uint64)
    top = int(magnitude.max(initial=0)).bit_length() // 8 + 1
    sizes = np.ones(len(numbers), np.int64)
    for size in range(1, top):
        sizes += magnitude >= np.uint64(1 << (8 * size - 1))
    shifted = numbers << ((8 - sizes) << 3)
    return ShortBytes(shifted.byteswap().view(np.uint64), None, sizes, top)


def _long_decimals(words: npt.NDArray[np.uint64], width: int) -> ByteColumn:
    bytes_of = np.ascontiguousarray(words[:, ::-1]).byteswap().view(np.uint8).reshape(-1, width)
    sign = np.where(bytes_of[:, :1] & 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte is redundant if it only repeats the sign of the next byte.
    is_needless = (bytes_of[:, :-1] == sign) & ((bytes_of[:, 1:] ^ sign) < 0x80)
    is_needless = np.logical_and.accumulate(is_needless, axis=1)
    is_kept = np.concatenate((~is_needless, np.ones((len(words), 1), bool)), axis=1)
    ends = np.concatenate(([0], np.cumsum(is_kept.sum(axis=1))))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(bytes_of[is_kept])]
    return byte_column(pa.Array.from_buffers(pa.large_binary(), len(words), buffers))


def uuid_texts(array: pa.Array) -> pa.Array:
    """Return 16-byte identifiers as `8-4-4-4-12` hexadecimal digits; null stays null."""
    count = len(array)
    raw = read_fixed_words(array, UUID_BYTES).view(np.uint8).reshape(count, UUID_BYTES)
    digits = np.empty((count, 2 * UUID_BYTES), np.uint8)
    digits[:, ::2] = _HEX[raw >> 4]
    digits[:, 1::2] = _HEX[raw & 0x0F]
    texts = np.full((count, 36), ord("-"), np.uint8)
    for index, (start, end) in enumerate(_UUID_PARTS):
        texts[:, start + index : end + index] = digits[:, start:end]
    offsets = np.arange(count + 1, dtype=np.int32) * 36
    plain = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(texts.reshape(-1))]
    )
    return plain if not array.null_count else pc.if_else(array.is_valid(), plain, None)


def convert_to_micros(array: pa.Array, column: str) -> Numbers:
    """Return timestamps or times of day in microseconds, finer ones floored; zero for null.

    Args:
        array: Values of any unit.
        column: Name of the column, for the error.

    Raises:
        TableError: A value of a coarser unit does not fit 64-bit microseconds.
    """
    numbers = read_numbers(array)
    unit = array.type.unit
    if unit == "ns":
        return np.floor_divide(numbers, 1000)
    factor = _MICROS[unit]
    lowest, highest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if max(-lowest, highest) * factor >= 2**63 and factor > 1:
        raise TableError(
            f"Column {column!r} has a time that 64-bit microseconds cannot hold: it is"
            f" {array.type}.",
            remedy=LEAVE_OUT.capitalize() + ".",
        )
    return numbers * factor


def seconds_and_nanos(micros: Numbers) -> tuple[Numbers, Numbers]:
    """Return seconds, rounded down, and the remaining nanoseconds."""
    seconds = np.floor_divide(micros, MICROS_PER_SECOND)
    return seconds, (micros - seconds * MICROS_PER_SECOND) * 1000


def calendar_days(days: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return year, month and day of days since the epoch, proleptic Gregorian."""
    dates: npt.NDArray[Any] = days.astype("M8[D]")
    months = dates.astype("M8[M]")
    of_epoch = months.astype(np.int64)
    years = np.floor_divide(of_epoch, 12)
    day = (dates - months.astype("M8[D]")).astype(np.int64)
    return years + 1970, of_epoch - years * 12 + 1, day + 1


def clock_parts(micros: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return hours, minutes, seconds and nanoseconds of microseconds since midnight."""
    seconds, nanos = seconds_and_nanos(micros)
    minutes = np.floor_divide(seconds, 60)
    hours = np.floor_divide(minutes, 60)
    return hours, minutes - hours * 60, seconds - minutes * 60, nanos


def read_float_bits(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the bits of 32-bit or 64-bit floats; zero for null."""
    kind: type[np.generic] = np.uint64 if array.type.bit_width == 64 else np.uint32
    return fixed_values(array, kind).astype(np.uint64, copy=False)
