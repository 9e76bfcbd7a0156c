"""Protobuf values brought back to JSON: the rows that the JSON format writes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from tailerd.records.base import FormatOptions
from tailerd.records.formats.debezium import DebeziumRecords
from tailerd.records.formats.json import JsonRecords
from tailerd.records.formats.protobuf import (
    ProtobufCodec,
    protobuf_envelopes,
    protobuf_rows,
)
from tailerd.records.formats.registered_records import SchemaIds
from tailerd.records.read_back import RowReader
from tailerd.records.schemas.protobuf_parser import parsed_messages
from tailerd.records.schemas.protobuf_schema import Collections
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.destinations import ValueReader
from tests.records.batches import change_batch
from tests.records.tables import tables
from tests.records.test_avro import ENVELOPE_KINDS, ENVELOPE_ROWS, variants
from tests.records.test_json_schema import has_times
from tests.records.variants import short_string

OPTIONS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=None, value=1)
Table = tuple[pa.RecordBatch, list[list[object]]]


class OneSchema:
    """A registry with one schema."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, schema_id: int) -> str:
        return {1: self._text}[schema_id]


def json_texts(form: Any, batch: Any) -> list[bytes]:
    """Return the values of a batch as `verify` reads them."""
    section = {
        "kind": "kafka",
        "bootstrap_servers": "h:1",
        "topic": "t",
        "format": "protobuf",
        "schema_registry": {"urls": ["http://h:1"]},
    }
    config = KafkaSinkConfig.model_validate(section)
    reader = ValueReader(config, OneSchema(form.schemas(batch.rows.schema).value.text))
    values = form.records(batch, ids=IDS).values.to_pylist()
    return list(reader.read([value for value in values if value is not None]))


def check_rows(table: Table, collections: Collections) -> None:
    rows = table[0]
    if any(has_times(kind) for kind in rows.schema.types):
        return
    batch = change_batch(rows)
    reader = RowReader(
        rows.schema,
        "json",
        JsonRecords.changes_in,
        empty_is_null=collections == "repeated",
    )
    expected = reader.read(JsonRecords(OPTIONS).records(batch).values.to_pylist())
    form = protobuf_rows(OPTIONS, ProtobufCodec(collections=collections))
    assert reader.read(json_texts(form, batch)) == expected
    assert not reader.foreign


@settings(max_examples=60, deadline=None)
@given(table=tables(has_null_items=False))
def test_rows_are_those_of_the_json_format(table: Table) -> None:
    check_rows(table, "repeated")


@settings(max_examples=60, deadline=None)
@given(table=tables())
def test_wrapped_collections_come_back_with_every_null(table: Table) -> None:
    check_rows(table, "wrapped")


def test_envelopes_are_those_of_the_debezium_format() -> None:
    batch = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS)
    reader = RowReader(batch.rows.schema, "debezium", DebeziumRecords.changes_in)
    plain = DebeziumRecords(OPTIONS).records(batch).values.to_pylist()
    assert reader.read(json_texts(protobuf_envelopes(OPTIONS), batch)) == reader.read(plain)


@pytest.mark.parametrize("collections", ["repeated", "wrapped"])
def test_variants_are_json_again(collections: Collections) -> None:
    array = variants(short_string("x"), None)
    fields = [pa.field("v", array.type, metadata={"tailerd.type": "variant"})]
    batch = change_batch(pa.RecordBatch.from_arrays([array], schema=pa.schema(fields)))
    codec = ProtobufCodec(collections=collections)
    for form in (protobuf_rows(OPTIONS, codec), protobuf_envelopes(OPTIONS, codec)):
        [first, second] = [json.loads(text) for text in json_texts(form, batch)]
        images = [each.get("after", each)["v"] for each in (first, second)]
        assert images == ["x", None]


def test_a_text_that_a_registry_wrote_again_has_the_same_messages() -> None:
    ours = """syntax = "proto3";
package lake.orders;
import "google/type/date.proto";
message Value {
  reserved 3, 4, 5;
  // What it is
  // Column 'a-b'.
  google.type.Date a_x2Db = 1;
  // A variant as JSON.
  optional string v = 2;
  map<string, Items> m = 6;
  message Items { optional int64 id = 1; }
}
"""
    theirs = """// Kept; { by } others
package lake.orders; import "google/type/date.proto";
message Value{reserved 3 to 5;
  /** What it is
   * Column 'a-b'. */
  .google.type.Date a_x2Db=1; // A variant as JSON.
  optional string v=2; map < string , .lake.orders.Value.Items > m =6;
  message Items{optional int64 id=1;}}"""
    package, found = parsed_messages(ours)
    assert parsed_messages(theirs) == (package, found)
    value = found["lake.orders.Value"]
    assert value.reserved == {3, 4, 5}
    described = [(each.column, each.type, each.key, each.is_variant) for each in value.fields]
    assert described == [
        ("a-b", "google.type.Date", "", False),
        ("v", "string", "", True),
        ("m", "lake.orders.Value.Items", "string", False),
    ]
