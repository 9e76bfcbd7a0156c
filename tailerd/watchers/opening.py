"""Choose the watchers of folders: file events, a notification queue, and polling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailerd.clock import Clock
from tailerd.storage.finished_files import FinishedFiles
from tailerd.storage.s3.settings import S3Account
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.base import VersionOf, Watcher, numbered_name
from tailerd.watchers.local import watch_folders
from tailerd.watchers.poll import FloorWatcher, Pace, PollWatcher

if TYPE_CHECKING:
    # Spark sources also watch, in processes that do not need the whole configuration.
    from tailerd.config.notifications import NotificationsConfig

NOTIFIED_PACE = Pace(close_seconds=30.0, wide_seconds=900.0)
"""For tables in buckets with notifications from a queue: every poll is a paid request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFolder:
    """A folder of commits to watch.

    Attributes:
        folder: Its path in the store.
        is_remote: Whether it is accessed through a network; otherwise it is local.
        poll_interval: Longest time between two events, if configured.
        version_of: How commits are named there.
    """

    folder: str
    is_remote: bool
    poll_interval: float | None = None
    version_of: VersionOf = numbered_name


def open_watchers(
    watched: Iterable[WatchedFolder],
    notifications: NotificationsConfig | None,
    *,
    account: S3Account | None = None,
    finished: FinishedFiles | None = None,
    telemetry: Telemetry,
    clock: Clock,
) -> list[Watcher]:
    """Return one watcher of file events and one of notifications, with pollers as a fallback.

    Args:
        notifications: The queue with the buckets' notifications, if there is one.
        account: The account with the credentials for the queue.
        finished: Receives local files that their writers have closed.
    """

    def report(path: str, reason: str) -> None:
        telemetry.emit(events.WatcherUnavailable(path=path, reason=reason))

    folders = list(watched)
    local = [each for each in folders if not each.is_remote]
    remote = [each for each in folders if each.is_remote]
    watchers: list[Watcher] = []
    if local:
        names = {each.folder: each.version_of for each in local}
        files = watch_folders([*names], names=names, finished=finished, on_unavailable=report)
        watchers += [files, *_floor(local, files.covers, clock, Pace())]
    if remote and notifications is None:
        watchers += _floor(remote, lambda _: False, clock, Pace())
    elif remote and notifications is not None:
        # Imports the vendor's library, which local tables do not need.
        from tailerd.watchers.sqs import SqsWatcher

        queue = SqsWatcher(
            {each.folder: each.version_of for each in remote},
            notifications,
            account or S3Account.from_environment(),
            reports=_Reports(telemetry, notifications.queue),
            clock=clock,
        )
        watchers += [queue, *_floor(remote, queue.covers, clock, NOTIFIED_PACE)]
    return watchers


def _floor(
    watched: list[WatchedFolder], is_covered: Callable[[str], bool], clock: Clock, pace: Pace
) -> list[Watcher]:
    by_interval: dict[float | None, list[str]] = {}
    for each in watched:
        by_interval.setdefault(each.poll_interval, []).append(each.folder)
    return [
        FloorWatcher(group, is_covered=is_covered, clock=clock, pace=pace)
        if interval is None
        else PollWatcher(group, interval_seconds=interval, clock=clock)
        for interval, group in by_interval.items()
    ]


class _Reports:
    """Emits the status of a queue as telemetry events."""

    def __init__(self, telemetry: Telemetry, queue: str) -> None:
        self._telemetry = telemetry
        self._queue = queue
        self._missing: set[str] = set()

    def report_failure(self, code: str, reason: str, attempt: int) -> None:
        self._telemetry.emit(
            events.NotificationsFailed(
                path=self._queue, error_code=code, attempt=attempt, error=reason
            )
        )

    def report_resumption(self) -> None:
        self._telemetry.emit(events.NotificationsResumed(path=self._queue))

    def not_understood(self, message_id: str, is_deleted: bool) -> None:
        what = "it is deleted" if is_deleted else "it will be redelivered"
        self._telemetry.emit(
            events.NotificationRejected(
                path=self._queue, reason=f"Message {message_id} is not an S3 notification; {what}."
            )
        )

    def missing(self, folder: str) -> None:
        location = _bucket(folder)
        if location in self._missing:
            return
        self._missing.add(location)
        self._telemetry.emit(
            events.NotificationsMissed(
                path=location,
                error_code="notifications_missing",
                attempt=1,
                error=f"Commits came to s3://{folder} and were found by polling; {self._queue} has"
                " received no notification for them. Let the bucket send s3:ObjectCreated:* of keys"
                " that end with .json to it (README shows how), with no filter that excludes this"
                " table, and let the queue's policy allow the bucket sqs:SendMessage.",
            )
        )

    def report_received(self, folder: str) -> None:
        self._end(_bucket(folder))
        self._missing.discard(_bucket(folder))

    def report_closed(self) -> None:
        for path in (self._queue, *self._missing):
            self._end(path)

    def _end(self, path: str) -> None:
        self._telemetry.emit(events.ProblemEnded(part="notifications", path=path))


def _bucket(folder: str) -> str:
    return f"s3://{folder.partition('/')[0]}"
