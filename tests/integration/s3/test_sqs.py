"""Notifications of a real queue: each envelope, and whatever may happen to messages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import quote_plus

import pytest

from tailerd.clock import SystemClock
from tailerd.config.notifications import NotificationsConfig
from tailerd.watchers.base import StorageEvent, numbered_name
from tailerd.watchers.queue import QueueWatcher
from tailerd.watchers.sqs import SqsQueue
from tailerd.watchers.wakeups import WakeupRegistry
from tests.doubles.queue_reports import Reports
from tests.s3.notified import WAYS, NotifiedBucket, Way
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server
from tests.waiting import PATIENCE_SECONDS


def commit_key(version: int, table: str = "lake/orders") -> str:
    return f"{table}/_delta_log/{version:020}.json"


def message_of(bucket: str, *keys: str) -> str:
    """Return what a bucket sends of several objects at once."""
    records = [
        {
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key)}},
        }
        for key in keys
    ]
    return json.dumps({"Records": records})


def make_watcher(
    notified: NotifiedBucket,
    *tables: str,
    endpoint: str = "",
    reports: Reports | None = None,
    **config: Any,
) -> QueueWatcher:
    endpoint = endpoint or notified.server.endpoint
    fields = {"queue": notified.queue, "endpoint": endpoint, "wait": "1s", **config}
    return QueueWatcher(
        {
            f"{notified.bucket}/{table}/_delta_log": numbered_name
            for table in tables or ("lake/orders",)
        },
        SqsQueue(NotificationsConfig(**fields), notified.server.account(endpoint)),
        reports=reports or Reports(),
        clock=SystemClock(),
    )


async def next_events(events: AsyncGenerator[StorageEvent, None], count: int) -> list[StorageEvent]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(events) for _ in range(count)]


async def comes_true(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(what):  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.05)


@asynccontextmanager
async def listening(watcher: QueueWatcher, board: WakeupRegistry) -> AsyncGenerator[None, None]:
    running = asyncio.create_task(board.run([watcher]))
    yield
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()


@pytest.mark.parametrize("way", WAYS)
async def test_a_commit_is_told_of_whatever_the_way(s3_moto: S3Server, way: Way) -> None:
    table = "lake/a b+ü%20/orders"
    notified = NotifiedBucket(s3_moto, way)
    async with aclosing(make_watcher(notified, table).events()) as events:
        notified.put(f"{table}/part-0.parquet")
        notified.put(commit_key(7, table))
        [event] = await next_events(events, 1)
    assert (event.folder, event.version) == (f"{notified.bucket}/{table}/_delta_log", 7)


async def test_one_queue_serves_many_tables_and_what_is_of_none_is_deleted(
    s3_moto: S3Server,
) -> None:
    notified = NotifiedBucket(s3_moto)
    tables = [f"t{number}" for number in range(15)]
    for table in (*tables, "unknown"):
        notified.put(commit_key(1, table))
    async with aclosing(make_watcher(notified, *tables).events()) as events:
        found = await next_events(events, len(tables))
        assert {event.folder.split("/")[1] for event in found} == set(tables)
        for event in found:
            assert event.on_seen is not None
            event.on_seen()
        waiting = asyncio.ensure_future(anext(events))
        await comes_true(lambda: notified.left() == 0)
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_message_is_deleted_only_when_its_pipeline_has_looked(s3_moto: S3Server) -> None:
    notified = NotifiedBucket(s3_moto)
    board = WakeupRegistry()
    wakeup = board.subscribe(f"{notified.bucket}/lake/orders/_delta_log")
    async with listening(make_watcher(notified), board):
        notified.put(commit_key(3))
        await asyncio.wait_for(wakeup.wait(), PATIENCE_SECONDS)
        poll = wakeup.begin_poll()
        assert poll.version == 3
        await asyncio.sleep(1)
        assert notified.left() == 1
        wakeup.end_poll(poll)
        await comes_true(lambda: notified.left() == 0)


async def test_what_was_told_to_a_process_that_died_is_told_to_the_next(s3_moto: S3Server) -> None:
    notified = NotifiedBucket(s3_moto, visible_seconds=1)
    notified.put(commit_key(3))
    for _ in range(2):
        async with aclosing(make_watcher(notified).events()) as events:
            [event] = await next_events(events, 1)
            assert event.version == 3


async def test_a_message_that_comes_again_is_one_hint_while_it_is_not_seen(
    s3_moto: S3Server,
) -> None:
    notified = NotifiedBucket(s3_moto, visible_seconds=1)
    notified.put(commit_key(3))
    async with aclosing(make_watcher(notified).events()) as events:
        [first] = await next_events(events, 1)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(2.5)
        assert not waiting.done()
        assert first.on_seen is not None
        first.on_seen()
        # By the newest receipt: the first has expired.
        await comes_true(lambda: notified.left() == 0)
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_message_nobody_understands_is_reported_and_deleted_in_the_end(
    s3_moto: S3Server,
) -> None:
    notified = NotifiedBucket(s3_moto, visible_seconds=0)
    notified.send("not a notification")
    notified.send('{"Service": "Amazon S3", "Event": "s3:TestEvent"}')
    reports = Reports()
    watcher = make_watcher(notified, reports=reports, malformed_receives=3)
    async with aclosing(watcher.events()) as events:
        waiting = asyncio.ensure_future(anext(events))
        await comes_true(lambda: notified.left() == 0)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert reports.rejected[:3] == [False, False, True]


async def test_commits_are_told_of_however_they_were_put(s3_moto: S3Server) -> None:
    notified = NotifiedBucket(s3_moto)
    s3, bucket = s3_moto.admin(), notified.bucket
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    async with aclosing(make_watcher(notified).events()) as events:
        notified.put("elsewhere")
        s3.copy_object(
            Bucket=bucket, Key=commit_key(1), CopySource={"Bucket": bucket, "Key": "elsewhere"}
        )
        about = {"Bucket": bucket, "Key": commit_key(2)}
        upload = s3.create_multipart_upload(**about)["UploadId"]
        part = s3.upload_part(**about, UploadId=upload, PartNumber=1, Body=b"{}")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        s3.complete_multipart_upload(**about, UploadId=upload, MultipartUpload=parts)
        found = await next_events(events, 2)
    assert {event.version for event in found} == {1, 2}


async def test_a_message_of_many_records_is_deleted_when_all_of_them_are_seen(
    s3_moto: S3Server,
) -> None:
    notified = NotifiedBucket(s3_moto)
    notified.send(message_of(notified.bucket, *(commit_key(n, f"t{n}") for n in range(3)), "other"))
    async with aclosing(make_watcher(notified, "t0", "t1", "t2").events()) as events:
        found = await next_events(events, 3)
        waiting = asyncio.ensure_future(anext(events))
        for event in found:
            await asyncio.sleep(0.7)
            assert notified.left() >= 1
            assert event.on_seen is not None
            event.on_seen()
        await comes_true(lambda: notified.left() == 0)
        waiting.cancel()
        await asyncio.wait({waiting})


@pytest.mark.full
async def test_messages_nobody_understands_hold_up_no_other_and_go_where_the_queue_says(
    s3_moto: S3Server,
) -> None:
    notified = NotifiedBucket(s3_moto, visible_seconds=1)
    dead = NotifiedBucket(s3_moto)
    about = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": "2"}
    notified.sqs.set_queue_attributes(
        QueueUrl=notified.queue, Attributes={"RedrivePolicy": json.dumps(about)}
    )
    before, reports = dead.left(), Reports()
    corrupt_commits = ["{", '{"Records": [{}]}', "[]", '{"Records": 7}'] * 3
    for body in corrupt_commits:
        notified.send(body)
    notified.put(commit_key(5))
    watcher = make_watcher(notified, reports=reports, malformed_receives=None)
    async with aclosing(watcher.events()) as events:
        [event] = await next_events(events, 1)
        assert event.version == 5
        assert event.on_seen is not None
        event.on_seen()
        waiting = asyncio.ensure_future(anext(events))
        await comes_true(lambda: dead.left() == before + len(corrupt_commits))
        waiting.cancel()
        await asyncio.wait({waiting})
    assert notified.left() == 0
    assert reports.rejected == [False] * 2 * len(corrupt_commits)


async def test_a_queue_that_fails_is_told_of_and_heard_again_with_what_came_meanwhile(
    s3_moto: S3Server,
) -> None:
    notified = NotifiedBucket(s3_moto)
    reports = Reports()
    folder = f"{notified.bucket}/lake/orders/_delta_log"
    with FaultProxy(s3_moto.port) as proxy:
        watcher = make_watcher(notified, endpoint=proxy.endpoint, reports=reports)
        async with aclosing(watcher.events()) as events:
            waiting = asyncio.ensure_future(anext(events))
            await comes_true(lambda: watcher.covers(folder))
            proxy.fail_every(1, Fault.INTERNAL)
            await comes_true(lambda: len(reports.failures) >= 2)
            notified.put(commit_key(1))
            assert not watcher.covers(folder)
            proxy.forget()
            proxy.fail_every(1000, Fault.INTERNAL)
            event = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert event.version == 1
    assert reports.times_resumed == 1
    assert [attempt for _, attempt in reports.failures[:2]] == [1, 2]


async def test_a_queue_that_is_not_there_is_asked_for_again_and_again(s3_moto: S3Server) -> None:
    notified = NotifiedBucket(s3_moto)
    notified.queue += "-missing"
    reports = Reports()
    async with aclosing(make_watcher(notified, reports=reports).events()) as events:
        waiting = asyncio.ensure_future(anext(events))
        await comes_true(lambda: len(reports.failures) >= 2)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert reports.failures[0][0] == "queue_missing"


async def test_a_long_poll_ends_promptly_when_it_is_cancelled(s3_moto: S3Server) -> None:
    notified = NotifiedBucket(s3_moto)
    board = WakeupRegistry()
    watcher = make_watcher(notified, wait="20s")
    async with listening(watcher, board):
        await asyncio.sleep(0.5)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5


@pytest.mark.full
async def test_a_queue_at_rest_is_asked_once_a_wait(s3_moto: S3Server) -> None:
    notified = NotifiedBucket(s3_moto)
    with FaultProxy(s3_moto.port) as proxy:
        watcher = make_watcher(notified, endpoint=proxy.endpoint, wait="2s")
        async with listening(watcher, WakeupRegistry()):
            # The message that tells that a notification was set up.
            await comes_true(lambda: notified.left() == 0)
            proxy.forget()
            await asyncio.sleep(5)
        assert proxy.counts().total() <= 3


async def test_messages_that_cannot_be_deleted_are_told_of_until_they_can(
    s3_moto: S3Server,
) -> None:
    notified = NotifiedBucket(s3_moto, visible_seconds=1)
    reports = Reports()
    with FaultProxy(s3_moto.port) as proxy:
        watcher = make_watcher(notified, "unknown", endpoint=proxy.endpoint, reports=reports)
        proxy.choose = lambda seen: (
            Fault.DENY if "DeleteMessageBatch" in seen.headers.get("x-amz-target", "") else None
        )
        async with listening(watcher, WakeupRegistry()):
            notified.put(commit_key(1))
            await comes_true(lambda: len(reports.failures) >= 2)
            assert {code for code, _ in reports.failures} == {"access_denied"}
            assert reports.times_resumed == 0
            proxy.forget()
            await comes_true(lambda: reports.times_resumed == 1 and notified.left() == 0)


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Fault.DENY, "access_denied"), (Fault.REFUSE, "queue_unreachable")],
)
async def test_what_ails_a_queue_has_a_code_and_a_way_out(
    s3_moto: S3Server, fault: Fault, code: str
) -> None:
    notified = NotifiedBucket(s3_moto)
    reports = Reports()
    with FaultProxy(s3_moto.port) as proxy:
        proxy.fail_every(1, fault)
        watcher = make_watcher(notified, endpoint=proxy.endpoint, reports=reports)
        async with listening(watcher, WakeupRegistry()):
            await comes_true(lambda: bool(reports.failures))
    assert reports.failures[0] == (code, 1)
    assert notified.queue in reports.reasons[0]
    assert reports.is_closed


async def test_a_table_that_is_never_told_of_is_noticed_once_and_heard_when_it_is(
    s3_moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.watchers.queue.GRACE_SECONDS", 0.2)
    notified = NotifiedBucket(s3_moto)
    reports, board = Reports(), WakeupRegistry()
    folders = [f"{notified.bucket}/{table}/_delta_log" for table in ("a", "b")]
    silent, reported = (board.subscribe(folder) for folder in folders)
    watcher = make_watcher(notified, "a", "b", reports=reports)
    async with listening(watcher, board):
        notified.put(commit_key(3, "b"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reported.wait()
        for wakeup in (silent, reported):
            # What was there at the start, then nothing, then a commit nobody told of.
            for is_news in (True, True, False, True, False):
                wakeup.end_poll(wakeup.begin_poll(), is_news=is_news)
        assert reports.silences == []
        await asyncio.sleep(0.3)
        for _ in range(3):
            for wakeup in (silent, reported):
                wakeup.end_poll(wakeup.begin_poll())
        assert reports.silences == [folders[0]]
        notified.put(commit_key(4, "a"))
        await comes_true(lambda: reports.silences == [])


async def test_a_table_is_not_called_silent_for_news_that_are_on_their_way(
    s3_moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.watchers.queue.GRACE_SECONDS", 0.2)
    notified = NotifiedBucket(s3_moto)
    reports, board = Reports(), WakeupRegistry()
    wakeup = board.subscribe(f"{notified.bucket}/lake/orders/_delta_log")
    async with listening(make_watcher(notified, reports=reports), board):
        await comes_true(lambda: notified.left() == 0)
        for is_news in (False, True):
            wakeup.end_poll(wakeup.begin_poll(), is_news=is_news)
        notified.put(commit_key(1))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await wakeup.wait()
        await asyncio.sleep(0.3)
        wakeup.end_poll(wakeup.begin_poll())
    assert reports.silences == []
