"""The PostgreSQL sink against bare COPY, and against COPY and MERGE written by hand.

The peers send bytes that were encoded before, so all of ours that is not the server counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Phase, Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.sinks.postgres.copy_encoding import COPY_HEADER, COPY_TRAILER, encode_rows
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row, per_second
from tests.postgres.deliveries import TIME_US, at, commit, make_sink, whole_snapshot
from tests.postgres.server import Database, PostgresServer

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

MILLION, CHANGED, APPENDED = 1_000_000, 100_000, 500_000
ROUNDS = 5
BATCH_ROWS = 65_536
GOAL = 0.8
TYPES = {
    "id": "bigint",
    "customer": "integer",
    "amount": "double precision",
    "name": "text",
    "note": "text",
    "at": "timestamp with time zone",
    "is_paid": "boolean",
}
NAMES = ", ".join(TYPES)


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """A database of a server that keeps what it commits, as a user's does."""
    server = PostgresServer(fsync="on", shared_buffers="1GB", max_wal_size="4GB")
    server.start()
    yield server.new_database()
    server.remove()


def make_rows(count: int, first: int = 0, step: int = 1) -> pa.RecordBatch:
    ids = (np.arange(count) + first) * step
    return pa.record_batch(
        {
            "id": pa.array(ids),
            "customer": pa.array((ids % 1000).astype("i4")),
            "amount": pa.array(ids * 0.5),
            "name": pa.array([f"name-{each % 977}" for each in range(count)]),
            "note": pa.array([f"some longer text {n}" if n % 3 else None for n in range(count)]),
            "at": pa.array(ids + TIME_US, pa.timestamp("us", "UTC")),
            "is_paid": pa.array(ids % 2 == 0),
        }
    )


def batches(
    rows: pa.RecordBatch, version: int, source: ChangeSourceKind = ChangeSourceKind.FILES
) -> list[ChangeBatch]:
    """Return inserts as a reader gives them."""
    return [
        ChangeBatch(
            rows=(part := rows.slice(start, BATCH_ROWS)),
            change_type=ChangeType.INSERT,
            version=Version(version),
            timestamp_us=TIME_US,
            change_source=source,
            positions=RowPositions(table_id="t", files=0, rows=start + np.arange(part.num_rows)),
        )
        for start in range(0, rows.num_rows, BATCH_ROWS)
    ]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def row(work: str, count: int, ours: list[float], peer: list[float]) -> Row:
    # A pair ran at one time, so that a noisy machine disturbs both.
    ratio = statistics.median(b / a for a, b in zip(ours, peer, strict=True))
    seconds = [statistics.median(each) for each in (ours, peer)]
    shown = [per_second(count, each) for each in seconds]
    return Row(work, shown[0], shown[1], ratio, f">= {GOAL}x", ratio >= GOAL)


async def test_changes_appended_to_a_log(database: Database, report: Report) -> None:
    sink = make_sink(database, mode="append", table="log")
    await sink.resume(at(0))
    rows = make_rows(APPENDED)
    await sink.write(commit(0, *batches(rows, 0)))
    ours, peer = [], []
    with database.server.connect(database.name) as connection:
        connection.execute("CREATE TABLE bare (LIKE log)")
        with connection.cursor().copy("COPY log TO STDOUT (FORMAT BINARY)") as copy:
            raw = b"".join(bytes(each) for each in copy)

        def copy_bare() -> None:
            with connection.cursor().copy("COPY bare FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(raw)

        for version in range(1, 1 + ROUNDS):
            connection.execute("TRUNCATE log, bare")
            connection.execute("CHECKPOINT")
            start = time.perf_counter()
            await sink.write(commit(version, *batches(rows, version)))
            ours.append(time.perf_counter() - start)
            peer.append(timed(copy_bare))
        connection.execute("DROP TABLE log, bare")
    await sink.aclose()
    report([row("PostgreSQL: append, against COPY of the same bytes", APPENDED, ours, peer)])


async def test_changes_of_a_tenth_of_a_mirror(database: Database, report: Report) -> None:
    sink = make_sink(database)
    await sink.resume(at(0, phase=Phase.SNAPSHOT))
    found = batches(make_rows(MILLION), 0, ChangeSourceKind.SNAPSHOT)
    await sink.write(whole_snapshot(0, *found))
    sets = ", ".join(f"{name} = s.{name}" for name in list(TYPES)[1:])
    values = ", ".join(f"s.{name}" for name in TYPES)
    merge = (
        "MERGE INTO peer AS t USING staged AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET"
        f" {sets} WHEN NOT MATCHED THEN INSERT ({NAMES}) VALUES ({values})"
    )
    ours, peer = [], []
    with database.server.connect(database.name) as connection:
        connection.execute("CREATE TABLE peer (LIKE orders INCLUDING ALL)")
        connection.execute("INSERT INTO peer SELECT * FROM orders")

        def upsert(raw: bytes) -> None:
            connection.execute("BEGIN")
            connection.execute("CREATE TEMP TABLE staged (LIKE peer) ON COMMIT DROP")
            with connection.cursor().copy("COPY staged FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(raw)
            connection.execute(merge)
            connection.execute("COMMIT")

        for version in range(1, 1 + ROUNDS):
            # Nine of ten rows are there already.
            rows = make_rows(CHANGED, version, 11)
            columns = [
                (rows.column(name), rows.schema.field(name), kind) for name, kind in TYPES.items()
            ]
            raw = COPY_HEADER + bytes(encode_rows(columns, CHANGED)) + COPY_TRAILER
            for table in ("orders", "peer"):
                connection.execute(f"VACUUM ANALYZE {table}")
            connection.execute("CHECKPOINT")
            start = time.perf_counter()
            await sink.write(commit(version, *batches(rows, version)))
            ours.append(time.perf_counter() - start)
            peer.append(timed(lambda raw=raw: upsert(raw)))  # type: ignore[misc]
        same = "SELECT count(*) FROM (SELECT * FROM orders EXCEPT SELECT * FROM peer) AS d"
        assert connection.execute(same).fetchall() == [(0,)]
    await sink.aclose()
    work = "PostgreSQL: 100,000 changes of a mirror of 1 M, against COPY and MERGE"
    report([row(work, CHANGED, ours, peer)])
