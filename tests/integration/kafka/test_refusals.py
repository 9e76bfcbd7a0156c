"""What a broker refuses is one clear error, and no offset moves over it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon.running import run_to_end
from tests.integration.kafka.following import GUARANTEES, Follower, Guarantee, Table, topic_for
from tests.kafka.broker import USERS, Broker
from tests.kafka.certificates import make_certificates
from tests.kafka.topics import Topics
from tests.waiting import eventually

pytestmark = pytest.mark.kafka
# What refuses a client does so at once; kafka-python goes on trying.
IMPATIENT = {"bootstrap_timeout_ms": 1000}
BOTH = pytest.mark.parametrize("guarantee", GUARANTEES)


def once(follower: Follower) -> subprocess.CompletedProcess[str]:
    return run_to_end("run", "--config", follower.config, "--once")


def sign_in(user: str, password: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def refused(follower: Follower, text: str) -> str:
    """Run once: it fails at the first attempt, and says so in one line that has the text."""
    done = once(follower)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert text.lower() in done.stderr.lower(), done.stderr
    assert "retry" not in done.stderr.lower(), done.stderr
    return done.stderr


def trust(authority: Path) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_cafile": str(authority)}


@pytest.mark.full
@BOTH
@pytest.mark.parametrize(
    ("case", "reported"),
    [
        ("a wrong password", "authentication"),
        ("a user without rights", "authorization"),
        ("a certificate of somebody else", "certificate"),
    ],
)
def test_who_is_refused_saves_nothing_and_no_password_is_shown(
    kafka_broker: Broker,
    topics: Topics,
    tmp_path: Path,
    guarantee: Guarantee,
    case: str,
    reported: str,
) -> None:
    wrong = {
        "a wrong password": sign_in("tailerd", "not-the-password") | IMPATIENT,
        "a user without rights": sign_in("limited", USERS["limited"]),
        "a certificate of somebody else": trust(make_certificates(tmp_path / "other").authority)
        | IMPATIENT,
    }[case]
    is_tls = reported == "certificate"
    table = Table(tmp_path / "t")
    table.insert()
    follower = Follower(
        tmp_path / "d",
        table,
        topic_for(topics),
        bootstrap=kafka_broker.tls if is_tls else kafka_broker.sasl,
        reads_from=kafka_broker.plain,
        guarantee=guarantee,
        producer=wrong,
    )
    assert "not-the-password" not in refused(follower, reported)
    signed_in = sign_in("tailerd", USERS["tailerd"])
    follower.write(producer=trust(kafka_broker.certificates.authority) if is_tls else signed_in)
    done = once(follower)
    assert done.returncode == 0, done.stderr
    follower.obeys_the_law()


@pytest.mark.full
def test_a_port_without_tls_is_told_and_tried_again_because_a_stopping_broker_looks_the_same(
    kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    table.insert()
    topic = topic_for(topics)
    follower = Follower(
        tmp_path / "d",
        table,
        topic,
        bootstrap=kafka_broker.plain,
        producer=trust(kafka_broker.certificates.authority) | IMPATIENT,
    )
    with follower.running():
        follower.waits_for_error("whether this port uses TLS", state="retrying")
    assert follower.records() == []


@pytest.mark.full
@BOTH
def test_a_row_too_large_for_the_topic_stops_with_an_error_until_the_topic_takes_it(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t", row_bytes=5000)
    topic = topic_for(topics, config={"max.message.bytes": "4000"})
    table.insert(10)
    follower = Follower(
        tmp_path / "d", table, topic, bootstrap=kafka_broker.plain, guarantee=guarantee
    )
    reported = refused(follower, "max.message.bytes")
    assert topic in reported
    assert follower.records() == []
    topics.configure(topic, {"max.message.bytes": "100000"})
    done = once(follower)
    assert done.returncode == 0, done.stderr
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_batches_larger_than_the_topic_takes_are_sent_in_smaller_ones(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t", row_bytes=1000)
    topic = topic_for(topics, config={"max.message.bytes": "4000"})
    table.insert(2000)
    follower = Follower(
        tmp_path / "d", table, topic, bootstrap=kafka_broker.plain, guarantee=guarantee
    )
    done = once(follower)
    assert done.returncode == 0, done.stderr
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_a_limit_that_is_lowered_while_the_daemon_runs_is_met_and_kept(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t", row_bytes=1000)
    topic = topic_for(topics)
    follower = Follower(
        tmp_path / "d", table, topic, bootstrap=kafka_broker.plain, guarantee=guarantee
    )
    with follower.running():
        table.insert(2000)
        follower.catches_up()
        topics.configure(topic, {"max.message.bytes": "20000"})
        table.insert(2000)
        eventually(
            lambda: follower.status()["state"] == "failed" or len(follower.delivered()) == 4000
        )
    done = once(follower)
    assert done.returncode == 0, done.stderr
    follower.obeys_the_law()
