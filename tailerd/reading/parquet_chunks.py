"""Reads the row groups and columns of a Parquet footer, in time and memory of its length.

PyArrow aborts the process if it is asked about a column that is encrypted, or that a damaged footer
describes wrongly. So it is never asked: `FileFooter` describes columns, PyArrow decodes pages.

Parquet format: parquet.thrift, Thrift compact protocol
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from tailerd.changefeed.limits import ALLOWANCE_BYTES
from tailerd.errors import TooLargeError
from tailerd.reading.parquet_footer import UNREADABLE

CHUNK_BYTES = 1024
"""Memory for the description of a column chunk, here and in PyArrow."""

_TYPES = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_DELTA_BYTE_ARRAY = 7

_NUMBER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_BYTES = rb"(?:%s)" % b"|".join(rb"\x%02x[\x00-\xff]{%d}" % (size, size) for size in range(33))
_NUMBERS = rb"(?:[\x14-\x16\x24-\x26\x34-\x36]%s){0,8}+\x00" % _NUMBER
_LIST = rb"(?:%s)" % b"|".join(
    rb"\x%x%x(?:%s){%d}" % (count, kind, item, count)
    for kind, item in ((5, _NUMBER), (6, _NUMBER), (12, _NUMBERS))
    for count in range(5)
)
_CHUNK = re.compile(
    rb"\x26%(n)s\x1c\x15([\x00\x02\x04\x06\x08\x0a\x0c\x0e])\x19(%(list)s)\x19(?:\x18%(bytes)s|\x28%(bytes)s%(bytes)s)"
    rb"\x15([\x00\x02\x04\x06\x08\x0a\x0c\x0e])\x16(%(n)s)\x16%(n)s\x16(%(n)s)\x26(%(n)s)(?:\x26(%(n)s))?+(?!\x16)([\x1c\x3c])?+"
    % {b"n": _NUMBER, b"list": _LIST, b"bytes": _BYTES}
)
"""The beginning of a column chunk, and of its statistics, as most writers write it."""
_VARINT = re.compile(_NUMBER)
_SHORT_NUMBERS = re.compile(_NUMBERS)
_SHORT_LIST = re.compile(_LIST)
_SHORT_STRUCT = re.compile(
    rb"(?:[\x14-\x16\x24-\x26\x34-\x36]%s|[\x11\x12\x21\x22]|[\x18\x28\x38]%s){0,16}+\x00"
    % (_NUMBER, _BYTES)
)
"""Most lists and structs have few short parts, and are skipped at once."""
_BINARY, _STRUCT = 8, 12

_ENCRYPTION = 8
"""The field that only encrypted column chunks have."""

_Inner = Mapping[int, Callable[[bytes, int], tuple[Any, int]]]


class ColumnChunk(NamedTuple):
    """One column of one row group.

    Attributes:
        has_prefixes: Whether a page may store values without the beginning of the value before.
        statistics_at: Position of its statistics in the footer; None without.
    """

    physical_type: str
    compression: str
    has_prefixes: bool
    num_values: int
    stored_bytes: int
    data_page_offset: int
    dictionary_page_offset: int | None
    is_encrypted: bool
    is_elsewhere: bool
    statistics_at: int | None

    @property
    def first_byte(self) -> int:
        """Position of its first byte in the file."""
        dictionary, data = self.dictionary_page_offset, self.data_page_offset
        return data if not dictionary or dictionary > data else dictionary


_ENCRYPTED = ColumnChunk("", "", False, 0, 0, 0, None, True, False, None)


class RowGroup(NamedTuple):
    """A row group: its rows, their decoded size as the writer says, and its columns by leaf."""

    num_rows: int
    size_bytes: int
    chunks: tuple[ColumnChunk, ...]


class Statistics(NamedTuple):
    """Statistics of a column chunk; bounds are encoded, None: not known.

    Those of old writers are not in the order of the column's type: `is_ordered` is false.
    """

    null_count: int | None
    lower: bytes | None
    upper: bytes | None
    is_ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFooter:
    """A footer, with everything else in it left to PyArrow.

    Attributes:
        notes: Key-value metadata of Spark.
        created_by: The writer's name and version.
        schema, arrow_schema: As encoded; the latter is empty if the writer was not Arrow.
    """

    groups: tuple[RowGroup, ...]
    notes: Mapping[str, str]
    created_by: str
    schema: bytes = field(repr=False)
    arrow_schema: bytes = field(repr=False)
    _body: bytes = field(repr=False)

    def is_like(self, other: FileFooter) -> bool:
        """Return whether rows of both files are decoded to the same types."""
        return (self.schema, self.arrow_schema, self.notes) == (
            other.schema,
            other.arrow_schema,
            other.notes,
        )

    def statistics(self, chunk: ColumnChunk) -> Statistics:
        """Return the statistics of a column chunk; none if they are missing or damaged."""
        if chunk.statistics_at is None:
            return Statistics(None, None, None)
        found, _ = read_struct(self._body, chunk.statistics_at, {})
        null_count = found.get(3)
        # The first two are of old writers.
        upper, lower = found.get(5, found.get(1)), found.get(6, found.get(2))
        is_count = isinstance(null_count, int) and 0 <= null_count <= chunk.num_values
        return Statistics(
            null_count if is_count else None,
            lower if isinstance(lower, bytes) else None,
            upper if isinstance(upper, bytes) else None,
            5 in found and 6 in found,
        )


def parse_footer(
    body: bytes, memory_bytes: int, name: str, like: FileFooter | None = None
) -> FileFooter:
    """Return the footer whose bytes are given without length and magic.

    Args:
        memory_bytes: The configured `memory`.
        name: For error messages.
        like: That of another file; if its schema is the same, this takes less time.

    Raises:
        TooLargeError: It describes more columns than the memory holds.
        pyarrow.ArrowInvalid: It is not a footer.
    """
    chunks = _Chunks((memory_bytes + ALLOWANCE_BYTES) // CHUNK_BYTES // 2, memory_bytes, name)
    try:
        read_schema = partial(_read_schema, b"" if like is None else like.schema)
        readers: _Inner = {2: read_schema, 4: chunks.read_groups, 5: _read_notes}
        found, _ = read_struct(body, 0, readers)
        notes, arrow_schema = found.get(5, ({}, b""))
        return FileFooter(
            groups=tuple(found.get(4, ())),
            notes=notes,
            created_by=str(found.get(6, b""), "utf-8", "replace"),
            schema=found.get(2, b""),
            arrow_schema=arrow_schema,
            _body=body,
        )
    except UNREADABLE as error:
        raise pa.ArrowInvalid(f"its footer cannot be understood ({error!r})") from error


def _read_schema(known: bytes, data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes of a schema; at once if they are `known`."""
    if known and data.startswith(known, at):
        return known, at + len(known)
    end = _skip(data, at, 9)
    return data[at:end], end


