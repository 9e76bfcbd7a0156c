"""A group of tables while it runs: who is written down, held back and stopped, without a Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.config import Config, TableConfig
from tailerd.config.sections import read_sink
from tailerd.errors import ConfigError, TailerdError
from tailerd.sinks.kafka.producer_options import revealed
from tailerd.spark.engine import SparkEngine
from tailerd.spark.group.group_offset import Entry, GroupOffset
from tailerd.spark.group.group_query import kafka_sections
from tailerd.spark.group.holds import marked, read_holds
from tailerd.spark.group.members import GroupTable, Members
from tailerd.spark.group.report import SourceReport
from tailerd.spark.group.table_group import TableGroup
from tailerd.telemetry import Telemetry

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
    given = {**sink, **fields}
    if given["kind"] == "file":
        given["path"] = f"{given['path']}/{name}"
    section = {"path": f"/lake/{name}", "sink": read_sink("sink", given)}
    return GroupTable(name=name, config=TableConfig.model_validate(section))


class Runner:
    """A table's part in a group; keeps what it is told."""

    max_attempts: int | None = None

    def __init__(self, of: GroupTable) -> None:
        self.table = of
        self.errors: list[TailerdError | None] = []
        self.waits: list[TailerdError] = []

    def heard(self, report: SourceReport) -> None:
        pass

    def moved(self, end: GroupOffset, duration_seconds: float) -> None:
        pass

    def retries(self, error: TailerdError, attempt: int, wait_seconds: float) -> None:
        self.waits.append(error)

    def ended(self, error: TailerdError | None) -> None:
        self.errors.append(error)


class Group(TableGroup):
    """A group whose query never starts: what the daemon does around it is called by tests."""

    def __init__(self, folder: Path, *tables: GroupTable) -> None:
        config = Config(state=str(folder), tables={t.name: t.config for t in tables})
        super().__init__(SparkEngine(config, Telemetry(), once=False), "group-001", folder)
        self.runners = {each.name: Runner(each) for each in tables}
        self._runners.update(self.runners)


def at(version: int) -> Offset:
    return Offset(table_id="id", version=Version(version))


def log_batch(folder: Path, names: str) -> GroupOffset:
    """Log the end of a first batch of some tables, as Spark does before it asks for rows."""
    steps = {name: (at(0), Entry(offset=at(1), generation=1, moved=1)) for name in names}
    end = GroupOffset().next(steps)
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True)
    (folder / "checkpoint/offsets/0").write_text(f"v1\n{{}}\n{json.dumps(end.fields())}")
    return end


WRONG = ConfigError("Rows of c go to the topic dead.")


@pytest.mark.parametrize("names", ["abc", "ab"])
def test_what_is_wrong_with_one_table_stops_that_one_whether_the_batch_has_its_rows_or_not(
    tmp_path: Path, names: str
) -> None:
    async def scenario() -> None:
        group = Group(tmp_path, *(table(name) for name in "abc"))
        log_batch(tmp_path, names)
        assert await group._hold_back(marked(WRONG, "c"))
        assert set(read_holds(tmp_path)) == set(names) & {"c"}
        assert [str(error) for error in group.runners["c"].errors] == [str(WRONG)]
        assert group.runners["a"].errors == group.runners["b"].errors == []
        assert set(group._runners) == {"a", "b"}

    asyncio.run(scenario())


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
