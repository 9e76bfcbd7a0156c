"""A daemon that is told of commits by the queue of its cloud, long before it would poll."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clouds.queues import PubSub, StorageQueue, Subscription, TestQueue
from tests.clouds.servers import AZURE_ACCOUNT, AZURE_KEY, Azurite, CloudServer, FakeGcs
from tests.integration.buckets.bucket_table import BucketTable, write_config
from tests.integration.daemon.running import daemon, delivered_ids
from tests.waiting import eventually

pytestmark = pytest.mark.full

PROMPTLY_SECONDS = 10.0
"""Less than the 30 s after which a table with notifications is polled."""


@pytest.fixture
def notifying_gcs(tmp_path: Path, pubsub: PubSub) -> Iterator[tuple[FakeGcs, Subscription]]:
    """A Google whose buckets notify a topic, and its subscription."""
    subscription = Subscription(pubsub)
    project, topic = subscription.topic.split("/")[1::2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", pubsub.host)
        server = FakeGcs(tmp_path, topic=f"{project}/{topic}")
        server.start()
    yield server, subscription
    server.stop()


def follow(folder: Path, table: BucketTable, queue: TestQueue, tell: Callable[[int], None]) -> None:
    """Commit while a daemon runs, and see each commit delivered at once."""
    config = write_config(folder, table, poll_interval=None, notifications=queue.config)
    with daemon(config):
        eventually(lambda: delivered_ids(folder / "out") == table.ids)
        for _ in range(3):
            time.sleep(1.5)
            tell(table.append())
            began = time.monotonic()
            eventually(lambda: delivered_ids(folder / "out") == table.ids)
            assert time.monotonic() - began < PROMPTLY_SECONDS
        eventually(lambda: queue.left() == 0)


def test_azure_tells_through_event_grid(
    azurite: Azurite, azurite_queues: Any, tmp_path: Path
) -> None:
    queue = StorageQueue(azurite_queues)
    table = BucketTable(tmp_path / "table", azurite)

    def tell(version: int) -> None:
        queue.send_created(table.bucket, f"lake/orders/_delta_log/{version:020}.json")

    follow(tmp_path, table, queue, tell)
    # The one key is that of the account, for blobs and queues.
    assert azurite.section()["azure"]["account_key"] == AZURE_KEY
    assert AZURE_ACCOUNT in queue.config["queue"]


def test_google_tells_through_pubsub(
    notifying_gcs: tuple[CloudServer, Subscription], tmp_path: Path
) -> None:
    server, subscription = notifying_gcs
    table = BucketTable(tmp_path / "table", server)
    follow(tmp_path, table, subscription, lambda version: None)
