"""Avro of whole columns against Avro's own writer and reader, row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings

from tailerd.records.base import FormatOptions
from tailerd.records.formats.avro import avro_rows
from tailerd.records.formats.registered_records import SchemaIds
from tests.records.batches import TIMESTAMP_US, change_batch
from tests.records.naive_avro import plain, raw_schema, read, written
from tests.records.tables import make_rows, tables

OPTIONS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=None, value=258)


@settings(max_examples=200, deadline=None)
@given(table=tables())
def test_rows_are_the_bytes_of_avros_own_writer(
    table: tuple[pa.RecordBatch, list[list[object]]],
) -> None:
    batch, columns = table
    form = avro_rows(OPTIONS)
    schema = raw_schema(form.schemas(batch.schema).value.text)
    records = form.records(change_batch(batch), ids=IDS)
    assert records.keys is None
    *members, kind, version, timestamp = schema["fields"]
    found = records.values.to_pylist()
    assert len(found) == batch.num_rows
    for raw, row in zip(found, make_rows(columns), strict=True):
        values: dict[str, Any] = {
            member["name"]: plain(value, field.type, member["type"])
            for member, value, field in zip(members, row, batch.schema, strict=True)
        }
        values |= {kind["name"]: "insert", version["name"]: 7, timestamp["name"]: TIMESTAMP_US}
        assert raw[:5] == b"\0\0\0\x01\x02"
        assert raw[5:] == written(schema, values)
        assert read(schema, raw[5:]) == values
