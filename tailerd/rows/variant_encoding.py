"""Decodes the binary encoding of variants: one traversal, shared by all code that maps values.

Every position is checked: damaged bytes raise and never cause a read outside the value, and the
cost is bounded by their length.

Protocol: parquet-format VariantEncoding.md; PROTOCOL.md#variant-data-type
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

MAX_LEVELS = 200
MAX_NAME_BYTES = 64 * 1024 * 1024
"""Of the names in all objects of a value: the dictionary has each once, however often it occurs."""
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_SIZED = (15, 16)
"""Primitives with a length: bytes and texts."""
BAD_BYTES = (IndexError, struct.error, ValueError)
"""Errors raised when reading bytes that are not a valid variant."""

Name = TypeVar("Name", bound=Sized)
Name_contra = TypeVar("Name_contra", bound=Sized, contravariant=True)
Made = TypeVar("Made")


class VariantMaker(Protocol[Name_contra, Made]):
    """Maps each value to a result, from the innermost outwards. May raise `BAD_BYTES`."""

    def primitive(self, data: bytes, kind: int, position: int) -> Made:
        """Return the result for a primitive.

        Args:
            data: The bytes of the whole value.
            kind: The number of its type.
            position: Position of the first byte after its header.
        """
        ...

    def short_string(self, text: bytes) -> Made:
        """Return the result for a short string, UTF-8."""
        ...

    def object(self, members: Sequence[tuple[Name_contra, Made]]) -> Made:
        """Return the result for an object, from its members in order."""
        ...

    def array(self, items: Sequence[Made]) -> Made:
        """Return the result for an array."""
        ...


def variant_names(metadata: bytes) -> list[bytes]:
    """Return the names in a dictionary, UTF-8.

    Raises:
        IndexError, ValueError: It is not metadata of version 1.
    """
    header = metadata[0]
    if header & 0x0F != 1:
        raise ValueError(f"metadata version {header & 0x0F}")
    width = (header >> 6) + 1
    count = unsigned_at(metadata, 1, width)
    start = 1 + width
    _require(metadata, start, (count + 1) * width)
    offsets = [unsigned_at(metadata, start + index * width, width) for index in range(count + 1)]
    base = start + (count + 1) * width
    return [bytes_at(metadata, base + begin, end - begin) for begin, end in pairwise(offsets)]


class VariantReader(Generic[Name, Made]):
    """Reads one value."""

    def __init__(self, names: Sequence[Name], data: bytes, maker: VariantMaker[Name, Made]) -> None:
        """Initialize.

        Args:
            names: The names of the dictionary, as passed to `maker` for members of objects.
            data: The value's bytes.
            maker: Maps values to results.
        """
        self._names = names
        self._data = data
        self._maker = maker
        self._bytes_left = len(data)
        self._name_bytes_left = MAX_NAME_BYTES

    def read(self, position: int = 0, depth: int = 0) -> Made:
        """Return the result for the value at a position.

        Raises:
            IndexError, struct.error, ValueError: There is no valid value.
        """
        if depth > MAX_LEVELS:
            raise ValueError(f"nested deeper than {MAX_LEVELS} levels")
        # Every value has bytes of its own; overlapping offsets could multiply without bound.
        head = unsigned_at(self._data, position, 1)
        kind, header = head & 3, head >> 2
        self._bytes_left -= 1
        if kind == _SHORT_STRING:
            self._bytes_left -= header
        elif kind == _PRIMITIVE and header in _SIZED:
            self._bytes_left -= unsigned_at(self._data, position + 1, 4)
        if self._bytes_left < 0:
            raise ValueError("its parts overlap")
        if kind == _SHORT_STRING:
            return self._maker.short_string(bytes_at(self._data, position + 1, header))
        if kind == _OBJECT:
            return self._object(position + 1, header, depth)
        if kind == _ARRAY:
            return self._array(position + 1, header, depth)
        return self._maker.primitive(self._data, header, position + 1)

    def _object(self, position: int, header: int, depth: int) -> Made:
        id_width = (header >> 2 & 3) + 1
        count_width = 4 if header >> 4 & 1 else 1
        count = unsigned_at(self._data, position, count_width)
        ids = position + count_width
        _require(self._data, ids, count * id_width)
        items = self._items(ids + count * id_width, count, (header & 3) + 1, depth)
        names = [
            self._names[unsigned_at(self._data, ids + index * id_width, id_width)]
            for index in range(count)
        ]
        self._name_bytes_left -= sum(map(len, names))
        if self._name_bytes_left < 0:
            raise ValueError("its objects repeat too many names")
        return self._maker.object(list(zip(names, items, strict=True)))

    def _array(self, position: int, header: int, depth: int) -> Made:
        count_width = 4 if header >> 2 & 1 else 1
        count = unsigned_at(self._data, position, count_width)
        return self._maker.array(
            self._items(position + count_width, count, (header & 3) + 1, depth)
        )

    def _items(self, offsets: int, count: int, width: int, depth: int) -> list[Made]:
        """Return the results for values whose `count + 1` offsets begin at `offsets`."""
        values = offsets + (count + 1) * width
        _require(self._data, offsets, values - offsets)
        return [
            self.read(values + unsigned_at(self._data, offsets + index * width, width), depth + 1)
            for index in range(count)
        ]


def _require(data: bytes, position: int, length: int) -> None:
    """Reject a range outside the data, before anything is counted or allocated by it."""
    if length < 0 or position + length > len(data):
        raise ValueError(f"{length} bytes at {position} are missing")


def bytes_at(data: bytes, position: int, length: int) -> bytes:
    """Return bytes; `ValueError` if they are out of range."""
    _require(data, position, length)
    return data[position : position + length]


def unsigned_at(data: bytes, position: int, width: int) -> int:
    """Return the little-endian number of `width` bytes; `ValueError` if they are out of range."""
    return int.from_bytes(bytes_at(data, position, width), "little")


def signed_at(data: bytes, position: int, width: int) -> int:
    """Return a signed number; otherwise as `unsigned_at`."""
    return int.from_bytes(bytes_at(data, position, width), "little", signed=True)
