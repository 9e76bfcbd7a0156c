"""What is watched how: file events for disks, a queue for buckets, and a floor under both."""

from __future__ import annotations

import sys

import pytest

from tailerd.clock import SystemClock
from tailerd.config.notifications import NotificationsConfig
from tailerd.config.storage import StorageConfig
from tailerd.formats.delta.changes.log_continuity import REMOTE_LISTING_SECONDS
from tailerd.telemetry import Telemetry
from tailerd.watchers.opening import NOTIFIED_PACE, WatchedFolder, open_queue, open_watchers

QUEUES = {
    "sqs": NotificationsConfig(queue="http://127.0.0.1:1/1/q"),
    "azure": NotificationsConfig(queue="https://x.queue.core.windows.net/q"),
    "pubsub": NotificationsConfig(queue="projects/p/subscriptions/q"),
}
SCHEMES = {"sqs": "s3", "azure": "az", "pubsub": "gs"}
LOCAL = WatchedFolder(folder="/lake/a/_delta_log", url="file:///lake/a", is_remote=False)


def remote(scheme: str, poll_interval: float | None = None) -> WatchedFolder:
    return WatchedFolder(
        folder=f"lake/{scheme}{poll_interval}/_delta_log",
        url=f"{scheme}://lake/{scheme}{poll_interval}/_delta_log",
        is_remote=True,
        poll_interval=poll_interval,
    )


REMOTE, POLLED = remote("s3"), remote("s3", 5.0)


def kinds(*watched: WatchedFolder, queue: NotificationsConfig | None = QUEUES["sqs"]) -> list[str]:
    opened = open_watchers(
        watched,
        open_queue(queue, StorageConfig()),
        telemetry=Telemetry(),
        clock=SystemClock(),
    )
    return [type(watcher).__name__ for watcher in opened]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_each_kind_of_store_has_its_own_watcher_and_a_floor() -> None:
    assert kinds(LOCAL) == ["InotifyWatcher", "FloorWatcher"]
    assert kinds(REMOTE) == ["QueueWatcher", "FloorWatcher"]
    assert kinds(REMOTE, queue=None) == ["FloorWatcher"]
    assert kinds(LOCAL, REMOTE, POLLED) == [
        *("InotifyWatcher", "FloorWatcher"),
        *("QueueWatcher", "FloorWatcher", "PollWatcher"),
    ]


@pytest.mark.parametrize("service", QUEUES)
def test_a_queue_tells_of_the_buckets_of_its_own_cloud_and_the_others_are_polled(
    service: str,
) -> None:
    assert QUEUES[service].service == service
    for other, scheme in SCHEMES.items():
        expected = ["QueueWatcher", "FloorWatcher"] if other == service else ["FloorWatcher"]
        assert kinds(remote(scheme), queue=QUEUES[service]) == expected
    everything = [remote(scheme) for scheme in SCHEMES.values()]
    found = kinds(*everything, queue=QUEUES[service])
    assert found == ["FloorWatcher", "QueueWatcher", "FloorWatcher"]


def test_nothing_is_watched_where_there_is_nothing() -> None:
    assert kinds() == []


def test_a_thousand_tables_that_a_queue_tells_of_cost_less_than_two_requests_a_second() -> None:
    a_queue = 1 / QUEUES["sqs"].wait
    # A look as rare as this is one listing and nothing else.
    assert NOTIFIED_PACE.wide_seconds > REMOTE_LISTING_SECONDS
    assert 1000 / NOTIFIED_PACE.wide_seconds + a_queue < 2
