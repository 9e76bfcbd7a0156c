"""Variant values made by hand: the other side of `tailerd.records.variant`."""

from __future__ import annotations

import struct


def metadata_of(*names: str, width: int = 1, version: int = 1) -> bytes:
    raw = [name.encode() for name in names]
    offsets = [sum(map(len, raw[:index])) for index in range(len(raw) + 1)]
    numbers = [len(raw), *offsets]
    return (
        bytes([version | (width - 1) << 6])
        + b"".join(number.to_bytes(width, "little") for number in numbers)
        + b"".join(raw)
    )


EMPTY = metadata_of()


def primitive(kind: int, body: bytes = b"") -> bytes:
    return bytes([kind << 2]) + body


def short_string(text: str) -> bytes:
    raw = text.encode()
    return bytes([1 | len(raw) << 2]) + raw


def long_bytes(kind: int, raw: bytes) -> bytes:
    return primitive(kind, struct.pack("<I", len(raw)) + raw)


def array_of(*items: bytes, width: int = 1, is_large: bool = False) -> bytes:
    header = (width - 1) | (4 if is_large else 0)
    count = len(items).to_bytes(4 if is_large else 1, "little")
    return bytes([3 | header << 2]) + count + _offsets(items, width) + b"".join(items)


def object_of(
    members: dict[int, bytes], width: int = 1, id_width: int = 1, is_large: bool = False
) -> bytes:
    header = (width - 1) | (id_width - 1) << 2 | (16 if is_large else 0)
    count = len(members).to_bytes(4 if is_large else 1, "little")
    ids = b"".join(name.to_bytes(id_width, "little") for name in members)
    items = tuple(members.values())
    return bytes([2 | header << 2]) + count + ids + _offsets(items, width) + b"".join(items)


def _offsets(items: tuple[bytes, ...], width: int) -> bytes:
    ends = [sum(map(len, items[:index])) for index in range(len(items) + 1)]
    return b"".join(end.to_bytes(width, "little") for end in ends)
