"""Every decoder of bytes that others wrote: it takes time and memory in proportion to them.

A decoder of a format's file belongs into `DECODERS`, with bytes that it reads.
"""

from __future__ import annotations

import io
import json
import random
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from tailerd.errors import TailerdError, TooLargeError, UnreadableDataFileError
from tailerd.formats.delta.protocol.commit_file import decode_lines
from tailerd.formats.delta.protocol.data_file import DeletionVector
from tailerd.formats.delta.protocol.deletion_vector import decode_framed
from tailerd.formats.delta.protocol.full_actions import decode_full
from tailerd.formats.delta.protocol.last_checkpoint import parse_last_checkpoint
from tailerd.formats.delta.protocol.schema import char_lengths, parse_schema
from tailerd.formats.delta.protocol.version_checksum import parse_version_checksum
from tailerd.formats.iceberg.columns import TableSchema
from tailerd.formats.iceberg.columns import parse_columns as parse_iceberg_columns
from tailerd.formats.iceberg.deleted_rows import decode_vector
from tailerd.formats.iceberg.manifests import parse_manifest_list
from tailerd.formats.iceberg.metadata import parse_metadata as parse_table_metadata
from tailerd.formats.iceberg.payload import Vector as PuffinVector
from tailerd.formats.kartothek.metadata import parse_metadata
from tailerd.formats.kartothek.table_schema import read_schema
from tailerd.formats.lance.protocol.columns import parse_columns
from tailerd.formats.lance.protocol.fragments import parse_fragment
from tailerd.formats.lance.protocol.manifest import parse_manifest
from tailerd.formats.lance.protocol.transactions import parse_operation
from tailerd.formats.tiledb.protocol.commits import read_consolidated, read_lines
from tailerd.formats.tiledb.protocol.conditions import read_condition
from tailerd.reading.parquet_chunks import parse_footer
from tailerd.reading.parquet_footer import (
    MAX_VALUES,
    UNREADABLE,
    Footer,
    without_group_marks,
)
from tailerd.reading.parquet_pages import PageHeader
from tailerd.records.variant import variant_json
from tailerd.rows.hashing import canonical_variant
from tests.formats.lance.wire_format import field, manifest_file, message
from tests.tables import vectors

pytestmark = pytest.mark.attack

MEMORY = 64 << 20
Decoder = Callable[[bytes], object]


def footer() -> bytes:
    out = io.BytesIO()
    table = pa.table({"id": [1, 2], "s": [{"a": "x"}, None], "l": [[1], []]})
    pq.write_table(table, out, write_page_index=True)
    [size] = struct.unpack("<I", out.getvalue()[-8:-4])
    return out.getvalue()[-8 - size : -8]


def schema_file() -> bytes:
    out = io.BytesIO()
    pq.write_metadata(pa.schema([("id", pa.int64())]), out)
    return out.getvalue()


DATASET = {
    "dataset_metadata_version": 4,
    "dataset_uuid": "u",
    "metadata": {"creation_time": "now", "notes": [1, {"a": None}]},
    "partitions": {"p": {"files": {"table": "u/table/p.parquet"}}},
}
PACKED = pa.Codec("zstd").compress(msgspec.msgpack.encode(DATASET), asbytes=True)
COLUMN = message([(2, b"id"), (3, 1), (4, (1 << 64) - 1), (5, b"int64")])
FRAGMENT = message([(1, 1), (2, message([(1, b"a.lance"), (2, b"\x01")])), (4, 10)])
MANIFEST = manifest_file(message([(3, 5), (1, COLUMN), (2, FRAGMENT)]))
LINES = (
    b'{"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}\n'
)
SCHEMA = b'{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'
NAMES = bytes([1, 1, 0, 1]) + b"a"
VARIANT = bytes([2, 1, 0, 0, 5]) + bytes([5 << 2, 1, 2, 3, 4])
VECTOR = DeletionVector(storage_type="u", path_or_inline="x", offset=0, size_bytes=0, cardinality=3)


PAGE = bytes([0x15, 0, 0x15, 8, 0x15, 8, 0x2C, 0x15, 2, 0, 0])


def read_page_header(data: bytes) -> object:
    with suppress(*UNREADABLE):
        return PageHeader.parse(data)
    return None


def delete_file() -> bytes:
    tree = bytes([1, 0]) + struct.pack("<I", 1) + b"v" + struct.pack("<Q", 4) + bytes(4)
    packed = zlib.compress(tree)
    meta = struct.pack("<IIII", 0, 1, len(tree), len(packed))
    chunk = struct.pack("<III", len(tree), len(packed), len(meta)) + meta + packed
    data = struct.pack("<Q", 1) + chunk
    pipeline = struct.pack("<II", 1 << 16, 1) + struct.pack("<BI", 1, 5) + bytes(5)
    head = struct.pack("<IQQBQBI", 1, len(data), len(tree), 0, 1, 0, len(pipeline))
    return head + pipeline + data


