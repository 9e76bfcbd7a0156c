"""Envelopes, keys, tombstones and orders are those of the JSON formats, whatever the batch."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.records.base import FormatOptions, Records
from tailerd.records.formats.avro import avro_envelopes, avro_rows
from tailerd.records.formats.debezium import DebeziumRecords
from tailerd.records.formats.json import JsonRecords
from tailerd.records.formats.protobuf import ProtobufCodec, protobuf_envelopes
from tailerd.records.formats.registered_records import SchemaIds
from tailerd.records.schemas.record_shape import envelope_shape, key_shape
from tests.records.batches import change_batch
from tests.records.naive_protobuf import message_class

IDS = SchemaIds(key=1, value=2)
KINDS = st.sampled_from(["insert", "delete", "update_preimage", "update_postimage"])
TEXTS = ["", "a", "more than twelve bytes", None]
NOW_US = 1_700_000_000_000_000


@st.composite
def batches(draw: st.DrawFn) -> ChangeBatch:
    """Rows with few keys, so that images are paired, deleted and inserted again."""
    count = draw(st.integers(0, 8))

    def column(items: list[Any]) -> list[Any]:
        return draw(st.lists(st.sampled_from(items), min_size=count, max_size=count))

    columns = {
        "id": pa.array(column([1, 2, 3]), pa.int32()),
        "place": pa.array(column(["x", "y"]), pa.string()),
        "text": pa.array(column(TEXTS), pa.string()),
    }
    kinds = draw(st.lists(KINDS, min_size=count, max_size=count))
    source = draw(st.sampled_from([ChangeSourceKind.CDC, ChangeSourceKind.FILES]))
    return change_batch(columns, kinds, source)


@st.composite
def options(draw: st.DrawFn) -> FormatOptions:
    return FormatOptions(
        name="lake",
        table="orders",
        table_id=draw(st.sampled_from(["", "7f"])),
        key=draw(st.sampled_from([(), ("id",), ("text", "id")])),
        routed_by=draw(st.sampled_from([(), ("place",)])),
        tombstones=draw(st.booleans()),
    )


def avro_value(text: str, raw: bytes) -> Any:
    return fastavro.schemaless_reader(
        io.BytesIO(raw[5:]), fastavro.parse_schema(json.loads(text)), None
    )


def json_values(column: pa.Array) -> list[Any]:
    return [None if raw is None else json.loads(raw) for raw in column.to_pylist()]


def check_same_rows(ours: Records, theirs: Records, batch: ChangeBatch) -> None:
    rows = pa.array(range(batch.num_rows))
    assert ours.from_rows(rows).equals(theirs.from_rows(rows))
    assert (ours.keys is None) == (theirs.keys is None)
    ours.values.validate(full=True)


@pytest.mark.parametrize("is_envelope", [False, True])
@settings(max_examples=80, deadline=None)
@given(batch=batches(), chosen=options())
def test_avro_records_are_those_of_the_json_format(
    batch: ChangeBatch, chosen: FormatOptions, is_envelope: bool
) -> None:
    form = avro_envelopes(chosen) if is_envelope else avro_rows(chosen)
    plain = DebeziumRecords(chosen) if is_envelope else JsonRecords(chosen)
    schemas = form.schemas(batch.rows.schema)
    ours = form.records(batch, ids=IDS, now_us=NOW_US)
    theirs = plain.records(batch, now_us=NOW_US)
    check_same_rows(ours, theirs, batch)
    found = [
        None if raw is None else avro_value(schemas.value.text, raw)
        for raw in ours.values.to_pylist()
    ]
    expected = json_values(theirs.values)
    if not is_envelope:
        # The one value of another type: an instant there, a text here.
        for value in (*found, *expected):
            del value["_commit_timestamp"]
    assert found == expected
    if ours.keys is not None and theirs.keys is not None and schemas.key is not None:
        keys = [avro_value(schemas.key.text, raw) for raw in ours.keys.to_pylist()]
        assert keys == json_values(theirs.keys)


@settings(max_examples=80, deadline=None)
@given(batch=batches(), chosen=options())
def test_protobuf_envelopes_are_those_of_the_json_format(
    batch: ChangeBatch, chosen: FormatOptions
) -> None:
    codec = ProtobufCodec()
    ours = protobuf_envelopes(chosen).records(batch, ids=IDS, now_us=NOW_US)
    theirs = DebeziumRecords(chosen).records(batch, now_us=NOW_US)
    check_same_rows(ours, theirs, batch)
    make = message_class(codec.file(envelope_shape(chosen, batch.rows.schema)))
    found = [None if raw is None else as_json(make, raw) for raw in ours.values.to_pylist()]
    assert found == [without_nulls(value) for value in json_values(theirs.values)]
    if ours.keys is not None and theirs.keys is not None:
        fields = [batch.rows.schema.field(name) for name in chosen.key]
        key = message_class(codec.file(key_shape(chosen, fields)))
        keys = [as_json(key, raw) for raw in ours.keys.to_pylist()]
        # Integers of keys have 64 bits, which are texts in the JSON of Protobuf.
        assert keys == [
            {name: str(v) if type(v) is int else v for name, v in without_nulls(value).items()}
            for value in json_values(theirs.keys)
        ]


def as_json(make: Any, raw: bytes) -> Any:
    """Return a message as a dictionary; 64-bit integers are texts in Protobuf's JSON."""
    return MessageToDict(make.FromString(raw[6:]), preserving_proto_field_name=True)


def without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {
                name: str(item) if isinstance(item, int) and name != "id" else without_nulls(item)
                for name, item in value.items()
                if item is not None
            }
    return value
