r"""Encode columns of scalars as columns of JSON texts, without a Python object per row.

Every function takes an array of one type and returns a `string` array of the same length in which
null means JSON null; strings, dates and timestamps include their quotes.
"""

from __future__ import annotations

import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.records.json_text import (
    FIRST_PLAIN_DAY,
    LAST_PLAIN_DAY,
    LINE_ENDS,
    MICROS_PER_DAY,
    date_text,
    quote_utf8,
    timestamp_text,
)

Bytes = npt.NDArray[np.uint8]

_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_FIRST_PRINTABLE = 0x20
_FIRST_NON_ASCII = 0x80
_BLOCK_BYTES = 128 * 1024


def escaped_texts(texts: pa.Array) -> pa.Array:
    """Return the strings with JSON escapes, but without quotes.

    The data buffer is scanned once; only rows with a match are rewritten.
    """
    data, offsets = value_bytes(texts)
    is_ascii, is_plain = _classify_bytes(data)
    if is_ascii and is_plain:
        return texts
    if not is_ascii and not _is_valid_utf8(texts):
        # Invalid UTF-8 is rare, and only a decoder can repair it.
        raw = texts.cast(pa.binary()).to_pylist()
        repaired = [None if value is None else quote_utf8(value)[1:-1] for value in raw]
        return pa.array(repaired, pa.string())
    if not is_plain:
        texts = _escape_ascii(texts, data, offsets)
    return texts if is_ascii else _escape_line_ends(texts, data)


def _escape_ascii(texts: pa.Array, data: Bytes, offsets: npt.NDArray[np.int64]) -> pa.Array:
    hits = (data < _FIRST_PRINTABLE) | (data == _QUOTE) | (data == _BACKSLASH)
    indexes = np.flatnonzero(hits)
    is_hit_row = np.zeros(len(texts), dtype=bool)
    is_hit_row[np.searchsorted(offsets, indexes, side="right") - 1] = True
    mask = pa.array(is_hit_row)
    if texts.null_count:
        # Bytes of a null row are not a value.
        mask = pc.and_(mask, texts.is_valid())
    escaped = texts.filter(mask)
    found = set(np.unique(data[indexes]).tolist())
    for byte in sorted(found, key=lambda value: value != _BACKSLASH):
        character = chr(byte)
        escaped = pc.replace_substring(escaped, character, quote_utf8(character.encode())[1:-1])
    return pc.replace_with_mask(texts, mask, escaped)


def _escape_line_ends(texts: pa.Array, data: Bytes) -> pa.Array:
    raw = data.tobytes()
    for character in LINE_ENDS:
        if character.encode() in raw:
            texts = pc.replace_substring(texts, character, f"\\u{ord(character):04x}")
    return texts


def _classify_bytes(data: Bytes) -> tuple[bool, bool]:
    """Return whether all bytes are ASCII, and whether none needs an escape.

    Block by block, so that the compared data stays in the CPU cache.
    """
    is_ascii, is_plain = True, True
    hits, more = np.empty((2, min(len(data), _BLOCK_BYTES)), dtype=bool)
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        here, other = hits[: len(block)], more[: len(block)]
        np.less(block, _FIRST_PRINTABLE, out=here)
        here |= np.equal(block, _QUOTE, out=other)
        here |= np.equal(block, _BACKSLASH, out=other)
        is_plain = is_plain and not here.any()
        is_ascii = is_ascii and int(block.max()) < _FIRST_NON_ASCII
    return is_ascii, is_plain


def quote_texts(texts: pa.Array) -> pa.Array:
    """Put quotes around the texts; null stays null."""
    return pc.binary_join_element_wise('"', texts, '"', "")


