"""Change rows to the values of formats whose schemas are registered; peers write row by row."""

from __future__ import annotations

import io
import json
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache, partial
from typing import Any

import fastavro
import numpy as np
import orjson
import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.records.base import FormatOptions, Records
from tailerd.records.formats.avro import avro_envelopes, avro_rows
from tailerd.records.formats.cloudevents import EventContext, events
from tailerd.records.formats.json_schema import JsonSchemaRecords
from tailerd.records.formats.protobuf import (
    ProtobufCodec,
    protobuf_envelopes,
    protobuf_rows,
)
from tailerd.records.formats.registered_records import RegisteredRecords, SchemaIds
from tailerd.records.schemas.record_shape import row_shape
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row
from tests.records.naive_protobuf import message_class

pytestmark = [pytest.mark.benchmark]

ROWS = 1_000_000
BATCH_ROWS = 65_536
"""What reading gives at a time."""
PEER_BATCHES = 1
"""Peers take the same time for each row: of a million rows they write the first batch."""
FEW_ROWS = 100
NOW_US = 1_709_210_096_123_456
OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))
KEYLESS = FormatOptions(name="lake", table="orders")
IDS = SchemaIds(key=1, value=2)
HEADER = b"\0\0\0\0\x02"


@cache
def change_batches(count: int) -> list[ChangeBatch]:
    """Rows of seven columns: updates as Delta Spark writes them, then inserts and deletes."""
    return [
        _change_batch(start, min(BATCH_ROWS, count - start))
        for start in range(0, count, BATCH_ROWS)
    ]


