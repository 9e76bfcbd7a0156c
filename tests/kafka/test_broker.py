"""The broker of the tests: its listeners, its users, its restarts, and the reader beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.kafka.broker import USERS, Broker, new_cluster_id
from tests.kafka.certificates import make_certificates
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def own_broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("kafka") / "broker", heap_mb=256)
    broker.start()
    yield broker
    broker.kill()


def produce(bootstrap: str, topic: str, values: list[bytes], **options: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **options})
    if "transactional.id" in options:
        producer.init_transactions(20)
        producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, b"k%d" % number, headers=[("n", b"%d" % number)])
    assert producer.flush(20) == 0
    return producer


def test_no_cluster_is_named_like_an_option() -> None:
    names = {new_cluster_id() for _ in range(2_000)}
    assert len(names) == 2_000
    assert [name for name in names if name.startswith("-")] == []
    assert {len(name) for name in names} == {22}


def test_the_reader_gives_keys_values_headers_and_positions(
    kafka_broker: Broker, topics: Topics
) -> None:
    topic = topics.create()
    produce(kafka_broker.plain, topic, [b"a", b"b"])
    first, second = read_topic(kafka_broker.plain, topic)
    assert (first.partition, first.offset, first.key, first.value) == (0, 0, b"k0", b"a")
    assert (second.offset, second.value, second.headers) == (1, b"b", (("n", b"1"),))
    assert first.timestamp_ms
    assert topics.end_offsets(topic) == {0: 2}


def test_a_committed_reader_sees_neither_aborted_nor_open_transactions(
    kafka_broker: Broker, topics: Topics
) -> None:
    topic = topics.create()
    address = kafka_broker.plain
    produce(address, topic, [b"aborted"], **{"transactional.id": topic}).abort_transaction(20)
    produce(address, topic, [b"committed"], **{"transactional.id": topic}).commit_transaction(20)
    still_open = produce(address, topic, [b"open"], **{"transactional.id": topic})
    assert [each.value for each in read_topic(address, topic)] == [b"committed"]
    everything = read_topic(address, topic, isolation="read_uncommitted")
    assert [each.value for each in everything] == [b"aborted", b"committed", b"open"]
    still_open.abort_transaction(20)


def test_a_topic_that_does_not_exist_is_an_error(kafka_broker: Broker) -> None:
    with pytest.raises(KafkaException, match="Unknown topic"):
        read_topic(kafka_broker.plain, "there-is-none")


@pytest.mark.full
def test_a_broker_keeps_its_records_and_its_address_when_stopped_and_when_killed(
    own_broker: Broker,
) -> None:
    with Topics(own_broker.plain) as topics:
        topic = topics.create()
        produce(own_broker.plain, topic, [b"before"])
        own_broker.stop()
        assert not own_broker.is_running
        own_broker.start()
        produce(own_broker.plain, topic, [b"between"])
        own_broker.kill()
        own_broker.start()
        assert [each.value for each in read_topic(own_broker.plain, topic)] == [
            b"before",
            b"between",
        ]


def sign_in(user: str, password: str) -> dict[str, str]:
    return {
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("listener", ["sasl", "tls", "sasl_tls"])
def test_every_listener_lets_in_who_is_right_and_nobody_else(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, listener: str
) -> None:
    topic = topics.create()
    bootstrap = getattr(kafka_broker, listener)
    right: dict[str, str] = {}
    wrong: dict[str, str] = {}
    if "tls" in listener:
        authority = kafka_broker.certificates.authority
        other = make_certificates(tmp_path).authority
        right = {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
        wrong = right | {"ssl.ca.location": str(other)}
    if "sasl" in listener:
        protocol = "SASL_SSL" if "tls" in listener else "SASL_PLAINTEXT"
        right |= {"security.protocol": protocol, **sign_in("tailerd", USERS["tailerd"])}
        wrong = right | sign_in("tailerd", "wrong")
    # A fetch needs no more rights than `tailerd` has, and anonymous TLS clients may do everything.
    assert read_topic(bootstrap, topic, options=right) == []
    refused = AdminClient({"bootstrap.servers": bootstrap, "log_level": "0", **wrong})
    with pytest.raises(KafkaException):
        refused.list_topics(timeout=2)


def test_a_user_without_rights_does_not_even_see_a_topic(
    kafka_broker: Broker, topics: Topics
) -> None:
    topic = topics.create()
    options: dict[str, str | int | float | bool] = {
        "bootstrap.servers": kafka_broker.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "log_level": "0",
        **sign_in("limited", USERS["limited"]),
    }
    found = AdminClient(options).list_topics(topic, timeout=20).topics[topic]
    assert "authorization failed" in str(found.error)
