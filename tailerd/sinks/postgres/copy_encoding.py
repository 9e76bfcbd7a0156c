"""Encode Arrow columns as PostgreSQL's binary COPY format, a column at a time.

Each field of a row is its length (4 bytes, big-endian, -1 for null) and its bytes. All numbers
are big-endian. PostgreSQL counts dates and times from 2000-01-01.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.records.byte_rows import ByteColumn, ConstantBytes, Piece, byte_column, gather_bytes
from tailerd.records.json_columns import column_texts
from tailerd.records.short_bytes import ShortBytes, constant

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"

EPOCH_DAYS = 10_957
"""Days from 1970-01-01 to 2000-01-01."""
EPOCH_US = EPOCH_DAYS * 86_400_000_000
MIN_DATE, MAX_DATE = -2_451_545, 2_145_031_948
"""Days from 2000-01-01 that the type `date` can store: 4713 BC to 5874897 AD."""
MIN_TIMESTAMP_US = -211_813_488_000_000_000
"""Microseconds from 2000-01-01 to 4713 BC; Arrow's latest timestamp is within the range."""

NULL_LENGTH = np.uint64(0xFFFF_FFFF)
_NUL_ESCAPE = r"(^|[^\\])(\\\\)*\\u0000"
_LONE_SURROGATE = r"(^|[^\\])(\\\\)*\\u[dD][89a-fA-F]"
_GROUP = 4
"""Decimal digits in one digit of the type `numeric`."""
_LIMB_BITS = np.uint64(32)
_LIMB = np.uint64(0xFFFF_FFFF)
_LIMBS = ((9, 1), (19, 2), (28, 3), (38, 4))
"""Precision, up to which a decimal fits this number of 32-bit limbs; others need 8."""

Rows = npt.NDArray[np.int64]
Encode = Callable[[pa.Array, pa.Field], list[Piece]]


@dataclass(frozen=True, slots=True)
class Unrepresentable:
    """Values of a column that PostgreSQL cannot store.

    Attributes:
        rows: Their row numbers.
        reason: A noun for such a value.
    """

    rows: Rows
    reason: str


def encode_rows(columns: Sequence[tuple[pa.Array, pa.Field, str]], count: int) -> pa.Buffer:
    """Return the rows in binary COPY format, without header and trailer.

    Args:
        columns: Values of a length of `count`, or one value for all rows; their field; and the
            PostgreSQL type to encode them as, which can represent them all: see
            `find_unrepresentable`.
        count: Number of rows.

    Raises:
        TailerdError: A nested value has no JSON form.
    """
    pieces: list[Piece] = [constant(len(columns).to_bytes(2, "big"))]
    for array, field, kind in columns:
        name = kind.partition("(")[0]
        if len(array) and array.null_count == len(array):
            pieces.append(constant(b"\xff\xff\xff\xff"))
        elif len(array) == 1 < count:
            same = gather_bytes(ENCODERS[name](array, field), 1)
            pieces.append(ConstantBytes(same.to_pybytes()))
        else:
            pieces += ENCODERS[name](array, field)
    return gather_bytes(pieces, count)


def find_unrepresentable(array: pa.Array, field: pa.Field, kind: str) -> Unrepresentable | None:
    """Return the values that PostgreSQL cannot store as `kind`; None if it can store all."""
    array = _plain(array)
    if kind in ("text", "character varying"):
        return _find_rows(_find_broken_texts(array), "text with U+0000 or invalid UTF-8")
    if kind == "jsonb":
        texts = _json_texts(array, field)
        bad = pc.match_substring_regex(texts, _NUL_ESCAPE) if _has(texts, "\\u0000") else None
        if bad is None and _has(texts, "\\ud"):
            bad = pc.match_substring_regex(texts, _LONE_SURROGATE)
        return _find_rows(bad, "text with U+0000 or a lone surrogate in a nested value")
    if kind == "date":
        days = pc.subtract(array.cast(pa.int32()).cast(pa.int64()), EPOCH_DAYS)
        outside = pc.or_(pc.less(days, MIN_DATE), pc.greater(days, MAX_DATE))
        return _find_rows(outside, "date outside 4713 BC to 5874897 AD")
    if kind.startswith("timestamp") and pa.types.is_timestamp(array.type):
        micros = array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64())
        return _find_rows(pc.less(micros, MIN_TIMESTAMP_US + EPOCH_US), "timestamp before 4713 BC")
    return None


