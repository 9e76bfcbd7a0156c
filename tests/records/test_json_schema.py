"""JSON whose schema is registered: every row is what its schema says, and the JSON formats' own."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from hypothesis import given, settings

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import BugError, UnsupportedFeatureError
from tailerd.records.base import FormatOptions
from tailerd.records.formats.debezium import DebeziumRecords
from tailerd.records.formats.json import JsonRecords
from tailerd.records.formats.json_schema import JsonSchemaRecords
from tailerd.records.formats.registered_records import SchemaIds
from tests.records.batches import change_batch
from tests.records.registry_double import KEY, VALUE, registered
from tests.records.tables import tables
from tests.records.test_avro import ENVELOPE_KINDS, ENVELOPE_ROWS, variants
from tests.records.variants import short_string

OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))
KEYLESS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=1, value=258)
Table = tuple[pa.RecordBatch, list[list[object]]]


def has_times(kind: pa.DataType) -> bool:
    """Tell whether a time of day, which JSON has no form for here, is in a type."""
    if pa.types.is_time(kind):
        return True
    return any(has_times(kind.field(index).type) for index in range(kind.num_fields))


@pytest.mark.parametrize("decimals", ["string", "number"])
@settings(max_examples=50, deadline=None)
@given(table=tables())
def test_every_row_is_valid_and_that_of_the_json_format(table: Table, decimals: Any) -> None:
    rows = table[0]
    options = FormatOptions(name="lake", table="orders", decimals=decimals)
    if any(has_times(kind) for kind in rows.schema.types):
        with pytest.raises(UnsupportedFeatureError):
            JsonSchemaRecords(options, "row").schemas(rows.schema)
        return
    batch = change_batch(rows)
    for form, plain in (
        (JsonSchemaRecords(options, "row"), JsonRecords(options)),
        (JsonSchemaRecords(options, "envelope"), DebeziumRecords(options)),
    ):
        schema = json.loads(form.schemas(rows.schema).value.text)
        jsonschema.Draft7Validator.check_schema(schema)
        validator = jsonschema.Draft7Validator(schema)
        found = form.records(batch, ids=IDS, now_us=5).values.to_pylist()
        expected = plain.records(batch, now_us=5).values.to_pylist()
        assert found == [b"\0\0\0\x01\x02" + value for value in expected]
        for value in expected:
            validator.validate(json.loads(value))


def schema_of(*fields: pa.Field) -> dict[str, Any]:
    schema = pa.schema([pa.field("id", pa.int64()), *fields])
    found: dict[str, Any] = json.loads(JsonSchemaRecords(OPTIONS, "row").schemas(schema).value.text)
    return found


def test_the_schema_is_written_as_confluents_converter_does() -> None:
    found = schema_of(pa.field("x", pa.float32(), metadata={"comment": "Weight"}))
    assert found["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert (found["title"], found["type"]) == ("lake.orders.Value", "object")
    assert found["properties"]["id"] == {
        "connect.index": 0,
        "oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int64"}],
    }
    assert found["properties"]["x"]["description"] == "Weight"
    assert found["required"] == ["_change_type", "_commit_version", "_commit_timestamp"]


def test_floats_that_json_has_no_number_for_are_valid() -> None:
    batch = change_batch({"x": pa.array([math.nan, math.inf, -math.inf, 1.5, None])})
    form = JsonSchemaRecords(KEYLESS, "row")
    schema = json.loads(form.schemas(batch.rows.schema).value.text)
    for value in form.records(batch, ids=IDS).values.to_pylist():
        jsonschema.validate(json.loads(value[5:]), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"x": "many"}, schema)


def test_variants_may_be_anything() -> None:
    schema = pa.schema([pa.field("x", variants().type, metadata=VARIANT_FIELD)])
    rows = pa.RecordBatch.from_arrays([variants(short_string("x"), None)], schema=schema)
    form = JsonSchemaRecords(KEYLESS, "row")
    text = json.loads(form.schemas(schema).value.text)
    values = form.records(change_batch(rows), ids=IDS).values.to_pylist()
    for value in values:
        jsonschema.validate(json.loads(value[5:]), text)
    assert [json.loads(value[5:])["x"] for value in values] == ["x", None]


@pytest.mark.parametrize("is_envelope", [False, True])
def test_confluents_deserializer_validates_values_and_keys(is_envelope: bool) -> None:
    form = (
        JsonSchemaRecords(OPTIONS, "envelope") if is_envelope else JsonSchemaRecords(OPTIONS, "row")
    )
    batch = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS)
    schemas = form.schemas(batch.rows.schema)
    assert schemas.key is not None
    client, ids = registered(schemas)
    records = form.records(batch, ids=ids)
    values: Any = JSONDeserializer(schemas.value.text, schema_registry_client=client)
    found = [values(raw, VALUE) for raw in records.values.to_pylist()]
    if is_envelope:
        assert [value and value["op"] for value in found] == ["d", None, "u", "c"]
    else:
        assert [value["id"] for value in found] == [1, 2, 2, 3]
    keys: Any = JSONDeserializer(schemas.key.text, schema_registry_client=client)
    assert records.keys is not None
    assert keys(records.keys[0].as_py(), KEY) == {"id": 1}


def test_keys_without_an_id_are_a_fault_of_the_caller() -> None:
    batch = change_batch({"id": pa.array([1])})
    with pytest.raises(BugError):
        JsonSchemaRecords(OPTIONS, "row").records(batch, ids=SchemaIds(key=None, value=2))
