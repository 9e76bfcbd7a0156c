"""The Kafka sink's writer in an engine's process: transactions it joins, producers it keeps."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.errors import SinkError, SinkRefusedError
from tailerd.sinks.kafka import remote_writer
from tailerd.sinks.kafka.acknowledgements import SendWindow
from tailerd.sinks.kafka.client_internals import SharedTransaction
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.remote_writer import IdleProducer, RecordsWriter
from tailerd.sinks.kafka.session import WrittenRecords
from tailerd.sinks.kafka.topics import TopicFacts, Topics
from tests.contracts.test_sink import batch, offset
from tests.doubles.kafka_client import ClientDouble
from tests.sinks.kafka.test_registry_client import Scripted

TABLE = PipelineIdentity(table="orders")


def config(**fields: Any) -> KafkaSinkConfig:
    return KafkaSinkConfig.model_validate(
        {"kind": "kafka", "bootstrap_servers": "h:1", "topic": "t", "key": ["id"], **fields}
    )


def shared(transactional_id: str | None = "x", **sequences: int) -> SharedTransaction:
    numbers = {(topic, 0): number for topic, number in sequences.items()}
    return SharedTransaction(
        transactional_id=transactional_id, producer_id=7, epoch=3, sequences=numbers
    )


def writer(
    transaction: SharedTransaction | None = None, table: str = "orders", **fields: Any
) -> RecordsWriter:
    return RecordsWriter(
        config=config(**fields),
        pipeline=PipelineIdentity(table=table),
        start=offset(3),
        end=offset(4),
        facts=(TopicFacts(name="t", partitions=1, replicas=1, topic_id="id of t"),),
        window=SendWindow(1 << 20, seconds=1.0),
        transaction=transaction,
    )


def written_by(made: RecordsWriter, *batches: ChangeBatch) -> WrittenRecords:
    """Write as another process does: with what pickling keeps, whose answer is pickled too."""
    there: RecordsWriter = pickle.loads(pickle.dumps(made))
    answer = pickle.loads(pickle.dumps(there(iter(batches))))
    assert isinstance(answer, WrittenRecords)
    return answer


@dataclass
class Process:
    """A process of an engine, whose producers have no brokers.

    Attributes:
        opened: All of them, in order.
        fails_with: What brokers answer to those that are opened from now on.
    """

    opened: list[ClientDouble] = field(default_factory=list)
    fails_with: Exception | None = None

    def open(self, made: KafkaSinkConfig, transactional_id: str | None) -> IdleProducer:
        client = ClientDouble(transactional_id)
        client.fails_with = self.fails_with
        self.opened.append(client)
        return IdleProducer(connection=Connection(made), client=client.client)

    @property
    def values(self) -> list[list[bytes | None]]:
        """Keys of what each producer sent."""
        return [[key for _, _, key, _, _ in client.sent] for client in self.opened]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process()
    monkeypatch.setattr(remote_writer, "_open_producer", made.open)
    monkeypatch.setattr(remote_writer, "_idle", {})
    monkeypatch.setattr(remote_writer, "_schemas", OrderedDict())
    return made


def keys(*ids: int) -> list[bytes]:
    return [b'{"id":%d}' % each for each in ids]


def test_rows_go_into_the_transaction_behind_those_of_others(process: Process) -> None:
    written = written_by(writer(shared("x", t=40)), batch(3, [1, 2]), batch(3, [3]))
    [client] = process.opened
    assert process.values == [keys(1, 2, 3)]
    assert [each[:3] for each in client.batches] == [("x", 7, 3)] * len(client.batches)
    assert client.batches[0][3] == 40
    assert written.sequences == {("t", 0): 43}
    # The daemon knew of the topic, so that nobody asked.
    assert written.facts == ()


@pytest.mark.attack
def test_rows_without_a_transaction_continue_the_producer_id_of_the_daemon(
    process: Process,
) -> None:
    """So that brokers reject what a task of an earlier attempt still sends."""
    for epoch, sequence in ((3, 40), (3, 41), (4, 0)):
        shared = SharedTransaction(
            transactional_id=None, producer_id=7, epoch=epoch, sequences={("t", 0): sequence}
        )
        written = written_by(writer(shared), batch(3, [1]))
        assert written.sequences == {("t", 0): sequence + 1}
    assert process.opened[0].batches == [(None, 7, 3, 40), (None, 7, 3, 41), (None, 7, 4, 0)]


def test_no_rows_are_no_records(process: Process) -> None:
    assert written_by(writer(shared()), batch(3, [])).sequences == {}
    assert process.values == [[]]


def test_a_producer_is_kept_and_joins_transactions_of_any_table(process: Process) -> None:
    written_by(writer(shared("x", t=40)), batch(3, [1]))
    written_by(writer(shared("y"), table="refunds"), batch(3, [2]))
    written_by(writer(shared("x", t=41)), batch(3, [3]))
    [client] = process.opened
    assert process.values == [keys(1, 2, 3)]
    assert client.batches == [("x", 7, 3, 40), ("y", 7, 3, 0), ("x", 7, 3, 41)]
    assert not client.is_closed


def test_a_producer_without_transactions_is_another_one(process: Process) -> None:
    for transaction in (shared(), None, shared(), None):
        written_by(writer(transaction), batch(3, [1]))
    assert process.values == [keys(1, 1), keys(1, 1)]
    assert [client.config["transactional_id"] for client in process.opened] == ["x", None]


@pytest.mark.parametrize(
    "other", [{"bootstrap_servers": "other:1"}, {"producer": {"client_id": "other"}}]
)
def test_a_producer_of_other_brokers_or_options_is_another_one(
    process: Process, other: dict[str, Any]
) -> None:
    written_by(writer(), batch(3, [1]))
    written_by(writer(**other), batch(3, [2]))
    assert process.values == [keys(1), keys(2)]


def test_few_producers_are_kept_the_latest_ones(process: Process) -> None:
    for number in range(6):
        written_by(writer(bootstrap_servers=f"h:{number + 1}"), batch(3, [1]))
    assert [client.is_closed for client in process.opened] == [True] * 2 + [False] * 4
    written_by(writer(bootstrap_servers="h:6"), batch(3, [2]))
    assert len(process.opened) == 6


def test_a_producer_whose_rows_could_not_all_be_read_is_never_used_again(process: Process) -> None:
    def rows() -> Iterator[ChangeBatch]:
        yield batch(3, [1])
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        writer(shared())(rows())
    assert process.opened[0].is_closed
    written_by(writer(shared()), batch(3, [1]))
    assert process.values[1] == keys(1)


def test_what_brokers_refuse_is_an_error_and_ends_the_producer(process: Process) -> None:
    process.fails_with = TopicAuthorizationFailedError("t")
    with pytest.raises(SinkError, match="Rows of orders were not delivered to Kafka at h:1"):
        written_by(writer(), batch(3, [1]))
    assert process.opened[0].is_closed
    process.fails_with = None
    written_by(writer(), batch(3, [1]))
    assert process.values == [[], keys(1)]


def test_a_row_that_no_topic_takes_is_refused_as_by_the_daemon(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = TopicFacts(name="t", partitions=1, replicas=1, max_message_bytes=100)
    # Looked at again before a row is refused: it might take more by now.
    monkeypatch.setattr(Topics, "describe", lambda *_: {"t": small})
    made = RecordsWriter(
        config=config(),
        pipeline=TABLE,
        start=offset(3),
        end=offset(4),
        facts=(small,),
        window=SendWindow(1 << 20, seconds=1.0),
        transaction=None,
    )
    with pytest.raises(SinkRefusedError):
        written_by(made, batch(3, [10**15]))
    assert process.opened[0].is_closed


def test_markers_of_commits_go_with_the_rows(process: Process) -> None:
    made = writer(shared(), transaction_topic="told")
    reported = TopicFacts(name="told", partitions=1, replicas=1)
    both = RecordsWriter(
        config=made.config,
        pipeline=TABLE,
        start=made.start,
        end=made.end,
        facts=(*made.facts, reported),
        window=SendWindow(1 << 20, seconds=1.0),
        transaction=made.transaction,
    )
    written = written_by(both, batch(3, [1]))
    topics = [topic for topic, *_ in process.opened[0].sent]
    assert topics.count("t") == 1
    assert topics[0] == topics[-1] == "told"
    assert written.sequences == {("t", 0): 1, ("told", 0): len(topics) - 1}


def test_a_registry_is_asked_once_by_a_process(process: Process) -> None:
    with Scripted().serving() as server:
        registry = {"urls": [server.url], "retries": 0}
        written_by(writer(format="avro", schema_registry=registry), batch(3, [1]))
        requested = len(server.requested)
        assert requested
        for _ in range(3):
            written_by(writer(format="avro", schema_registry=registry), batch(3, [2]))
        assert len(server.requested) == requested
    values = [value for _, _, _, value, _ in process.opened[0].sent]
    assert [value[:5] for value in values if value] == [b"\0\0\0\0\x07"] * 4


def test_schemas_of_few_tables_are_kept(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_writer, "_MAX_TABLES", 2)
    with Scripted().serving() as server:
        registry = {"urls": [server.url], "retries": 0}
        counts = []
        for table in ("a", "b", "a", "c", "a", "b"):
            before = len(server.requested)
            made = writer(table=table, format="avro", schema_registry=registry)
            written_by(made, batch(3, [1]))
            counts.append(len(server.requested) > before)
    assert counts == [True, True, False, True, False, True]
