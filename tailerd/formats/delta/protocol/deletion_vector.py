"""Decodes deletion vectors: which rows of a file are deleted.

Protocol: PROTOCOL.md#deletion-vectors, #deletion-vector-format
"""

from __future__ import annotations

import uuid
import zlib

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from tailerd.errors import InvalidDeletionVectorError
from tailerd.formats.delta.protocol.data_file import DeletionVector

MAGIC = 1_681_511_377
NATIVE_MAGIC = 1_681_511_376
"""Of the form in the protocol's example of an inline vector; writers do not use it otherwise."""
FRAME_BYTES = 8
"""Length before the bitmap and checksum after it, four bytes each, in a file."""
_UUID_CHARS = 20
_Z85_BLOCK = 4
"""Z85 pads to a multiple of this many bytes."""

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[np.frombuffer(_Z85, np.uint8)] = np.arange(85)
_POWERS = 85 ** np.arange(4, -1, -1, dtype=np.uint64)
_Z85_CHARS = 5
_PAD = "#"
"""No block of a standard text starts with it: its value would not fit four bytes."""


def z85_decode(text: str) -> bytes:
    """Decode ZeroMQ's base 85, in the standard form and as delta-kernel-rs writes it.

    The latter encodes a rest of one to three bytes as a number with one digit more than bytes,
    padded on the left: `##093` is the two bytes 03 00.

    Raises:
        ValueError: The text is not Z85.
    """
    if len(text) % _Z85_CHARS:
        raise ValueError("not a Z85 text")
    last = text[-_Z85_CHARS:]
    digits = last.lstrip(_PAD)
    pads = len(last) - len(digits)
    if not pads:
        return _decode_blocks(text).astype(">u4").tobytes()
    if pads >= _Z85_BLOCK:
        raise ValueError("not a Z85 text")
    [rest] = _decode_blocks(digits.rjust(_Z85_CHARS, "0")).tolist()
    size = _Z85_BLOCK - pads
    if rest >> 8 * size:
        raise ValueError("not a Z85 text")
    whole = _decode_blocks(text[:-_Z85_CHARS]).astype(">u4").tobytes()
    return whole + int(rest).to_bytes(size, "big")


def _decode_blocks(text: str) -> npt.NDArray[np.uint64]:
    """Return the number of each block of five digits."""
    digits = _DIGITS[np.frombuffer(text.encode("ascii"), np.uint8)]
    if (digits == _NO_DIGIT).any():
        raise ValueError("not a Z85 text")
    numbers = digits.reshape(-1, _Z85_CHARS).astype(np.uint64) @ _POWERS
    if (numbers >> np.uint64(32)).any():
        raise ValueError("not a Z85 text")
    return numbers


def relative_file_path(path_or_inline: str) -> str:
    """Return the path of a vector of storage type `u`, relative to the table's root.

    Raises:
        InvalidDeletionVectorError: The text does not end in an encoded UUID.
    """
    prefix, encoded = path_or_inline[:-_UUID_CHARS], path_or_inline[-_UUID_CHARS:]
    try:
        name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded))}.bin"
    except ValueError as error:
        raise InvalidDeletionVectorError(
            f"The deletion vector path {path_or_inline!r} does not end in an encoded UUID.",
            remedy="The log entry is damaged: restore it from a backup.",
        ) from error
    return f"{prefix}/{name}" if prefix else name


def decode_inline(vector: DeletionVector) -> BitMap64:
    """Return the rows of an inline vector.

    Raises:
        InvalidDeletionVectorError: It is damaged.
    """
    try:
        data = z85_decode(vector.path_or_inline)
    except ValueError as error:
        raise _invalid(vector, str(error)) from error
    if not 0 <= len(data) - vector.size_bytes < _Z85_BLOCK:
        raise _invalid(vector, f"it has {len(data)} bytes and the log says {vector.size_bytes}")
    return _bitmap(vector, data[: vector.size_bytes])


def check_bounds(vector: DeletionVector, file_bytes: int) -> None:
    """Make sure that a vector is within its file, before any of it is read.

    Raises:
        InvalidDeletionVectorError: It is not.
    """
    start = 1 if vector.offset is None else vector.offset
    if start < 0 or vector.size_bytes < 0:
        raise InvalidDeletionVectorError(
            f"The log gives a deletion vector in {vector.url} the offset {start} and"
            f" {vector.size_bytes} bytes, which is not a valid range of a file.",
            remedy="The log entry is damaged: restore it from a backup, or RESTORE the table to a"
            " version before it.",
        )
    if start + vector.size_bytes + FRAME_BYTES > file_bytes:
        raise _invalid(
            vector,
            f"the log says {vector.size_bytes} bytes from byte {start} on, and the file has"
            f" {file_bytes}",
        )


def decode_framed(vector: DeletionVector, frame: bytes) -> BitMap64:
    """Return the rows of a vector stored in a file.

    Args:
        frame: `size_bytes + FRAME_BYTES` bytes of the file from the vector's offset on.

    Raises:
        InvalidDeletionVectorError: Length, checksum, magic number or cardinality are wrong.
    """
    if len(frame) < vector.size_bytes + FRAME_BYTES:
        raise _invalid(vector, f"the file ends after {len(frame)} of its bytes")
    stored_size = int.from_bytes(frame[:4], "big")
    if stored_size != vector.size_bytes:
        raise _invalid(vector, f"the file says {stored_size} bytes, the log {vector.size_bytes}")
    data = frame[4 : 4 + vector.size_bytes]
    checksum = int.from_bytes(frame[4 + vector.size_bytes : 8 + vector.size_bytes], "big")
    if zlib.crc32(data) != checksum:
        raise _invalid(vector, "its checksum is wrong")
    return _bitmap(vector, data)


def _bitmap(vector: DeletionVector, data: bytes) -> BitMap64:
    try:
        if data[:4] == MAGIC.to_bytes(4, "little"):
            bitmap = BitMap64.deserialize(data[4:])
        elif data[:4] == NATIVE_MAGIC.to_bytes(4, "big"):
            bitmap = _native_bitmap(data)
        else:
            raise _invalid(vector, "it does not start with the magic number of the format")
    except (ValueError, MemoryError, RuntimeError, IndexError) as error:
        raise _invalid(vector, f"its bitmap is damaged ({error})") from error
    if len(bitmap) != vector.cardinality:
        raise _invalid(vector, f"it holds {len(bitmap)} rows and the log says {vector.cardinality}")
    return bitmap


def _native_bitmap(data: bytes) -> BitMap64:
    """Decode the older form: a count, then 32-bit bitmaps, each after its length, big-endian."""
    bitmap = BitMap64()
    at = 8
    for high in range(int.from_bytes(data[4:8], "big")):
        length = int.from_bytes(data[at : at + 4], "big")
        low = BitMap.deserialize(data[at + 4 : at + 4 + length])
        bitmap |= BitMap64(row + (high << 32) for row in low)
        at += 4 + length
    return bitmap


def _invalid(vector: DeletionVector, why: str) -> InvalidDeletionVectorError:
    location = vector.url or "inline"
    if vector.offset is not None:
        location += f" at byte {vector.offset}"
    return InvalidDeletionVectorError(
        f"The deletion vector {location} cannot be used: {why}. Without it deleted rows would come"
        " back.",
        remedy="Restore the file from a backup, or RESTORE the table to a version before it.",
    )
