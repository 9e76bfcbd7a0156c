"""A transaction that several processes write into, and a driver that dies at each of its steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.kafka import transaction_program
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
COMPACTED = {"cleanup.policy": "compact"}


def run(broker: Broker, *arguments: str, die_after: float = 0.0) -> str:
    """Run the program; return what it said, or `died`."""
    process = subprocess.run(
        [sys.executable, "-m", transaction_program.__name__, broker.plain, *arguments],
        cwd=ROOT,
        env={**os.environ, "DIE_AFTER": str(die_after)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode in (0, 9), process.stderr
    return process.stdout.strip() or "died"


def keys_of(batch: int) -> Counter[bytes | None]:
    return Counter(
        b"%d-%d-%d" % (batch, writer, number)
        for writer in range(transaction_program.WRITERS)
        for number in range(transaction_program.RECORDS)
    )


@pytest.mark.parametrize(
    ("die_at", "then"),
    [("produced", "written"), ("recorded", "written"), ("committed", "repeated")],
)
def test_a_micro_batch_counts_once_wherever_its_driver_dies(
    kafka_broker: Broker, topics: Topics, die_at: str, then: str
) -> None:
    topic, offsets = topics.create(partitions=2), topics.create(config=COMPACTED)
    assert run(kafka_broker, topic, offsets, "0", die_at) == "died"
    assert run(kafka_broker, topic, offsets, "0", "never") == then
    assert run(kafka_broker, topic, offsets, "1", "never") == "written"

    found = Counter(record.key for record in read_topic(kafka_broker.plain, topic))
    assert found == keys_of(0) + keys_of(1)


@pytest.mark.parametrize("die_after", [0.0, 0.003, 0.02])
def test_a_commit_that_nobody_heard_the_answer_of_is_found_out_by_the_next_driver(
    kafka_broker: Broker, topics: Topics, die_after: float
) -> None:
    topic, offsets = topics.create(partitions=2), topics.create(config=COMPACTED)
    died = run(kafka_broker, topic, offsets, "0", "committing", die_after=die_after)
    then = run(kafka_broker, topic, offsets, "0", "never")

    assert (died, then) in {("died", "written"), ("died", "repeated")}
    assert Counter(record.key for record in read_topic(kafka_broker.plain, topic)) == keys_of(0)
