"""Decodes the Protobuf wire format: numbered fields, each a number or bytes. Pure.

Manifests of tables with many fragments are large, and for most fragments only the bytes are needed:
a field with a message stays bytes until it is decoded on demand.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailerd.errors import CorruptLogError

Value = int | bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIGN = 1 << 63
_MAX_SHIFT = 63


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield number and value of each field in order; repeated fields occur several times.

    Raises:
        CorruptLogError: It is not a message.
    """
    at, end = 0, len(message)
    try:
        while at < end:
            tag = message[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(message, at - 1)
            kind = tag & 7
            if kind == _BYTES:
                size = message[at]
                at += 1
                if size >= 0x80:
                    size, at = _varint(message, at - 1)
                if size > end - at:
                    raise _damage_error()
                yield tag >> 3, message[at : at + size]
                at += size
            elif kind == _VARINT:
                value, at = _varint(message, at)
                yield tag >> 3, value
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
                if size > end - at:
                    raise _damage_error()
                yield tag >> 3, message[at : at + size]
                at += size
            else:
                raise _damage_error()
    except IndexError as error:
        raise _damage_error() from error


def runs(message: bytes, field_number: int) -> tuple[list[bytes], list[tuple[int, Value]]]:
    """Return the values of one repeated field, and all other fields in order.

    Equivalent to filtering `fields`, but faster for messages with long runs of that field.

    Args:
        field_number: Below 16.

    Raises:
        CorruptLogError: It is not a message, or the field is a number.
    """
    tag = field_number << 3 | _BYTES
    found: list[bytes] = []
    others: list[tuple[int, Value]] = []
    at = start = 0
    end = len(message)
    while at < end:
        if message[at] != tag:
            # Field by field up to the next run.
            start, at = at, _after(message, at)
            others += fields(message[start:at])
            continue
        try:
            size = message[at + 1]
            at += 2
            if size >= 0x80:
                size, at = _varint(message, at - 1)
        except IndexError as error:
            raise _damage_error() from error
        if size > end - at:
            raise _damage_error()
        found.append(message[at : at + size])
        at += size
    return found, others


def _after(message: bytes, at: int) -> int:
    """Return the end of the field that begins at a position; at most the message's end."""
    try:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            return _varint(message, at)[1]
        if kind == _BYTES:
            size, at = _varint(message, at)
            return min(at + size, len(message))
        return min(at + (8 if kind == _FIXED64 else 4), len(message))
    except IndexError as error:
        raise _damage_error() from error


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise _damage_error()


def decode_signed(value: Value) -> int:
    """Return a signed number.

    Raises:
        CorruptLogError: It is not a number.
    """
    found = number(value)
    return found - 2 * _SIGN if found >= _SIGN else found


def number(value: Value) -> int:
    """Return a number.

    Raises:
        CorruptLogError: It is not a number.
    """
    if isinstance(value, int):
        return value
    raise _damage_error()


def content(value: Value) -> bytes:
    """Return bytes: a message, a text or a packed list.

    Raises:
        CorruptLogError: It is a number.
    """
    if isinstance(value, bytes):
        return value
    raise _damage_error()


def text(value: Value) -> str:
    """Return a text.

    Raises:
        CorruptLogError: It is not a text.
    """
    try:
        return content(value).decode()
    except UnicodeDecodeError as error:
        raise _damage_error() from error


def numbers(value: Value) -> list[int]:
    """Return the signed numbers of a packed list, or of a single unpacked value.

    Raises:
        CorruptLogError: It is not a list of numbers.
    """
    if isinstance(value, int):
        return [decode_signed(value)]
    found, at = [], 0
    try:
        while at < len(value):
            each, at = _varint(value, at)
            found.append(decode_signed(each))
    except IndexError as error:
        raise _damage_error() from error
    return found


def entry(value: Value) -> tuple[str, bytes]:
    """Return key and value of a map's entry.

    Raises:
        CorruptLogError: It is not an entry.
    """
    key, found = "", b""
    for field_number, each in fields(content(value)):
        if field_number == 1:
            key = text(each)
        elif field_number == 2:
            found = content(each)
    return key, found


def _damage_error() -> CorruptLogError:
    return CorruptLogError("a message in it ends too early, or is invalid")
