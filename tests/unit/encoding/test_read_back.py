"""Rows read back from records are spelled like those of the snapshot, whatever was written."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tailerd.encoding.read_back import RowReader
from tailerd.errors import SinkError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("price", pa.decimal128(12, 4)),
        pa.field("weight", pa.float64()),
        pa.field("at", pa.timestamp("us")),
    ]
)


def record(change: str, version: int = 3, **row: Any) -> bytes:
    return json.dumps({**row, "_change_type": change, "_commit_version": version}).encode()


def read(*values: bytes, form: str = "json") -> list[tuple[dict[str, Any], int, int]]:
    rows, signs, versions = RowReader(SCHEMA, form).read(values)
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
    ],
    ids=str,
)
def test_what_a_schema_change_spells_otherwise_is_the_same_row(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    reader = RowReader(SCHEMA, "json")
    rows, _, _ = reader.read([record("insert", **before), record("insert", **after)])
    assert rows[0] == rows[1]
    assert reader.foreign == {name for name in before if name == "dropped"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"price": "1.5"}, {"price": "15"}),
        ({"weight": 2}, {"weight": 2.5}),
        ({"weight": "NaN"}, {"weight": "Infinity"}),
        ({"id": 2**53}, {"id": 2**53 + 1}),
        ({"at": "2024-02-29"}, {"at": "2024-02-29T00:00:00.000001"}),
        ({"id": 0}, {}),
    ],
    ids=str,
)
def test_rows_that_differ_stay_different(before: dict[str, Any], after: dict[str, Any]) -> None:
    rows, _, _ = RowReader(SCHEMA, "json").read(
        [record("insert", **before), record("insert", **after)]
    )
    assert rows[0] != rows[1]


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"null", b'{"id":1}', b'{"before":{}}'], ids=str
)
@pytest.mark.parametrize("form", ["json", "debezium"])
def test_something_else_in_the_topic_is_an_error_that_shows_it(value: bytes, form: str) -> None:
    with pytest.raises(SinkError, match=r"no \w+ change"):
        RowReader(SCHEMA, form).read([value])