def _change_batch(start: int, count: int) -> ChangeBatch:
    random = np.random.default_rng(start)
    pairs = count * 2 // 5
    numbers = np.arange(start, start + count)
    numbers[1 : 2 * pairs : 2] -= 1
    kinds = ["update_preimage", "update_postimage"] * pairs
    kinds += ["insert"] * (count // 10)
    kinds += ["delete"] * (count - len(kinds))
    cents = random.integers(-(10**6), 10**6, count)
    columns = {
        "id": pa.array(numbers + 10**6),
        "customer": pa.array([f"customer-{number:08x}" for number in numbers.tolist()]),
        "amount": pa.array(random.random(count) * 1000),
        "price": pa.array(cents).cast(pa.decimal128(19, 0)).view(pa.decimal128(19, 2)),
        "city": pa.array([None if n % 10 == 0 else f"city-{n % 100}" for n in numbers.tolist()]),
        "is_paid": pa.array(random.random(count) < 0.5),
        "updated": pa.array(NOW_US + numbers, pa.timestamp("us", tz="UTC")),
    }
    return ChangeBatch(
        rows=pa.RecordBatch.from_pydict(columns),
        change_type=pa.array(kinds).dictionary_encode(),
        version=Version(7),
        timestamp_us=NOW_US,
        change_source=ChangeSourceKind.CDC,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )


def timed_against(
    form: RegisteredRecords, peer: Callable[[list[ChangeBatch]], object]
) -> tuple[float, float]:
    """Return the seconds that a million rows take us, and would take the peer."""
    batches = change_batches(ROWS)
    mine, theirs = in_turns(
        lambda: ours(form, batches), lambda: peer(batches[:PEER_BATCHES]), times=5
    )
    return mine, theirs * ROWS / (PEER_BATCHES * BATCH_ROWS)


def ours(form: RegisteredRecords, batches: list[ChangeBatch]) -> list[Records]:
    return [form.records(batch, ids=IDS) for batch in batches]


def in_turns(*works: Callable[[], object], times: int) -> list[float]:
    """Run the works in turns; return the medians of their CPU time: each runs in one thread."""
    runs: list[list[float]] = [[] for _ in works]
    for _ in range(times):
        for work, of_it in zip(works, runs, strict=True):
            start = time.thread_time()
            work()
            of_it.append(time.thread_time() - start)
    return [statistics.median(of_it) for of_it in runs]


def rate(count: int, taken: float) -> str:
    return f"{count / taken / 1e6:.2f} M/s, {taken / count * 1e6:.2f} us/row"


# ---------------------------------------------------------------- peers


def by_fastavro(schema: Any, batches: list[ChangeBatch]) -> list[bytes]:
    found = []
    for batch in batches:
        for row in batch.to_arrow().to_pylist():
            stream = io.BytesIO()
            stream.write(HEADER)
            fastavro.schemaless_writer(stream, schema, row)
            found.append(stream.getvalue())
    return found


def by_upb(make: Any, batches: list[ChangeBatch]) -> list[bytes]:
    found = []
    for batch in batches:
        for row in batch.to_arrow().to_pylist():
            message = make()
            for name, value in row.items():
                if isinstance(value, datetime):
                    getattr(message, name).FromDatetime(value)
                elif name == "price":
                    _set_decimal(message.price, value)
                elif value is not None:
                    setattr(message, name, value)
            found.append(HEADER + b"\0" + message.SerializeToString())
    return found


def _set_decimal(target: Any, value: Any) -> None:
    number = int(value.scaleb(2))
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    target.value = number.to_bytes(size, "big", signed=True)
    target.precision, target.scale = 19, 2


def by_orjson(batches: list[ChangeBatch]) -> list[bytes]:
    return [
        HEADER + orjson.dumps(row, default=str)
        for batch in batches
        for row in batch.to_arrow().to_pylist()
    ]


def envelopes_by_fastavro(schema: Any, batches: list[ChangeBatch]) -> list[bytes]:
    names = ("version", "connector", "name", "snapshot", "db", "schema", "table")
    source: dict[str, Any] = dict.fromkeys(names, "tailerd")
    source |= {"ts_ms": 1, "ts_us": 1, "ts_ns": 1, "commit_version": 7}
    source |= {"commit_timestamp": "2024-02-29T12:34:56.123456Z", "change_source": "cdc"}
    times = {"ts_ms": NOW_US // 1000, "ts_us": NOW_US, "ts_ns": NOW_US * 1000}
    found, before = [], None
    for batch in batches:
        kinds = batch.change_types().to_pylist()
        for row, kind in zip(batch.rows.to_pylist(), kinds, strict=True):
            if kind == "update_preimage":
                before = row
                continue
            value = {"before": before, "after": row, "source": source, "op": "c", **times}
            if kind == "delete":
                value |= {"before": row, "after": None, "op": "d"}
            stream = io.BytesIO()
            stream.write(HEADER)
            fastavro.schemaless_writer(stream, schema, value)
            found.append(stream.getvalue())
            before = None
    return found


# ---------------------------------------------------------------- measurements


def compared(
    work: str, count: int, mine: float, peer: float, goal: float | None, size: float
) -> Row:
    ratio = peer / mine
    return Row(
        f"{work} ({size:.0f} B)",
        rate(count, mine),
        rate(count, peer),
        ratio,
        "" if goal is None else f">= {goal:g}x",
        goal is None or ratio >= goal,
    )


def value_size(form: RegisteredRecords) -> float:
    values = form.records(change_batches(ROWS)[0], ids=IDS).values
    return float(values.nbytes / len(values))


def test_a_million_rows_to_avro_values(report: Report) -> None:
    batches, form = change_batches(ROWS), avro_rows(KEYLESS)
    schema = fastavro.parse_schema(json.loads(form.schemas(batches[0].rows.schema).value.text))
    first = form.records(batches[0], ids=IDS).values.to_pylist()
    for mine, peer in zip(first, by_fastavro(schema, batches[:1]), strict=True):
        # The peer pads decimals that are a power of two: the values are alike all the same.
        if mine != peer:
            read = [
                fastavro.schemaless_reader(io.BytesIO(raw[5:]), schema, None)
                for raw in (mine, peer)
            ]
            assert read[0] == read[1]

    mine_s, peer_s = timed_against(form, lambda some: by_fastavro(schema, some))

    work = "1 M change rows of 7 columns to Avro values; peer: to_pylist, fastavro"
    report([compared(work, ROWS, mine_s, peer_s, 15, value_size(form))])


def test_a_million_rows_to_protobuf_values(report: Report) -> None:
    batches, form = change_batches(ROWS), protobuf_rows(KEYLESS)
    make = message_class(ProtobufCodec().file(row_shape(KEYLESS, batches[0].rows.schema)))
    first = form.records(batches[0], ids=IDS).values.to_pylist()
    assert first == by_upb(make, batches[:1])

    mine_s, peer_s = timed_against(form, lambda some: by_upb(make, some))

    work = "1 M change rows of 7 columns to Protobuf values; peer: to_pylist, upb"
    report([compared(work, ROWS, mine_s, peer_s, 8, value_size(form))])


def test_rows_to_envelopes_and_json(report: Report) -> None:
    batches = change_batches(ROWS)[:1]
    count = sum(batch.num_rows for batch in batches)
    avro, protobuf, plain = avro_envelopes(OPTIONS), protobuf_envelopes(OPTIONS), avro_rows(OPTIONS)
    registered = JsonSchemaRecords(KEYLESS, "row")
    schema = fastavro.parse_schema(json.loads(avro.schemas(batches[0].rows.schema).value.text))

    avro_s, protobuf_s, keyed_s, json_s, fastavro_s, orjson_s = in_turns(
        lambda: ours(avro, batches),
        lambda: ours(protobuf, batches),
        lambda: ours(plain, batches),
        lambda: ours(registered, batches),
        lambda: envelopes_by_fastavro(schema, batches),
        lambda: by_orjson(batches),
        times=5,
    )

    work = "rows to Debezium envelopes in Avro, keys too; peer: to_pylist, fastavro, no keys"
    json_work = "rows to JSON values with a schema's id; peer: to_pylist, orjson"
    report(
        [
            compared(work, count, avro_s, fastavro_s, 8, value_size(avro)),
            Row("  the same in Protobuf", rate(count, protobuf_s), "", None, "", True),
            Row("  rows to Avro values and keys", rate(count, keyed_s), "", None, "", True),
            compared(json_work, count, json_s, orjson_s, None, value_size(registered)),
        ]
    )


def test_few_rows_and_events(report: Report) -> None:
    few, whole = _change_batch(0, FEW_ROWS), change_batches(ROWS)[0]
    forms: list[RegisteredRecords] = [
        avro_rows(OPTIONS),
        avro_envelopes(OPTIONS),
        protobuf_rows(OPTIONS),
    ]
    values = forms[0].records(whole, ids=IDS)
    context = EventContext(source="/lake", subject="orders", content_type="application/avro")

    *few_s, binary_s, structured_s = in_turns(
        *(partial(ours, form, [few]) for form in forms),
        lambda: events(context, "binary", whole, values),
        lambda: events(context, "structured", whole, values),
        times=15,
    )

    names = ("Avro", "Avro envelopes", "Protobuf")
    report(
        [
            *(
                Row(f"{FEW_ROWS} rows to {name}", f"{taken * 1e3:.2f} ms", "", None, "", True)
                for name, taken in zip(names, few_s, strict=True)
            ),
            Row("CloudEvents, binary", rate(whole.num_rows, binary_s), "", None, "", True),
            Row("CloudEvents, structured", rate(whole.num_rows, structured_s), "", None, "", True),
        ]
    )
