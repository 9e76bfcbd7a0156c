"""Every clause of `Sink`, against every sink. A new sink adds itself to `SINKS`.

The Kafka sink runs against the real broker, in each way of sending and with each guarantee.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import OffsetError, SinkError
from tailerd.records.base import FormatOptions
from tailerd.records.json import JsonEncoder
from tailerd.sinks.base import Delivery, Fencer, RecordsDeliveries, Sink
from tailerd.sinks.bucket.sink import BucketSink
from tailerd.sinks.console.sink import ConsoleSink
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.sink import FileSink
from tailerd.sinks.http.config import HttpSinkConfig
from tailerd.sinks.http.sink import HttpSink
from tailerd.sinks.record_formats import TableRecords
from tailerd.sinks.resources import SinkResources
from tests.clouds.buckets import SERVERS
from tests.http.receiver import running_receiver
from tests.plugins import example_is_installed
from tests.sinks.bucket.readers import manifest_rows

if TYPE_CHECKING:
    from tests.clouds.buckets import BucketServer
    from tests.kafka.broker import Broker
    from tests.kafka.topics import Topics
    from tests.postgres.server import Database

Row = tuple[int, str, int]
"""id, `_change_type`, `_commit_version`"""


@dataclass
class Subject:
    """A sink and how a reader sees what it holds.

    Attributes:
        forgets: Whether `resume` takes back what no saved offset covers.
        is_atomic: Whether readers never see rows of a write that did not end well.
        pipeline: Under which it keeps the offset, if it does.
        successor: Makes the sink of another process for the same location, which shuts out this
            one; None where a sink cannot.
    """

    sink: Sink
    read: Callable[[], list[Row]]
    forgets: bool
    is_atomic: bool
    pipeline: str = "orders"
    successor: Callable[[], Sink] | None = None


def console(tmp_path: Path) -> Subject:
    stream = io.BytesIO()

    def read() -> list[Row]:
        return json_rows(stream.getvalue().decode())

    return Subject(
        ConsoleSink(encode=JsonEncoder().encode_lines, stream=stream), read, False, False
    )


def files(kind: str, max_bytes: int = 1 << 20) -> Callable[[Path], Subject]:
    def make(tmp_path: Path) -> Subject:
        config = FileSinkConfig.model_validate(
            {
                "kind": "file",
                "path": f"{tmp_path}/out",
                "format": kind,
                "max_bytes_per_file": max_bytes,
            }
        )

        def sink() -> Sink:
            return FileSink(config, encode=JsonEncoder().encode_lines)

        return Subject(sink(), lambda: file_rows(tmp_path / "out"), True, True, successor=sink)

    return make


def skeleton(tmp_path: Path) -> Subject:
    with example_is_installed():
        module = importlib.import_module("tailerd_example.append_sink")
    path = tmp_path / "lines"
    options = FormatOptions(name="tailerd", table="orders")
    sink = module.AppendSink(path, TableRecords("json", options))
    read = lambda: json_rows(path.read_text() if path.exists() else "")  # noqa: E731
    return Subject(sink, read, False, False)


SINKS: dict[str, Callable[[Path], Subject]] = {
    "console": console,
    "file-jsonl": files("jsonl"),
    "file-jsonl-many-parts": files("jsonl", 1024),
    "file-parquet": files("parquet"),
    "skeleton": skeleton,
}

# The broker that the tests of Kafka share: which of these need it, no fixture of theirs says.
ON_KAFKA = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]
KAFKA_SINKS: dict[str, dict[str, Any]] = {
    f"kafka-{delivery}": {"delivery": delivery} for delivery in ("at-least-once", "exactly-once")
}


def kafka(broker: Broker, topics: Topics, fields: dict[str, Any]) -> Subject:
    from tailerd.sinks.kafka.config import KafkaSinkConfig
    from tailerd.sinks.kafka.sink import KafkaSink
    from tests.kafka.reader import read_topic

    topic, offsets = topics.create(), topics.new_name("offsets")
    config = KafkaSinkConfig.model_validate(
        {
            "kind": "kafka",
            "bootstrap_servers": broker.plain,
            "topic": topic,
            "offsets": "kafka",
            "offsets_topic": offsets,
            **fields,
        }
    )

    def read() -> list[Row]:
        values = [record.value or b"" for record in read_topic(broker.plain, topic)]
        return json_rows(b"\n".join(values).decode())

    def sink() -> Sink:
        return KafkaSink(config, table=topic)

    is_once = config.is_exactly_once
    successor = sink if is_once else None
    return Subject(sink(), read, False, is_once, pipeline=topic, successor=successor)


HTTP_SINKS: dict[str, dict[str, Any]] = {
    "http-json": {"format": "json"},
    "http-cloudevents": {"batch": {"max_events": 7}, "compression": "gzip"},
}


@contextmanager
def http(tmp_path: Path, fields: dict[str, Any]) -> Iterator[Subject]:
    with running_receiver() as receiver:
        config = HttpSinkConfig.model_validate({"kind": "http", "url": receiver.url, **fields})
        encode = JsonEncoder().encode_lines
        resources = SinkResources(table="orders", encode=encode, state=str(tmp_path / "state"))

        def read() -> list[Row]:
            rows = [event.get("data", event) for event in receiver.events]
            return [(r["id"], r["_change_type"], r["_commit_version"]) for r in rows]

        yield Subject(HttpSink(config, resources), read, False, False)


ON_POSTGRES = [pytest.mark.xdist_group("postgres")]
POSTGRES = "postgres-append"


def postgres_log(database: Database) -> Subject:
    from tailerd.sinks.postgres.config import PostgresSinkConfig
    from tailerd.sinks.postgres.sink import PostgresSink

    config = PostgresSinkConfig.model_validate(database.section(mode="append"))

    def read() -> list[Row]:
        if not database.exists("public.orders"):
            return []
        rows = database.run("SELECT id, _change_type, _commit_version FROM orders ORDER BY ctid")
        return [(number, change, version) for number, change, version in rows]

    def sink() -> Sink:
        return PostgresSink(config, table="orders")

    return Subject(sink(), read, False, True, successor=sink)


BUCKET_SINKS: dict[str, dict[str, Any]] = {
    "parquet": {"format": "parquet"},
    "jsonl-many-parts": {"compression": "zstd", "max_bytes_per_file": 1024},
}


def bucket_files(server: BucketServer, fields: dict[str, Any]) -> Subject:
    """A sink in a bucket, and a reader of its manifest."""
    path = f"{server.scheme}://{server.new_bucket()}/changes/orders"
    config = FileSinkConfig.model_validate({"kind": "file", "path": path, **fields})

    def sink() -> BucketSink:
        encode = JsonEncoder().encode_lines
        return BucketSink(
            config, SinkResources(table="orders", encode=encode, stores=server.stores())
        )

    read = partial(manifest_rows, server, path)
    return Subject(sink(), read, False, True, successor=sink)


def json_rows(text: str) -> list[Row]:
    found = [json.loads(line) for line in text.splitlines()]
    return [(r["id"], r["_change_type"], r["_commit_version"]) for r in found]


def file_rows(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for path in sorted(folder.glob("*.*")):
        if path.suffix == ".parquet":
            table = pq.ParquetFile(path).read()
            columns = [table.column(n).to_pylist() for n in ("id", "_change_type")]
            rows += zip(*columns, table.column("_commit_version").to_pylist(), strict=True)
        elif path.suffix == ".jsonl":
            rows += json_rows(path.read_text())
    return rows


def offset(version: int, position: int = 0) -> Offset:
    return Offset(table_id="table-1", version=Version(version), position=position)


def batch(version: int, ids: Sequence[int], change: ChangeType = ChangeType.INSERT) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.record_batch({"id": pa.array(ids, pa.int64())}),
        change_type=change,
        version=Version(version),
        timestamp_us=1_700_000_000_000_000,
        change_source=ChangeSourceKind.FILES,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )


def delivery(version: int, *batches: ChangeBatch) -> Delivery:
    async def give() -> AsyncIterator[ChangeBatch]:
        for each in batches:
            await asyncio.sleep(0)
            yield each

    return delivery_of(version, give())


def delivery_of(version: int, batches: AsyncIterator[ChangeBatch]) -> Delivery:
    end = offset(version + 1)
    return Delivery(
        table="orders",
        start=offset(version),
        end=end,
        saved=SavedOffset(offset=end, changes=ChangeMode.AUTO),
        batches=batches,
    )


def inserts(version: int, *ids: int) -> list[Row]:
    return [(i, "insert", version) for i in ids]


@pytest.fixture(
    params=[
        *SINKS,
        *HTTP_SINKS,
        *(f"{server} {name}" for server in SERVERS for name in BUCKET_SINKS),
        *(pytest.param(name, marks=ON_KAFKA) for name in KAFKA_SINKS),
        pytest.param(POSTGRES, marks=ON_POSTGRES),
    ]
)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param in HTTP_SINKS:
        with http(tmp_path, HTTP_SINKS[request.param]) as posted:
            yield posted
            await posted.sink.aclose()
        return
    server, _, name = request.param.partition(" ")
    if name:
        made = bucket_files(request.getfixturevalue(server), BUCKET_SINKS[name])
    elif request.param in KAFKA_SINKS:
        broker, topics = (request.getfixturevalue(name) for name in ("kafka_broker", "topics"))
        made = kafka(broker, topics, KAFKA_SINKS[request.param])
    elif request.param == POSTGRES:
        made = postgres_log(request.getfixturevalue("postgres"))
    else:
        made = SINKS[request.param](tmp_path)
    yield made
    await made.sink.aclose()


async def test_a_healthy_sink_passes_its_healthcheck_and_shows_nothing(subject: Subject) -> None:
    await subject.sink.healthcheck()
    assert subject.read() == []


async def test_write_returns_the_number_of_rows_and_readers_see_them_in_order(
    subject: Subject,
) -> None:
    await subject.sink.resume(offset(3))
    batches = [batch(3, range(n * 200, n * 200 + 200)) for n in range(5)]
    assert await subject.sink.write(delivery(3, *batches)) == 1000
    assert await subject.sink.write(delivery(4, batch(4, [7], ChangeType.DELETE))) == 1
    assert subject.read() == [*inserts(3, *range(1000)), (7, "delete", 4)]


async def test_an_empty_delivery_is_acknowledged_and_shows_nothing(subject: Subject) -> None:
    await subject.sink.resume(offset(0))
    assert await subject.sink.write(delivery(0)) == 0
    assert await subject.sink.write(delivery(1, batch(1, []))) == 0
    assert subject.read() == []


async def test_a_delivery_whose_rows_fail_in_the_middle_raises_and_can_be_written_again(
    subject: Subject,
) -> None:
    async def breaks() -> AsyncIterator[ChangeBatch]:
        yield batch(0, range(500))
        raise ZeroDivisionError

    await subject.sink.resume(offset(0))
    broken = delivery_of(0, breaks())
    with pytest.raises(ZeroDivisionError):
        await subject.sink.write(broken)
    await subject.sink.resume(offset(0))
    assert await subject.sink.write(delivery(0, batch(0, range(500)))) == 500
    seen = subject.read()
    assert seen[-500:] == inserts(0, *range(500))
    # What may have been seen of the broken write is a beginning of it.
    seen_twice = seen[:-500]
    assert seen_twice == inserts(0, *range(len(seen_twice)))
    assert not (subject.is_atomic and seen_twice)


async def test_resume_forgets_exactly_what_no_saved_offset_covers(subject: Subject) -> None:
    await subject.sink.resume(offset(0))
    for version in range(4):
        await subject.sink.write(delivery(version, batch(version, [version])))
    await subject.sink.resume(offset(2))
    kept = [0, 1] if subject.forgets else [0, 1, 2, 3]
    assert [row[0] for row in subject.read()] == kept
    await subject.sink.write(delivery(2, batch(2, [2])))
    assert [row[0] for row in subject.read()] == [*kept, 2]


@pytest.mark.parametrize("back_to", [0, 1, 3, 4, 5])
async def test_resume_into_the_middle_of_a_delivery_keeps_what_lies_before_once(
    subject: Subject, back_to: int
) -> None:
    rows = [inserts(version, *range(version * 100, version * 100 + 60)) for version in range(5)]
    batches = [batch(version, [row[0] for row in rows[version]]) for version in range(5)]
    large = replace(delivery(0, *batches[:4]), end=offset(4))
    await subject.sink.resume(offset(0))
    await subject.sink.write(large)
    await subject.sink.write(delivery(4, batches[4]))
    await subject.sink.resume(offset(back_to))
    before = rows[:back_to] if subject.forgets else rows
    kept = [row for version in before for row in version]
    assert subject.read() == kept
    again = replace(delivery(back_to, *batches[back_to:]), end=offset(5))
    await subject.sink.write(again)
    assert subject.read() == [*kept, *(row for version in rows[back_to:] for row in version)]


async def test_a_cancelled_write_leaves_no_half_of_it(subject: Subject) -> None:
    async def stalls() -> AsyncIterator[ChangeBatch]:
        yield batch(0, range(500))
        await asyncio.Event().wait()

    await subject.sink.resume(offset(0))
    stuck = delivery_of(0, stalls())
    writing = asyncio.create_task(subject.sink.write(stuck))
    await asyncio.sleep(0.05)
    writing.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait({writing})
    assert writing.cancelled()
    if subject.is_atomic:
        assert subject.read() == []


async def test_closing_twice_is_closing_once(subject: Subject) -> None:
    await subject.sink.resume(offset(0))
    await subject.sink.write(delivery(0, batch(0, [1])))
    await subject.sink.aclose()
    await subject.sink.aclose()
    assert subject.read() == inserts(0, 1)


async def test_a_sink_admits_at_least_one_write(subject: Subject) -> None:
    assert subject.sink.max_in_flight >= 1


async def test_a_sink_that_keeps_offsets_has_that_of_the_last_delivery_and_no_other(
    subject: Subject,
) -> None:
    async def breaks() -> AsyncIterator[ChangeBatch]:
        yield batch(1, range(10))
        raise ZeroDivisionError

    offsets = subject.sink.offsets
    if offsets is None:
        return
    name = subject.pipeline
    assert await offsets.load(name) is None
    await subject.sink.resume(offset(0))
    done = delivery(0, batch(0, [1]))
    await subject.sink.write(done)
    kept = await offsets.load(name)
    assert kept is not None
    # A sink adds the ids of topics that it wrote.
    assert replace(kept, topics={}) == done.saved
    with pytest.raises(ZeroDivisionError):
        await subject.sink.write(delivery_of(1, breaks()))
    assert await offsets.load(name) == kept
    assert subject.sink.max_in_flight == 1


async def test_a_process_that_starts_later_shuts_out_the_one_before(subject: Subject) -> None:
    if subject.successor is None:
        return
    await subject.sink.resume(offset(0))
    await subject.sink.write(delivery(0, batch(0, [0])))
    newer = subject.successor()
    try:
        if isinstance(newer, Fencer):
            await newer.fence()
        await newer.resume(offset(1))
        # Kafka cannot tell at once whether its own late request was the cause; the next claim can.
        with pytest.raises(SinkError):
            await subject.sink.write(delivery(1, batch(1, [1])))
        await newer.write(delivery(1, batch(1, [1])))
        assert subject.read() == [*inserts(0, 0), *inserts(1, 1)]
    finally:
        await newer.aclose()


async def test_a_sink_that_records_deliveries_refuses_an_offset_that_cannot_follow_them(
    subject: Subject,
) -> None:
    if not isinstance(subject.sink, RecordsDeliveries) or subject.successor is None:
        return
    await subject.sink.check_first_start()
    await subject.sink.resume(offset(0))
    for version in range(3):
        await subject.sink.write(delivery(version, batch(version, [version])))
    newer = subject.successor()
    assert isinstance(newer, RecordsDeliveries)
    with pytest.raises(OffsetError):
        await newer.check_first_start()
    with pytest.raises(OffsetError):
        await newer.resume(offset(1))
    assert subject.read() == [row for version in range(3) for row in inserts(version, version)]
    await newer.accept(offset(1))
    await newer.resume(offset(1))
    assert subject.read() == inserts(0, 0)
