"""Protobuf schemas and values by example, read by the official library and by Confluent's."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

from tailerd.changefeed.change_batch import FIELD_ID, VARIANT_FIELD
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.errors import TableError, UnsupportedFeatureError
from tailerd.records.base import FormatOptions
from tailerd.records.formats.protobuf import (
    ProtobufCodec,
    protobuf_envelopes,
    protobuf_rows,
)
from tailerd.records.formats.registered_records import SchemaIds
from tailerd.records.schemas.protobuf_parser import earlier_numbers
from tailerd.records.schemas.protobuf_schema import allowed_number
from tailerd.records.schemas.record_shape import (
    envelope_shape,
    image_shape,
    key_shape,
    row_shape,
)
from tests.records.batches import TIMESTAMP_US, change_batch
from tests.records.naive_protobuf import message_class
from tests.records.registry_double import KEY, VALUE, registered
from tests.records.test_avro import ENVELOPE_KINDS, ENVELOPE_ROWS, variants
from tests.records.variants import short_string

OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))
KEYLESS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=1, value=2)
ID = pa.field("id", pa.int64())


def format_text(*fields: pa.Field, codec: ProtobufCodec | None = None) -> str:
    return protobuf_rows(OPTIONS, codec).schemas(pa.schema([ID, *fields])).value.text


def read_rows(batch: Any, codec: ProtobufCodec | None = None) -> list[Any]:
    codec = codec or ProtobufCodec()
    make = message_class(codec.file(row_shape(KEYLESS, batch.rows.schema)))
    values = protobuf_rows(KEYLESS, codec).records(batch, ids=IDS).values
    return [make.FromString(value[6:]) for value in values.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (pa.int8(), "optional int32 x = 2;"),
        (pa.uint16(), "optional uint32 x = 2;"),
        (pa.uint64(), "optional uint64 x = 2;"),
        (pa.float16(), "optional float x = 2;"),
        (pa.float64(), "optional double x = 2;"),
        (pa.bool_(), "optional bool x = 2;"),
        (pa.large_string(), "optional string x = 2;"),
        (pa.binary(4), "optional bytes x = 2;"),
        (pa.uuid(), "optional string x = 2;"),
        (pa.date32(), "google.type.Date x = 2;"),
        (pa.time64("us"), "google.type.TimeOfDay x = 2;"),
        (pa.timestamp("us", "UTC"), "google.protobuf.Timestamp x = 2;"),
        (pa.timestamp("us"), "google.type.DateTime x = 2;"),
        (pa.decimal128(10, 2), "confluent.type.Decimal x = 2;"),
        (pa.list_(pa.string()), "repeated string x = 2;"),
        (pa.list_(pa.date32()), "repeated google.type.Date x = 2;"),
        (pa.map_(pa.int32(), pa.string()), "map<int32, string> x = 2;"),
        (pa.map_(pa.date32(), pa.string()), "repeated XEntry x = 2;"),
        (pa.struct([ID]), "X x = 2;"),
        (pa.list_(pa.list_(pa.int32())), "repeated XList x = 2;"),
    ],
    ids=str,
)
def test_each_type_has_its_protobuf_type(kind: pa.DataType, line: str) -> None:
    assert f"  {line}\n" in format_text(pa.field("x", kind))


def test_the_text_of_a_schema() -> None:
    fields = [
        pa.field("items", pa.list_(pa.struct([ID])), metadata={"comment": "What was\nordered"}),
        pa.field("a-b", pa.map_(pa.date32(), pa.int32())),
        pa.field("nothing", pa.null()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
    assert (
        format_text(*fields)
        == """syntax = "proto3";

package lake.orders;

import "google/protobuf/timestamp.proto";
import "google/type/date.proto";

