"""Every queue of notifications: what is told, kept, told again, deleted, and what ails it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tailerd.clock import SystemClock
from tailerd.config.notifications import NotificationsConfig
from tailerd.storage.object_store.accounts import GoogleAccount
from tailerd.watchers.base import StorageEvent, numbered_name
from tailerd.watchers.pubsub import PubSubQueue
from tailerd.watchers.queue import Queue, QueueWatcher
from tests.clouds.queues import Sqs, StorageQueue, Subscription, TestQueue
from tests.doubles.queue_reports import Reports
from tests.waiting import PATIENCE_SECONDS

FOLDER = "lake/sales/orders ü%20/_delta_log"
COMMIT = "sales/orders ü%20/_delta_log/{:020}.json"


@pytest.fixture(params=["sqs", "azure", "pubsub"])
def queue(request: pytest.FixtureRequest) -> TestQueue:
    if request.param == "sqs":
        return Sqs(request.getfixturevalue("s3_moto"))
    if request.param == "azure":
        return StorageQueue(request.getfixturevalue("azurite_queues"))
    return Subscription(request.getfixturevalue("pubsub"))


def watch(queue: Queue, reports: Reports | None = None) -> QueueWatcher:
    return QueueWatcher(
        {FOLDER: numbered_name}, queue, reports=reports or Reports(), clock=SystemClock()
    )


async def next_event(events: AsyncGenerator[StorageEvent, None]) -> StorageEvent:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await anext(events)


async def comes_true(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(what):  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.05)


async def until(events: AsyncGenerator[StorageEvent, None], what: Callable[[], bool]) -> None:
    """Read on until something is true."""
    waiting = asyncio.ensure_future(anext(events))
    try:
        await comes_true(what)
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_commit_is_told_of_and_its_message_deleted_once_it_is_seen(
    queue: TestQueue,
) -> None:
    for key in ("sales/orders ü%20/part-0.parquet", COMMIT.format(7)):
        await asyncio.to_thread(queue.send_created, "lake", key)
    async with aclosing(watch(queue.open()).events()) as events:
        event = await next_event(events)
        assert (event.folder, event.version) == (FOLDER, 7)
        assert await asyncio.to_thread(queue.left) >= 1
        assert event.on_seen is not None
        event.on_seen()
        await until(events, lambda: queue.left() == 0)


@pytest.mark.full
async def test_a_message_that_a_dead_process_had_is_told_to_the_next(
    queue: TestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.watchers.azure_queue._HIDDEN_SECONDS", 1)
    await asyncio.to_thread(queue.send_created, "lake", COMMIT.format(3))
    for _ in range(2):
        async with aclosing(watch(queue.open()).events()) as events:
            assert (await next_event(events)).version == 3


async def test_a_message_that_nobody_understands_is_reported_and_deleted_in_the_end(
    queue: TestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.watchers.azure_queue._HIDDEN_SECONDS", 1)
    await asyncio.to_thread(queue.send, "no notification")
    reports = Reports()
    opened = queue.open({**queue.config, "malformed_receives": 2})
    async with aclosing(watch(opened, reports).events()) as events:
        await until(events, lambda: queue.left() == 0)
    # Pub/Sub does not count deliveries, so the first is the last.
    assert reports.rejected in ([False, True], [True])


@pytest.mark.parametrize(
    ("which", "code"), [("missing", "queue_missing"), ("unreachable", "queue_unreachable")]
)
async def test_a_queue_that_cannot_be_read_is_asked_again_and_named(
    queue: TestQueue, which: str, code: str
) -> None:
    fields: dict[str, Any] = getattr(queue, which)
    reports = Reports()
    watcher = watch(queue.open(fields), reports)
    async with aclosing(watcher.events()) as events:
        await until(events, lambda: len(reports.failures) >= 2)
        assert not watcher.covers(FOLDER)
    assert reports.failures[:2] == [(code, 1), (code, 2)]
    assert fields["queue"] in reports.reasons[0]
    assert reports.is_closed


async def test_waiting_ends_at_once_when_it_is_cancelled(queue: TestQueue) -> None:
    watcher = watch(queue.open({**queue.config, "wait": "20s"}))
    async with aclosing(watcher.events()) as events:
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)
        async with asyncio.timeout(1):
            waiting.cancel()
            await asyncio.wait({waiting})


async def test_a_wrong_key_is_refused_and_shown_nowhere(azurite_queues: Any) -> None:
    queue, reports = StorageQueue(azurite_queues), Reports()
    key = "c2VjcmV0LXRoYXQtbm9ib2R5LXNlZXM="
    opened = queue.open(key=key)
    async with aclosing(watch(opened, reports).events()) as events:
        await until(events, lambda: bool(reports.failures))
    assert reports.failures[0][0] == "access_denied"
    assert key not in f"{reports.reasons} {opened!r}"


@pytest.mark.parametrize(
    ("has_key", "code"), [(True, "queue_unreachable"), (False, "access_denied")]
)
async def test_the_credentials_of_google_are_read_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool, code: str
) -> None:
    for name in ("HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    file = service_account(tmp_path) if has_key else ""
    config = NotificationsConfig(queue="projects/p/subscriptions/s", endpoint="https://127.0.0.1:1")
    reports = Reports()
    opened = PubSubQueue(config, GoogleAccount(service_account_file=str(file)))
    async with aclosing(watch(opened, reports).events()) as events:
        await until(events, lambda: bool(reports.failures))
    assert reports.failures[0] == (code, 1)


def service_account(folder: Path) -> Path:
    """Return a file with a key that nobody knows."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    about = {
        "type": "service_account",
        "client_email": "t@p.iam.gserviceaccount.com",
        "private_key": key.decode(),
        "token_uri": "https://127.0.0.1:1/token",
    }
    file = folder / "key.json"
    file.write_text(json.dumps(about))
    return file
