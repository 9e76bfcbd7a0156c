"""Reads and writes footers of Parquet files, to move row groups without decoding them.

A row group is described only by the footer; moving it to another position or file changes only
offsets. Unknown fields are preserved.

Parquet format: parquet.thrift, Thrift compact protocol
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from tailerd.errors import CorruptLogError
from tailerd.remedies import KEEP_CHECKPOINT

MAGIC = b"PAR1"
TAIL_BYTES = 8

MAX_VALUES = 4_000_000
"""Limit of a parsed footer, at about a hundred bytes each; longer ones are not moved."""

MAX_VARINT_BYTES = 10
"""Of an integer with 64 bits."""

Fields = dict[int, tuple[int, Any]]
"""A Thrift struct: (type, value) by field id. A list is (type of its elements, elements)."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

# FileMetaData
_SCHEMA, _NUM_ROWS, _ROW_GROUPS = 2, 3, 4
# SchemaElement
_TYPE, _LENGTH, _REPETITION, _NAME, _CHILDREN = 1, 2, 3, 4, 5
_CONVERTED, _SCALE, _PRECISION, _LOGICAL = 6, 7, 8, 10
# RowGroup
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_OFFSET, _GROUP_COMPRESSED, _ORDINAL = 1, 2, 3, 5, 6, 7
# ColumnChunk
_FILE_PATH, _FILE_OFFSET, _META, _CRYPTO = 1, 2, 3, 8
# ColumnMetaData
_KIND, _ENCODINGS, _PATH, _CODEC = 1, 2, 3, 4
_NUM_VALUES, _UNCOMPRESSED, _COMPRESSED = 5, 6, 7
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _STATISTICS = 9, 10, 11, 12
_BLOOM_OFFSET, _BLOOM_LENGTH = 14, 15
# Statistics
_NULL_COUNT = 3


