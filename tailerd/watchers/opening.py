"""Choose the watchers of folders: file events, a notification queue, and polling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tailerd.clock import Clock
from tailerd.config.notifications import NotificationsConfig
from tailerd.config.storage import StorageConfig
from tailerd.errors import ConfigError
from tailerd.storage.finished_files import FinishedFiles
from tailerd.storage.object_store.accounts import AzureAccount, GoogleAccount
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.base import VersionOf, Watcher, numbered_name
from tailerd.watchers.local import watch_folders
from tailerd.watchers.poll import FloorWatcher, Pace, PollWatcher
from tailerd.watchers.queue import Queue, QueueWatcher

NOTIFIED_PACE = Pace(close_seconds=30.0, wide_seconds=900.0)
"""For tables in buckets with notifications from a queue: every poll is a paid request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFolder:
    """A folder of commits to watch.

    Attributes:
        folder: Its path in the store.
        url: The same with the store's scheme.
        is_remote: Whether it is accessed through a network; otherwise it is local.
        poll_interval: Longest time between two events, if configured.
        version_of: How commits are named there.
    """

    folder: str
    url: str
    is_remote: bool
    poll_interval: float | None = None
    version_of: VersionOf = numbered_name


def open_watchers(
    watched: Iterable[WatchedFolder],
    queue: Queue | None = None,
    *,
    finished: FinishedFiles | None = None,
    telemetry: Telemetry,
    clock: Clock,
) -> list[Watcher]:
    """Return one watcher of file events and one of notifications, with pollers as a fallback.

    Args:
        queue: The queue with the buckets' notifications, if there is one.
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
    notified = [each for each in remote if queue is not None and _scheme(each) in queue.schemes]
    silent = [each for each in remote if each not in notified]
    if silent:
        watchers += _floor(silent, lambda _: False, clock, Pace())
    if notified and queue is not None:
        watcher = QueueWatcher(
            {each.folder: each.version_of for each in notified},
            queue,
            reports=_Reports(telemetry, queue, {each.folder: each.url for each in notified}),
            clock=clock,
        )
        watchers += [watcher, *_floor(notified, watcher.covers, clock, NOTIFIED_PACE)]
    return watchers


def open_queue(config: NotificationsConfig | None, storage: StorageConfig) -> Queue | None:
    """Return the configured queue; sends no request.

    Args:
        storage: The section with the credentials.

    Raises:
        ConfigError: The cloud's own library is not installed.
    """
    # Each imports its cloud's library, which local tables do not need.
    if config is None:
        return None
    if config.service == "sqs":
        from tailerd.storage.s3.settings import S3Settings
        from tailerd.watchers.sqs import SqsQueue

        return SqsQueue(config, S3Settings.from_config(storage).default)
    try:
        if config.service == "azure":
            from tailerd.watchers.azure_queue import AzureQueue

            return AzureQueue(config, AzureAccount.from_config(storage))
        from tailerd.watchers.pubsub import PubSubQueue

        return PubSubQueue(config, GoogleAccount.from_config(storage))
    except ModuleNotFoundError as error:
        extra = "azure" if config.service == "azure" else "google"
        raise ConfigError(
            f"notifications: {config.queue} needs {error.name}, which is not installed.",
            remedy=f"Install it: pip install 'tailerd[{extra}]'.",
        ) from error


def _scheme(watched: WatchedFolder) -> str:
    return watched.url.partition("://")[0]


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

    def __init__(self, telemetry: Telemetry, queue: Queue, urls: Mapping[str, str]) -> None:
        self._telemetry = telemetry
        self._queue = queue
        self._urls = urls
        self._missing: set[str] = set()

    def report_failure(self, code: str, reason: str, attempt: int) -> None:
        self._telemetry.emit(
            events.NotificationsFailed(
                path=self._queue.url, error_code=code, attempt=attempt, error=reason
            )
        )

    def report_resumption(self) -> None:
        self._telemetry.emit(events.NotificationsResumed(path=self._queue.url))

    def not_understood(self, message_id: str, is_deleted: bool) -> None:
        what = "it is deleted" if is_deleted else "it will be redelivered"
        self._telemetry.emit(
            events.NotificationRejected(
                path=self._queue.url,
                reason=f"Message {message_id} is not a notification of a bucket; {what}.",
            )
        )

    def missing(self, folder: str) -> None:
        location = self._bucket(folder)
        if location in self._missing:
            return
        self._missing.add(location)
        self._telemetry.emit(
            events.NotificationsMissed(
                path=location,
                error_code="notifications_missing",
                attempt=1,
                error=f"Commits came to {self._urls[folder]} and were found by polling;"
                f" {self._queue.url} has received no notification for them. {self._queue.setup}",
            )
        )

    def report_received(self, folder: str) -> None:
        self._end(self._bucket(folder))
        self._missing.discard(self._bucket(folder))

    def report_closed(self) -> None:
        for path in (self._queue.url, *self._missing):
            self._end(path)

    def _end(self, path: str) -> None:
        self._telemetry.emit(events.ProblemEnded(part="notifications", path=path))

    def _bucket(self, folder: str) -> str:
        scheme, _, path = self._urls[folder].partition("://")
        return f"{scheme}://{path.partition('/')[0]}"
