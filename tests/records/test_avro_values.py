"""Avro values brought back to JSON: the rows that the JSON format writes, by the peer's decoder."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
from hypothesis import given, settings

from tailerd.records.avro_values import json_value, plain_schema
from tailerd.records.base import FormatOptions
from tailerd.records.formats.avro import avro_envelopes, avro_rows
from tailerd.records.formats.debezium import DebeziumRecords
from tailerd.records.formats.json import JsonRecords
from tailerd.records.formats.registered_records import SchemaIds
from tailerd.records.read_back import RowReader
from tests.records.batches import change_batch
from tests.records.tables import tables
from tests.records.test_avro import ENVELOPE_KINDS, ENVELOPE_ROWS, variants
from tests.records.test_json_schema import has_times
from tests.records.variants import short_string

OPTIONS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=None, value=1)


def json_texts(form: Any, batch: Any) -> list[bytes]:
    """Return the values of a batch as the decoder and ours give them."""
    text = form.schemas(batch.rows.schema).value.text
    schema, value = (
        fastavro.parse_schema(plain_schema(json.loads(text))),
        json_value(json.loads(text)),
    )
    return [
        msgspec.json.encode(value(fastavro.schemaless_reader(io.BytesIO(raw[5:]), schema, None)))
        for raw in form.records(batch, ids=IDS).values.to_pylist()
        if raw is not None
    ]


def has_wide_unsigned(kind: pa.DataType) -> bool:
    """Tell whether a type has numbers that are decimals in Avro; no table format has them."""
    if pa.types.is_uint64(kind):
        return True
    return any(has_wide_unsigned(kind.field(index).type) for index in range(kind.num_fields))


@settings(max_examples=100, deadline=None)
@given(table=tables())
def test_rows_are_those_of_the_json_format(table: tuple[pa.RecordBatch, Any]) -> None:
    rows = table[0]
    if any(has_times(kind) or has_wide_unsigned(kind) for kind in rows.schema.types):
        return
    batch = change_batch(rows)
    reader = RowReader(rows.schema, "json", JsonRecords.changes_in)
    expected = reader.read(JsonRecords(OPTIONS).records(batch).values.to_pylist())
    assert reader.read(json_texts(avro_rows(OPTIONS), batch)) == expected
    assert not reader.foreign


def test_envelopes_are_those_of_the_debezium_format() -> None:
    batch = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS)
    reader = RowReader(batch.rows.schema, "debezium", DebeziumRecords.changes_in)
    plain = DebeziumRecords(OPTIONS).records(batch).values.to_pylist()
    assert reader.read(json_texts(avro_envelopes(OPTIONS), batch)) == reader.read(plain)


def test_variants_are_json_again() -> None:
    array = variants(short_string("x"), None)
    fields = [pa.field("v", array.type, metadata={"tailerd.type": "variant"})]
    batch = change_batch(pa.RecordBatch.from_arrays([array], schema=pa.schema(fields)))
    for form in (avro_rows(OPTIONS), avro_envelopes(OPTIONS)):
        [first, second] = [json.loads(text) for text in json_texts(form, batch)]
        images = [each.get("after", each)["v"] for each in (first, second)]
        assert images == ["x", None]
