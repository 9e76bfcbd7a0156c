"""Changes of a table as Avro into a real broker: ours against deltalake, fastavro and librdkafka.

Both write with the schema that ours registered. The peer writes with the parsed schema and keeps
its writer's buffer, so what it pays for is the row.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks.big_tables import update_feed
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Measured, run_process
from tests.benchmarks.test_kafka_delivery_benchmarks import (
    OURS,
    PARTITIONS,
    compared,
    configured,
    in_turns,
)

if TYPE_CHECKING:
    from tests.kafka.broker import Broker
    from tests.kafka.schema_registry import SchemaRegistry
    from tests.kafka.topics import Topics

pytestmark = [pytest.mark.benchmark, pytest.mark.slow, pytest.mark.kafka]

PEER = """
    import io, json, sys, time
    import deltalake, fastavro, pyarrow
    from confluent_kafka import Producer
    table, bootstrap, topic, form, key_schema_text, value_schema_text = sys.argv[1:]
    key_schema, value_schema = (
        fastavro.parse_schema(json.loads(text)) for text in (key_schema_text, value_schema_text)
    )
    start, cpu = time.perf_counter(), time.process_time()
    producer = Producer({
        "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True,
        "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 262144,
    })
    failed = []
    def on_delivery(error, message):
        if error is not None:
            failed.append(error)

    stream = io.BytesIO()
    def encoded(schema, datum):
        stream.seek(0)
        stream.truncate()
        stream.write(b"\\0\\0\\0\\0\\1")
        fastavro.schemaless_writer(stream, schema, datum)
        return stream.getvalue()

    # What a field holds matters little, how many there are does.
    fields = {} if form == "none" else {
        field["name"]: field["type"] for field in json.loads(value_schema_text)["fields"]
    }
    source = {
        field["name"]: "tailerd" if field["type"] == "string" else 1
        for field in fields.get("source", {"fields": ()})["fields"]
        if "default" not in field
    }
    def envelopes(rows):
        before = None
        for row in rows:
            kind, version = row.pop("_change_type"), row.pop("_commit_version")
            at = row.pop("_commit_timestamp")
            if kind == "update_preimage":
                before = row
                continue
            us = int(at.timestamp() * 1000000)
            times = {"ts_ms": us // 1000, "ts_us": us, "ts_ns": us * 1000}
            told = {**source, **times, "commit_version": version, "commit_timestamp": str(at)}
            is_delete = kind == "delete"
            yield row, {
                "before": row if is_delete else before, "after": None if is_delete else row,
                "source": told, "op": "d" if is_delete else "u" if before else "c", **times,
            }
            before = None

    rows = 0
    for batch in deltalake.DeltaTable(table).load_cdf(starting_version=0):
        found = pyarrow.record_batch(batch).to_pylist()
        rows += len(found)
        pairs = envelopes(found) if form == "debezium" else ((row, row) for row in found)
        for row, datum in pairs:
            key = encoded(key_schema, {"id": row["id"]})
            value = encoded(value_schema, datum)
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    producer.flush()
    assert not failed, failed[:3]
    result = {
        "rows": rows,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }
"""


def registered(registry: SchemaRegistry, subject: str) -> str:
    """Return the text of a subject's newest schema."""
    with urllib.request.urlopen(f"{registry.url}/subjects/{subject}/versions/latest") as answer:
        return str(json.load(answer)["schema"])


@pytest.mark.parametrize(("envelope", "cpu"), [("none", 0.25), ("debezium", 1.0)])
def test_change_rows_as_avro_to_acknowledged(
    envelope: str,
    cpu: float,
    kafka_broker: Broker,
    schema_registry: SchemaRegistry,
    topics: Topics,
    tmp_path: Path,
    report: Report,
) -> None:
    table = update_feed(200, 5000)
    schemas: list[str] = []
    counts: list[int] = []

    def counted(topic: str, run: Measured) -> Measured:
        counts.append(sum(topics.end_offsets(topic).values()))
        topics.delete(topic)
        return run

    def ours() -> Measured:
        topic = topics.create(partitions=PARTITIONS)
        section: dict[str, Any] = {"urls": [schema_registry.url]}
        config = configured(
            tmp_path, table, kafka_broker, topic,
            format="avro", envelope=envelope, tombstones=False, schema_registry=section,
        )  # fmt: skip
        run = counted(topic, run_process(OURS, config))
        schemas[:] = [registered(schema_registry, f"{topic}-{part}") for part in ("key", "value")]
        return run

    def peer() -> Measured:
        topic = topics.create(partitions=PARTITIONS)
        return counted(
            topic, run_process(PEER, table, kafka_broker.plain, topic, envelope, *schemas)
        )

    mine, theirs = in_turns(ours, peer)
    assert mine.result["rows"] == theirs.result["rows"]
    assert len(set(counts)) == 1, "records are missing, or there twice"
    kind = "rows" if envelope == "none" else "envelopes"
    work = f"{mine.result['rows'] / 1e6:.1f}M change rows as Avro {kind} to Kafka"
    report(compared(work, mine, theirs, faster=3.0, cpu=cpu))
