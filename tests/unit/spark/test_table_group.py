"""A group of tables while it runs: who is written down, held back and stopped, without a Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tailerd.config import TableConfig
from tailerd.config.sections import read_sink
from tailerd.sinks.kafka.producer_options import revealed
from tailerd.spark.group.group_query import kafka_sections
from tailerd.spark.group.members import GroupTable, Members

LINES: Mapping[str, object] = {"kind": "file", "path": "/out"}
KAFKA: Mapping[str, object] = {
    "kind": "kafka",
    "bootstrap_servers": "127.0.0.1:9092",
    "topic": "{table}",
    "producer": {
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "secret",
        "security_protocol": "SASL_PLAINTEXT",
        "max_request_size": 10485760,
    },
}


def table(name: str, sink: Mapping[str, object] = LINES, **fields: object) -> GroupTable:
    section = {"path": f"/lake/{name}", "sink": read_sink("sink", {**sink, **fields})}
    return GroupTable(name=name, config=TableConfig.model_validate(section))


def test_the_last_batch_of_a_group_has_the_options_of_its_producer(tmp_path: Path) -> None:
    tables = {name: table(name, KAFKA) for name in "abc"}
    Members(number=1, tables=tuple(tables.values())).write(tmp_path)
    [of_a_file] = [each for each in Members.read(tmp_path).tables if each.name == "c"]
    assert of_a_file.kafka is not None
    assert of_a_file.kafka.producer == {}
    leaving = {
        "c": of_a_file.leaving(),
        **{name: tables[name].leaving() for name in "ab"},
    }
    for sink in kafka_sections(leaving).values():
        assert revealed(sink.producer)["sasl_plain_password"] == "secret"
        assert sink.producer["max_request_size"] == 10485760


def test_what_a_running_table_says_of_the_producer_counts_more_than_what_one_that_leaves_says() -> (
    None
):
    old = table("a", KAFKA).leaving()
    new = table("b", KAFKA, producer={"client_id": "new"})
    for order in ({"a": old, "b": new}, {"b": new, "a": old}):
        assert {str(sink.producer) for sink in kafka_sections(order).values()} == {
            str({"client_id": "new"})
        }
    assert kafka_sections({"a": table("a")}) == {}
