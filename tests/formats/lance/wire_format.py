"""Writes messages as the wire has them; shares nothing with the reader."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)


def manifest_file(body: bytes) -> bytes:
    """A manifest's file that holds nothing but the manifest."""
    return struct.pack("<I", len(body)) + body + struct.pack("<QHH4s", 0, 0, 1, b"LANC")


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the message of a manifest's file; what it points at in the file is lost."""
    content = path.read_bytes()
    (position,) = struct.unpack("<Q", content[-16:-8])
    (length,) = struct.unpack("<I", content[position : position + 4])
    path.write_bytes(manifest_file(change(content[position + 4 : position + 4 + length])))
