"""What is watched how: file events for disks, a queue for buckets, and a floor under both."""

from __future__ import annotations

import sys

import pytest

from tailerd.clock import SystemClock
from tailerd.config.notifications import NotificationsConfig
from tailerd.formats.delta.changes.log_continuity import REMOTE_LISTING_SECONDS
from tailerd.storage.s3.settings import S3Account
from tailerd.telemetry import Telemetry
from tailerd.watchers.opening import NOTIFIED_PACE, WatchedFolder, open_watchers

QUEUE = NotificationsConfig(queue="http://127.0.0.1:1/1/q")
LOCAL = WatchedFolder(folder="/lake/a/_delta_log", is_remote=False)
REMOTE = WatchedFolder(folder="lake/b/_delta_log", is_remote=True)
POLLED = WatchedFolder(folder="lake/c/_delta_log", is_remote=True, poll_interval=5.0)


def kinds(*watched: WatchedFolder, queue: NotificationsConfig | None = QUEUE) -> list[str]:
    opened = open_watchers(
        watched, queue, account=S3Account(), telemetry=Telemetry(), clock=SystemClock()
    )
    return [type(watcher).__name__ for watcher in opened]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_each_kind_of_store_has_its_own_watcher_and_a_floor() -> None:
    assert kinds(LOCAL) == ["InotifyWatcher", "FloorWatcher"]
    assert kinds(REMOTE) == ["SqsWatcher", "FloorWatcher"]
    assert kinds(REMOTE, queue=None) == ["FloorWatcher"]
    assert kinds(LOCAL, REMOTE, POLLED) == [
        *("InotifyWatcher", "FloorWatcher"),
        *("SqsWatcher", "FloorWatcher", "PollWatcher"),
    ]


def test_nothing_is_watched_where_there_is_nothing() -> None:
    assert kinds() == []


def test_a_thousand_tables_that_a_queue_tells_of_cost_less_than_two_requests_a_second() -> None:
    a_queue = 1 / QUEUE.wait
    # A look as rare as this is one listing and nothing else.
    assert NOTIFIED_PACE.wide_seconds > REMOTE_LISTING_SECONDS
    assert 1000 / NOTIFIED_PACE.wide_seconds + a_queue < 2
