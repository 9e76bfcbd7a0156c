"""What goes to Kafka, without a broker: change rows to records, and records to record batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tailerd import __version__
from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.records.base import FormatOptions, Records
from tailerd.sinks.kafka.record_batches.compression import Compression
from tailerd.sinks.kafka.record_batches.partitioning import assign_partitions
from tailerd.sinks.kafka.record_batches.record_batch import record_batches
from tailerd.sinks.record_formats import record_format
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row, milliseconds

pytestmark = [pytest.mark.benchmark]

ROWS = 65_536
NOW_US = 1_709_210_096_123_456
OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))
PARTITIONS = 4
BATCH_BYTES = 1_000_000


@cache
def change_rows(count: int) -> ChangeBatch:
    """Rows of about 250 B as JSON: updates as Delta Spark writes them, then inserts and deletes."""
    random = np.random.default_rng(7)
    pairs = count * 2 // 5
    numbers = np.arange(count)
    numbers[1 : 2 * pairs : 2] -= 1
    ids = numbers + 10**6
    kinds = ["update_preimage", "update_postimage"] * pairs
    kinds += ["insert"] * (count // 10)
    kinds += ["delete"] * (count - len(kinds))
    columns = {
        "id": pa.array(ids),
        "customer": pa.array([f"customer-{number:08x}" for number in ids.tolist()]),
        "amount": pa.array(random.random(count) * 1000),
        "city": pa.array([None if n % 10 == 0 else f"city-{n % 100}" for n in range(count)]),
        "is_paid": pa.array(random.random(count) < 0.5),
        "updated": pa.array(NOW_US + ids, pa.timestamp("us", tz="UTC")),
    }
    return ChangeBatch(
        rows=pa.RecordBatch.from_pydict(columns),
        change_type=pa.array(kinds).dictionary_encode(),
        version=Version(7),
        timestamp_us=NOW_US,
        change_source=ChangeSourceKind.CDC,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )


@cache
def ready_records(count: int) -> Records:
    """Keys of 15 B and values of about 200 B."""
    sizes = np.random.default_rng(3).integers(180, 221, count)
    values = pa.array([b"v" * int(size) for size in sizes])
    return Records(keys=pa.array([b"%015d" % number for number in range(count)]), values=values)


def seconds(*works: Callable[[], object], times: int = 7) -> list[float]:
    """Run the works in turns and return the medians of their CPU time: all run in one thread."""
    runs: list[list[float]] = [[] for _ in works]
    for _ in range(times):
        for work, of_it in zip(works, runs, strict=True):
            start = time.thread_time()
            work()
            of_it.append(time.thread_time() - start)
    return [statistics.median(of_it[1:]) for of_it in runs]


def rate(count: int, taken: float) -> str:
    return f"{count / taken / 1e6:.2f} M/s, {taken / count * 1e6:.2f} us/row"


# ---------------------------------------------------------------- peers


def rows_by_orjson(batch: ChangeBatch) -> list[tuple[bytes, bytes]]:
    rows: list[dict[str, Any]] = batch.to_arrow().to_pylist()
    return [(orjson.dumps({"id": row["id"]}), orjson.dumps(row)) for row in rows]


def envelopes_by_orjson(batch: ChangeBatch) -> list[tuple[bytes, bytes | None]]:
    source: dict[str, object] = {"version": __version__, "connector": "tailerd", "name": "lake"}
    source |= {"ts_ms": NOW_US // 1000, "snapshot": "false", "db": "", "table": "orders"}
    found: list[tuple[bytes, bytes | None]] = []
    before = None
    for row, kind in zip(batch.rows.to_pylist(), batch.change_types().to_pylist(), strict=True):
        if kind == "update_preimage":
            before = row
            continue
        key = orjson.dumps({"id": row["id"]})
        envelope: dict[str, object] = {"before": before, "after": row, "source": source, "op": "c"}
        if kind == "delete":
            envelope |= {"before": row, "after": None, "op": "d"}
        elif before is not None:
            envelope["op"] = "u"
        found.append((key, orjson.dumps(envelope | {"ts_ms": NOW_US // 1000})))
        if kind == "delete":
            found.append((key, None))
        before = None
    return found


def batches_by_kafka_python(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytearray]:
    done = []
    builder, offset = _builder(), 0
    for key, value in pairs:
        if builder.append(offset, NOW_US // 1000, key, value, []) is None:
            done.append(builder.build())
            builder, offset = _builder(), 0
            builder.append(offset, NOW_US // 1000, key, value, [])
        offset += 1
    return [*done, builder.build()]


def _builder() -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        batch_size=BATCH_BYTES,
    )


# ---------------------------------------------------------------- measurements


@pytest.mark.parametrize(
    ("name", "peer", "goal"), [("json", rows_by_orjson, 8), ("debezium", envelopes_by_orjson, 5)]
)
def test_change_rows_to_records(
    name: str, peer: Callable[[ChangeBatch], Sequence[object]], goal: float, report: Report
) -> None:
    batch = change_rows(ROWS)
    keyed, keyless = (record_format(name, replace(OPTIONS, key=key)) for key in (OPTIONS.key, ()))
    assert len(keyed.records(batch)) == len(peer(batch))

    ours, without_keys, theirs = seconds(
        lambda: keyed.records(batch), lambda: keyless.records(batch), lambda: peer(batch)
    )

    size = keyed.records(batch).values.nbytes // len(keyed.records(batch))
    ratio = theirs / ours
    report(
        [
            Row(
                f"change rows to {name} records ({size} B) with keys; peer: to_pylist, orjson",
                rate(ROWS, ours),
                rate(ROWS, theirs),
                ratio,
                f">= {goal}x",
                ratio >= goal,
            ),
            Row("  the same, without keys", rate(ROWS, without_keys), "", None, "", True),
        ]
    )


def test_records_to_record_batches(report: Report) -> None:
    records = ready_records(ROWS)
    assert records.keys is not None
    pairs = list(zip(records.keys.to_pylist(), records.values.to_pylist(), strict=True))
    partitions = assign_partitions(records.keys, ROWS, PARTITIONS).partitions

    def built(compression: Compression, of: int | np.ndarray = 0) -> list[memoryview]:
        made = record_batches(
            records, timestamps_ms=NOW_US // 1000, partitions=of, compression=compression
        )
        return [
            batch.finish(producer_id=1, producer_epoch=0, base_sequence=0) for batch in made.batches
        ]

    plain, spread, murmur, lz4, theirs = seconds(
        lambda: built(Compression.NONE),
        lambda: built(Compression.NONE, partitions),
        lambda: assign_partitions(records.keys, ROWS, PARTITIONS),
        lambda: built(Compression.LZ4),
        lambda: batches_by_kafka_python(pairs),
    )

    ratio = theirs / plain
    report(
        [
            Row(
                "records of 200 B to finished batches; peer: kafka-python's builder",
                rate(ROWS, plain),
                rate(ROWS, theirs),
                ratio,
                ">= 10x",
                ratio >= 10,
            ),
            Row(f"  the same, for {PARTITIONS} partitions", rate(ROWS, spread), "", None, "", True),
            Row("  the same, lz4", rate(ROWS, lz4), "", None, "", True),
            Row("  partitions of the keys (murmur2)", rate(ROWS, murmur), "", None, "", True),
        ]
    )


@pytest.mark.parametrize(("name", "goal_ms"), [("json", 1.0), ("debezium", 1.5)])
def test_a_small_commit_to_record_batches(name: str, goal_ms: float, report: Report) -> None:
    batch = change_rows(100)
    made = record_format(name, OPTIONS)

    def whole() -> None:
        records = made.records(batch)
        partitions = assign_partitions(records.keys, len(records), PARTITIONS).partitions
        built = record_batches(records, timestamps_ms=NOW_US // 1000, partitions=partitions)
        for each in built.batches:
            each.finish(producer_id=1, producer_epoch=0, base_sequence=0)

    [ours] = seconds(whole, times=300)

    report(
        [
            Row(
                f"100 change rows to finished batches of {PARTITIONS} partitions, {name}",
                milliseconds(ours),
                "",
                None,
                f"<= {goal_ms:g} ms",
                ours <= goal_ms / 1000,
            )
        ]
    )