def float_texts(numbers: pa.Array) -> pa.Array:
    """Return shortest round-trip texts; whole numbers keep `.0`, the three specials are quoted."""
    if pa.types.is_float16(numbers.type):
        numbers = numbers.cast(pa.float32())
    texts = numbers.cast(pa.string())
    values = numbers.fill_null(0.5).to_numpy(zero_copy_only=False)
    # Arrow writes 1.0 as `1`; readers that infer types would treat such a column as integers.
    is_whole = values == np.rint(values)
    if is_whole.any():
        texts = _with_fraction(texts, values, is_whole)
    if not np.isfinite(values).all():
        texts = pc.if_else(pa.array(np.isnan(values)), '"NaN"', texts)
        texts = pc.if_else(pa.array(values == np.inf), '"Infinity"', texts)
        texts = pc.if_else(pa.array(values == -np.inf), '"-Infinity"', texts)
    return texts


def _with_fraction(
    texts: pa.Array, values: npt.NDArray[np.floating], is_whole: npt.NDArray[np.bool_]
) -> pa.Array:
    is_bare = pa.array(is_whole & np.isfinite(values))
    if bool((np.abs(values[is_whole]) >= 1e6).any()):
        # Large numbers have an exponent, which already identifies them as floats.
        is_bare = pc.and_(is_bare, pc.invert(pc.match_substring(texts, "e")))
    # Few numbers are usually whole: only those are rewritten.
    return pc.replace_with_mask(
        texts, is_bare, pc.binary_join_element_wise(texts.filter(is_bare), ".0", "")
    )