UNREADABLE = (
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    RuntimeError,  # a generator that met the end of another
    StopIteration,
    TypeError,
    ValueError,
)
"""Errors raised when reading bytes that are not a footer."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values_left = MAX_VALUES

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        result = 0
        for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
            byte = self._byte()
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
        raise ValueError("an integer has no end")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    @property
    def at(self) -> int:
        """Position of the next byte."""
        return self._at

    def find(self, requested: int) -> int:
        """Skip to the value of a field of the struct; return where it begins."""
        number = 0
        while (head := self._byte()) != 0:
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if number == requested:
                return self._at
            if kind > _FALSE:
                self._value(kind)
        raise KeyError(requested)

    def list(self) -> tuple[int, Any]:
        """Read a list: the type of its elements, and the elements."""
        inner, elements = self._value(_LIST)
        return inner, elements

    def struct(self) -> Fields:
        fields: Fields = {}
        number = 0
        while (head := self._byte()) != 0:
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            # A boolean's value is encoded in its type.
            fields[number] = (kind, kind == _TRUE) if kind <= _FALSE else (kind, self._value(kind))
        return fields

    def _value(self, kind: int) -> Any:
        # A byte may become a struct.
        self._values_left -= 1
        if self._values_left < 0:
            raise ValueError(f"more than {MAX_VALUES} values")
        match kind:
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7 | 8:
                size = 8 if kind == _DOUBLE else self._varint()
                self._at += size
                return self._data[self._at - size : self._at]
            case 9 | 10:
                head = self._byte()
                count = self._varint() if head >> 4 == 15 else head >> 4
                inner = head & 0x0F
                # A boolean element of a list is a byte.
                read = self._byte if inner <= _FALSE else None
                return inner, [read() if read else self._value(inner) for _ in range(count)]
            case 12:
                return self.struct()
        raise ValueError(f"type {kind}")


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_struct(out: bytearray, fields: Fields) -> None:
    last = 0
    for number in sorted(fields):
        kind, value = fields[number]
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            _write_varint(out, number << 1)
        last = number
        if kind > _FALSE:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    match kind:
        case 3:
            out.append(value)
        case 4 | 5 | 6:
            _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)
        case 7:
            out += value
        case 8:
            _write_varint(out, len(value))
            out += value
        case 9 | 10:
            inner, items = value
            if len(items) < 15:
                out.append(len(items) << 4 | inner)
            else:
                out.append(0xF0 | inner)
                _write_varint(out, len(items))
            for item in items:
                out.append(item) if inner <= _FALSE else _write_value(out, inner, item)
        case 12:
            _write_struct(out, value)


_GROUP_CONVERTED = frozenset({1, 2, 3})
_GROUP_LOGICAL = frozenset({2, 3, 16})
"""Valid types of a group: converted map, map entries or list; logical map, list or variant."""


MAX_SCHEMA_BYTES = 1024 * 1024
"""Longer schemas are not repaired; ten thousand columns need half of it."""


def without_group_marks(body: bytes) -> bytes | None:
    """Return a footer without value types on groups; None if no group has one.

    Older parquet-mr marks groups in which everything is null with the null type. Everything but the
    schema is copied unchanged.

    Raises:
        CorruptLogError: It is not a footer.
    """
    # A few bytes may decode to many objects.
    reader = _Reader(body[:MAX_SCHEMA_BYTES])
    try:
        start = reader.find(_SCHEMA)
        inner, elements = reader.list()
        if reader.at > MAX_SCHEMA_BYTES:
            raise IndexError(f"its schema is longer than {MAX_SCHEMA_BYTES} bytes")
        marked = [position for element in elements for position in _wrong_marks(element)]
        if not marked:
            return None
        for element, position in marked:
            del element[position]
        out = bytearray(body[:start])
        _write_value(out, _LIST, (inner, elements))
    except UNREADABLE as error:
        raise CorruptLogError(
            f"The footer of a Parquet file cannot be understood: {error!r}.",
            remedy="Restore the file from a backup.",
        ) from error
    return bytes(out) + body[reader.at :]


def _wrong_marks(element: Fields) -> list[tuple[Fields, int]]:
    if _TYPE in element:
        return []
    found = []
    if _CONVERTED in element and element[_CONVERTED][1] not in _GROUP_CONVERTED:
        found.append((element, _CONVERTED))
    if _LOGICAL in element and not _GROUP_LOGICAL.issuperset(element[_LOGICAL][1]):
        found.append((element, _LOGICAL))
    return found


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of one row group.

    Attributes:
        start, size_bytes: The range of its pages in the file.
        null_count: None without statistics.
    """

    start: int
    size_bytes: int
    is_compressed: bool
    null_count: int | None
    fields: Fields

    @classmethod
    def from_fields(cls, fields: Fields) -> Chunk:
        """Read a ColumnChunk."""
        meta: Fields = fields[_META][1]
        if _FILE_PATH in fields or _CRYPTO in fields:
            raise ValueError("a column in another file, or encrypted")
        pages = [
            meta[position][1] for position in (_DATA_PAGE, _DICTIONARY_PAGE) if position in meta
        ]
        statistics: Fields = meta[_STATISTICS][1] if _STATISTICS in meta else {}
        return cls(
            start=min(page for page in pages if page > 0),
            size_bytes=meta[_COMPRESSED][1],
            is_compressed=meta[_CODEC][1] != 0,
            null_count=statistics[_NULL_COUNT][1] if _NULL_COUNT in statistics else None,
            fields=fields,
        )

    def moved_to(self, start: int) -> Fields:
        """Return the description of the same pages at another position, without indexes."""
        meta = dict(self.fields[_META][1])
        for position in (_DATA_PAGE, _DICTIONARY_PAGE):
            if position in meta and meta[position][1] > 0:
                meta[position] = (_I64, meta[position][1] - self.start + start)
        for position in (_INDEX_PAGE, _BLOOM_OFFSET, _BLOOM_LENGTH):
            meta.pop(position, None)
        return {_FILE_OFFSET: (_I64, 0), _META: (_STRUCT, meta)}

    def describe_pages(
        self, start: int, dictionary_bytes: int, size_bytes: int, values: int
    ) -> Fields:
        """Return the description of some of the pages, after the dictionary if there is one."""
        about: Fields = self.fields[_META][1]
        meta = {position: about[position] for position in (_KIND, _ENCODINGS, _PATH, _CODEC)}
        sizes = {_NUM_VALUES: values, _UNCOMPRESSED: size_bytes, _COMPRESSED: size_bytes}
        sizes[_DATA_PAGE] = start + dictionary_bytes
        if dictionary_bytes:
            sizes[_DICTIONARY_PAGE] = start
        meta |= {position: (_I64, value) for position, value in sizes.items()}
        return {_FILE_OFFSET: (_I64, 0), _META: (_STRUCT, meta)}

    @property
    def uncompressed_bytes(self) -> int:
        """Bytes of its pages without compression."""
        size: int = self.fields[_META][1][_UNCOMPRESSED][1]
        return size


