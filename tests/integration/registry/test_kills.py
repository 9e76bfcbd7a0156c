"""`kill -9` of the daemon while the table's columns change and the registry comes and goes.

`--kills 50` kills fifty times; five without it.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.integration.daemon.running import address
from tests.integration.kafka.following import Follower, Table, Writer, topic_for
from tests.kafka.broker import Broker
from tests.kafka.reader import Record, read_topic
from tests.kafka.schema_registry import SchemaRegistry
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
DEFAULT_KILLS = 5
MAX_COLUMNS = 40


class WideningTable(Table):
    """A table that also gets further columns, one commit in ten."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.columns = 0

    def change(self, rows: int = 100) -> int:
        """Commit something, sometimes a further column."""
        if self.columns < MAX_COLUMNS and self._chance.random() < 0.1:
            self.columns += 1
            more = [(f"c{number}", "double") for number in range(self.columns)]
            self._builder.change_metadata(fields=[("id", "long"), ("name", "string"), *more])
        return super().change(rows)


class AvroFollower(Follower):
    """A follower that writes Avro, read by Confluent's deserializer."""

    registry: SchemaRegistry

    def records(self, start: Mapping[int, int] | None = None) -> list[Record]:
        """Return what a read_committed consumer sees, its values as JSON."""
        client = SchemaRegistryClient({"url": self.registry.url})
        read = AvroDeserializer(client)
        where = SerializationContext(self.topic, MessageField.VALUE)
        return [
            replace(record, value=json.dumps(read(record.value, where), default=str).encode())
            for record in read_topic(self.sink["bootstrap_servers"], self.topic, start=start)
        ]


@pytest.fixture
def own_registry(schema_registry: SchemaRegistry, tmp_path: Path) -> Iterator[SchemaRegistry]:
    """The shared registry, which goes on at the end however the test ends."""
    yield schema_registry
    schema_registry.resume()


@pytest.mark.full
def test_kill_9_while_columns_change_and_the_registry_hangs_loses_and_doubles_nothing(
    kafka_broker: Broker,
    own_registry: SchemaRegistry,
    topics: Topics,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    requested = pytestconfig.getoption("--kills")
    kills = DEFAULT_KILLS if requested is None else requested
    chance = random.Random(11)
    table = WideningTable(tmp_path / "t")
    topic = topic_for(topics, partitions=3)
    follower = AvroFollower(
        tmp_path / "d",
        table,
        topic,
        bootstrap=kafka_broker.plain,
        format="avro",
        schema_registry={"urls": [own_registry.url], "timeout": "1s", "retries": 0},
    )
    follower.registry = own_registry
    in_the_middle = 0
    for number in range(kills):
        if number % 2:
            own_registry.pause()
        with Writer(table, rows=200), follower.running() as process:
            # Some die while they start, the others while they catch up, wait or follow.
            if number % 3:
                address(follower.config)
            time.sleep(0.3 + chance.random() * 1.5)
            own_registry.resume()
            # Half of the time soon after it came back.
            if chance.random() < 0.5:
                time.sleep(chance.random() * 1.5)
            process.send_signal(signal.SIGKILL)
            process.wait()
            in_the_middle += follower.last_delivered() < table.version
    assert in_the_middle > kills / 2
    assert table.columns > 0
    own_registry.pause()
    table.insert()
    with follower.running():
        address(follower.config)
        follower.waits_for_error("cannot be reached", state="retrying")
        own_registry.resume()
        follower.catches_up()
    client = SchemaRegistryClient({"url": own_registry.url})
    assert len(client.get_versions(f"{topic}-value")) > 1
    follower.obeys_the_law()
