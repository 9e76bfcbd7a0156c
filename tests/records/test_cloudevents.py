"""CloudEvents around values of every format, read by the official library."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.records.base import FormatOptions, Header
from tailerd.records.formats.avro import avro_envelopes
from tailerd.records.formats.cloudevents import EventContext, Events, Mode, events
from tailerd.records.formats.json import JsonRecords
from tailerd.records.formats.registered_records import SchemaIds
from tests.records.batches import change_batch
from tests.records.tables import TEXT
from tests.records.test_avro import ENVELOPE_KINDS, ENVELOPE_ROWS

OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))
JSON = EventContext(
    source="/tailerd/lake", subject="orders", content_type="application/json", is_json=True
)
AVRO = EventContext(
    source="/tailerd/lake",
    subject="orders",
    content_type="application/avro",
    schema_uri="http://registry/schemas/ids/2",
)
BATCH = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS, version=2**40)
COMMIT_TIME = datetime.datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=datetime.UTC)


def messages(found: Events) -> list[KafkaMessage]:
    """Return the records as a broker's client would give them."""
    count = len(found.records)
    columns = {header.name: values_of(header, count) for header in found.headers}
    keys: list[Any] = (
        [None] * count if found.records.keys is None else found.records.keys.to_pylist()
    )
    return [
        KafkaMessage(
            headers={name: column[row] for name, column in columns.items()},
            key=keys[row],
            value=value,
        )
        for row, value in enumerate(found.records.values.to_pylist())
    ]


def values_of(header: Header, count: int) -> list[bytes]:
    value = header.value
    if isinstance(value, pa.Array):
        return [bytes(item) for item in value.cast(pa.binary()).to_pylist()]
    assert value is not None
    return [value] * count


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_json_values_are_the_data_of_events(mode: Mode) -> None:
    records = JsonRecords(OPTIONS).records(BATCH)
    found = events(JSON, mode, BATCH, records)
    assert found.records.keys is records.keys
    read = [from_kafka(message, JSONFormat()) for message in messages(found)]
    assert [event.get_data() for event in read] == [
        json.loads(value) for value in records.values.to_pylist()
    ]
    first = read[0]
    assert first.get_id() == f"id-1/{2**40}/0.0"
    assert (first.get_source(), first.get_type()) == ("/tailerd/lake", "io.tailerd.datachangeevent")
    assert (first.get_subject(), first.get_time()) == ("orders", COMMIT_TIME)
    assert first.get_datacontenttype() == "application/json"
    assert first.get_extension("iotailerdversion") == str(2**40)
    assert [event.get_extension("iotailerdchange") for event in read] == ENVELOPE_KINDS
    assert len({event.get_id() for event in read}) == 4


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_values_that_are_no_json_are_kept_byte_by_byte(mode: Mode) -> None:
    records = avro_envelopes(OPTIONS).records(BATCH, ids=SchemaIds(key=1, value=2))
    found = events(AVRO, mode, BATCH, records)
    values = found.records.values.to_pylist()
    assert values[1] is None
    read = [from_kafka(message, JSONFormat()) for message in messages(found) if message.value]
    expected = [value for value in records.values.to_pylist() if value is not None]
    assert [event.get_data() for event in read] == expected
    assert [event.get_id() for event in read] == [f"id-1/{2**40}/0.{n}" for n in (0, 2, 3)]
    tombstone = messages(found)[1].headers
    assert mode == "structured" or tombstone["ce_id"] == f"id-1/{2**40}/0.0/tombstone".encode()
    assert read[0].get_dataschema() == "http://registry/schemas/ids/2"
    changes = [event.get_extension("iotailerdchange") for event in read]
    assert changes == ["delete", "update_postimage", "insert"]


def test_a_delivery_that_is_repeated_repeats_the_ids() -> None:
    records = JsonRecords(OPTIONS).records(BATCH)
    whole = events(JSON, "structured", BATCH, records).records.values
    half = BATCH.slice(2, BATCH.num_rows - 2)
    again = events(JSON, "structured", half, JsonRecords(OPTIONS).records(half))
    assert again.records.values.equals(whole.slice(2))


@settings(max_examples=50, deadline=None)
@given(
    source=TEXT.filter(bool),
    subject=TEXT.filter(bool),
    values=st.lists(st.none() | st.binary(min_size=1, max_size=20), min_size=4, max_size=4),
)
def test_structured_events_hold_any_bytes_and_names(
    source: str, subject: str, values: list[bytes | None]
) -> None:
    context = replace(AVRO, source=source, subject=subject)
    records = replace(JsonRecords(OPTIONS).records(BATCH), values=pa.array(values, pa.binary()))
    found = events(context, "structured", BATCH, records).records.values.to_pylist()
    assert [value is None for value in found] == [value is None for value in values]
    for value, raw in zip(values, found, strict=True):
        if value is not None:
            message = KafkaMessage(
                headers={"content-type": b"application/cloudevents+json"}, key=None, value=raw
            )
            event = from_kafka(message, JSONFormat())
            assert event.get_data() == value
            assert (event.get_source(), event.get_subject()) == (source, subject)


def test_more_records_than_a_block_are_whole() -> None:
    batch = change_batch({"id": pa.array(range(40_000))})
    found = events(JSON, "structured", batch, JsonRecords(OPTIONS).records(batch))
    for row in (0, 16_384, 39_999):
        event = json.loads(found.records.values[row].as_py())
        assert (event["id"], event["data"]["id"]) == (f"id-1/7/0.{row}", row)
