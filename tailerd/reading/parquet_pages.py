"""Checks the decoded sizes of a Parquet file's pages before any of them is decoded.

A few bytes of a page can decode to gigabytes: compressed zeros, or one long dictionary value that
is referenced many times. Footers are incomplete and may be wrong; decoders use the page headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.limits import ALLOWANCE_BYTES, largest_piece_bytes
from tailerd.errors import TooLargeError
from tailerd.reading.parquet_chunks import ColumnChunk, read_struct
from tailerd.reading.parquet_footer import UNREADABLE

HEADER_BYTES = 1024
"""Bytes read for the header of a page; headers with long statistics are read again, with more."""
MAX_HEADER_BYTES = 1024 * 1024

MAX_WORDS_BYTES = 2 * 1024 * 1024
"""Maximum size of a dictionary in which the longest text is searched; writers end it at 1 MiB."""

_SHORTEST_BLOCK, _LONGEST_BLOCK = 32, 128
_Words = npt.NDArray[np.uint64]
_EACH_BYTE = np.uint64(0x0101010101010101)

_RATIOS = {"UNCOMPRESSED": 1, "SNAPPY": 22, "LZ4": 256, "LZ4_RAW": 256, "GZIP": 1040}
"""Maximum decoded bytes per byte; other codecs are treated as unbounded."""
_UNKNOWN_RATIO = 40_000

_DICTIONARY = 2
_ABOUT = {0: 5, 1: 6, 2: 7, 3: 8}
"""The field with the number of values, by page type."""
_READERS = dict.fromkeys(_ABOUT.values(), lambda data, at: read_struct(data, at, {}))


class PageHeader(NamedTuple):
    """The header of a page.

    Attributes:
        header_bytes: Its own length.
        stored_bytes, decoded_bytes: Length of the page in the file, and uncompressed.
        values: Number of values; those of a dictionary do not count as the column's.
    """

    header_bytes: int
    stored_bytes: int
    decoded_bytes: int
    values: int
    is_dictionary: bool

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the header at the start of `data`; raises one of `UNREADABLE` if there is none."""
        found, size = read_struct(data, 0, _READERS)
        kind, decoded, stored = found[1], found[2], found[3]
        about = found.get(_ABOUT[kind], {1: 0})
        if min(decoded, stored) < 0:
            raise ValueError("negative size")
        return cls(size, stored, decoded, max(0, about[1]), kind == _DICTIONARY)


@dataclass(slots=True, kw_only=True)
class ColumnPages:
    """Sizes of a column's pages in a row group, according to their headers.

    Attributes:
        values, decoded_bytes: Of each data page, in order.
        dictionary_values, dictionary_bytes: Size of the dictionary, if there is one.
        most_bytes: Of the largest page, including the dictionary.
    """

    values: list[int] = field(default_factory=list)
    decoded_bytes: list[int] = field(default_factory=list)
    dictionary_values: int = 0
    dictionary_bytes: int = 0
    most_bytes: int = 0

    @property
    def longest_value_bytes(self) -> int:
        """Maximum length of a text in the dictionary, if all others are empty."""
        return max(0, self.dictionary_bytes - 4 * self.dictionary_values)


def limit_word_bytes(source: BinaryIO, chunk: ColumnChunk) -> int | None:
    """Return a limit for the length of the texts in a column's dictionary.

    Decoders refuse a second dictionary, and one that is longer than its header says. None if it is
    not the first page, if the page cannot be read, or as `limit_text_bytes`.
    """
    header = _header_at(source, chunk.first_byte)
    if header is None or not header.is_dictionary or header.decoded_bytes > MAX_WORDS_BYTES:
        return None
    source.seek(chunk.first_byte + header.header_bytes)
    page = source.read(header.stored_bytes)
    codec = chunk.compression.lower()
    if codec not in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4_raw"):
        return None
    try:
        if codec != "uncompressed":
            page = pa.Codec(codec).decompress(page, header.decoded_bytes)
    except (pa.ArrowException, OSError):
        return None
    return limit_text_bytes(page, header.values)


