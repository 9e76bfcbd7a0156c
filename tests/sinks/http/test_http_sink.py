"""The HTTP sink: what arrives, in which order, and when requests are repeated."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import SinkError
from tailerd.sinks.http.endpoint import parse_retry_after
from tests.http.receiver import ACCEPT, DROP, HANG, TORN, Receiver, Reply, Request
from tests.sinks.http.conftest import answer_first, deliver, row_ids
from tests.sinks.http.deliveries import batch, delivery, make_sink

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


async def test_events_arrive_as_batches_of_cloudevents(receiver: Receiver, tmp_path: Path) -> None:
    await deliver(receiver, tmp_path, batch(3, range(5)), batch={"max_events": 2})
    assert [len(request.events) for request in receiver.posts] == [2, 2, 1]
    types = {request.headers["Content-Type"] for request in receiver.posts}
    assert types == {"application/cloudevents-batch+json; charset=UTF-8"}
    event = receiver.events[4]
    assert event["data"] | {"_commit_timestamp": ""} == {
        "id": 4,
        "name": "n4",
        "_change_type": "insert",
        "_commit_version": 3,
        "_commit_timestamp": "",
    }
    assert (event["specversion"], event["source"]) == ("1.0", "/tailerd/orders")
    assert len({each["id"] for each in receiver.events}) == 5


async def test_one_cloudevent_is_sent_alone(receiver: Receiver, tmp_path: Path) -> None:
    await deliver(receiver, tmp_path, batch(0, range(2)), batch={"max_events": 1})
    assert [json.loads(request.body)["data"]["id"] for request in receiver.posts] == [0, 1]
    content = receiver.posts[0].headers["Content-Type"]
    assert content == "application/cloudevents+json; charset=UTF-8"


@pytest.mark.parametrize(
    ("form", "select"),
    [("json", lambda value: value["id"]), ("debezium", lambda value: value["after"]["id"])],
    ids=["json", "debezium"],
)
async def test_other_formats_are_json_arrays(
    receiver: Receiver, tmp_path: Path, form: str, select: Callable[[Any], int]
) -> None:
    await deliver(receiver, tmp_path, batch(0, range(3)), format=form, key=["id"], concurrency=1)
    [request] = receiver.posts
    assert [select(value) for value in json.loads(request.body)] == [0, 1, 2]
    assert request.headers["Content-Type"] == "application/json"


async def test_gzip_and_parameters_and_headers_reach_the_endpoint(
    receiver: Receiver, tmp_path: Path
) -> None:
    fields = {"compression": "gzip", "query": {"code": "a&b"}, "headers": {"X-Key": "secret-1"}}
    await deliver(receiver, tmp_path, batch(0, range(100)), **fields)
    [request] = receiver.posts
    assert request.headers["Content-Encoding"] == "gzip"
    assert int(request.headers["Content-Length"]) < len(request.body) / 5
    assert (request.query["code"], request.headers["X-Key"]) == ("a&b", "secret-1")
    assert len(request.events) == 100


async def test_a_repeated_delivery_has_the_same_requests_with_any_batches(
    receiver: Receiver, tmp_path: Path
) -> None:
    fields = {"key": ["id"], "batch": {"max_events": 7}}
    await deliver(receiver, tmp_path, batch(0, range(50)), batch(1, [1, 2]), **fields)
    first = Counter((r.headers["Idempotency-Key"], r.body) for r in receiver.posts)
    receiver.requests.clear()
    parts = (batch(0, range(13)), batch(0, range(13, 50), first_row=13), batch(1, [1, 2]))
    await deliver(receiver, tmp_path, *parts, **fields)
    assert Counter((r.headers["Idempotency-Key"], r.body) for r in receiver.posts) == first
    assert max(first.values()) == 1


async def test_events_of_a_key_stay_in_order_while_others_are_sent_concurrently(
    receiver: Receiver, tmp_path: Path
) -> None:
    chances = random.Random(7)

    def answer(_: Request) -> int:
        time.sleep(chances.random() / 100)
        return 503 if chances.random() < 0.1 else ACCEPT

    receiver.rule = answer
    batches = [batch(version, range(40)) for version in range(12)]
    fields = {"key": ["id"], "concurrency": 4, "batch": {"max_events": 3}, "retry_for": "30s"}
    await deliver(receiver, tmp_path, *batches, **fields)
    versions: dict[int, list[int]] = {}
    for event in receiver.events:
        versions.setdefault(event["data"]["id"], []).append(event["data"]["_commit_version"])
    assert versions == {number: list(range(12)) for number in range(40)}
    assert 1 < receiver.most_at_once <= 4


async def test_without_a_key_there_is_one_request_at_a_time(
    receiver: Receiver, tmp_path: Path
) -> None:
    def answer(_: Request) -> int:
        time.sleep(0.005)
        return ACCEPT

    receiver.rule = answer
    batches = [batch(version, range(5)) for version in range(6)]
    await deliver(receiver, tmp_path, *batches, concurrency=8, batch={"max_events": 2})
    assert receiver.most_at_once == 1
    found = [(e["data"]["_commit_version"], e["data"]["id"]) for e in receiver.events]
    assert found == [(version, number) for version in range(6) for number in range(5)]


async def test_a_slow_endpoint_stops_reading_and_a_cancelled_write_ends(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = lambda _: HANG
    read = 0

    async def give() -> AsyncIterator[ChangeBatch]:
        nonlocal read
        for version in range(1000):
            read += 1
            yield batch(version, range(10))

    endless = replace(delivery(0, batch(999, [1])), batches=give())
    sink = make_sink(receiver.url, tmp_path, key=["id"], concurrency=2)
    writing = asyncio.create_task(sink.write(endless))
    await asyncio.sleep(0.5)
    assert read < 8
    writing.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait({writing})
    assert writing.cancelled()
    await sink.aclose()


@pytest.mark.parametrize("fault", [408, 429, 500, 503, 599, DROP, TORN])
async def test_a_temporary_fault_is_repeated_with_the_same_id(
    receiver: Receiver, tmp_path: Path, fault: int
) -> None:
    receiver.rule = answer_first(fault, fault)
    await deliver(receiver, tmp_path, batch(0, range(3)))
    assert row_ids(receiver) == [0, 1, 2]
    assert len(receiver.posts) == 3
    assert len({request.headers["Idempotency-Key"] for request in receiver.posts}) == 1


async def test_an_endpoint_that_fails_for_long_fails_the_delivery(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = lambda _: 503
    with pytest.raises(SinkError, match="answered 503 Service Unavailable") as caught:
        await deliver(receiver, tmp_path, batch(0, [1]), retry_for="0.5s")
    assert caught.value.retryable
    assert len(receiver.posts) > 1


async def test_a_dead_endpoint_fails_the_delivery(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    sink = make_sink(url, tmp_path, retry_for="0.3s")
    with pytest.raises(SinkError, match="cannot be reached") as caught:
        await sink.write(delivery(0, batch(0, [1])))
    assert caught.value.retryable
    await sink.aclose()


async def test_an_endpoint_that_hangs_gets_the_request_again(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = answer_first(HANG)
    await deliver(receiver, tmp_path, batch(0, [1]), timeout="0.3s")
    assert (row_ids(receiver), len(receiver.posts)) == ([1], 2)
    receiver.rule = lambda _: HANG
    with pytest.raises(SinkError, match=r"did not answer within 0\.3 s"):
        await deliver(receiver, tmp_path, batch(0, [1]), timeout="0.3s", retry_for="0.1s")


async def test_a_huge_answer_is_not_read(receiver: Receiver, tmp_path: Path) -> None:
    receiver.rule = answer_first(Reply(200, body=b"x" * 50_000_000))
    await deliver(receiver, tmp_path, batch(0, [1]), batch(1, [2]))
    assert row_ids(receiver) == [1, 2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - timedelta(days=9), usegmt=True), 0),
        ("Fri, 27 Nov 2026 12:01:00 -0000", 60),
        pytest.param("9" * 5000, float("inf"), id="many digits"),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("Fri, 99 Nov 99999 12:01:00 GMT", None),
        ("٣", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, NOW.timestamp()) == seconds


async def test_retry_after_pauses_all_lanes(receiver: Receiver, tmp_path: Path) -> None:
    arrived: list[float] = []
    answer = answer_first(Reply(429, {"Retry-After": "1"}))

    def note(request: Request) -> Reply | int:
        arrived.append(time.monotonic())
        return answer(request)

    receiver.rule = note
    batches = [batch(version, range(20)) for version in range(3)]
    fields = {"key": ["id"], "concurrency": 2, "batch": {"max_events": 2}}
    await deliver(receiver, tmp_path, *batches, **fields)
    # One request of the other lane may have been on its way.
    assert all(each - arrived[0] > 0.9 for each in arrived[2:])
    assert len(row_ids(receiver)) == 60


@pytest.mark.parametrize("absurd", ["99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_an_absurd_retry_after_is_bounded(
    receiver: Receiver, tmp_path: Path, absurd: str
) -> None:
    receiver.rule = answer_first(Reply(503, {"Retry-After": absurd}))
    began = time.monotonic()
    await deliver(receiver, tmp_path, batch(0, [1]), max_retry_after="0.5s")
    assert 0.5 <= time.monotonic() - began < 5
    assert row_ids(receiver) == [1]


async def test_a_long_retry_after_fails_the_delivery_at_once_and_holds_for_the_next(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = answer_first(Reply(429, {"Retry-After": "2"}))
    sink = make_sink(receiver.url, tmp_path, retry_for="1s")
    began = time.monotonic()
    with pytest.raises(SinkError, match="asks to wait 2 s"):
        await sink.write(delivery(0, batch(0, [1])))
    assert time.monotonic() - began < 1
    assert await sink.write(delivery(0, batch(0, [1]))) == 1
    assert time.monotonic() - began >= 2
    await sink.aclose()