def _find_rows(bad: pa.Array | None, reason: str) -> Unrepresentable | None:
    if bad is None:
        return None
    rows = np.flatnonzero(bad.fill_null(False).to_numpy(zero_copy_only=False))
    return Unrepresentable(rows, reason) if len(rows) else None


def _has(texts: pa.Array, part: str) -> bool:
    return bool(pc.any(pc.match_substring(texts, part)).as_py())


def _find_broken_texts(array: pa.Array) -> pa.Array | None:
    raw = array.cast(pa.large_binary())
    bad = pc.match_substring(raw, "\0")
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        # Only here Python looks at each value: files with invalid UTF-8 are rare.
        broken = [value is not None and not _is_utf8(value) for value in raw.to_pylist()]
        bad = pc.or_kleene(bad.fill_null(False), pa.array(broken))
    return bad if pc.any(bad).as_py() else None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        return _plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    return array


def _fixed(words: npt.NDArray[np.unsignedinteger], size: int, nulls: pa.Array) -> list[Piece]:
    """Return fields of `size` bytes, at most 8, whose big-endian words are given."""
    numbers = words.astype(np.uint64)
    low = np.uint64(size << 24) | (numbers << _LIMB_BITS)
    high = numbers >> _LIMB_BITS if size > 4 else None
    if not nulls.null_count:
        return [ShortBytes(low, high, np.array([4 + size]), 4 + size)]
    is_null = nulls.is_null().to_numpy(zero_copy_only=False)
    low = np.where(is_null, NULL_LENGTH, low)
    if high is not None:
        high = np.where(is_null, np.uint64(0), high)
    sizes = np.where(is_null, np.int64(4), np.int64(4 + size))
    return [ShortBytes(low, high, sizes, 4 + size)]


def _number(kind: pa.DataType, dtype: str) -> Encode:
    size = np.dtype(dtype).itemsize

    def encode(array: pa.Array, field: pa.Field) -> list[Piece]:
        array = _plain(array)
        if pa.types.is_duration(array.type):
            array = array.cast(pa.int64())
        values = array.cast(kind)
        plain = values.fill_null(0).to_numpy(zero_copy_only=False) if array.null_count else values
        numbers = np.ascontiguousarray(plain, dtype=dtype)
        return _fixed(numbers.byteswap().view(f"u{size}"), size, array)

    return encode


def _shifted(kind: pa.DataType, shift: int, size: int) -> Encode:
    """Encode numbers of days or microseconds, less those until PostgreSQL's epoch."""

    def encode(array: pa.Array, field: pa.Field) -> list[Piece]:
        array = _plain(array)
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type):
            # Nanoseconds lose the digits that PostgreSQL does not store.
            array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
        else:
            array = array.cast(kind, safe=False)
        numbers = array.view(pa.int32() if size == 4 else pa.int64())
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False) - shift
        return _fixed(values.astype(f"i{size}").byteswap().view(f"u{size}"), size, array)

    return encode


def _boolean(array: pa.Array, field: pa.Field) -> list[Piece]:
    values = array.fill_null(False).to_numpy(zero_copy_only=False)
    return _fixed(values.view(np.uint8), 1, array)


def _bytes(array: pa.Array, field: pa.Field) -> list[Piece]:
    return _variable(byte_column(_as_binary(_plain(array))))


def _as_binary(array: pa.Array) -> pa.Array:
    return array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _variable(column: ByteColumn, prefix: bytes = b"") -> list[Piece]:
    """Return fields of any length, each with `prefix`, of at most 4 bytes, before its bytes."""
    lengths = (column.lengths + len(prefix)).astype(np.uint32).byteswap().astype(np.uint64)
    lengths |= np.uint64(int.from_bytes(prefix, "little")) << _LIMB_BITS
    sizes = np.array([4 + len(prefix)])
    if column.nulls is not None:
        lengths = np.where(column.nulls, NULL_LENGTH, lengths)
        sizes = np.where(column.nulls, np.int64(4), np.int64(4 + len(prefix)))
    return [ShortBytes(lengths, None, sizes, 4 + len(prefix)), column]


def _jsonb(array: pa.Array, field: pa.Field) -> list[Piece]:
    # The first byte is the version of the format.
    return _variable(byte_column(_json_texts(array, field)), b"\x01")