class _Chunks:
    """Reads row groups, as many as fit the memory."""

    def __init__(self, most: int, memory_bytes: int, name: str) -> None:
        self._left = most
        self._memory_bytes = memory_bytes
        self._name = name

    def read_groups(self, data: bytes, at: int) -> tuple[list[RowGroup], int]:
        groups = []
        count, at = _list_length(data, at)
        self._expect(count)
        for _ in range(count):
            found, at = read_struct(data, at, {1: self._read_chunks})
            size, rows = found[2], found[3]
            if min(size, rows) < 0:
                raise ValueError("a negative number")
            groups.append(RowGroup(rows, size, tuple(found[1])))
        return groups, at

    def _read_chunks(self, data: bytes, at: int) -> tuple[list[ColumnChunk], int]:
        chunks = []
        count, at = _list_length(data, at)
        self._expect(count)
        for _ in range(count):
            chunk, at = _read_chunk(data, at)
            chunks.append(chunk)
        return chunks, at

    def _expect(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooLargeError.within(
                self._memory_bytes, f"The footer of {self._name} describes too many columns"
            )


def _read_chunk(data: bytes, at: int) -> tuple[ColumnChunk, int]:
    usual = _CHUNK.match(data, at)
    if usual is None:
        return _read_unusual_chunk(data, at)
    end = usual.end() if usual[8] is None else _skip(data, usual.end(), _STRUCT)
    # After the rest of the description. Structs that follow it are about encryption.
    rest = _SHORT_NUMBERS.match(data, _skip_fields(data, end))
    if rest is None:
        return _read_unusual_chunk(data, at)
    kind, encodings, codec, values, size, start, dictionary, statistics = usual.groups()
    chunk = ColumnChunk(
        _TYPES[kind[0] >> 1],
        _CODECS[codec[0] >> 1],
        _DELTA_BYTE_ARRAY << 1 in encodings,
        _natural(values),
        _natural(size),
        _natural(start),
        None if dictionary is None else _natural(dictionary),
        False,
        False,
        None if statistics is None else usual.end(),
    )
    return chunk, rest.end()


def _natural(number: bytes) -> int:
    value = number[0] if len(number) == 1 else _read_varint(number, 0)[0]
    if value & 1:
        raise ValueError("a negative number")
    return value >> 1


def _read_unusual_chunk(data: bytes, at: int) -> tuple[ColumnChunk, int]:
    about, at = read_struct(data, at, {3: _read_chunk_metadata})
    if _ENCRYPTION in about:
        # Without its key, the description is missing or a dummy.
        return _ENCRYPTED, at
    meta = about[3]
    values, size, start, dictionary = meta[5], meta[7], meta[9], meta.get(11)
    if min(meta[1], meta[4], values, size, start, dictionary or 0) < 0:
        raise ValueError("a negative number")
    chunk = ColumnChunk(
        _TYPES[meta[1]],
        _CODECS[meta[4]],
        meta[2],
        values,
        size,
        start,
        dictionary,
        False,
        1 in about,
        meta.get(12),
    )
    return chunk, at


def _read_chunk_metadata(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    return read_struct(data, at, _CHUNK_READERS)


def _read_notes(data: bytes, at: int) -> tuple[tuple[dict[str, str], bytes], int]:
    notes, arrow_schema = {}, b""
    count, at = _list_length(data, at)
    for _ in range(count):
        entry, at = read_struct(data, at, {})
        if entry[1].startswith(b"org.apache.spark."):
            notes[str(entry[1], "utf-8", "replace")] = str(entry.get(2, b""), "utf-8", "replace")
        elif entry[1] == b"ARROW:schema":
            arrow_schema = entry.get(2, b"")
    return (notes, arrow_schema), at


def _read_encodings(data: bytes, at: int) -> tuple[bool, int]:
    """Return whether one of the encodings is `DELTA_BYTE_ARRAY`."""
    end = _skip(data, at, 9)
    return _DELTA_BYTE_ARRAY << 1 in data[at + 1 : end], end


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    match = _VARINT.match(data, at)
    if match is None:
        raise ValueError("an integer has no end")
    value = 0
    for byte in reversed(match[0]):
        value = value << 7 | byte & 0x7F
    return value, match.end()


def _list_length(data: bytes, at: int) -> tuple[int, int]:
    head = data[at]
    return _read_varint(data, at + 1) if head >> 4 == 15 else (head >> 4, at + 1)


def read_struct(data: bytes, at: int, inner: _Inner) -> tuple[dict[int, Any], int]:
    """Read a struct: numbers and bytes by field; `inner` reads fields with lists and structs.

    Without a reader, the value of a field with a list or a struct is its position.
    """
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        kind, at = head & 0x0F, at + 1
        if head >> 4:
            number += head >> 4
        else:
            value, at = _read_varint(data, at)
            number = (value >> 1) ^ -(value & 1)
        if 4 <= kind <= 6:
            value, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at)
            found[number] = (value >> 1) ^ -(value & 1)
        elif kind == _BINARY:
            size, at = _read_varint(data, at)
            found[number] = data[at : at + size]
            at += size
        elif kind > _BINARY and number in inner:
            found[number], at = inner[number](data, at)
        else:
            found[number], at = (kind == 1) if kind <= 2 else at, _skip(data, at, kind)
    return found, at + 1


def _skip(data: bytes, at: int, kind: int) -> int:
    """Return the position after the value of a field."""
    if kind == _STRUCT:
        flat = _SHORT_STRUCT.match(data, at)
        return _skip_fields(data, at) if flat is None else flat.end()
    if kind in (9, 10):
        flat = _SHORT_LIST.match(data, at)
        if flat is not None:
            return flat.end()
        item = data[at] & 0x0F
        count, at = _list_length(data, at)
        return _skip_items(data, at, count, item)
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return at + size
    if 4 <= kind <= 6:
        return _read_varint(data, at)[1]
    if kind not in _SIZES:
        raise ValueError(f"type {kind}")
    return at + _SIZES[kind]


def _skip_fields(data: bytes, at: int) -> int:
    while head := data[at]:
        at += 1
        if not head >> 4:
            _, at = _read_varint(data, at)
        at = _skip(data, at, head & 0x0F)
    return at + 1


def _skip_items(data: bytes, at: int, count: int, kind: int) -> int:
    for _ in range(count):
        # A boolean in a list is a byte; the value of a field is in its type.
        at = at + 1 if kind <= 2 else _skip(data, at, kind)
        if at > len(data):
            raise IndexError("a list has no end")
    return at


_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
_CHUNK_READERS: _Inner = {2: _read_encodings}
