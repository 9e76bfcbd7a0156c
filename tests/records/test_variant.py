from __future__ import annotations

import struct
import uuid

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import UnreadableDataFileError
from tailerd.records.json import JsonEncoder
from tailerd.records.variant import variant_json
from tests.records.batches import change_batch
from tests.records.test_json import column_json
from tests.records.variants import (
    EMPTY,
    array_of,
    long_bytes,
    metadata_of,
    object_of,
    primitive,
    short_string,
)

MICROS = 1_709_210_096_123_456
IDENTITY = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

PRIMITIVES = [
    ("null", primitive(0), "null"),
    ("true", primitive(1), "true"),
    ("false", primitive(2), "false"),
    ("int8", primitive(3, struct.pack("<b", -7)), "-7"),
    ("int16", primitive(4, struct.pack("<h", -300)), "-300"),
    ("int32", primitive(5, struct.pack("<i", 70_000)), "70000"),
    ("int64", primitive(6, struct.pack("<q", -(2**63))), str(-(2**63))),
    ("double", primitive(7, struct.pack("<d", 1e300)), "1e+300"),
    ("double NaN", primitive(7, struct.pack("<d", float("nan"))), '"NaN"'),
    ("double infinity", primitive(7, struct.pack("<d", -float("inf"))), '"-Infinity"'),
    ("decimal4", primitive(8, b"\x02" + struct.pack("<i", -5)), "-0.05"),
    ("decimal8", primitive(9, b"\x00" + struct.pack("<q", 10**17)), "1" + "0" * 17),
    ("decimal16", primitive(10, b"\x26" + (10**38 - 1).to_bytes(16, "little")), "0." + "9" * 38),
    ("date", primitive(11, struct.pack("<i", 19782)), '"2024-02-29"'),
    ("timestamp", primitive(12, struct.pack("<q", MICROS)), '"2024-02-29T12:34:56.123456Z"'),
    ("timestamp_ntz", primitive(13, struct.pack("<q", MICROS)), '"2024-02-29T12:34:56.123456"'),
    ("float", primitive(14, struct.pack("<f", 0.1)), "0.1"),
    ("float NaN", primitive(14, struct.pack("<f", float("nan"))), '"NaN"'),
    ("binary", long_bytes(15, b"\x00\xff"), '"AP8="'),
    ("string", long_bytes(16, b'a"\n' + "日".encode()), '"a\\"\\n日"'),
    ("time", primitive(17, struct.pack("<q", 3_723_000_001)), '"01:02:03.000001"'),
    (
        "nanoseconds",
        primitive(18, struct.pack("<q", MICROS * 1000 + 789)),
        '"2024-02-29T12:34:56.123456789Z"',
    ),
    (
        "nanoseconds before 1970 without zone",
        primitive(19, struct.pack("<q", -1)),
        '"1969-12-31T23:59:59.999999999"',
    ),
    ("uuid", primitive(20, IDENTITY.bytes), f'"{IDENTITY}"'),
    ("short string", short_string("é"), '"é"'),
    ("empty string", short_string(""), '""'),
]


@pytest.mark.parametrize(
    ("value", "text"), [pytest.param(value, text, id=name) for name, value, text in PRIMITIVES]
)
def test_a_primitive_is_the_json_value_it_holds(value: bytes, text: str) -> None:
    assert variant_json(EMPTY, value) == text


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("is_large", [False, True])
def test_offsets_of_every_width_are_read(width: int, is_large: bool) -> None:
    names = metadata_of("b", "a\n", width=width)
    inner = array_of(primitive(1), short_string("x"), width=width, is_large=is_large)
    value = object_of({1: inner, 0: primitive(0)}, width=width, id_width=width, is_large=is_large)

    assert variant_json(names, value) == '{"a\\n":[true,"x"],"b":null}'


def test_empty_containers() -> None:
    assert variant_json(EMPTY, array_of()) == "[]"
    assert variant_json(EMPTY, object_of({})) == "{}"


def nested(levels: int) -> bytes:
    value = primitive(1)
    for _ in range(levels):
        value = array_of(value, width=4)
    return value


def doubling(levels: int) -> bytes:
    """Each array names the next one twice: a few bytes that stand for 2**levels values."""
    value = primitive(1)
    for _ in range(levels):
        value = bytes([3, 2, 0, 0, len(value)]) + value
    return value


DAMAGED = [
    ("no value", EMPTY, b""),
    ("no metadata", b"", primitive(0)),
    ("newer metadata", metadata_of(version=2), primitive(0)),
    ("unknown primitive", EMPTY, primitive(21)),
    ("short integer", EMPTY, primitive(6, b"\x00")),
    ("string longer than the value", EMPTY, long_bytes(16, b"abc")[:-1]),
    ("name that is not there", EMPTY, object_of({0: primitive(0)})),
    ("count beyond the end", EMPTY, bytes([3 | 4 << 2]) + b"\xff\xff\xff\xff"),
    ("names beyond the end", bytes([1 | 3 << 6]) + b"\xff\xff\xff\xff", primitive(0)),
    ("scale that no decimal has", EMPTY, primitive(8, b"\x27" + bytes(4))),
    ("offset that leaves the value", EMPTY, bytes([3, 1, 200, 201]) + primitive(1)),
    ("nested without end", EMPTY, nested(1_000)),
    ("shared parts", EMPTY, doubling(40)),
]


@pytest.mark.parametrize(
    ("metadata", "value"), [pytest.param(m, v, id=name) for name, m, v in DAMAGED]
)
def test_damaged_bytes_are_an_error_that_says_so(metadata: bytes, value: bytes) -> None:
    with pytest.raises(UnreadableDataFileError, match="variant"):
        variant_json(metadata, value)


def variants(values: list[bytes | None]) -> tuple[pa.Array, pa.Field]:
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    rows = [None if value is None else {"metadata": EMPTY, "value": value} for value in values]
    return pa.array(rows, kind), pa.field("v", kind, metadata=VARIANT_FIELD)


def test_a_variant_column_holds_values_and_nulls() -> None:
    array, field = variants([primitive(1), None, short_string("x"), primitive(0)])

    assert column_json(array, field) == ["true", "null", '"x"', "null"]
    assert column_json(array.slice(2), field) == ['"x"', "null"]


def test_variants_may_be_nested_and_views() -> None:
    _, field = variants([])
    views = pa.struct([("metadata", pa.binary_view()), ("value", pa.binary_view())])
    element = pa.field("element", views, metadata=VARIANT_FIELD)
    array = pa.array([[{"metadata": EMPTY, "value": primitive(1)}, None], None], pa.list_(element))
    assert field.metadata == element.metadata

    assert column_json(array) == ["[true,null]", "null"]


@pytest.mark.parametrize("count", [1, 500])
def test_a_variant_is_written_into_its_row(count: int) -> None:
    array, field = variants([primitive(1)] * count)
    rows = pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))

    lines = JsonEncoder().encode_lines(change_batch(rows)).splitlines()

    assert len(lines) == count
    assert lines[-1].startswith(b'{"v":true,"_change_type"')
