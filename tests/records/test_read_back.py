"""Rows read back from records are spelled like those of the snapshot, whatever was written."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import SinkError
from tailerd.records.formats.debezium import DebeziumRecords
from tailerd.records.formats.json import JsonRecords
from tailerd.records.read_back import RowReader

MIDNIGHT = "T00:00:00.000000"
PART = pa.struct(
    [
        pa.field("a", pa.int64()),
        pa.field("price", pa.decimal128(12, 4)),
        pa.field("inner", pa.struct([pa.field("at", pa.timestamp("us"))])),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("price", pa.decimal128(12, 4)),
        pa.field("weight", pa.float64()),
        pa.field("at", pa.timestamp("us")),
        pa.field("s", PART),
        pa.field("items", pa.list_(PART)),
        pa.field("by_price", pa.map_(pa.decimal128(12, 4), PART)),
        pa.field("by_weight", pa.map_(pa.float64(), pa.timestamp("us"))),
        pa.field(
            "any",
            pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())]),
            metadata=VARIANT_FIELD,
        ),
        pa.field("was_float", pa.struct([pa.field("x", pa.float64())])),
    ]
)
NO_ROW = b'{"before":null,"after":"text","source":{"commit_version":1}}'
TOO_LARGE = b'{"weight":1e999,"_change_type":"insert","_commit_version":1}'
WIDENED = frozenset({"was_float"})


def record(change: str, version: int = 3, **row: Any) -> bytes:
    return json.dumps({**row, "_change_type": change, "_commit_version": version}).encode()


def make_reader(schema: pa.Schema, form: str, widened: frozenset[str] = frozenset()) -> RowReader:
    changes_in = {"json": JsonRecords.changes_in, "debezium": DebeziumRecords.changes_in}[form]
    return RowReader(schema, form, changes_in, widened)


def read(*values: bytes, form: str = "json") -> list[tuple[dict[str, Any], int, int]]:
    rows, signs, versions = make_reader(SCHEMA, form).read(values)
    return list(zip(map(json.loads, rows), signs, versions, strict=True))


def test_each_change_type_adds_or_takes_away() -> None:
    found = read(
        record("insert", id=1),
        record("update_preimage", id=1),
        record("update_postimage", 4, id=2),
        record("delete", 5, id=2),
    )
    assert found == [
        ({"id": 1}, 1, 3),
        ({"id": 1}, -1, 3),
        ({"id": 2}, 1, 4),
        ({"id": 2}, -1, 5),
    ]


def test_an_envelope_gives_its_images_with_schema_or_without() -> None:
    envelope = {"before": {"id": 1}, "after": {"id": 2}, "source": {"commit_version": 7}, "op": "u"}
    wrapped = {"schema": {"type": "struct"}, "payload": {**envelope, "after": None}}
    found = read(json.dumps(envelope).encode(), json.dumps(wrapped).encode(), form="debezium")
    assert found == [({"id": 1}, -1, 7), ({"id": 2}, 1, 7), ({"id": 1}, -1, 7)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"price": "1.50"}, {"price": "1.5000"}),
        ({"price": "0.00"}, {"price": "-0.0000"}),
        ({"price": 10}, {"price": "10.0000"}),
        ({"weight": 2}, {"weight": 2.0}),
        ({"at": "2024-02-29"}, {"at": "2024-02-29T00:00:00.000000"}),
        ({"id": 1, "price": None}, {"id": 1}),
        ({"id": 1, "dropped": 5}, {"id": 1}),
        ({"s": {"a": 1}}, {"s": {"a": 1, "price": None, "inner": None}}),
        ({"s": {"a": 1, "dropped": 5}}, {"s": {"a": 1}}),
        ({"s": {"price": "1.00"}}, {"s": {"price": "1.0000"}}),
        ({"s": {"inner": {"at": "2024-02-29"}}}, {"s": {"inner": {"at": f"2024-02-29{MIDNIGHT}"}}}),
        ({"items": [{"a": 1}, None]}, {"items": [{"a": 1, "price": None}, None]}),
        ({"by_price": {"1.0": {"a": 1}}}, {"by_price": {"1.0000": {"a": 1, "inner": None}}}),
        ({"by_weight": {"2": "2024-02-29"}}, {"by_weight": {"2.0": f"2024-02-29{MIDNIGHT}"}}),
        ({"was_float": {"x": 0.1}}, {"was_float": {"x": 0.10000000149011612}}),
        ({"was_float": {"x": 3.4028235e38}}, {"was_float": {"x": 3.4028234663852886e38}}),
        ({"was_float": {"x": 16777216}}, {"was_float": {"x": 16777216.0}}),
    ],
    ids=str,
)
def test_what_a_schema_change_spells_otherwise_is_the_same_row(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    reader = make_reader(SCHEMA, "json", WIDENED)
    rows, _, _ = reader.read([record("insert", **before), record("insert", **after)])
    assert rows[0] == rows[1]
    dropped = {"dropped"} if "dropped" in before else set()
    assert reader.foreign == dropped | (
        {"s.dropped"} if "dropped" in before.get("s", ()) else set()
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"price": "1.5"}, {"price": "15"}),
        ({"weight": 2}, {"weight": 2.5}),
        ({"weight": "NaN"}, {"weight": "Infinity"}),
        ({"id": 2**53}, {"id": 2**53 + 1}),
        ({"at": "2024-02-29"}, {"at": "2024-02-29T00:00:00.000001"}),
        ({"id": 0}, {}),
        ({"s": None}, {"s": {"a": None}}),
        ({"s": {"a": 0}}, {"s": {"a": None}}),
        ({"s": {"price": "1.5"}}, {"s": {"price": "15"}}),
        ({"s": {"inner": {}}}, {"s": {}}),
        ({"s": "now a struct"}, {"s": {}}),
        ({"price": "was text"}, {"price": "1"}),
        ({"items": [None]}, {"items": [{}]}),
        ({"items": [None]}, {"items": []}),
        ({"items": [{"a": 1}, {"a": 2}]}, {"items": [{"a": 2}, {"a": 1}]}),
        ({"by_price": {"1.0": None}}, {"by_price": {}}),
        ({"by_price": {"1.0": {}}}, {"by_price": {"1.1": {}}}),
        ({"by_weight": {"NaN": None}}, {"by_weight": {"Infinity": None}}),
        ({"any": {"a": None}}, {"any": {}}),
        ({"weight": 0.1}, {"weight": 0.10000000149011612}),
        ({"was_float": {"x": 0.1}}, {"was_float": {"x": 0.10000001}}),
        ({"was_float": {"x": 0.1}}, {"was_float": {"x": 0.1000000000001}}),
        ({"was_float": {"x": 0.10000000149011612}}, {"was_float": {"x": 0.1000000014901}}),
        ({"was_float": {"x": 1e300}}, {"was_float": {"x": 1.1e300}}),
    ],
    ids=str,
)
def test_rows_that_differ_stay_different(before: dict[str, Any], after: dict[str, Any]) -> None:
    rows, _, _ = make_reader(SCHEMA, "json", WIDENED).read(
        [record("insert", **before), record("insert", **after)]
    )
    assert rows[0] != rows[1]


@pytest.mark.parametrize("shape", ["%s", '"%s"', '{"x":%s}', '{"%s":1}', "[%s]", '["%s"]'])
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1234567890123456789012345678.0000000001", "1234567890123456789012345678.4", False),
        ("12345678901234567890.01", "12345678901234567890.02", False),
        ("-0.00000000000000000000000000000000000001", "0", False),
        (f"{'9' * 38}.{'9' * 37}1", f"{'9' * 38}.{'9' * 37}2", False),
        ("12345678901234567890123456789.50", "12345678901234567890123456789.5", True),
        ("1200", "1200.000", True),
        ("-0.0", "0.000", True),
    ],
)
def test_decimals_are_compared_to_their_last_digit_as_texts_and_as_numbers(
    shape: str, one: str, other: str, same: bool
) -> None:
    wide = pa.decimal256(76, 38)
    kinds = {"{": pa.struct([pa.field("x", wide)]), "[": pa.list_(wide)}
    kind = pa.map_(wide, pa.int64()) if shape.endswith("1}") else kinds.get(shape[0], wide)
    values = [
        f'{{"c":{shape % text},"_change_type":"insert","_commit_version":1}}'.encode()
        for text in (one, other)
    ]
    rows, _, _ = make_reader(pa.schema([pa.field("c", kind)]), "json").read(values)
    assert (rows[0] == rows[1]) is same


@pytest.mark.parametrize("price", [b'"1.50"', b"1.50"])
def test_other_numbers_beside_a_decimal_are_compared_as_doubles(price: bytes) -> None:
    values = [
        b'{"price":%s,"weight":%s,"any":[%s],"was_float":{"x":%s},"_change_type":"insert",'
        b'"_commit_version":1}' % (price, text, text, text)
        for text in (b"0.5", b"5e-1", b"0.50000000000000000000001")
    ]
    rows, _, _ = make_reader(SCHEMA, "json", WIDENED).read(values)
    assert rows == [b'{"any":[0.5],"price":"1.5","was_float":{"x":0.5},"weight":0.5}'] * 3


@pytest.mark.parametrize("form", ["json", "debezium"])
def test_a_sink_may_have_changed_how_it_writes_decimals(form: str) -> None:
    kind = pa.struct([pa.field("x", pa.decimal128(38, 10))])
    schema = pa.schema([pa.field("c", kind), pa.field("weight", pa.float64())])
    digits = "1234567890123456789012345678.0000000001"
    row = '{"c":{"x":%s},"weight":0.25}'
    record = '{"c":{"x":%s},"weight":0.25,"_change_type":"insert","_commit_version":1}'
    envelope = f'{{"before":{row},"after":{row},"source":{{"commit_version":1}}}}'
    texts = {
        "json": [record % each for each in (f'"{digits}"', digits, f'"{digits}"')],
        # The second image is the first that needs the text: both are read once.
        "debezium": [envelope % (f'"{digits}"', digits), envelope % (digits, f'"{digits}"')],
    }
    reader = make_reader(schema, form)
    rows, signs, _ = reader.read([text.encode() for text in texts[form]])
    assert rows == [(row % f'"{digits}"').encode()] * len(rows)
    assert signs == ([1, 1, 1] if form == "json" else [-1, 1, -1, 1])


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b"null", b'{"id":1}', b'{"before":{}}', TOO_LARGE, NO_ROW],
    ids=str,
)
@pytest.mark.parametrize("form", ["json", "debezium"])
def test_something_else_in_the_topic_is_an_error_that_shows_it(value: bytes, form: str) -> None:
    with pytest.raises(SinkError, match=r"not a \w+ change"):
        make_reader(SCHEMA, form).read([value])


def test_numbers_of_a_variant_are_spelled_alike_at_any_depth() -> None:
    one = record("insert", any={"b": [1.0, -0.0, {"c": 2.5}], "a": 1})
    other = record("insert", any={"a": 1.0, "b": [1, 0, {"c": 2.5}]})
    assert read(one) == read(other)
    assert read(one) != read(record("insert", any={"a": 2, "b": [1, 0, {"c": 2.5}]}))
