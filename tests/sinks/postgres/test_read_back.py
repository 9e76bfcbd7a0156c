"""Rows that are read back are the rows that were delivered, of every type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.records.json import JsonEncoder
from tailerd.records.read_back import RowReader
from tailerd.registry import value_format
from tailerd.sinks.postgres.sink import PostgresSink
from tests.postgres.deliveries import DELETE, INSERT, at, changes, commit, make_sink
from tests.postgres.server import Database

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 5]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.float32(), [0.1, float("inf")]),
    (pa.float64(), [1e300, float("nan")]),
    (pa.decimal128(38, 4), [Decimal("-12345678901234567890.1200"), Decimal(0)]),
    (pa.string(), ['"\\\n\t\u0001ä😀', ""]),
    (pa.binary(), [bytes(range(256)), b""]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
    (pa.timestamp("us"), [dt.datetime(2024, 1, 1, 0, 0, 0, 1), dt.datetime(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(1969, 1, 1, tzinfo=dt.UTC), None]),
    (pa.list_(pa.struct([("d", pa.decimal128(9, 2))])), [[{"d": Decimal("1.50")}], []]),
    (pa.map_(pa.string(), pa.int64()), [[("b", 1), ("a", 2)], []]),
    # Years without four digits, as numbers of days and microseconds.
    (pa.date32(), [-719_529, 2_932_897]),
    (pa.timestamp("us"), [-62_200_000_000_000_000, 260_000_000_000_000_000]),
]
SCHEMA = pa.schema([("id", pa.int64()), *((f"c{n}", kind) for n, (kind, _) in enumerate(VALUES))])


def read(lines: list[bytes]) -> list[bytes]:
    found = value_format("json")
    reader = RowReader(SCHEMA, "json", found.changes_in)  # type: ignore[attr-defined]
    return sorted(reader.read(lines)[0])


async def rows_of(sink: PostgresSink) -> list[bytes]:
    return [row async for group in sink.read_back() for row in group]


def batch(version: int = 0) -> ChangeBatch:
    rows = [(INSERT, (number, *(values[number] for _, values in VALUES))) for number in (0, 1)]
    return changes(version, *rows, schema=SCHEMA)


@pytest.mark.parametrize("mode", ["upsert", "append"])
async def test_rows_are_read_back_as_they_were_delivered(postgres: Database, mode: str) -> None:
    sink = make_sink(postgres, mode=mode)
    await sink.resume(at(0))
    assert await rows_of(sink) == []
    await sink.write(commit(0, batch()))
    expected = JsonEncoder(decimals="number").encode_lines(batch()).splitlines()
    assert read(await rows_of(sink)) == read(expected)
    await sink.aclose()


async def test_rows_that_are_softly_deleted_are_left_out(postgres: Database) -> None:
    sink = make_sink(postgres, deletes="soft")
    await sink.resume(at(0))
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")), (INSERT, (2, "b")))))
    await sink.write(commit(1, changes(1, (DELETE, (2, "b")))))
    assert await rows_of(sink) == [
        b'{"id":1,"name":"a","_change_type":"insert","_commit_version":2}'
    ]
    await sink.aclose()