message Value {
  optional int64 id = 1;
  // What was
  // ordered
  repeated Items items = 2;
  // Column 'a-b'.
  repeated AX2DbEntry a_x2Db = 3;
  google.protobuf.Timestamp at = 5;
  optional string _change_type = 18997;
  optional int64 _commit_version = 18998;
  google.protobuf.Timestamp _commit_timestamp = 18999;
  message Items {
    optional int64 id = 1;
  }
  message AX2DbEntry {
    google.type.Date key = 1;
    optional int32 value = 2;
  }
}
"""
    )


def test_names_that_readers_of_json_confuse_are_told_apart() -> None:
    text = format_text(pa.field("a_b", pa.int32()), pa.field("aB", pa.int32()))
    assert "optional int32 a_b = 2;" in text
    assert "optional int32 aB_2 = 3;" in text


def test_a_package_called_like_anothers_does_not_hide_it() -> None:
    options = FormatOptions(name="google", table="orders")
    schema = pa.schema([pa.field("at", pa.date32())])
    text = protobuf_rows(options).schemas(schema).value.text
    assert "  .google.type.Date at = 1;" in text


@pytest.mark.parametrize("kind", [pa.list_(pa.null()), pa.duration("s")], ids=str)
def test_a_type_without_a_form_is_an_error_that_names_the_column(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedFeatureError, match="'x' has the type"):
        format_text(pa.field("x", kind))


# ---------------------------------------------------------------- numbers


def with_id(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({FIELD_ID: str(number)})


def test_field_ids_are_the_numbers_where_all_have_one() -> None:
    fields = [
        with_id(ID, 3),
        with_id(pa.field("x", pa.struct([with_id(pa.field("y", pa.int32()), 9)])), 7),
    ]
    text = protobuf_rows(OPTIONS).schemas(pa.schema(fields)).value.text
    for line in ("int64 id = 3;", "X x = 7;", "int32 y = 9;"):
        assert line in text


def test_an_id_is_never_a_number_that_others_have() -> None:
    numbers = [allowed_number(expected) for expected in (1, 18_996, 18_997, 19_000, 2**28)]
    assert numbers == [1, 18_996, 20_000, 20_003, 2**28 + 1003]
    assert max(numbers) < 2**29


def test_an_earlier_schema_keeps_its_numbers_whatever_comes_between() -> None:
    x, y, z = (pa.field(name, pa.int32()) for name in "xyz")
    first = format_text(x, y)
    second = format_text(z, y, codec=ProtobufCodec(earlier=(first,)))
    for line in ("id = 1;", "z = 4;", "y = 3;", "reserved 2;", "_change_type = 18997;"):
        assert line in second
    third = format_text(x, y, z, codec=ProtobufCodec(earlier=(second,)))
    for line in ("id = 1;", "z = 4;", "y = 3;", "reserved 2;", "x = 5;"):
        assert line in third


def test_numbers_are_read_from_a_text_that_a_registry_wrote_again() -> None:
    text = """
      syntax = "proto3"; package a.b;
      /* x = 1; */ message Value { optional .google.type.Date x = 4 [json_name = "X"];
      map <string, int64> m=5; reserved 1, 2; // y = 3;
      message Inner { repeated string z = 7; } }"""
    found = earlier_numbers(text)
    assert {name: (dict(n.by_name), set(n.reserved)) for name, n in found.items()} == {
        "a.b.Value": ({"x": 4, "m": 5}, {1, 2}),
        "a.b.Value.Inner": ({"z": 7}, set[int]()),
    }


# ---------------------------------------------------------------- values


def test_values_are_read_as_what_they_mean() -> None:
    at = datetime.datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=datetime.UTC)
    columns = {
        "price": pa.array([Decimal("-1.28")], pa.decimal128(38, 2)),
        "day": pa.array([datetime.date(1582, 10, 4)]),
        "at": pa.array([at], pa.timestamp("us", "UTC")),
        "naive": pa.array([at.replace(tzinfo=None)], pa.timestamp("ns")),
        "number": pa.array([bytes(range(16))], pa.uuid()),
        "words": pa.array(["a"]).dictionary_encode(),
        "none": pa.array([None], pa.string()),
        "empty": pa.array([""]),
    }
    found = read_rows(change_batch(columns))[0]
    assert (found.price.value, found.price.precision, found.price.scale) == (b"\x80", 38, 2)
    assert (found.day.year, found.day.month, found.day.day) == (1582, 10, 4)
    assert found.at.ToDatetime(tzinfo=datetime.UTC) == at
    assert (found.naive.year, found.naive.seconds, found.naive.nanos) == (1969, 59, 500_000_000)
    assert found.number == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert found.words == "a"
    assert not found.HasField("none")
    assert found.HasField("empty")
    assert found._commit_timestamp.ToMicroseconds() == TIMESTAMP_US


def test_variants_are_json() -> None:
    schema = pa.schema([pa.field("x", variants().type, metadata=VARIANT_FIELD)])
    rows = pa.RecordBatch.from_arrays([variants(short_string("x"), None)], schema=schema)
    first, second = read_rows(change_batch(rows))
    assert first.x == '"x"'
    assert not second.HasField("x")


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1, None]]),
        pa.array([["a", None]]),
        pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32())),
        pa.array([[[None]]], pa.list_(pa.list_(pa.int32()))),
    ],
    ids=["packed", "strings", "map", "nested"],
)
def test_a_null_item_is_an_error_unless_collections_are_wrapped(array: pa.Array) -> None:
    batch = change_batch({"x": array})
    with pytest.raises(TableError, match="'x' has a null in a list or map"):
        read_rows(batch)
    assert len(read_rows(batch, ProtobufCodec(collections="wrapped"))) == 1


def test_a_null_item_under_a_null_list_is_no_item() -> None:
    items, mask = pa.array([1, None], pa.int32()), pa.array([False, True])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), items, mask=mask)
    first, second = read_rows(change_batch({"x": lists}))
    assert (list(first.x), list(second.x)) == ([1], [])


# ---------------------------------------------------------------- envelopes and deserializers


def test_envelopes_hold_both_images_and_deletes_have_tombstones() -> None:
    batch = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS, ChangeSourceKind.CDC)
    records = protobuf_envelopes(OPTIONS).records(batch, ids=IDS)
    make = message_class(ProtobufCodec().file(envelope_shape(OPTIONS, batch.rows.schema)))
    raw = records.values.to_pylist()
    assert raw[1] is None
    found = [make.FromString(value[6:]) for value in raw if value is not None]
    assert [(f.op, f.HasField("before"), f.HasField("after")) for f in found] == [
        ("d", True, False),
        ("u", True, True),
        ("c", False, True),
    ]
    assert (found[1].before.x, found[1].after.x) == ("b", "c")
    assert found[0].source.ts_us == TIMESTAMP_US
    assert found[0].source.change_source == "cdc"


def test_the_images_have_the_numbers_of_an_earlier_schema() -> None:
    first = pa.schema([ID, pa.field("x", pa.int32())])
    second = pa.schema([pa.field("y", pa.int32()), pa.field("x", pa.int32()), ID])
    text = protobuf_envelopes(OPTIONS).schemas(first).value.text
    codec = ProtobufCodec(earlier=(text,))
    batch = change_batch({"y": pa.array([1]), "x": pa.array([2]), "id": pa.array([3])})
    make = message_class(codec.file(envelope_shape(OPTIONS, batch.rows.schema)))
    raw = protobuf_envelopes(OPTIONS, codec).records(batch, ids=IDS).values[0].as_py()
    found = make.FromString(raw[6:]).after
    assert (found.y, found.x, found.id) == (1, 2, 3)
    value = codec.file(image_shape(OPTIONS, second)).messages[0]
    assert [member.number for member in value.fields] == [3, 2, 1]


@pytest.mark.parametrize("is_envelope", [False, True])
def test_confluents_deserializer_reads_values_and_keys(is_envelope: bool) -> None:
    batch = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS)
    form = protobuf_envelopes(OPTIONS) if is_envelope else protobuf_rows(OPTIONS)
    shape = (envelope_shape if is_envelope else row_shape)(OPTIONS, batch.rows.schema)
    client, ids = registered(form.schemas(batch.rows.schema))
    records = form.records(batch, ids=ids)
    settings = {"use.deprecated.format": False}
    values: Any = ProtobufDeserializer(message_class(ProtobufCodec().file(shape)), settings)
    found = [values(raw, VALUE) for raw in records.values.to_pylist()]
    if is_envelope:
        assert [None if value is None else value.op for value in found] == ["d", None, "u", "c"]
    else:
        assert [(value.id, value._change_type) for value in found] == [
            *((1, "delete"), (2, "update_preimage"), (2, "update_postimage"), (3, "insert")),
        ]
    key_file = ProtobufCodec().file(key_shape(OPTIONS, [ID]))
    keys: Any = ProtobufDeserializer(message_class(key_file), settings)
    assert records.keys is not None
    assert keys(records.keys[0].as_py(), KEY).id == 1
    assert client is not None