def decimal_texts(numbers: pa.Array) -> pa.Array:
    """Return all digits of the scale, without exponent and without quotes."""
    scale = numbers.type.scale
    texts = numbers.cast(pa.string())
    data, _ = value_bytes(texts)
    # Arrow uses an exponent where the adjusted exponent is below -6.
    if scale <= 6 or not (data == ord("E")).any():
        return texts
    wide = numbers.cast(pa.decimal256(76, scale))
    whole = wide.view(pa.decimal256(76, 0)).cast(pa.string())
    is_negative = pc.starts_with(whole, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    return pc.binary_join_element_wise(
        pc.if_else(is_negative, "-", ""),
        pc.utf8_slice_codeunits(digits, 0, -scale),
        ".",
        pc.utf8_slice_codeunits(digits, -scale),
        "",
    )


def base64_texts(values: pa.Array) -> pa.Array:
    """Return quoted base64 (RFC 4648, padded) of a `binary` array."""
    data, offsets = value_bytes(values)
    lengths = np.diff(offsets)
    if values.null_count:
        lengths = np.where(values.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    groups = (lengths + 2) // 3
    starts = np.concatenate(([0], np.cumsum(groups)))
    # Each value is padded to whole groups, so that one call encodes all of them.
    padded = np.zeros(int(starts[-1]) * 3, dtype=np.uint8)
    total = int(lengths.sum())
    run = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    padded[np.repeat(starts[:-1] * 3, lengths) + run] = data[np.repeat(offsets[:-1], lengths) + run]
    encoded = np.frombuffer(binascii.b2a_base64(padded.data, newline=False), dtype=np.uint8).copy()
    ends = starts[1:] * 4
    encoded[ends[lengths % 3 != 0] - 1] = ord("=")
    encoded[ends[lengths % 3 == 1] - 2] = ord("=")
    return quote_texts(_string_array(encoded, starts * 4, values))


def date_texts(dates: pa.Array) -> pa.Array:
    """Return quoted ISO dates of a `date32` array, for any year."""
    is_odd = _outside(dates.view(pa.int32()), FIRST_PLAIN_DAY, LAST_PLAIN_DAY)
    if is_odd is None:
        return _frame_times(dates.cast(pa.string()), 10)
    plain = _frame_times(pc.if_else(is_odd, None, dates).cast(pa.string()), 10)
    odd_days = dates.view(pa.int32()).filter(is_odd).to_pylist()
    odd = pa.array([f'"{date_text(days)}"' for days in odd_days], pa.string())
    return pc.replace_with_mask(plain, is_odd, odd)


def time_texts(times: pa.Array) -> pa.Array:
    """Return quoted times of day, with the digits of their unit."""
    return pc.binary_join_element_wise('"', times.cast(pa.string()), '"', "")


def timestamp_texts(timestamps: pa.Array) -> pa.Array:
    """Return quoted ISO timestamps with six digits, nanoseconds with nine; `Z` if with a zone.

    Zones are UTC by the contract of a batch; the value is an instant in every zone.
    """
    is_utc = timestamps.type.tz is not None
    if timestamps.type.unit == "ns":
        naive = timestamps.cast(pa.int64()).cast(pa.timestamp("ns"))
        return _frame_times(naive.cast(pa.string()), 29, is_utc=is_utc)
    micros = timestamps.cast(pa.timestamp("us", timestamps.type.tz)).cast(pa.int64())
    naive = micros.cast(pa.timestamp("us"))
    last = (LAST_PLAIN_DAY + 1) * MICROS_PER_DAY - 1
    is_odd = _outside(micros, FIRST_PLAIN_DAY * MICROS_PER_DAY, last)
    if is_odd is None:
        return _frame_times(naive.cast(pa.string()), 26, is_utc=is_utc)
    plain = _frame_times(pc.if_else(is_odd, None, naive).cast(pa.string()), 26, is_utc=is_utc)
    odd_micros = micros.filter(is_odd).to_pylist()
    texts = [f'"{timestamp_text(value, is_utc=is_utc)}"' for value in odd_micros]
    return pc.replace_with_mask(plain, is_odd, pa.array(texts, pa.string()))


def value_bytes(values: pa.Array) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return the bytes of a `string` or `binary` array and n + 1 offsets into them, from 0."""
    _, offset_buffer, data_buffer = values.buffers()
    if offset_buffer is None or len(values) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(len(values) + 1, dtype=np.int64)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    if data_buffer is None:
        return np.empty(0, dtype=np.uint8), np.zeros(len(values) + 1, dtype=np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets.astype(np.int64) - int(offsets[0])


def _is_valid_utf8(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _outside(values: pa.Array, first: int, last: int) -> pa.Array | None:
    """Return which values are outside the range (false for null); None if no value is."""
    bounds = pc.min_max(values)
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    if lowest is None or (first <= lowest and highest <= last):
        return None
    return pc.or_(pc.less(values, first), pc.greater(values, last)).fill_null(False)


def _frame_times(texts: pa.Array, width: int, *, is_utc: bool = False) -> pa.Array:
    """Quote texts of one width, with `T` before the time and, if `is_utc`, `Z` after it.

    All values have the same width, so the bytes are a matrix; nulls have no bytes in it.
    """
    data, _ = value_bytes(texts)
    body = data.reshape(-1, width)
    framed = np.full((len(body), width + (3 if is_utc else 2)), _QUOTE, dtype=np.uint8)
    framed[:, 1 : width + 1] = body
    if width > 10:
        framed[:, 11] = ord("T")
    if is_utc:
        framed[:, -2] = ord("Z")
    if texts.null_count:
        counts = np.cumsum(texts.is_valid().to_numpy(zero_copy_only=False))
    else:
        counts = np.arange(1, len(texts) + 1)
    offsets = np.concatenate(([0], counts)) * framed.shape[1]
    return _string_array(framed.reshape(-1), offsets, texts)


def _string_array(data: Bytes, offsets: npt.NDArray[np.int64], nulls_of: pa.Array) -> pa.Array:
    """Build a `string` array from bytes and offsets with the nulls of another array."""
    if len(data) > np.iinfo(np.int32).max:
        raise pa.ArrowCapacityError("The texts do not fit 32-bit offsets.")
    validity = None
    if nulls_of.null_count:
        # A fresh bitmap: the other array may start in the middle of a byte.
        validity = pa.array(nulls_of.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(),
        len(nulls_of),
        [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)],
    )