def read_vector(data: bytes) -> object:
    # With the right checksum, so that the bitmap is decoded.
    return decode_framed(replace(VECTOR, size_bytes=len(data)), vectors.framed(data))


TABLE_SCHEMA = (
    b'{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"a","required":false,"type":"long"},'
    b'{"id":2,"name":"s","required":false,"type":{"type":"list","element-id":3,"element":"date"}}]}'
)
TABLE_METADATA = (
    b'{"format-version":2,"location":"/t","schemas":[' + TABLE_SCHEMA + b"],"
    b'"snapshots":[{"snapshot-id":1,"sequence-number":1,"timestamp-ms":1,"manifest-list":"m"}]}'
)


def manifest_list() -> bytes:
    fields = [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "partition_spec_id", "type": "int", "field-id": 502},
        {"name": "added_snapshot_id", "type": "long", "field-id": 503},
    ]
    schema = {"type": "record", "name": "manifest_file", "fields": fields}
    out = io.BytesIO()
    record = {"manifest_path": "m.avro", "partition_spec_id": 0, "added_snapshot_id": 1}
    fastavro.writer(out, schema, [record] * 3)
    return out.getvalue()


def vector_blob() -> bytes:
    data = bytes.fromhex("d1d33964") + bytes(BitMap64([1, 2, 9]).serialize())
    return len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")


def read_puffin_vector(data: bytes) -> object:
    vector = PuffinVector(url="x", offset=0, length=len(data), rows=3)
    body = data[4:-4]
    # With the right length and checksum, so that the bitmap is decoded.
    return decode_vector(
        len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big"), vector
    )


DECODERS: dict[str, tuple[bytes, Decoder]] = {
    "Parquet footer": (footer(), lambda data: parse_footer(data, MEMORY, "file")),
    "Parquet footer, to move row groups": (footer(), Footer.parse),
    "Parquet footer, to repair": (footer(), without_group_marks),
    "Parquet page header": (PAGE, read_page_header),
    "Delta commit": (LINES, lambda data: list(decode_lines("0.json", [data], MEMORY))),
    "Delta checkpoint of JSON": (LINES, lambda data: list(decode_full("c", [data], MEMORY))),
    "Delta _last_checkpoint": (b'{"version":1,"size":2}', parse_last_checkpoint),
    "Delta checksum": (b'{"tableSizeBytes":1,"numFiles":1}', parse_version_checksum),
    "Delta schema": (SCHEMA, lambda data: parse_schema(data.decode("utf-8", "replace"))),
    "Delta type of CHAR columns": (
        b"struct<a:char(3),b:map<int,array<char(4)>>>",
        lambda data: char_lengths(data.decode("utf-8", "replace")),
    ),
    "Delta deletion vector": (vectors.bitmap_bytes([1, 2, 9]), read_vector),
    "Variant": (VARIANT, lambda data: variant_json(NAMES, data)),
    "Variant names": (NAMES, lambda data: variant_json(data, VARIANT)),
    "Variant, to compare": (VARIANT, lambda data: canonical_variant(NAMES, data)),
    "Kartothek JSON": (
        json.dumps(DATASET).encode(),
        lambda data: parse_metadata(data, "u", "json", MEMORY),
    ),
    "Kartothek msgpack": (PACKED, lambda data: parse_metadata(data, "u", "msgpack.zstd", MEMORY)),
    "Kartothek schema": (schema_file(), lambda data: read_schema(data, "file", MEMORY)),
    "Iceberg metadata": (TABLE_METADATA, lambda data: parse_table_metadata(data, "file", MEMORY)),
    "Iceberg schema": (
        TABLE_SCHEMA,
        lambda data: parse_iceberg_columns(TableSchema(data.decode("utf-8", "replace"))),
    ),
    "Iceberg manifest list": (
        manifest_list(),
        lambda data: parse_manifest_list(data, "file"),
    ),
    "Iceberg deletion vector": (vector_blob(), read_puffin_vector),
    "Lance manifest": (MANIFEST, lambda data: parse_manifest(data, "file")),
    "Lance columns": (COLUMN, lambda data: parse_columns([data, COLUMN])),
    "Lance fragment": (FRAGMENT, parse_fragment),
    "Lance transaction": (field(104, b""), parse_operation),
    "TileDB list of commits": (
        b"__commits/__1_1_0123456789abcdef0123456789abcdef_21.wrt\n",
        lambda data: read_consolidated(data, "file"),
    ),
    "TileDB list of files": (b"a/b\nc", read_lines),
    "TileDB delete": (delete_file(), lambda data: read_condition(data, "file")),
}


