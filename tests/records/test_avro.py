"""Avro schemas and values by example, read by fastavro and by Confluent's deserializer."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.errors import BugError, ConfigError, TableError, UnsupportedFeatureError
from tailerd.records.base import FormatOptions
from tailerd.records.formats.avro import avro_envelopes, avro_rows
from tailerd.records.formats.registered_records import SchemaIds
from tailerd.records.schemas.record_shape import AdjustedName
from tests.records.batches import TIMESTAMP, TIMESTAMP_US, change_batch
from tests.records.registry_double import KEY, VALUE, registered
from tests.records.variants import EMPTY, short_string

OPTIONS = FormatOptions(name="lake", db="shop", table="orders", key=("id",))
IDS = SchemaIds(key=1, value=2)
COMMIT_TIME = datetime.datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=datetime.UTC)


def value_schema(schema: pa.Schema, options: FormatOptions = OPTIONS) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(avro_rows(options).schemas(schema).value.text)
    fastavro.parse_schema(found)
    return found


def types_of(schema: pa.Schema) -> dict[str, Any]:
    return {member["name"]: member["type"] for member in value_schema(schema)["fields"]}


def type_of(kind: pa.DataType, nullable: bool = False) -> Any:
    fields = [pa.field("id", pa.int64()), pa.field("x", kind, nullable)]
    return types_of(pa.schema(fields))["x"]


def decoded(schema: str, raw: bytes) -> Any:
    return fastavro.schemaless_reader(
        io.BytesIO(raw[5:]), fastavro.parse_schema(json.loads(schema)), None
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), "int"),
        (pa.int32(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.int64(), "long"),
        (
            pa.uint64(),
            {"type": "bytes", "scale": 0, "precision": 20, "logicalType": "decimal"},
        ),
        (pa.float16(), "float"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.bool_(), "boolean"),
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.binary(), "bytes"),
        (pa.binary(16), "bytes"),
        (pa.date32(), {"type": "int", "logicalType": "date"}),
        (pa.time32("ms"), {"type": "long", "logicalType": "time-micros"}),
        (pa.timestamp("us", "UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
        (pa.timestamp("us"), {"type": "long", "logicalType": "local-timestamp-micros"}),
        (
            pa.decimal128(10, 2),
            {"type": "bytes", "scale": 2, "precision": 10, "logicalType": "decimal"},
        ),
        (pa.uuid(), {"type": "string", "logicalType": "uuid"}),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.list_(pa.field("element", pa.int32(), False)), {"type": "array", "items": "int"}),
        (pa.map_(pa.string(), pa.int32()), {"type": "map", "values": ["null", "int"]}),
    ],
    ids=str,
)
def test_each_type_has_its_avro_type(kind: pa.DataType, expected: object) -> None:
    assert type_of(kind) == expected


def test_a_column_that_may_be_null_is_a_union_with_null_as_default() -> None:
    members = value_schema(pa.schema([pa.field("id", pa.int64())]))["fields"]
    assert members[0] == {"name": "id", "type": ["null", "long"], "default": None}


def test_names_are_those_of_debezium() -> None:
    found = value_schema(pa.schema([pa.field("id", pa.int64())]))
    assert (found["namespace"], found["name"]) == ("lake.shop.orders", "Value")
    key = avro_rows(OPTIONS).schemas(pa.schema([pa.field("id", pa.int64())])).key
    assert key is not None
    assert key.name == "lake.shop.orders.Key"


def test_nested_records_are_named_after_their_path() -> None:
    city = pa.struct([pa.field("zip", pa.string())])
    fields = [
        pa.field("address", pa.struct([pa.field("city", city)])),
        pa.field("items", pa.list_(city)),
        pa.field("by_day", pa.map_(pa.date32(), city)),
    ]
    text = json.dumps(value_schema(pa.schema([pa.field("id", pa.int64()), *fields])))
    for name in (
        "Value__address",
        "Value__address__city",
        "Value__items__element",
        "Value__by_day__entry",
        "Value__by_day__entry__value",
    ):
        assert text.count(f'"name": "{name}"') == 1


def test_paths_that_would_be_alike_give_records_of_two_names() -> None:
    empty = pa.struct([pa.field("x", pa.int32())])
    fields = [pa.field("a", pa.struct([pa.field("b", empty)])), pa.field("a__b", empty)]
    text = json.dumps(value_schema(pa.schema([pa.field("id", pa.int64()), *fields])))
    assert text.count('"name": "Value__a__b"') == 1
    assert text.count('"name": "Value__a__b_2"') == 1


def test_names_that_avro_does_not_allow_are_adjusted_and_said() -> None:
    inner = pa.struct([pa.field("1st", pa.int32())])
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("a-b", inner), pa.field("a_x2Db", pa.int32())]
    )
    options = FormatOptions(name="my-lake", table="orders")
    written = avro_rows(options).schemas(schema).value
    assert written.name == "my_lake.orders.Value"
    assert written.adjusted == (
        AdjustedName(path=(), name="my-lake.orders.Value", adjusted="my_lake.orders.Value"),
        AdjustedName(path=(), name="a-b", adjusted="a_x2Db_2"),
        AdjustedName(path=("a-b",), name="1st", adjusted="_1st"),
    )
    members = value_schema(schema, options)["fields"]
    assert [m["name"] for m in members][:3] == ["id", "a_x2Db_2", "a_x2Db"]
    assert members[1]["tailerd.name"] == "a-b"


def test_a_column_named_like_a_change_column_gives_way_to_it() -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("_change_type", pa.string())])
    names = [member["name"] for member in value_schema(schema)["fields"]]
    assert names == ["id", "_change_type_2", "_change_type", "_commit_version", "_commit_timestamp"]


def test_a_column_that_is_always_null_is_no_union() -> None:
    assert type_of(pa.null(), nullable=True) == "null"


def test_comments_become_docs() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"comment": "Who ordered"})])
    assert value_schema(schema)["fields"][0]["doc"] == "Who ordered"


def test_a_type_without_a_form_is_an_error_that_names_the_column() -> None:
    with pytest.raises(UnsupportedFeatureError, match="'x' has the type duration"):
        type_of(pa.duration("us"))


def test_logical_types_are_read_as_what_they_mean() -> None:
    number = uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")
    day = datetime.date(1969, 12, 31)
    naive = datetime.datetime(1582, 10, 4, 23, 59, 59, 999999)
    columns = {
        "id": pa.array([1]),
        "amount": pa.array([Decimal("-12.34")], pa.decimal128(10, 2)),
        "total": pa.array([Decimal(10**37)], pa.decimal128(38, 0)),
        "day": pa.array([day]),
        "clock": pa.array([datetime.time(1, 2, 3)], pa.time32("ms")),
        "at": pa.array([COMMIT_TIME], pa.timestamp("us", "UTC")),
        "seconds": pa.array([COMMIT_TIME.replace(microsecond=0)], pa.timestamp("s", "UTC")),
        "naive": pa.array([naive], pa.timestamp("us")),
        "number": pa.array([number.bytes], pa.uuid()),
        "variant": variants(short_string("x"), None).slice(0, 1),
    }
    schema = pa.schema(
        [
            pa.field(name, array.type, metadata=VARIANT_FIELD if name == "variant" else None)
            for name, array in columns.items()
        ]
    )
    batch = change_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    form = avro_rows(OPTIONS)
    raw = form.records(batch, ids=IDS).values[0].as_py()
    found = decoded(form.schemas(schema).value.text, raw)
    assert found == {
        "id": 1,
        "amount": Decimal("-12.34"),
        "total": Decimal(10**37),
        "day": day,
        "clock": datetime.time(1, 2, 3),
        "at": COMMIT_TIME,
        "seconds": COMMIT_TIME.replace(microsecond=0),
        "naive": naive,
        "number": number,
        "variant": '"x"',
        "_change_type": "insert",
        "_commit_version": 7,
        "_commit_timestamp": COMMIT_TIME,
    }


def variants(*values: bytes | None) -> pa.Array:
    parts = [None if value is None else {"metadata": EMPTY, "value": value} for value in values]
    kind = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
    return pa.array(parts, kind)


def test_a_variant_and_a_struct_of_the_same_parts_are_not_taken_for_each_other() -> None:
    array = variants(short_string("x"))
    form = avro_rows(FormatOptions(name="lake", table="orders"))
    for metadata, expected in (
        (VARIANT_FIELD, '"x"'),
        (None, {"metadata": EMPTY, "value": short_string("x")}),
    ):
        schema = pa.schema([pa.field("x", array.type, metadata=metadata)])
        batch = change_batch(pa.RecordBatch.from_arrays([array], schema=schema))
        raw = form.records(batch, ids=IDS).values[0].as_py()
        assert decoded(form.schemas(schema).value.text, raw)["x"] == expected


def test_nanoseconds_are_floored_as_a_clock_of_microseconds_shows_them() -> None:
    column = pa.array([-1, 999, 1000], pa.timestamp("ns", "UTC"))
    form = avro_rows(FormatOptions(name="lake", table="orders"))
    batch = change_batch({"x": column})
    text = form.schemas(batch.rows.schema).value.text.replace("timestamp-micros", "none")
    found = [decoded(text, raw.as_py())["x"] for raw in form.records(batch, ids=IDS).values]
    assert found == [-1, 0, 1]


def test_a_time_that_does_not_fit_is_an_error() -> None:
    batch = change_batch({"x": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(TableError, match="'x' has a time"):
        avro_rows(FormatOptions(name="lake", table="orders")).records(batch, ids=IDS)


def test_a_null_where_the_schema_allows_none_is_an_error() -> None:
    schema = pa.schema([pa.field("x", pa.int32(), False)])
    batch = change_batch(pa.RecordBatch.from_arrays([pa.array([None], pa.int32())], schema=schema))
    with pytest.raises(TableError, match="'x' has a null"):
        avro_rows(FormatOptions(name="lake", table="orders")).records(batch, ids=IDS)


def test_a_field_that_may_not_be_null_may_be_missing_under_a_parent_that_is_null() -> None:
    kind = pa.struct([pa.field("y", pa.int32(), False)])
    for wanted, is_valid in ((None, True), ({"y": None}, False)):
        array = pa.StructArray.from_arrays(
            [pa.array([None, 5], pa.int32())],
            fields=list(kind),
            mask=pa.array([wanted is None, False]),
        )
        batch = change_batch({"x": array})
        form = avro_rows(FormatOptions(name="lake", table="orders"))
        if not is_valid:
            with pytest.raises(TableError, match="'y' has a null"):
                form.records(batch, ids=IDS)
            continue
        text = form.schemas(batch.rows.schema).value.text
        found = [decoded(text, raw.as_py())["x"] for raw in form.records(batch, ids=IDS).values]
        assert found == [None, {"y": 5}]


@pytest.mark.parametrize("has_null", [False, True])
def test_dictionaries_are_the_values_they_mean(has_null: bool) -> None:
    words = ["a", "b" * 40, "a", None if has_null else "c", "a"]
    form = avro_rows(FormatOptions(name="lake", table="orders"))
    plain = change_batch({"x": pa.array(words)})
    coded = change_batch({"x": pa.array(words).dictionary_encode()})
    sliced = change_batch({"x": pa.array(["z", *words]).dictionary_encode().slice(1)})
    expected = form.records(plain, ids=IDS).values
    assert form.records(coded, ids=IDS).values.equals(expected)
    assert form.records(sliced, ids=IDS).values.equals(expected)


def test_an_empty_batch_gives_no_records() -> None:
    batch = change_batch({"id": pa.array([], pa.int64())})
    for form in (avro_rows(OPTIONS), avro_envelopes(OPTIONS)):
        records = form.records(batch, ids=IDS)
        assert len(records) == 0
        assert records.keys is not None


def test_a_table_of_more_rows_than_a_block_is_whole() -> None:
    batch = change_batch({"id": pa.array(range(40_000)), "x": pa.array(["y" * 50] * 40_000)})
    form = avro_rows(OPTIONS)
    text = form.schemas(batch.rows.schema).value.text
    values = form.records(batch, ids=IDS).values
    for row in (0, 16_383, 16_384, 39_999):
        assert decoded(text, values[row].as_py())["id"] == row


def test_keys_are_records_of_the_key_columns() -> None:
    batch = change_batch({"id": pa.array([5, 6]), "x": pa.array([True, False])})
    form = avro_rows(OPTIONS)
    schemas = form.schemas(batch.rows.schema)
    assert schemas.key is not None
    keys = form.records(batch, ids=IDS).keys
    assert keys is not None
    assert [decoded(schemas.key.text, key.as_py()) for key in keys] == [{"id": 5}, {"id": 6}]
    assert keys[0].as_py()[:5] == b"\0\0\0\0\x01"


def test_equal_keys_are_equal_bytes_whatever_else_is_in_the_batch() -> None:
    kind = pa.decimal128(38, 2)
    form = avro_rows(OPTIONS)
    small = change_batch({"id": pa.array([Decimal("-1.28")], kind)})
    large = change_batch({"id": pa.array([Decimal("-1.28"), Decimal(10**30)], kind)})
    found = [form.records(batch, ids=IDS).keys for batch in (small, large)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0][0] == found[1][0]


def test_a_key_that_is_no_column_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="'id' is not among"):
        avro_rows(OPTIONS).schemas(pa.schema([pa.field("x", pa.int32())]))


def test_keys_without_an_id_are_a_fault_of_the_caller() -> None:
    batch = change_batch({"id": pa.array([1])})
    with pytest.raises(BugError):
        avro_rows(OPTIONS).records(batch, ids=SchemaIds(key=None, value=2))


# ---------------------------------------------------------------- Debezium's envelope

ENVELOPE_ROWS = {"id": pa.array([1, 2, 2, 3]), "x": pa.array(["a", "b", "c", None])}
ENVELOPE_KINDS = ["delete", "update_preimage", "update_postimage", "insert"]


def test_the_envelope_is_what_avroconverter_writes_for_debezium() -> None:
    schema = pa.schema([pa.field("id", pa.int16()), pa.field("price", pa.decimal128(5, 2))])
    written = avro_envelopes(OPTIONS).schemas(schema).value
    found = json.loads(written.text)
    fastavro.parse_schema(json.loads(written.text))
    assert written.name == "lake.shop.orders.Envelope"
    assert found["connect.name"] == "lake.shop.orders.Envelope"
    assert found["connect.version"] == 1
    names = [member["name"] for member in found["fields"]]
    assert names == ["before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns"]
    before, after, source, op, ts_ms, *_ = found["fields"]
    assert before["type"][1] == {
        "type": "record",
        "name": "Value",
        "namespace": "lake.shop.orders",
        "fields": [
            {
                "name": "id",
                "type": ["null", {"type": "int", "connect.type": "int16"}],
                "default": None,
            },
            {
                "name": "price",
                "type": [
                    "null",
                    {
                        "type": "bytes",
                        "scale": 2,
                        "precision": 5,
                        "logicalType": "decimal",
                        "connect.version": 1,
                        "connect.name": "org.apache.kafka.connect.data.Decimal",
                        "connect.parameters": {"scale": "2", "connect.decimal.precision": "5"},
                    },
                ],
                "default": None,
            },
        ],
        "connect.name": "lake.shop.orders.Value",
    }
    assert after["type"] == ["null", "lake.shop.orders.Value"]
    assert source["type"]["connect.name"] == "io.tailerd.connector.Source"
    assert op == {"name": "op", "type": "string"}
    assert ts_ms == {"name": "ts_ms", "type": ["null", "long"], "default": None}


def test_envelopes_hold_both_images_and_deletes_have_tombstones() -> None:
    batch = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS, ChangeSourceKind.CDC)
    form = avro_envelopes(OPTIONS)
    records = form.records(batch, ids=IDS, now_us=TIMESTAMP_US + 5)
    text = form.schemas(batch.rows.schema).value.text
    raw = records.values.to_pylist()
    assert raw[1] is None
    found = [decoded(text, value) for value in raw if value is not None]
    assert [(f["op"], f["before"], f["after"]) for f in found] == [
        ("d", {"id": 1, "x": "a"}, None),
        ("u", {"id": 2, "x": "b"}, {"id": 2, "x": "c"}),
        ("c", None, {"id": 3, "x": None}),
    ]
    assert found[0]["ts_us"] == TIMESTAMP_US + 5
    assert found[0]["source"]["ts_ns"] == TIMESTAMP_US * 1000
    assert found[0]["source"]["commit_timestamp"] == TIMESTAMP
    assert found[0]["source"]["change_source"] == "cdc"
    assert records.rows is not None
    assert records.rows.tolist() == [0, 0, 2, 3]


def test_rows_of_a_snapshot_are_reads() -> None:
    batch = change_batch({"id": pa.array([1])}, ChangeType.INSERT, ChangeSourceKind.SNAPSHOT)
    form = avro_envelopes(OPTIONS)
    text = form.schemas(batch.rows.schema).value.text
    found = decoded(text, form.records(batch, ids=IDS).values[0].as_py())
    assert (found["op"], found["source"]["snapshot"]) == ("r", "true")


@pytest.mark.parametrize("make", [avro_rows, avro_envelopes])
def test_confluents_deserializer_reads_values_and_keys(make: Any) -> None:
    batch = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS)
    form = make(OPTIONS)
    schemas = form.schemas(batch.rows.schema)
    client, ids = registered(schemas)
    records = form.records(batch, ids=ids)
    values: Any = AvroDeserializer(client)
    for raw in records.values.to_pylist():
        found = values(raw, VALUE)
        assert found == (None if raw is None else decoded(schemas.value.text, raw))
    keys: Any = AvroDeserializer(client)
    assert keys(records.keys[0].as_py(), KEY) == {"id": 1}
