"""Requests that reach the broker late: after their repetition, or slowly."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Literal

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import SinkError, SinkFencedError, SinkTooSlowError, TailerdError
from tailerd.sinks.base import RowWriter
from tailerd.sinks.kafka import sink as sink_module
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.sink import KafkaSink
from tests.contracts.test_sink import batch, delivery, offset
from tests.integration.kafka.transaction_program import config
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.request_proxy import Api, RequestProxy
from tests.kafka.topics import Topics
from tests.remote_deliveries import remote_delivery, with_run, written_by

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.attack]

Isolation = Literal["read_committed", "read_uncommitted"]
COMPACTED = {"cleanup.policy": "compact"}


class Lossy:
    """A topic, and sinks that reach it through a proxy."""

    def __init__(self, broker: Broker, topics: Topics, proxy: RequestProxy) -> None:
        self.proxy = proxy
        self.topic = topics.create()
        self._offsets = topics.create(config=COMPACTED)
        self._broker = broker
        self._sinks: list[KafkaSink] = []

    async def sink(self, *, epoch: int = 1, is_direct: bool = False, **fields: Any) -> KafkaSink:
        """Return the sink of a process that has just started."""
        address = self._broker.plain if is_direct else self._broker.proxied
        section = config(address, self.topic, self._offsets, **fields)
        made = KafkaSink(section, table="orders")
        self._sinks.append(made)
        await made.fence()
        await made.resume(offset(0))
        await save(made, 0, epoch)
        return made

    async def at_least_once(self, **fields: Any) -> KafkaSink:
        """Return a sink whose offset is elsewhere."""
        section = {"kind": "kafka", "bootstrap_servers": self._broker.proxied, "topic": self.topic}
        made = KafkaSink(KafkaSinkConfig.model_validate({**section, **fields}), table="orders")
        self._sinks.append(made)
        await made.resume(offset(0))
        return made

    def found(self, isolation: Isolation = "read_committed") -> list[int]:
        records = read_topic(self._broker.plain, self.topic, isolation=isolation)
        return [json.loads(each.value or b"")["id"] for each in records]

    async def aclose(self) -> None:
        for each in self._sinks:
            await each.aclose()


async def save(sink: KafkaSink, version: int, epoch: int) -> None:
    assert sink.offsets is not None
    saved = SavedOffset(offset=offset(version), changes=ChangeMode.AUTO, epoch=epoch)
    await sink.offsets.save("orders", saved)


async def begin_again(sink: KafkaSink, version: int) -> None:
    """Do what a delivery loop does at its begin."""
    await sink.fence()
    assert sink.offsets is not None
    await sink.offsets.load("orders")
    await sink.resume(offset(version))


@pytest.fixture
async def lossy(
    kafka_broker: Broker, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lossy]:
    monkeypatch.setattr(sink_module, "_START_SECONDS", 0.1)
    ports = kafka_broker.ports
    with RequestProxy(ports.proxy, ports.proxied) as proxy:
        made = Lossy(kafka_broker, topics, proxy)
        yield made
        await made.aclose()


@pytest.mark.parametrize("ended", ["delivery", "offset", "remote"])
async def test_a_late_commit_does_not_commit_a_part_of_the_next_transaction(
    lossy: Lossy, ended: str
) -> None:
    sink = await lossy.sink()
    lossy.proxy.keep_next(Api.END_TXN)
    if ended == "offset":
        await save(sink, 0, 1)
    elif ended == "remote":
        await sink.write_remotely(remote_delivery(0, batch(0, range(10))))
    else:
        await sink.write(delivery(0, batch(0, range(10))))
    assert lossy.proxy.has_kept()
    before = lossy.found()

    async def rows() -> AsyncIterator[ChangeBatch]:
        yield batch(1, range(100, 110))
        # Control records are sent at once, rows when there are enough, so more follow.
        yield batch(1, range(1000, 40_000))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(lossy.proxy.release)
        raise SinkError("The rest cannot be read.")

    async def written_in_part(writer: RowWriter) -> object:
        await written_by(batch(1, range(100, 110)))(writer)
        await asyncio.to_thread(lossy.proxy.release)
        raise SinkError("The rest cannot be read.")

    writing = (
        sink.write_remotely(with_run(remote_delivery(1), written_in_part))
        if ended == "remote"
        else sink.write(replace(delivery(1), batches=rows()))
    )
    with pytest.raises(TailerdError):
        await writing
    assert len(lossy.found("read_uncommitted")) > len(before)
    assert lossy.found() == before
    await begin_again(sink, 1)
    await sink.write(delivery(1, batch(1, range(100, 110))))
    assert lossy.found() == [*before, *range(100, 110)]


async def test_a_late_claim_of_the_same_process_does_not_stop_the_pipeline(lossy: Lossy) -> None:
    lossy.proxy.keep_next(Api.INIT_PRODUCER_ID)
    sink = await lossy.sink()
    await sink.write(delivery(0, batch(0, range(10))))
    assert lossy.proxy.has_kept()
    # While a transaction is being completed, claims are refused.
    await asyncio.sleep(0.5)
    lossy.proxy.release()
    with pytest.raises(TailerdError) as raised:
        await sink.write(delivery(1, batch(1, range(10, 20))))
    assert raised.value.retryable
    await begin_again(sink, 1)
    await sink.write(delivery(1, batch(1, range(10, 20))))
    assert lossy.found() == [*range(20)]


@pytest.mark.full
async def test_a_transaction_that_a_late_request_opens_does_not_stop_the_pipeline(
    lossy: Lossy,
) -> None:
    sink = await lossy.sink(producer={"transaction_timeout_ms": 1000})
    lossy.proxy.keep_next(Api.ADD_PARTITIONS)
    await sink.write(delivery(0, batch(0, range(10))))
    assert lossy.proxy.has_kept()
    await asyncio.sleep(0.5)
    lossy.proxy.release()
    # The broker looks for transactions that are too old every ten seconds.
    await asyncio.sleep(12)
    with pytest.raises(TailerdError) as raised:
        await sink.write(delivery(1, batch(1, range(10, 20))))
    assert type(raised.value) is SinkError
    await begin_again(sink, 1)
    await sink.write(delivery(1, batch(1, range(10, 20))))
    assert lossy.found() == [*range(20)]


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_link_slower_than_the_timeouts_delivers_in_smaller_requests(
    lossy: Lossy, is_remote: bool
) -> None:
    """All rows take twice as long as a batch may, from its creation to its acknowledgement."""
    times = {"request_timeout_ms": 1000, "delivery_timeout_ms": 1500}
    sink = await lossy.at_least_once(producer=times)
    rows = batch(0, range(100_000, 104_000))

    async def deliver() -> None:
        if is_remote:
            await sink.write_remotely(remote_delivery(0, rows))
        else:
            await sink.write(delivery(0, rows))

    lossy.proxy.bytes_per_second = 200_000
    with pytest.raises(SinkTooSlowError, match="too slow"):
        await deliver()
    await sink.resume(offset(0))
    await deliver()
    found = lossy.found()
    assert found[-4_000:] == [*range(100_000, 104_000)]


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_late_records_of_a_delivery_that_failed_do_not_follow_its_repetition(
    lossy: Lossy, is_compressed: bool
) -> None:
    options = {"compression_type": "gzip" if is_compressed else "none"}
    sink = await lossy.at_least_once(producer=options)
    await sink.write(delivery(0, batch(0, range(10))))
    lossy.proxy.keep_next(Api.PRODUCE)
    writing = asyncio.create_task(sink.write(delivery(1, batch(1, range(10, 20)))))
    # The client repeats the request, which does not arrive either.
    lossy.proxy.dropped = {Api.PRODUCE}
    await asyncio.to_thread(lossy.proxy.wait_until_kept)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    lossy.proxy.dropped = set()
    await sink.resume(offset(1))
    await sink.write(delivery(1, batch(1, range(10, 20))))
    await sink.write(delivery(2, batch(2, range(20, 30))))
    lossy.proxy.release()
    assert lossy.found() == [*range(30)]


async def test_a_task_that_outlives_its_delivery_writes_nothing_after_the_repetition(
    lossy: Lossy,
) -> None:
    sink = await lossy.at_least_once()
    late: list[RowWriter] = []

    async def fails(writer: RowWriter) -> object:
        late.append(writer)
        await written_by(batch(0, range(5)))(writer)
        raise SinkError("The job was lost.")

    with pytest.raises(SinkError, match="The job was lost"):
        await sink.write_remotely(with_run(remote_delivery(0), fails))
    await sink.resume(offset(0))
    await sink.write_remotely(remote_delivery(0, batch(0, range(10))))
    with pytest.raises(SinkError):
        await written_by(batch(0, range(5, 10)))(late[0])
    # Its next delivery, and one of this process, continue the numbers of the first one.
    await sink.write_remotely(remote_delivery(1, batch(1, range(10, 20))))
    await sink.write(delivery(2, batch(2, range(20, 30))))
    await sink.write_remotely(remote_delivery(3, batch(3, range(30, 40))))
    assert lossy.found() == [*range(5), *range(40)]


@pytest.mark.full
async def test_a_result_that_comes_after_its_transaction_timed_out_is_retried(
    lossy: Lossy,
) -> None:
    """As from a job of Spark that other tables made slow."""
    sink = await lossy.sink(producer={"transaction_timeout_ms": 1000})

    async def comes_late(writer: RowWriter) -> object:
        written = await written_by(batch(0, range(10)))(writer)
        # The broker looks for transactions that are too old every ten seconds.
        await asyncio.sleep(12)
        return written

    with pytest.raises(TailerdError) as raised:
        await sink.write_remotely(with_run(remote_delivery(0), comes_late))
    assert raised.value.retryable
    await begin_again(sink, 0)
    await sink.write_remotely(remote_delivery(0, batch(0, range(10))))
    assert lossy.found() == [*range(10)]


@pytest.mark.parametrize("has_saved_at_once", [True, False])
async def test_a_process_that_started_later_owns_the_transactional_id(
    lossy: Lossy, monkeypatch: pytest.MonkeyPatch, has_saved_at_once: bool
) -> None:
    older = await lossy.sink(epoch=1)
    await older.write(delivery(0, batch(0, range(10))))
    newer = await lossy.sink(epoch=2 if has_saved_at_once else 1, is_direct=True)
    with pytest.raises(TailerdError) as raised:
        await older.write(delivery(1, batch(1, range(10, 20))))
    assert raised.value.retryable
    monkeypatch.setattr(sink_module, "_START_SECONDS", 2.0)
    fencing = asyncio.create_task(older.fence())
    if not has_saved_at_once:
        await asyncio.sleep(1)
        await save(newer, 1, 2)
    with pytest.raises(SinkFencedError):
        await fencing
    await newer.write(delivery(1, batch(1, range(10, 20))))
    assert Counter(lossy.found()) == Counter(range(20))