def damaged(data: bytes, chosen: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chosen.randrange(1, 4)):
        at = chosen.randrange(len(found) + 1)
        how = chosen.randrange(4)
        if how == 0 and at < len(found):
            found[at] = chosen.randrange(256)
        elif how == 1:
            found[at:at] = bytes([chosen.choice([0xFF, 0x80, 0, 0x7F, ord("["), ord("{")])]) * (
                chosen.choice([1, 5, 4000])
            )
        elif how == 2:
            del found[at:]
        else:
            found[at:at] = found[: chosen.randrange(len(found) + 1)]
    return bytes(found)


@pytest.mark.parametrize("name", DECODERS)
def test_damage_is_an_error_within_time_and_memory_of_the_bytes(name: str, seed: int) -> None:
    sample, decode = DECODERS[name]
    assert sample
    decode(sample)
    chosen = random.Random(f"{seed} {name}")
    tracemalloc.start()
    began = time.thread_time()
    try:
        for _ in range(150):
            with suppress(TailerdError, pa.ArrowException, OSError):
                decode(damaged(sample, chosen))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert time.thread_time() - began < 5


def peak_bytes(decode: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        decode()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_metadata_that_becomes_gigabytes_is_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        for _ in range(1024):
            out.write(bytes(1 << 20))
    body = sink.getvalue().to_pybytes()
    assert len(body) < 64 << 10

    def decode() -> None:
        with pytest.raises(TooLargeError, match=r"`memory` \(64 MiB\)"):
            parse_metadata(body, "u", "msgpack.zstd", MEMORY)

    assert peak_bytes(decode) < 100 << 20


def test_a_delete_whose_parts_become_gigabytes_is_refused() -> None:
    packed = zlib.compress(bytes(32 << 20))
    parts = 100
    meta = struct.pack("<II", 0, parts) + struct.pack("<II", 32 << 20, len(packed)) * parts
    chunk = struct.pack("<III", 1, len(packed) * parts, len(meta)) + meta + packed * parts
    data = struct.pack("<Q", 1) + chunk
    pipeline = struct.pack("<II", 1 << 16, 1) + struct.pack("<BI", 1, 5) + bytes(5)
    head = struct.pack("<IQQBQBI", 1, len(data), 1 << 20, 0, 1, 0, len(pipeline))

    def decode() -> None:
        with pytest.raises(TailerdError, match="becomes more than"):
            read_condition(head + pipeline + data, "file")

    assert peak_bytes(decode) < 200 << 20


def test_a_variant_whose_parts_share_one_long_text_is_refused() -> None:
    count, text = 10_000, b"x" * 100_000
    long = bytes([16 << 2]) + struct.pack("<I", len(text)) + text
    array = bytes([0b11 | (0b111 << 2)]) + struct.pack("<I", count) + bytes(4 * (count + 1)) + long
    with pytest.raises(UnreadableDataFileError, match="overlap"):
        variant_json(bytes([1, 0, 0]), array)
    one = bytes([0b11 | (0b111 << 2)]) + struct.pack("<I", 1) + bytes(8) + long
    assert len(variant_json(bytes([1, 0, 0]), one)) == len(text) + 4


def test_a_variant_that_repeats_a_long_name_without_end_is_refused() -> None:
    name = b"n" * 1_000_000
    names = bytes([0b11 << 6 | 1]) + struct.pack("<III", 1, 0, len(name)) + name
    one = bytes([2, 1, 0, 0, 1]) + b"\x00"
    count = 1000
    offsets = struct.pack(f"<{count + 1}I", *range(0, len(one) * (count + 1), len(one)))
    array = bytes([0b11 | (0b111 << 2)]) + struct.pack("<I", count) + offsets + one * count
    with pytest.raises(UnreadableDataFileError, match="repeat too many names"):
        variant_json(names, array)


def test_columns_of_lance_that_are_nested_without_end_are_refused() -> None:
    root = (1 << 64) - 1
    fields = [
        message([(2, b"f"), (3, number + 1), (4, number or root), (5, b"struct")])
        for number in range(3000)
    ]
    [column] = parse_columns(fields)
    assert (column.type, column.parts) == (None, ())
    assert "nested deeper" in column.reason


def test_a_footer_of_empty_structs_is_not_taken_apart() -> None:
    # Field 20: a list of structs, each a byte.
    count = MAX_VALUES + 1
    size = bytearray()
    left = count
    while left >= 0x80:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    size.append(left)
    body = bytes([0x09, 40, 0xFC]) + bytes(size) + bytes(count)
    with pytest.raises(TailerdError, match="more than"):
        Footer.parse(body)
