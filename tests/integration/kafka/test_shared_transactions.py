"""A transaction that another process writes into, and a daemon that dies at each of its steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import SinkError, SinkFencedError, SinkTooSlowError, TailerdError
from tailerd.sinks.base import RowWriter
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.sink import KafkaSink
from tests.contracts.test_sink import batch, delivery, offset
from tests.integration.kafka import transaction_program
from tests.integration.kafka.transaction_program import config, make_ids
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.remote_deliveries import remote_delivery, with_run, written_by
from tests.waiting import PATIENCE_SECONDS

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
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert process.returncode in (0, 9), process.stderr
    return process.stdout.strip() or "died"


def found_in(broker: Broker, topic: str) -> Counter[int]:
    """Return the ids that readers of committed records see."""
    return Counter(json.loads(each.value or b"")["id"] for each in read_topic(broker.plain, topic))


@pytest.mark.full
@pytest.mark.parametrize(
    ("die_at", "then"),
    [("produced", "written"), ("recorded", "written"), ("committed", "repeated")],
)
def test_a_delivery_counts_once_wherever_its_daemon_dies(
    kafka_broker: Broker, topics: Topics, die_at: str, then: str
) -> None:
    topic, offsets = topics.create(partitions=2), topics.create(config=COMPACTED)
    assert run(kafka_broker, topic, offsets, "0", die_at) == "died"
    assert run(kafka_broker, topic, offsets, "0", "never") == then
    assert run(kafka_broker, topic, offsets, "1", "never") == "written"
    assert found_in(kafka_broker, topic) == Counter([*make_ids(0), *make_ids(1)])


@pytest.mark.full
@pytest.mark.parametrize("die_after", [0.0, 0.003, 0.02])
def test_a_commit_that_nobody_heard_the_answer_of_is_found_out_by_the_next_daemon(
    kafka_broker: Broker, topics: Topics, die_after: float
) -> None:
    topic, offsets = topics.create(partitions=2), topics.create(config=COMPACTED)
    died = run(kafka_broker, topic, offsets, "0", "committing", die_after=die_after)
    then = run(kafka_broker, topic, offsets, "0", "never")
    assert (died, then) in {("died", "written"), ("died", "repeated")}
    assert found_in(kafka_broker, topic) == Counter(make_ids(0))


class SharedTopic:
    """A topic, and the sinks of daemons that deliver there under one transactional id."""

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self.topic = topics.create(partitions=2)
        self._offsets = topics.create(config=COMPACTED)
        self._broker = broker
        self._sinks: list[KafkaSink] = []

    async def sink(self, **fields: Any) -> KafkaSink:
        """Return the sink of a daemon that shut out those before it."""
        section = config(self._broker.plain, self.topic, self._offsets, **fields)
        made = KafkaSink(section, table="orders")
        self._sinks.append(made)
        await made.fence()
        await made.resume(offset(0))
        return made

    async def other(self) -> KafkaSink:
        """Return a sink that is in no transaction."""
        section = {"kind": "kafka", "bootstrap_servers": self._broker.plain, "topic": self.topic}
        made = KafkaSink(KafkaSinkConfig.model_validate(section), table="other")
        self._sinks.append(made)
        await made.resume(offset(0))
        return made

    def found(self) -> Counter[int]:
        return found_in(self._broker, self.topic)

    async def aclose(self) -> None:
        for each in self._sinks:
            await each.aclose()


@pytest.fixture
async def target(kafka_broker: Broker, topics: Topics) -> AsyncIterator[SharedTopic]:
    made = SharedTopic(kafka_broker, topics)
    yield made
    await made.aclose()


@pytest.mark.parametrize("has_written", [False, True])
async def test_a_task_that_outlives_its_delivery_is_shut_out_and_nobody_waits_for_it(
    target: SharedTopic, has_written: bool
) -> None:
    sink = await target.sink()
    late: list[RowWriter] = []

    async def fails(writer: RowWriter) -> object:
        late.append(writer)
        if has_written:
            await written_by(batch(0, range(50)))(writer)
        raise SinkError("The job was lost.")

    with pytest.raises(SinkError, match="The job was lost"):
        await sink.write_remotely(with_run(remote_delivery(0), fails))
    with pytest.raises(TailerdError):
        await written_by(batch(0, range(50, 100)))(late[0])
    # Another producer's records behind those: committed readers stop where something is open.
    other = await target.other()
    await other.write(delivery(7, batch(7, range(700, 800))))
    assert target.found() == Counter(range(700, 800))

    await sink.fence()
    await sink.resume(offset(0))
    await sink.write_remotely(remote_delivery(0, batch(0, range(100))))
    assert target.found() == Counter([*range(700, 800), *range(100)])


async def test_a_failed_delivery_does_not_shut_out_whoever_took_over(target: SharedTopic) -> None:
    async def started(epoch: int) -> KafkaSink:
        sink = await target.sink()
        assert sink.offsets is not None
        saved = SavedOffset(offset=offset(0), changes=ChangeMode.AUTO, epoch=epoch)
        await sink.offsets.save("orders", saved)
        return sink

    older = await started(epoch=1)
    newer: list[KafkaSink] = []

    async def is_overtaken(writer: RowWriter) -> object:
        newer.append(await started(epoch=2))
        return await written_by(batch(0, range(10)))(writer)

    with pytest.raises(TailerdError):
        await older.write_remotely(with_run(remote_delivery(0), is_overtaken))
    with pytest.raises(SinkFencedError):
        await older.fence()
    await newer[0].write_remotely(remote_delivery(0, batch(0, range(10))))
    assert target.found() == Counter(range(10))


@pytest.mark.full
async def test_a_delivery_whose_time_is_over_says_so_and_is_written_again(
    target: SharedTopic,
) -> None:
    sink = await target.sink(producer={"transaction_timeout_ms": 1000})

    async def is_slow(writer: RowWriter) -> object:
        def rows() -> Iterator[ChangeBatch]:
            yield batch(0, range(5))
            time.sleep(1.5)
            yield batch(0, range(5, 10))

        return writer(rows())

    with pytest.raises(SinkTooSlowError, match="transaction_timeout_ms"):
        await sink.write_remotely(with_run(remote_delivery(0), is_slow))
    assert target.found() == Counter()
    again = await target.sink()
    await again.write_remotely(remote_delivery(0, batch(0, range(10))))
    assert target.found() == Counter(range(10))


async def test_the_daemon_writes_into_partitions_that_another_process_wrote_before(
    target: SharedTopic,
) -> None:
    sink = await target.sink()
    for version in range(6):
        rows = batch(version, make_ids(version))
        if version % 2:
            await sink.write(delivery(version, rows))
        else:
            await sink.write_remotely(remote_delivery(version, rows))
    assert target.found() == Counter(range(6 * transaction_program.ROWS))
