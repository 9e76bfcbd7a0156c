"""Formats with registered schemas, and events around them, as sinks use them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import COMMENT, FIELD_ID, ChangeBatch
from tailerd.errors import BugError, SchemaChangedError
from tailerd.records.base import EventOptions, FormatOptions, RecordPart, RecordSchema
from tailerd.records.formats.avro import avro_envelopes, avro_rows
from tailerd.records.formats.json import JsonRecords
from tailerd.records.formats.registered_records import SchemaIds
from tailerd.registry import FORMATS_WITH_SCHEMAS
from tailerd.sinks.record_formats import TableRecords, record_format
from tests.records.batches import change_batch
from tests.records.test_avro import ENVELOPE_KINDS, ENVELOPE_ROWS

OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))
BATCH = change_batch(ENVELOPE_ROWS, ENVELOPE_KINDS)
FORMATS = sorted(FORMATS_WITH_SCHEMAS)


@dataclass
class MemoryRegistry:
    """Gives each schema the next id, and remembers the latest of keys and values."""

    requested: list[RecordSchema] = field(default_factory=list)

    def earlier(self, part: RecordPart, name: str) -> str:
        found = [each.text for each in self.requested if each.part == part]
        return found[-1] if found else ""

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        first = len(self.requested) + 1
        self.requested.extend(schemas)
        return range(first, first + len(schemas))


class ContentRegistry(MemoryRegistry):
    """Gives equal schemas the same id, as registries do."""

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        self.requested.extend(each for each in schemas if each not in self.requested)
        return [self.requested.index(each) + 1 for each in schemas]


@pytest.mark.parametrize("envelope", ["none", "debezium"])
@pytest.mark.parametrize("name", FORMATS)
def test_values_and_keys_begin_with_the_ids_of_their_schemas(
    name: str, envelope: Literal["none", "debezium"]
) -> None:
    registry = MemoryRegistry()
    options = replace(OPTIONS, envelope=envelope)
    records = TableRecords(name, options, registry).records(BATCH)
    assert [schema.part for schema in registry.requested] == ["value", "key"]
    assert records.keys is not None
    values = [value for value in records.values.to_pylist() if value is not None]
    assert {value[:5] for value in values} == {b"\0\0\0\0\x01"}
    assert {key[:5] for key in records.keys.to_pylist()} == {b"\0\0\0\0\x02"}


WIDTHS = {
    "comment": (pa.field("id", pa.int64()), pa.field("id", pa.int64(), metadata={COMMENT: b"x"})),
    "field id": (pa.field("id", pa.int64()), pa.field("id", pa.int64(), metadata={FIELD_ID: b"3"})),
    "not null": (pa.field("id", pa.int64(), False), pa.field("id", pa.int64())),
    "integer": (pa.field("id", pa.int8()), pa.field("id", pa.int64())),
    "precision": (pa.field("id", pa.decimal128(5, 2)), pa.field("id", pa.decimal128(20, 2))),
    "text": (pa.field("id", pa.string()), pa.field("id", pa.large_string())),
    "nested": (
        pa.field("id", pa.struct([pa.field("a", pa.int32(), False)])),
        pa.field("id", pa.struct([pa.field("a", pa.int64(), metadata={COMMENT: b"x"})])),
    ),
}
REFUSED = {
    "scale": (pa.decimal128(5, 2), pa.decimal128(7, 4)),
    "date": (pa.date32(), pa.timestamp("us")),
    "float": (pa.float32(), pa.float64()),
    "double": (pa.int32(), pa.float64()),
    "decimal": (pa.int32(), pa.decimal128(10, 0)),
    "text": (pa.int64(), pa.string()),
}
ALL_FORMATS = [*FORMATS, "json", "debezium", "cloudevents"]


def keyed_batch(field: pa.Field, value: object) -> ChangeBatch:
    ids = pa.array([value, None] if field.nullable else [value]).cast(field.type)
    return change_batch(pa.RecordBatch.from_arrays([ids], schema=pa.schema([field])))


def table_records(name: str, envelope: Literal["none", "debezium"], schemas: bool) -> TableRecords:
    events = EventOptions(data=JsonRecords(OPTIONS), source="/lake")
    options = replace(OPTIONS, envelope=envelope, schemas=schemas, events=events)
    return TableRecords(name, options, ContentRegistry())


@pytest.mark.attack
@pytest.mark.parametrize("change", WIDTHS)
@pytest.mark.parametrize("schemas", [False, True])
@pytest.mark.parametrize("envelope", ["none", "debezium"])
@pytest.mark.parametrize("name", ALL_FORMATS)
def test_equal_keys_have_equal_bytes_after_a_change_of_the_schema(
    name: str, envelope: Literal["none", "debezium"], schemas: bool, change: str
) -> None:
    values: dict[str, object] = {"precision": Decimal("7.50"), "text": "7", "nested": {"a": 7}}
    records = table_records(name, envelope, schemas)
    before, after = (
        records.records(keyed_batch(field, values.get(change, 7))).keys for field in WIDTHS[change]
    )
    assert before is not None
    assert after is not None
    assert before[0] == after[0]
    if len(before) == len(after):
        assert before[1] == after[1]


@pytest.mark.attack
@pytest.mark.parametrize("change", REFUSED)
@pytest.mark.parametrize("name", ALL_FORMATS)
def test_a_key_whose_bytes_would_change_is_refused(name: str, change: str) -> None:
    records = table_records(name, "none", False)
    before, after = REFUSED[change]
    records.prepare_schema(pa.schema([pa.field("id", before)]))
    with pytest.raises(SchemaChangedError, match=r"'id' of orders was .* new topic"):
        records.prepare_schema(pa.schema([pa.field("id", after)]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_is_asked_for_once_and_again_when_it_is_another(name: str) -> None:
    registry = MemoryRegistry()
    records = TableRecords(name, replace(OPTIONS, key=()), registry)
    other = change_batch({"id": pa.array([1]), "more": pa.array(["x"])})
    for batch in (BATCH, BATCH, other, BATCH, other):
        records.records(batch)
    assert len(registry.requested) == 2


def test_the_envelope_is_chosen_by_its_option() -> None:
    ids = SchemaIds(key=2, value=1)
    enveloped = replace(OPTIONS, envelope="debezium")
    for options, make in ((OPTIONS, avro_rows), (enveloped, avro_envelopes)):
        found = TableRecords("avro", options, MemoryRegistry()).records(BATCH, now_us=5)
        assert found.values.equals(make(options).records(BATCH, ids=ids, now_us=5).values)


def test_fields_of_protobuf_keep_the_numbers_of_the_schema_before() -> None:
    registry = MemoryRegistry()
    records = TableRecords("protobuf", replace(OPTIONS, key=()), registry)
    records.records(change_batch({"id": pa.array([1]), "b": pa.array([2])}))
    records.records(change_batch({"new": pa.array([3]), "b": pa.array([2])}))
    text = registry.requested[1].text
    assert "optional int64 b = 2;" in text
    assert "optional int64 new = 3;" in text
    assert "reserved 1;" in text


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_is_not_prepared_makes_no_records(name: str) -> None:
    with pytest.raises(BugError):
        record_format(name, OPTIONS).records(BATCH)


def test_events_carry_values_of_a_format_and_their_headers_go_with_them() -> None:
    for data in ("avro", "json"):
        plain = TableRecords(data, OPTIONS, MemoryRegistry()).records(BATCH)
        events = EventOptions(data=record_format(data, OPTIONS), source="/lake/orders")
        options = replace(OPTIONS, events=events)
        found = TableRecords("cloudevents", options, MemoryRegistry()).records(BATCH)
        assert found.values.equals(plain.values)
        headers = {
            header.name: header.value for header in found.take(pa.array([2]).to_numpy()).headers
        }
        assert headers["content-type"] == f"application/{data}".encode()
        assert headers["ce_source"] == b"/lake/orders"
        assert headers["ce_id"] == pa.array(["id-1/7/0.2"])


def test_structured_events_hold_json_as_it_is() -> None:
    events = EventOptions(data=JsonRecords(OPTIONS), source="/lake", mode="structured")
    options = replace(OPTIONS, events=events)
    found = TableRecords("cloudevents", options).records(BATCH)
    plain = JsonRecords(OPTIONS).records(BATCH)
    assert [json.loads(value)["data"] for value in found.values.to_pylist()] == [
        json.loads(value) for value in plain.values.to_pylist()
    ]
