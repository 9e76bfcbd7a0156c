from __future__ import annotations

import base64
import io
import random
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.errors import (
    TailerdError,
    TooLargeError,
    UnreadableDataFileError,
    UnsupportedFeatureError,
)
from tailerd.formats.plain_schema import file_column
from tailerd.reading.compared_files import footer_bounds
from tailerd.reading.file_scan import FileScan
from tailerd.reading.parquet import read_file
from tailerd.reading.parquet_chunks import parse_footer
from tailerd.reading.parquet_footer import Fields, _Reader, _write_struct
from tailerd.reading.parquet_pages import PageHeader

ROWS = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "text": [None if n % 5 == 0 else "x" * n for n in range(60)],
        "at": pa.array(range(60), pa.timestamp("us", "UTC")),
        "fixed": pa.array([bytes([n]) * 4 for n in range(60)], pa.binary(4)),
        "items": pa.array([list(range(n % 4)) for n in range(60)], pa.list_(pa.int32())),
        "pair": [{"a": n, "b": "y" * (n % 70)} for n in range(60)],
        "name with a length that no writer of tests has thought of before": [1.5] * 60,
    }
)

WAYS: list[dict[str, Any]] = [
    {"row_group_size": 25},
    {"compression": "none", "use_dictionary": False, "write_page_index": True},
    {"compression": "zstd", "data_page_size": 64, "data_page_version": "2.0"},
    {"use_deprecated_int96_timestamps": True, "store_schema": False},
    {
        "use_dictionary": False,
        "column_encoding": {"text": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED"},
    },
]


def written(table: pa.Table = ROWS, **how: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **how)
    return out.getvalue()


def footer_of(body: bytes) -> bytes:
    [size] = struct.unpack("<I", body[-8:-4])
    return body[-8 - size : -8]


def with_footer(body: bytes, footer: bytes) -> bytes:
    start = len(body) - 8 - len(footer_of(body))
    return body[:start] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def edited(body: bytes, edit: Callable[[Fields], None]) -> bytes:
    """Return a file after a change of the description of its first column."""
    fields = _Reader(footer_of(body)).struct()
    edit(fields[4][1][1][0][1][1][1][0])
    out = bytearray()
    _write_struct(out, fields)
    return with_footer(body, bytes(out))


def read(body: bytes, schema: pa.Schema = ROWS.schema) -> pa.Table:
    scan = FileScan(url="file", fields=tuple(file_column(field) for field in schema))
    parts = read_file(scan, DEFAULT_BATCH_LIMIT, lambda url: io.BytesIO(body))
    return pa.Table.from_batches([part.rows for part in parts], scan.schema)


@pytest.mark.attack
@pytest.mark.parametrize("how", WAYS)
def test_column_chunks_are_described_as_pyarrow_describes_them(how: dict[str, Any]) -> None:
    body = written(**how)
    about = pq.read_metadata(io.BytesIO(body))
    footer = parse_footer(footer_of(body), 1 << 28, "file")
    assert footer.created_by == about.created_by
    assert len(footer.groups) == about.num_row_groups
    for number, group in enumerate(footer.groups):
        theirs = about.row_group(number)
        assert (group.num_rows, group.size_bytes) == (theirs.num_rows, theirs.total_byte_size)
        for leaf, chunk in enumerate(group.chunks):
            other = theirs.column(leaf)
            codec = other.compression
            assert chunk.physical_type == other.physical_type
            assert chunk.compression == codec
            assert chunk.has_prefixes == ("DELTA_BYTE_ARRAY" in other.encodings)
            assert chunk.num_values == other.num_values
            assert chunk.stored_bytes == other.total_compressed_size
            assert chunk.data_page_offset == other.data_page_offset
            assert chunk.dictionary_page_offset == other.dictionary_page_offset
            nulls = other.statistics and other.statistics.null_count
            assert footer.statistics(chunk).null_count == nulls


def test_bounds_of_the_footer_are_those_of_the_rows() -> None:
    body = written(row_group_size=25)
    bounds = footer_bounds(io.BytesIO(body), "file", 1 << 28)
    assert bounds["id"] == (0, 59)
    assert bounds["pair.a"] == (0, 59)
    assert bounds["fixed"] == (bytes(4), bytes([59]) * 4)


def _set(field: int, value: tuple[int, Any]) -> Callable[[Fields], None]:
    return lambda chunk: chunk[3][1].update({field: value})


DAMAGE: dict[str, Callable[[Fields], None]] = {
    "codec": _set(4, (5, 99)),
    "negative-codec": _set(4, (5, -1)),
    "type": _set(1, (5, 6)),
    "unknown-type": _set(1, (5, 44)),
    "histogram": _set(16, (12, {3: (9, (6, [1, 2, 3, 4]))})),
    "unencoded-bytes": _set(16, (12, {1: (6, 7)})),
    "short-statistics": _set(12, (12, {3: (6, 0), 5: (8, b"x"), 6: (8, b"")})),
    "negative-values": _set(5, (6, -5)),
    "negative-size": _set(7, (6, -5)),
    "size-beyond-the-file": _set(7, (6, 1 << 40)),
    "offset-beyond-the-file": _set(9, (6, 1 << 40)),
    "no-description": lambda chunk: chunk.__delitem__(3),
    "no-type": lambda chunk: chunk[3][1].__delitem__(1),
    "another-file": lambda chunk: chunk.update({1: (8, b"other.parquet")}),
    "encrypted": lambda chunk: chunk.update({8: (12, {1: (12, {})})}),
}


@pytest.mark.attack
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_footer_is_refused_and_never_ends_the_process(name: str) -> None:
    body = edited(written(), DAMAGE[name])
    footer_bounds(io.BytesIO(body), "file", 1 << 28)
    with suppress(TailerdError):
        assert read(body).to_pylist() == ROWS.to_pylist()


@pytest.mark.attack
@pytest.mark.parametrize("how", WAYS)
def test_random_damage_never_ends_the_process(how: dict[str, Any], seed: int) -> None:
    chosen = random.Random(seed)
    body = written(**how)
    start = len(body) - 8 - len(footer_of(body))
    for _ in range(60):
        damaged = bytearray(body)
        for _ in range(chosen.randrange(1, 4)):
            damaged[chosen.randrange(start, len(body) - 8)] = chosen.randrange(256)
        footer_bounds(io.BytesIO(damaged), "file", 1 << 28)
        with suppress(TailerdError):
            read(bytes(damaged))


class Kms(pe.KmsClient):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64decode(key)


@pytest.fixture(params=[True, False], ids=["plaintext-footer", "encrypted-footer"])
def encrypted(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    how = pe.EncryptionConfiguration(
        footer_key="k", column_keys={"c": ["text"]}, plaintext_footer=request.param
    )
    factory = pe.CryptoFactory(Kms)
    keys = factory.file_encryption_properties(pe.KmsConnectionConfig(), how)
    with pq.ParquetWriter(tmp_path / "a", ROWS.schema, encryption_properties=keys) as writer:
        writer.write_table(ROWS)
    return (tmp_path / "a").read_bytes()


@pytest.mark.attack
def test_an_encrypted_file_is_refused_by_name(encrypted: bytes) -> None:
    what = "The footer of" if encrypted.endswith(b"PARE") else "Column text of"
    with pytest.raises(UnsupportedFeatureError, match=f"{what} the data file file is encrypted"):
        read(encrypted)
    assert "text" not in footer_bounds(io.BytesIO(encrypted), "file", 1 << 28)


@pytest.mark.attack
@pytest.mark.parametrize("encrypted", [True], indirect=True)
def test_plain_columns_next_to_an_encrypted_one_are_read(encrypted: bytes) -> None:
    assert read(encrypted, pa.schema([ROWS.schema.field("id")])) == ROWS.select(["id"])


@pytest.mark.attack
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_page_with_a_wrong_checksum_is_refused(version: str, has_checksum: bool) -> None:
    number = 1_111_111_111_111
    body = written(
        pa.table({"id": [number, 2]}),
        write_page_checksum=has_checksum,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        data_page_version=version,
    )
    position = body.find(struct.pack("<q", number))
    damaged = body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :]
    schema = pa.schema([("id", pa.int64())])
    assert read(body, schema)["id"].to_pylist() == [number, 2]
    if has_checksum:
        with pytest.raises(UnreadableDataFileError, match="checksum"):
            read(damaged, schema)
    else:
        assert read(damaged, schema)["id"].to_pylist() == [number ^ 1, 2]


@pytest.mark.attack
@pytest.mark.parametrize("length", [20_000, 2_000_000])
def test_an_endless_integer_is_refused_at_once(length: int) -> None:
    endless = b"\x15" + b"\xff" * length
    began = time.thread_time()
    with pytest.raises(ValueError, match="integer"):
        PageHeader.parse(endless)
    with pytest.raises(pa.ArrowInvalid, match="cannot be understood"):
        parse_footer(endless, 1 << 28, "file")
    assert time.thread_time() - began < 0.1


@pytest.mark.attack
def test_a_footer_that_describes_more_columns_than_memory_holds_is_refused() -> None:
    fields = _Reader(footer_of(written(ROWS.select(["id"])))).struct()
    whole, one = bytearray(), bytearray()
    _write_struct(whole, fields)
    _write_struct(one, fields[4][1][1][0])
    # The list of one struct becomes one of 49,152.
    footer = whole.replace(b"\x1c" + one, b"\xfc\x80\x80\x03" + one * 49_152)
    body = with_footer(written(ROWS.select(["id"])), bytes(footer))
    limit = BatchLimit(memory_bytes=1 << 20)
    scan = FileScan(url="file", fields=(file_column(ROWS.schema.field("id")),))
    with pytest.raises(TooLargeError, match="describes too many columns"):
        list(read_file(scan, limit, lambda url: io.BytesIO(body)))
