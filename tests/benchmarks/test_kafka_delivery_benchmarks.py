"""Changes of a table into a real broker: ours against deltalake, orjson and librdkafka.

The broker shares the machine, so rows per second saturate; client CPU per row says more.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.benchmarks.big_tables import big_checkpoint, clone, update_feed, wide_table
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import (
    ROOT,
    Measured,
    Row,
    delivery_program,
    mebibytes,
    middle,
    milliseconds,
    run_process,
)

if TYPE_CHECKING:
    from tests.kafka.broker import Broker
    from tests.kafka.topics import Topics

pytestmark = [pytest.mark.benchmark, pytest.mark.slow, pytest.mark.kafka]

PARTITIONS = 4
MILLION = 1_000_000
LATENCY_COMMITS, LATENCY_ROWS = 60, 100

OURS = delivery_program("tailerd.sinks.kafka.sink")
PEER = """
    import json, sys, time
    import deltalake, orjson, pyarrow
    from confluent_kafka import Producer
    table, bootstrap, topic, form, compression = sys.argv[1:]
    start, cpu = time.perf_counter(), time.process_time()
    producer = Producer({
        "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True,
        "compression.type": compression, "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 262144,
    })
    failed = []
    def on_delivery(error, message):
        if error is not None:
            failed.append(error)
    options = orjson.OPT_UTC_Z

    def envelope(row):
        kind, version = row.pop("_change_type"), row.pop("_commit_version")
        time_ms = int(row.pop("_commit_timestamp").timestamp() * 1000)
        is_before = kind in ("delete", "update_preimage")
        return {
            "before": row if is_before else None, "after": None if is_before else row,
            "source": {
                "version": "1", "connector": "peer", "name": "tailerd", "ts_ms": time_ms,
                "ts_us": time_ms * 1000, "ts_ns": time_ms * 1000000, "snapshot": "false",
                "db": "", "schema": "", "table": "orders", "commit_version": version,
            },
            "op": "d" if is_before else "c",
            "ts_ms": time_ms, "ts_us": time_ms * 1000, "ts_ns": time_ms * 1000000,
        }

    rows = 0
    for batch in deltalake.DeltaTable(table).load_cdf(starting_version=0):
        for row in pyarrow.record_batch(batch).to_pylist():
            key = orjson.dumps({"id": row["id"]})
            value = orjson.dumps(envelope(row) if form == "debezium" else row, option=options)
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.05)
            rows += 1
        producer.poll(0)
    producer.flush()
    assert not failed, failed[:3]
    result = {
        "rows": rows,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }
"""


def configured(folder: Path, table: Path, broker: Broker, topic: str, **sink: Any) -> Path:
    """Write a configuration of one table into one topic, read from the beginning."""
    kafka = {"kind": "kafka", "bootstrap_servers": [broker.plain], "topic": topic, "key": ["id"]}
    orders = {"path": str(table), "from": "0", "sink": {**kafka, **sink}}
    config = {
        "engine": "arrow",
        "state": f"{folder}/state-{topic}",
        "http": {"listen": None},
        # A name of its own: offsets of all pipelines are in one topic.
        "tables": {topic: orders},
    }
    path = folder / f"{topic}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


class Bench:
    """Runs ours and the peer into topics of their own, which are deleted right afterwards."""

    def __init__(self, folder: Path, broker: Broker, topics: Topics) -> None:
        self.folder, self.broker, self.topics = folder, broker, topics

    def ours(self, table: Path, **sink: Any) -> Measured:
        topic = self.topics.create(partitions=PARTITIONS)
        config = configured(self.folder, table, self.broker, topic, **sink)
        return self._counted(topic, run_process(OURS, config), sink)

    def peer(self, table: Path, form: str, compression: str) -> Measured:
        topic = self.topics.create(partitions=PARTITIONS)
        run = run_process(PEER, table, self.broker.plain, topic, form, compression)
        return self._counted(topic, run, {})

    def _counted(self, topic: str, run: Measured, sink: dict[str, Any]) -> Measured:
        there = sum(self.topics.end_offsets(topic).values())
        # Pairs of images are one record of an envelope; each transaction leaves a marker.
        if "format" not in sink and "delivery" not in sink:
            assert there == run.result["rows"], "records are missing, or there twice"
        assert there >= run.result["rows"] // 2 > 0
        self.topics.delete(topic)
        return run


@pytest.fixture
def bench(tmp_path: Path, kafka_broker: Broker, topics: Topics) -> Bench:
    return Bench(tmp_path, kafka_broker, topics)


def in_turns(*works: Callable[[], Measured], times: int = 3) -> list[Measured]:
    """Run all in turns; return the medians of each."""
    runs = [[work() for work in works] for _ in range(times)]
    return [middle([each[side] for each in runs]) for side in range(len(works))]


def speed(run: Measured) -> float:
    return float(run.result["rows"] / run.result["seconds"])


def cpu_per_row(run: Measured) -> float:
    return float(run.result["cpu_seconds"] / run.result["rows"])


def compared(work: str, ours: Measured, peer: Measured, *, faster: float, cpu: float) -> list[Row]:
    rate, share = speed(ours) / speed(peer), cpu_per_row(ours) / cpu_per_row(peer)
    return [
        Row(
            work,
            f"{speed(ours) / 1000:,.0f} k rows/s",
            f"{speed(peer) / 1000:,.0f} k rows/s",
            rate,
            f">= {faster}x",
            rate >= faster,
        ),
        Row(
            "  client CPU",
            f"{cpu_per_row(ours) * 1e6:.2f} us/row",
            f"{cpu_per_row(peer) * 1e6:.2f} us/row",
            share,
            f"<= {cpu}x",
            share <= cpu,
        ),
    ]


@pytest.mark.parametrize(("form", "compression"), [("json", "none"), ("json", "lz4")])
def test_change_rows_as_json_to_acknowledged(
    form: str, compression: str, bench: Bench, report: Report
) -> None:
    table = update_feed(200, 5000)
    producer = {} if compression == "none" else {"compression_type": compression}
    ours, peer = in_turns(
        lambda: bench.ours(table, producer=producer),
        lambda: bench.peer(table, form, compression),
    )
    assert ours.result["rows"] == peer.result["rows"]
    faster = 4.0 if compression == "lz4" else 2.5
    work = f"{ours.result['rows'] / 1e6:.1f}M change rows as {form} to Kafka, {compression}"
    report(compared(work, ours, peer, faster=faster, cpu=0.25))


def test_change_rows_as_debezium_envelopes(bench: Bench, report: Report) -> None:
    table = update_feed(200, 5000)
    ours, peer = in_turns(
        lambda: bench.ours(table, format="debezium", tombstones=False),
        lambda: bench.peer(table, "debezium", "none"),
    )
    work = f"{ours.result['rows'] / 1e6:.1f}M change rows as debezium to Kafka"
    report(compared(work, ours, peer, faster=2.5, cpu=0.25))


def test_exactly_once_costs_little_in_bulk_and_memory_stays(bench: Bench, report: Report) -> None:
    table = update_feed(1000, 5000)
    once, least = in_turns(
        lambda: bench.ours(table, delivery="exactly-once"), lambda: bench.ours(table), times=3
    )
    ratio = speed(once) / speed(least)
    above = max(once.result["above_idle_bytes"], least.result["above_idle_bytes"])
    report(
        [
            Row(
                f"{once.result['rows'] / 1e6:.1f}M rows exactly once, against at least once",
                f"{speed(once) / 1000:,.0f} k rows/s",
                f"{speed(least) / 1000:,.0f} k rows/s",
                ratio,
                ">= 0.9x",
                ratio >= 0.9,
            ),
            Row(
                "  memory above idle",
                mebibytes(above),
                "",
                None,
                "<= 150 MiB",
                above <= 150 * 2**20,
            ),
        ]
    )


READY = """
    import sys, time
    import pyarrow as pa
    from kafka import KafkaProducer
    how, bootstrap, topic, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    body = b"v" * 190
    values = [b"%010d" % number + body for number in range(count)]
    keys = [b'{"id":%d}' % number for number in range(count)]

    def batches():
        from tailerd.sinks.kafka.record_batches.compression import Compression
        from tailerd.sinks.kafka.record_batches.partitioning import assign_partitions
        from tailerd.records.base import Records
        from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.acknowledgements import SendWindow
        from tailerd.sinks.kafka.batch_producer import BatchProducer
        from tailerd.sinks.kafka.produce_request import ProduceRequest
        columns = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
        client = KafkaProducer(
            bootstrap_servers=[bootstrap], enable_idempotence=True, metrics_enabled=False
        )
        client.partitions_for(topic)
        producer = BatchProducer(client, compression=Compression.NONE)

        def work():
            done = Acknowledgements(
                window=SendWindow(32 << 20, seconds=7.5),
                timeout_seconds=60,
                explain=lambda error: error,
            )
            for first in range(0, count, 50_000):
                records = Records(
                    keys=columns[0].slice(first, 50_000), values=columns[1].slice(first, 50_000)
                )
                producer.send(ProduceRequest(
                    topic=topic, records=records, timestamps_ms=1_700_000_000_000,
                    partitions=assign_partitions(records.keys, len(records), 4).partitions,
                    max_bytes=1_000_000,
                ), done)
            done.wait()
        return work, client.close

    def librdkafka():
        from confluent_kafka import Producer
        producer = Producer({
            "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
        })
        failed = []
        def on_delivery(error, message):
            if error is not None:
                failed.append(error)
        def work():
            # As ours, it must know that each record is acknowledged.
            for number, (key, value) in enumerate(zip(keys, values)):
                while True:
                    try:
                        producer.produce(topic, value, key, on_delivery=on_delivery)
                        break
                    except BufferError:
                        producer.poll(0.05)
                if number % 1000 == 0:
                    producer.poll(0)
            assert producer.flush(120) == 0 and not failed
        return work, lambda: None

    def send():
        client = KafkaProducer(bootstrap_servers=[bootstrap], enable_idempotence=True, acks="all")
        def work():
            for key, value in zip(keys, values):
                client.send(topic, value, key)
            client.flush()
        return work, client.close

    work, close = {"batches": batches, "librdkafka": librdkafka, "send": send}[how]()
    start, cpu = time.perf_counter(), time.process_time()
    work()
    result = {
        "rows": count, "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }
    close()
"""


def test_record_batches_alone(bench: Bench, report: Report) -> None:
    def run(how: str, count: int) -> Callable[[], Measured]:
        def work() -> Measured:
            topic = bench.topics.create(partitions=PARTITIONS)
            done = run_process(READY, how, bench.broker.plain, topic, str(count))
            assert sum(bench.topics.end_offsets(topic).values()) == count
            bench.topics.delete(topic)
            return done

        return work

    ours, peer, send = in_turns(
        run("batches", MILLION), run("librdkafka", MILLION), run("send", 100_000)
    )
    rows = compared("1M ready values, against librdkafka", ours, peer, faster=1.6, cpu=0.35)
    ratio = speed(ours) / speed(send)
    rows.append(
        Row(
            "1M ready values, against KafkaProducer.send",
            f"{speed(ours) / 1000:,.0f} k rows/s",
            f"{speed(send) / 1000:,.0f} k rows/s",
            ratio,
            ">= 20x",
            ratio >= 20,
        )
    )
    report(rows)


@contextmanager
def running(config: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-m", "tailerd", "run", "--config", str(config)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(config.parent / "daemon.log").open("wb"),
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)


def seconds_to_readable(bench: Bench, table: Path, delivery: str) -> list[float]:
    """Commit 100 rows again and again; return how long a reader waits for all of each."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    builder = wide_table(table, start_ms=None)
    builder.version = max(int(path.stem) for path in builder.log.glob("*.json"))
    topic = bench.topics.create()
    config = configured(bench.folder, table, bench.broker, topic, delivery=delivery)
    text = yaml.safe_load(config.read_text())
    text["tables"][topic]["from"] = "latest"
    config.write_text(yaml.safe_dump(text))
    consumer = Consumer(
        {
            "bootstrap.servers": bench.broker.plain,
            "group.id": "latency",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "500",
            "enable.auto.commit": "false",
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[float] = []
    with running(config):
        time.sleep(6)
        for number in range(LATENCY_COMMITS):
            row = {"customer": "c", "date": "2026-01-01"}
            [add] = builder.data_files(
                [{"id": number * 1000 + i, **row} for i in range(LATENCY_ROWS)]
            )
            start = time.perf_counter()
            builder.commit(add)
            seen, deadline = 0, time.monotonic() + 20
            while seen < LATENCY_ROWS and time.monotonic() < deadline:
                seen += sum(1 for m in consumer.consume(LATENCY_ROWS, 1.0) if m.error() is None)
            assert seen == LATENCY_ROWS
            found.append(time.perf_counter() - start)
            time.sleep(0.05)
    consumer.close()
    return found[10:]


PEER_LATENCY = """
    import json, pathlib, sys, time
    import deltalake, orjson, pyarrow.parquet as pq
    from confluent_kafka import Producer
    folder, bootstrap, topic = sys.argv[1:]
    from tests.benchmarks.big_tables import wide_table
    builder = wide_table(pathlib.Path(folder), start_ms=None)
    builder.version = max(int(path.stem) for path in builder.log.glob("*.json"))
    table = deltalake.DeltaTable(folder, without_files=False)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    runs = []
    for number in range(5):
        row = {"customer": "c", "date": "2026-01-01"}
        [add] = builder.data_files([{"id": number * 1000 + i, **row} for i in range(100)])
        start = time.perf_counter()
        builder.commit(add)
        table.update_incremental()
        assert table.version() == builder.version
        for row in pq.read_table(f"{folder}/{add['add']['path']}", partitioning=None).to_pylist():
            producer.produce(topic, orjson.dumps(row))
        producer.flush()
        runs.append(time.perf_counter() - start)
    result = {"seconds": sorted(runs)[2]}
"""


def test_a_commit_of_100_rows_on_a_million_files_is_readable(
    bench: Bench, tmp_path: Path, report: Report
) -> None:
    rows = []
    topic = bench.topics.create()
    copy = clone(big_checkpoint(MILLION), tmp_path / "peer")
    peer = run_process(PEER_LATENCY, copy, bench.broker.plain, topic).result["seconds"]
    for delivery, goal in (("at-least-once", 0.010), ("exactly-once", 0.025)):
        table = clone(big_checkpoint(MILLION), tmp_path / delivery)
        seconds = seconds_to_readable(bench, table, delivery)
        p50 = statistics.median(seconds)
        rows += [
            Row(
                f"100-row commit on 1M files to readable, {delivery}, p50",
                milliseconds(p50),
                milliseconds(peer),
                p50 / peer,
                f"<= {goal * 1000:.0f} ms, <= 1/50",
                p50 <= goal and p50 <= peer / 50,
            ),
            Row("  slowest of 50", milliseconds(max(seconds)), "", None, "", True),
        ]
    report(rows)
