"""Protobuf of whole columns against the official library, row by row; texts against protoc."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings

from tailerd.records.base import FormatOptions
from tailerd.records.formats.protobuf import ProtobufCodec, protobuf_rows
from tailerd.records.formats.registered_records import SchemaIds
from tailerd.records.schemas.protobuf_parser import earlier_numbers
from tailerd.records.schemas.protobuf_schema import (
    Collections,
    Message,
    protobuf_file,
)
from tailerd.records.schemas.protobuf_text import nested_messages, protobuf_text
from tailerd.records.schemas.record_shape import row_shape
from tests.records.batches import TIMESTAMP_US, change_batch
from tests.records.naive_protobuf import fill, message_class
from tests.records.protobuf_compiler import compiled
from tests.records.protobuf_descriptor import file_descriptor
from tests.records.tables import make_rows, tables

OPTIONS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=None, value=258)
Table = tuple[pa.RecordBatch, list[list[object]]]
CHANGE_TYPES = [pa.string(), pa.int64(), pa.timestamp("us", "UTC")]


def check_rows(table: Table, collections: Collections) -> None:
    batch, columns = table
    codec = ProtobufCodec(collections=collections)
    found = protobuf_rows(OPTIONS, codec).records(change_batch(batch), ids=IDS).values
    file = codec.file(row_shape(OPTIONS, batch.schema))
    make = message_class(file)
    kinds = [*batch.schema.types, *CHANGE_TYPES]
    assert len(found) == batch.num_rows
    for raw, row in zip(found.to_pylist(), make_rows(columns), strict=True):
        expected = make()
        fill(expected, file.messages[0], [*row, "insert", 7, TIMESTAMP_US], kinds)
        assert raw[:6] == b"\0\0\0\x01\x02\0"
        read = make.FromString(raw[6:])
        assert read == expected
        if not has_map(file.messages[0]):
            assert raw[6:] == expected.SerializeToString(deterministic=True)


def has_map(message: Message) -> bool:
    """Tell whether there are entries, which the library writes in an order of its own."""
    return any(member.label == "map" for member in message.fields) or any(
        has_map(nested) for nested in nested_messages(message)
    )


@settings(max_examples=100, deadline=None)
@given(table=tables(has_null_items=False))
def test_rows_are_the_messages_of_the_official_library(table: Table) -> None:
    check_rows(table, "repeated")


@settings(max_examples=100, deadline=None)
@given(table=tables())
def test_wrapped_collections_hold_every_null(table: Table) -> None:
    check_rows(table, "wrapped")


# ---------------------------------------------------------------- what protoc makes of the text


@pytest.mark.parametrize("collections", ["repeated", "wrapped"])
@settings(max_examples=25, deadline=None)
@given(table=tables())
def test_protoc_makes_our_descriptor_of_our_text(table: Table, collections: Collections) -> None:
    shape = row_shape(OPTIONS, table[0].schema)
    file = protobuf_file(shape, collections=collections)
    ours = descriptor_pb2.FileDescriptorProto.FromString(file_descriptor(file, "table.proto"))
    theirs = compiled(protobuf_text(file))
    for message in (*ours.message_type, *theirs.message_type):
        in_one_order(message)
    ours.ClearField("source_code_info")
    assert ours == theirs


def in_one_order(message: Any) -> None:
    """Sort the messages inside a message: maps' entries stand where their fields are."""
    nested = sorted(message.nested_type, key=lambda inner: inner.name)
    del message.nested_type[:]
    message.nested_type.extend(nested)
    for inner in message.nested_type:
        in_one_order(inner)


@settings(max_examples=100, deadline=None)
@given(table=tables())
def test_the_numbers_of_a_text_are_read_back(table: Table) -> None:
    file = protobuf_file(row_shape(OPTIONS, table[0].schema))
    found = earlier_numbers(protobuf_text(file))
    check_numbers(file.messages, found)
    again = protobuf_file(row_shape(OPTIONS, table[0].schema), earlier=found)
    assert protobuf_text(again) == protobuf_text(file)


def check_numbers(messages: Any, found: Any) -> None:
    for message in messages:
        expected = {member.name: member.number for member in message.fields}
        assert found[message.full_name].by_name == expected
        check_numbers(nested_messages(message), found)
