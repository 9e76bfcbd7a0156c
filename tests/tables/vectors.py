"""Deletion vectors as the protocol frames them: roaring bitmaps, checksums, Z85."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

MAGIC = 1681511377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def z85(data: bytes) -> str:
    """Encode bytes, padded with zeros to a multiple of four."""
    data += b"\0" * (-len(data) % 4)
    text: list[str] = []
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4], "big")
        digits = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits.append(_Z85[digit])
        text.extend(reversed(digits))
    return "".join(text)


def bitmap_bytes(positions: Iterable[int], *, magic: int = MAGIC) -> bytes:
    """Return magic number and portable 64-bit roaring bitmap."""
    return struct.pack("<i", magic) + bytes(BitMap64(positions).serialize())


def framed(bitmap: bytes, *, checksum: int | None = None) -> bytes:
    """Return a bitmap as it stands in a file: size, bytes, CRC-32."""
    crc = zlib.crc32(bitmap) if checksum is None else checksum
    return struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">I", crc)


def inline(positions: Iterable[int]) -> dict[str, Any]:
    """Return the descriptor of a vector that stands in the log itself."""
    expected = sorted(positions)
    bitmap = bitmap_bytes(expected)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85(bitmap),
        "sizeInBytes": len(bitmap),
        "cardinality": len(expected),
    }


class VectorFile:
    """One file that holds vectors of several data files; written anew at each `add`."""

    def __init__(self, folder: Path, identity: uuid.UUID, *, prefix: str = "") -> None:
        """Name the file after `identity`, below `folder`/`prefix`."""
        self._identity = identity
        self._prefix = prefix
        self.path = folder / prefix / f"deletion_vector_{identity}.bin"
        self._body = b"\x01"

    def add(
        self, positions: Iterable[int], *, storage_type: str = "u", checksum: int | None = None
    ) -> dict[str, Any]:
        """Append a vector and return its descriptor, relative (`u`) or absolute (`p`)."""
        expected = sorted(positions)
        bitmap = bitmap_bytes(expected)
        offset = len(self._body)
        self._body += framed(bitmap, checksum=checksum)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(self._body)
        relative = self._prefix + z85(self._identity.bytes)
        return {
            "storageType": storage_type,
            "pathOrInlineDv": relative if storage_type == "u" else self.path.as_uri(),
            "offset": offset,
            "sizeInBytes": len(bitmap),
            "cardinality": len(expected),
        }


def unique_id(descriptor: dict[str, Any] | None) -> str:
    """Return the identity of a vector as PROTOCOL.md derives it; empty without one."""
    if descriptor is None:
        return ""
    offset = descriptor.get("offset")
    suffix = "" if offset is None else f"@{offset}"
    return f"{descriptor['storageType']}{descriptor['pathOrInlineDv']}{suffix}"