@dataclass(frozen=True, slots=True)
class Group:
    """One row group: its rows, and its columns in the order of the schema's leaves."""

    rows: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file.

    Attributes:
        leaves: Shape of each leaf by its path; pages are interchangeable only if it is equal.
    """

    fields: Fields
    leaves: dict[str, object]
    groups: tuple[Group, ...]

    @classmethod
    def parse(cls, body: bytes) -> Footer:
        """Read a footer without its length and magic.

        Raises:
            CorruptLogError: It is not a footer, or its row groups cannot be moved.
        """
        try:
            fields = _Reader(body).struct()
            leaves = dict(_leaves(iter(fields[_SCHEMA][1][1])))
            groups = tuple(
                Group(
                    group[_GROUP_ROWS][1],
                    tuple(Chunk.from_fields(chunk) for chunk in group[_COLUMNS][1][1]),
                )
                for group in fields[_ROW_GROUPS][1][1]
            )
        except UNREADABLE as error:
            raise CorruptLogError(
                f"The footer of a Parquet file cannot be understood: {error!r}.",
                remedy=KEEP_CHECKPOINT,
            ) from error
        return cls(fields, leaves, groups)


def read_footer(source: BinaryIO, name: str) -> Footer:
    """Read the footer of an open file; blocking.

    Raises:
        CorruptLogError: It has none, or one that is not supported.
    """
    source.seek(0, 2)
    end = source.tell()
    source.seek(max(0, end - TAIL_BYTES))
    tail = source.read(TAIL_BYTES)
    size = struct.unpack("<I", tail[:4])[0] if len(tail) == TAIL_BYTES else end
    if tail[4:] != MAGIC or size + TAIL_BYTES > end:
        raise CorruptLogError(f"{name} is not a Parquet file, or incomplete.")
    source.seek(end - TAIL_BYTES - size)
    return Footer.parse(source.read(size))


def _leaves(elements: Iterator[Fields]) -> Iterator[tuple[str, object]]:
    root = next(elements)
    for _ in range(root[_CHILDREN][1]):
        yield from _leaves_below(elements, "", ())


def _leaves_below(
    elements: Iterator[Fields], prefix: str, above: tuple[int, ...]
) -> Iterator[tuple[str, object]]:
    element = next(elements)
    path = prefix + element[_NAME][1].decode()
    shape = (*above, element[_REPETITION][1])
    children = element[_CHILDREN][1] if _CHILDREN in element else 0
    if not children:
        kind = (_TYPE, _LENGTH, _CONVERTED, _SCALE, _PRECISION, _LOGICAL)
        yield path, (shape, tuple(str(element.get(position)) for position in kind))
    for _ in range(children):
        yield from _leaves_below(elements, f"{path}.", shape)


def group_fields(chunks: list[Fields], rows: int, ordinal: int, size_bytes: int) -> Fields:
    """Return the description of a row group of these columns."""
    uncompressed = sum(chunk[_META][1][_UNCOMPRESSED][1] for chunk in chunks)
    return {
        _COLUMNS: (_LIST, (_STRUCT, chunks)),
        _GROUP_BYTES: (_I64, uncompressed),
        _GROUP_ROWS: (_I64, rows),
        _GROUP_COMPRESSED: (_I64, size_bytes),
        _ORDINAL: (_I16, ordinal),
    }


def footer_body(like: Footer, groups: list[Fields], rows: int) -> bytes:
    """Return the footer of a file with the schema of `like` and these row groups."""
    fields = {
        **like.fields,
        _NUM_ROWS: (_I64, rows),
        _ROW_GROUPS: (_LIST, (_STRUCT, groups)),
    }
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out) + struct.pack("<I", len(out)) + MAGIC