def _json_texts(array: pa.Array, field: pa.Field) -> pa.Array:
    texts = column_texts(array, field, quote_decimals=False)
    return texts.complete() if texts.needs_quotes else texts.array


def _numeric(array: pa.Array, field: pa.Field) -> list[Piece]:
    array = _plain(array)
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    elif array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    records = numeric_records(array)
    size = records.shape[1]
    raw = pa.Array.from_buffers(pa.binary(size), len(array), [None, pa.py_buffer(records)])
    if array.null_count:
        raw = pc.if_else(array.is_valid(), raw, pa.scalar(None, pa.binary(size)))
    return _variable(byte_column(raw.cast(pa.binary())))


def numeric_records(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the values of a `decimal128` or `decimal256` array in the form of `numeric`.

    Returns:
        Bytes, shape (n, 8 + 2 * number of digits to the base 10,000). Leading zeros are allowed.
        A null has any value.
    """
    precision, scale = array.type.precision, array.type.scale
    limbs, is_negative = _magnitudes(array)
    fraction = -(-scale // _GROUP)
    whole = max(-(-(precision - scale) // _GROUP), 1)
    digits = np.zeros((len(array), 4 + whole + fraction), dtype=">i2")
    digits[:, 0] = whole + fraction
    digits[:, 1] = whole - 1
    digits[:, 2] = np.where(is_negative, 0x4000, 0)
    digits[:, 3] = scale
    rest = scale % _GROUP
    for column in range(whole + fraction - 1, -1, -1):
        if rest:
            # The last digit has fewer decimal digits, followed by zeros.
            digits[:, 4 + column] = _divide(limbs, 10**rest) * np.uint64(10 ** (_GROUP - rest))
            rest = 0
        else:
            digits[:, 4 + column] = _divide(limbs, 10**_GROUP)
    return digits.view(np.uint8).reshape(len(array), -1)


def _magnitudes(array: pa.Array) -> tuple[list[npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]:
    """Return 32-bit limbs of the unscaled absolute values, the lowest first, and the signs."""
    width = array.type.bit_width // 32
    words = np.frombuffer(array.buffers()[1], dtype="<u4").reshape(-1, width)
    words = words[array.offset : array.offset + len(array)]
    is_negative = words[:, -1] >= 1 << 31
    limbs = [words[:, index].astype(np.uint64) for index in range(width)]
    if is_negative.any():
        carry = is_negative.astype(np.uint64)
        for index, limb in enumerate(limbs):
            total = np.where(is_negative, limb ^ _LIMB, limb) + carry
            limbs[index], carry = total & _LIMB, total >> _LIMB_BITS
    precision = array.type.precision
    count = next((count for digits, count in _LIMBS if precision <= digits), width)
    # A null may have any bytes; those that are cut do not matter.
    return limbs[:count], is_negative


def _divide(limbs: list[npt.NDArray[np.uint64]], divisor: int) -> npt.NDArray[np.uint64]:
    """Divide numbers in place; return the remainders."""
    by = np.uint64(divisor)
    rest = np.zeros(len(limbs[0]), dtype=np.uint64)
    for index in range(len(limbs) - 1, -1, -1):
        current = (rest << _LIMB_BITS) | limbs[index]
        limbs[index], rest = np.divmod(current, by)
    return rest


ENCODERS: Mapping[str, Encode] = {
    "bigint": _number(pa.int64(), "i8"),
    "boolean": _boolean,
    "bytea": _bytes,
    "character varying": _bytes,
    "date": _shifted(pa.date32(), EPOCH_DAYS, 4),
    "double precision": _number(pa.float64(), "f8"),
    "integer": _number(pa.int32(), "i4"),
    "jsonb": _jsonb,
    "numeric": _numeric,
    "real": _number(pa.float32(), "f4"),
    "smallint": _number(pa.int16(), "i2"),
    "text": _bytes,
    "time without time zone": _shifted(pa.time64("us"), 0, 8),
    "timestamp with time zone": _shifted(pa.timestamp("us", "UTC"), EPOCH_US, 8),
    "timestamp without time zone": _shifted(pa.timestamp("us"), EPOCH_US, 8),
}
"""PostgreSQL type, without its modifiers -> the encoder of its fields."""