def limit_text_bytes(page: bytes | pa.Buffer, count: int) -> int | None:
    """Return a limit for the length of `count` texts, each after its length in four bytes.

    None if a text is longer than about a hundred bytes, or contains zeros. With blocks of B bytes
    that all contain a zero, a text of 8 B contains seven of them, and one of 256 contains one. So
    there are at least eight zeros for a text of 8 B or more, and three for every other one: in its
    length alone if that is below 256, with its blocks otherwise. If there are hardly more than
    three for each text, none has 8 B.

    Parquet format: Encodings, PLAIN
    """
    size = len(page)
    zeros = size - int(np.count_nonzero(np.frombuffer(page, np.uint8)))
    # Each empty text has four.
    if size >= 1 << 24 or zeros > 3 * count + 4:
        return None
    words = np.frombuffer(page, "<u8", size // 8)
    marks = (words - _EACH_BYTE) & ~words & (_EACH_BYTE << np.uint64(7))
    block = 8
    while block < _LONGEST_BLOCK:
        marks = _join_pairs(marks)
        block *= 2
        if block >= _SHORTEST_BLOCK and marks.all():
            return 8 * block - 1
    return None


def _join_pairs(marks: _Words) -> _Words:
    """Return marks of blocks of twice the size; one that is left over is not whole."""
    whole = len(marks) // 2 * 2
    return marks[:whole:2] | marks[1:whole:2]


def most_decoded_bytes(chunk: ColumnChunk) -> int:
    """Return the maximum decoded size of a column chunk by its codec, ignoring the footer."""
    return chunk.stored_bytes * _RATIOS.get(chunk.compression, _UNKNOWN_RATIO)


def read_pages(source: BinaryIO, chunk: ColumnChunk) -> ColumnPages:
    """Read the headers of a column's pages; blocking.

    For a damaged column, only the pages before the damage: decoders stop there too.
    """
    found = ColumnPages()
    for _, header in page_headers(source, chunk):
        found.most_bytes = max(found.most_bytes, header.decoded_bytes, header.stored_bytes)
        if header.is_dictionary:
            found.dictionary_values = header.values
            found.dictionary_bytes = header.decoded_bytes
        else:
            found.values.append(header.values)
            found.decoded_bytes.append(header.decoded_bytes)
    return found


def page_headers(source: BinaryIO, chunk: ColumnChunk) -> Iterator[tuple[int, PageHeader]]:
    """Yield the headers of a column's pages and their positions; stop at an unreadable one."""
    at, left = chunk.first_byte, chunk.num_values
    end = at + chunk.stored_bytes
    while left > 0 and at < end:
        header = _header_at(source, at)
        if header is None:
            return
        yield at, header
        at += header.header_bytes + header.stored_bytes
        if not header.is_dictionary:
            left -= header.values


def _header_at(source: BinaryIO, at: int) -> PageHeader | None:
    size = HEADER_BYTES
    while True:
        source.seek(at)
        data = source.read(size)
        try:
            return PageHeader.parse(data)
        except UNREADABLE:
            if len(data) < size or size >= MAX_HEADER_BYTES:
                return None
            size *= 32


def check_pages(columns: list[ColumnPages], memory_bytes: int, name: str) -> None:
    """Make sure that a page of each column can be decoded at the same time.

    Raises:
        TooLargeError: They cannot.
    """
    largest = max((pages.most_bytes for pages in columns), default=0)
    if largest > largest_piece_bytes(memory_bytes):
        raise TooLargeError.within(
            memory_bytes, f"A page of {name} becomes {largest >> 20} MiB when it is read"
        )
    together = sum(pages.most_bytes for pages in columns)
    if together > (memory_bytes + ALLOWANCE_BYTES) // 2:
        raise TooLargeError.within(
            memory_bytes,
            f"Pages of {name} that are read together become {together >> 20} MiB",
        )
