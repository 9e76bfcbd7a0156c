"""The limit for the texts of a dictionary: never too low, and known where they are short."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.reading.parquet_open import open_parquet
from tailerd.reading.parquet_pages import limit_text_bytes, limit_word_bytes

CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def encode(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def bytes_of(size: int) -> bytes:
    """Return a text without zeros."""
    return b"x" * size


def walk(page: bytes, count: int) -> int | None:
    """Return the length of the longest text, one after the other; None if the page is torn."""
    at, longest = 0, 0
    for _ in range(count):
        if at + 4 > len(page):
            return None
        [size] = struct.unpack_from("<I", page, at)
        at, longest = at + 4 + size, max(longest, size)
    return longest if at <= len(page) else None


@given(
    st.lists(st.binary(max_size=40) | st.integers(0, 5000).map(bytes_of), min_size=1),
    st.binary(max_size=9),
)
def test_no_text_is_longer_than_the_limit(texts: list[bytes], after: bytes) -> None:
    limit = limit_text_bytes(encode(texts) + after, len(texts))
    assert limit is None or limit >= max(map(len, texts))


@given(
    st.lists(st.integers(0, 300).map(bytes_of), max_size=40),
    st.integers(256, 9000),
    st.lists(st.integers(0, 9000), max_size=12),
    st.integers(0, 40),
)
def test_zeros_in_a_long_text_do_not_hide_it(
    texts: list[bytes], size: int, zeros: list[int], at: int
) -> None:
    long = bytearray(bytes_of(size))
    for zero in zeros:
        long[zero % size] = 0
    texts.insert(at, bytes(long))
    limit = limit_text_bytes(encode(texts), len(texts))
    assert limit is None or limit >= size


@given(st.lists(st.text(st.characters(min_codepoint=1), max_size=7), min_size=1, unique=True))
def test_short_texts_without_zeros_always_have_a_limit(texts: list[str]) -> None:
    encoded = [text.encode("utf-8", "replace") for text in texts]
    assert limit_text_bytes(encode(encoded), len(texts)) == 255


@given(
    st.lists(st.sampled_from([0, 0, 0, 1, 2, 4, 5, 255]), max_size=60).map(bytes),
    st.integers(0, 12),
)
def test_no_page_of_any_bytes_has_a_longer_text_than_its_limit(page: bytes, count: int) -> None:
    limit, longest = limit_text_bytes(page, count), walk(page, count)
    assert None in (limit, longest) or limit >= longest  # type: ignore[operator]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["", "a", "bb" * 10], 255),
        ([f"{number:036}" for number in range(50)], 511),
        ([f"{number:090}" for number in range(50)], 1023),
        (["a" * 36, "b" * 300], None),
        (["", None, "", "c\0\0\0\0\0\0d"], None),
    ],
)
def test_the_dictionary_of_a_written_file_is_measured(
    tmp_path: Path, codec: str, texts: list[str | None], expected: int | None
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": texts * 20}), path, compression=codec)
    with path.open("rb") as source:
        [group] = open_parquet(source, 1 << 28, "t").footer.groups
        assert limit_word_bytes(source, group.chunks[0]) == expected


def test_a_file_without_a_dictionary_has_no_limit_word_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path, use_dictionary=False)
    with path.open("rb") as source:
        [group] = open_parquet(source, 1 << 28, "t").footer.groups
        assert limit_word_bytes(source, group.chunks[0]) is None
