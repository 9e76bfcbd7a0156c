from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import InvalidDeletionVectorError
from tailerd.formats.delta.protocol.data_file import DeletionVector
from tailerd.formats.delta.protocol.deletion_vector import (
    decode_framed,
    decode_inline,
    relative_file_path,
    z85_decode,
)
from tests.tables.vectors import bitmap_bytes, framed, z85

ROWS = [3, 4, 7, 11, 18, 29]
BITMAP = bitmap_bytes(ROWS)


def inline(text: str, size: int, cardinality: int) -> DeletionVector:
    return DeletionVector(
        storage_type="i",
        path_or_inline=text,
        offset=None,
        size_bytes=size,
        cardinality=cardinality,
    )


def stored(**changes: Any) -> DeletionVector:
    fields: dict[str, Any] = {
        "storage_type": "u",
        "path_or_inline": "x",
        "offset": 4,
        "size_bytes": len(BITMAP),
        "cardinality": len(ROWS),
        "url": "/t/deletion_vector_x.bin",
    }
    return DeletionVector(**{**fields, **changes})


def test_the_protocols_inline_example_holds_its_rows() -> None:
    text = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    assert list(decode_inline(inline(text, 40, 6))) == ROWS


def test_the_same_rows_in_the_portable_form_are_the_same() -> None:
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    assert list(decode_inline(inline(text, 44, 6))) == ROWS


def test_the_protocols_relative_example_lies_where_it_says() -> None:
    location = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert relative_file_path("ab^-aqEH.-t@S}K{vb[*k^") == location
    assert relative_file_path("^-aqEH.-t@S}K{vb[*k^") == location.removeprefix("ab/")


@pytest.mark.parametrize("text", ["", "short", "ab", "^-aqEH.-t@S}K{vb[*k\n", "ü" * 20, "#" * 20])
def test_a_path_that_encodes_no_uuid_is_named(text: str) -> None:
    with pytest.raises(InvalidDeletionVectorError, match="UUID"):
        relative_file_path(text)


@given(st.binary(max_size=40))
def test_z85_decodes_what_was_encoded(data: bytes) -> None:
    padded = data + b"\0" * (-len(data) % 4)
    assert z85_decode(z85(data)) == padded


@pytest.mark.parametrize("text", ["a", "abcd", "abc d", "abcd~", "abcdü", "#####"])
def test_a_text_that_is_no_z85_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        z85_decode(text)


rows_of_a_file = st.sets(
    st.integers(0, 100) | st.integers(0, 2**20) | st.integers(0, 2**40), max_size=50
)


@given(rows_of_a_file)
def test_a_vector_holds_the_rows_it_was_made_of(rows: set[int]) -> None:
    data = bitmap_bytes(rows)
    assert list(decode_inline(inline(z85(data), len(data), len(rows)))) == sorted(rows)
    vector = stored(size_bytes=len(data), cardinality=len(rows))
    assert list(decode_framed(vector, framed(data))) == sorted(rows)


def test_bytes_after_a_vector_belong_to_the_next() -> None:
    assert list(decode_framed(stored(), framed(BITMAP) + b"more")) == ROWS


@pytest.mark.parametrize(
    ("vector", "frame", "why"),
    [
        (stored(), framed(BITMAP)[:-1], "ends after"),
        (stored(), b"", "ends after"),
        (stored(size_bytes=len(BITMAP) - 1), framed(BITMAP), "file says"),
        (stored(size_bytes=-8), framed(BITMAP), "file says"),
        (stored(), framed(BITMAP, checksum=1), "checksum"),
        (stored(), framed(bitmap_bytes(ROWS, magic=1681511378)), "magic number"),
        (stored(cardinality=5), framed(BITMAP), "holds 6 rows and the log says 5"),
        (stored(size_bytes=20), framed(BITMAP[:20]), "damaged"),
        (stored(size_bytes=4, cardinality=0), framed(BITMAP[:4]), "damaged"),
        (stored(size_bytes=2, cardinality=0), framed(b"ab"), "magic number"),
        (stored(size_bytes=0, cardinality=0), framed(b""), "magic number"),
    ],
    ids=range(11),
)
def test_a_damaged_vector_in_a_file_is_refused(
    vector: DeletionVector, frame: bytes, why: str
) -> None:
    with pytest.raises(InvalidDeletionVectorError, match=why) as raised:
        decode_framed(vector, frame)
    assert "/t/deletion_vector_x.bin at byte 4" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "size", "cardinality"),
    [
        ("no z85", len(BITMAP), 6),
        (z85(BITMAP), len(BITMAP), 5),
        (z85(BITMAP), len(BITMAP) + 4, 6),
        (z85(BITMAP), len(BITMAP) - 4, 6),
        (z85(BITMAP), -1, 6),
        (z85(BITMAP[:24]), 24, 6),
        (z85(b"abcd"), 4, 0),
        ("", 0, 0),
        ("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 39, 6),
    ],
    ids=range(9),
)
def test_a_damaged_inline_vector_is_refused(text: str, size: int, cardinality: int) -> None:
    with pytest.raises(InvalidDeletionVectorError, match="inline"):
        decode_inline(inline(text, size, cardinality))


@given(st.integers(0, len(BITMAP)), st.binary(max_size=30))
def test_no_bytes_behind_the_magic_number_are_another_error(keep: int, tail: bytes) -> None:
    data = BITMAP[:4] + BITMAP[4:keep] + tail
    try:
        rows = decode_inline(inline(z85(data), len(data), 6))
    except InvalidDeletionVectorError:
        return
    assert len(rows) == 6
