"""Notifications of buckets through a queue: one queue for any number of tables.

A message is deleted once every pipeline it concerns has polled the log since it arrived; until then
the queue keeps it and redelivers it after a crash. Lost, duplicated or reordered messages do no
harm: a message only triggers a poll, and the log is the source of truth.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tailerd.backoff import Backoff
from tailerd.clock import Clock
from tailerd.watchers.base import Names, StorageEvent

GATHER_SECONDS = 0.5
"""How long deletions are batched, because each is a request too."""

_BACKOFF = Backoff(first_seconds=0.5, max_seconds=30.0)


@dataclass(frozen=True, slots=True)
class ObjectCreated:
    """An object that was created.

    Attributes:
        bucket: Name of the bucket or container.
        key: Its key, not URL-encoded.
    """

    bucket: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One received message.

    Attributes:
        identity: The same for every delivery of a message.
        receipt: Needed to delete it; another one with each delivery.
        created: The objects that it reports as created; None if it is not a notification.
        receives: How often it was delivered; None if the service does not count.
    """

    identity: str
    receipt: str
    created: tuple[ObjectCreated, ...] | None
    receives: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFailure:
    """Why a queue cannot be used: one of tailerd's error codes, and a message with a remedy."""

    code: str
    message: str


class Queue(Protocol):
    """One queue of a cloud. It is used from one event loop, and connects with the first request.

    Attributes:
        url: Its name for people.
        schemes: URL schemes of the buckets that can send notifications to it.
        batch_messages: Maximum messages of one request.
        malformed_receives: Deliveries after which a message that is not a notification is deleted.
        errors: What requests raise.
        setup: How a bucket is told to send notifications to it, for errors.
    """

    url: str
    schemes: frozenset[str]
    batch_messages: int
    malformed_receives: int | None
    errors: tuple[type[Exception], ...]
    setup: str

    async def receive(self) -> list[Message]:
        """Wait for messages; return none after a while."""
        ...

    async def delete(self, messages: Sequence[tuple[str, str]]) -> None:
        """Delete messages, each an (identity, receipt)."""
        ...

    def classify(self, error: Exception, *, is_deletion: bool) -> QueueFailure:
        """Return the failure for an error of a request."""
        ...

    async def close(self) -> None:
        """Close the connection; the next request resolves credentials again."""
        ...


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """A commit file that was created.

    Attributes:
        folder: `bucket/.../_delta_log`.
        version: The version in its name.
    """

    folder: str
    version: int


def commit_events(objects: Iterable[ObjectCreated], folders: Names) -> Iterator[CommitEvent]:
    """Yield the objects that are commits in one of the folders (`bucket/...`)."""
    for each in objects:
        folder, _, name = f"{each.bucket}/{each.key}".rpartition("/")
        if folder in folders and (version := folders[folder](name)) is not None:
            yield CommitEvent(folder, version)


class QueueReports(Protocol):
    """Receives the status of a queue."""

    def report_failure(self, code: str, reason: str, attempt: int) -> None:
        """Report a failed request, the `attempt`-th in a row; it is retried."""
        ...

    def report_resumption(self) -> None:
        """Report that requests succeed again."""
        ...

    def not_understood(self, message_id: str, is_deleted: bool) -> None:
        """Report a message that has none of the known envelopes."""
        ...

    def missing(self, folder: str) -> None:
        """Report a folder with commits for which the queue never had a notification."""
        ...

    def report_received(self, folder: str) -> None:
        """Report that such a folder has a notification after all."""
        ...

    def report_closed(self) -> None:
        """Report that the queue is no longer read."""
        ...


@dataclass(slots=True)
class _Open:
    """An undeleted message: its newest receipt handle, and its number of unseen events."""

    receipt: str
    unseen: int


class QueueWatcher:
    """Watches `_delta_log` folders, `bucket/...`, by the messages of one queue."""

    def __init__(
        self, folders: Names, queue: Queue, *, reports: QueueReports, clock: Clock
    ) -> None:
        """Initialize; sends no request before `events`.

        Args:
            folders: Paths in the bucket store, with how commits are named there.
        """
        self._folders = dict(folders)
        self._queue = queue
        self._reports = reports
        self._clock = clock
        self._chance = random.Random()
        self._detector = MissingNotificationDetector(
            clock, on_missing=reports.missing, on_received=reports.report_received
        )
        self._failures = 0
        self._undeleted = 0
        self._is_readable = False
        self._open: dict[str, _Open] = {}
        self._done: dict[str, None] = {}
        self._something_done = asyncio.Event()

    def covers(self, folder: str) -> bool:
        """Return whether the folder is watched and the queue currently readable."""
        return self._is_readable and folder in self._folders

    def on_poll(self, folder: str, is_unannounced: bool) -> None:
        """Record a poll of a folder's log, and whether it found commits without a notification."""
        if self.covers(folder):
            self._detector.on_poll(folder, is_unannounced)

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield an event for each commit in the messages."""
        receiving: asyncio.Future[list[Message]] = asyncio.ensure_future(self._receive())
        deleting: asyncio.Future[None] = asyncio.ensure_future(self._delete())
        try:
            while True:
                both: set[asyncio.Future[Any]] = {receiving, deleting}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if deleting.done():
                    deleting.result()
                    deleting = asyncio.ensure_future(self._delete())
                if receiving.done():
                    messages = receiving.result()
                    receiving = asyncio.ensure_future(self._receive())
                    for message in messages:
                        for event in self._events(message):
                            yield event
        finally:
            for task in (receiving, deleting):
                task.cancel()
            await asyncio.gather(receiving, deleting, return_exceptions=True)
            self._is_readable = False
            self._reports.report_closed()
            await self._queue.close()

    def _events(self, message: Message) -> Iterator[StorageEvent]:
        """Yield the events of a message, but only once until it is deleted."""
        identity = message.identity
        if identity in self._open:
            self._open[identity].receipt = message.receipt
            return
        if message.created is None:
            self._not_understood(message)
            return
        events = list(commit_events(message.created, self._folders))
        self._open[identity] = _Open(message.receipt, len(events))
        if not events:
            self._finish(identity)
        for event in events:
            self._detector.note_notification(event.folder)
            yield StorageEvent(event.folder, event.version, partial(self._note_identity, identity))

    def _not_understood(self, message: Message) -> None:
        most, times = self._queue.malformed_receives, message.receives
        is_deleted = most is not None and (times is None or times >= most)
        self._reports.not_understood(message.identity, is_deleted)
        if is_deleted:
            self._open[message.identity] = _Open(message.receipt, 0)
            self._finish(message.identity)

    def _note_identity(self, identity: str) -> None:
        known = self._open[identity]
        known.unseen -= 1
        if known.unseen == 0:
            self._finish(identity)

    def _finish(self, identity: str) -> None:
        self._done[identity] = None
        self._something_done.set()

    async def _receive(self) -> list[Message]:
        """Wait for messages; return none after a failure and a pause."""
        try:
            messages = await self._queue.receive()
        except self._queue.errors as error:
            self._is_readable = False
            self._failures += 1
            self._report_failure(self._queue.classify(error, is_deletion=False), self._failures)
            # A new client resolves credentials again.
            await self._queue.close()
            await self._clock.sleep(_BACKOFF.wait_seconds(self._failures - 1, self._chance))
            return []
        if self._failures:
            self._failures = 0
            self._report_resumed()
        self._is_readable = True
        return messages

    def _report_failure(self, failure: QueueFailure, attempt: int) -> None:
        self._reports.report_failure(failure.code, failure.message, attempt)

    def _report_resumed(self) -> None:
        if not self._failures and not self._undeleted:
            self._reports.report_resumption()

    async def _delete(self) -> None:
        """Wait for processed messages and delete a batch of them."""
        await self._something_done.wait()
        await self._clock.sleep(GATHER_SECONDS)
        batch = list(self._done)[: self._queue.batch_messages]
        messages = [(identity, self._open[identity].receipt) for identity in batch]
        for identity in batch:
            del self._done[identity], self._open[identity]
        if not self._done:
            self._something_done.clear()
        try:
            await self._queue.delete(messages)
        except self._queue.errors as error:
            # The messages are redelivered and processed again. Other failures are reported by
            # `_receive`; only a missing right to delete shows up here.
            failure = self._queue.classify(error, is_deletion=True)
            if failure.code == "access_denied":
                self._undeleted += 1
                self._report_failure(failure, self._undeleted)
            return
        if self._undeleted:
            self._undeleted = 0
            self._report_resumed()


GRACE_SECONDS = 60.0
"""How late the notification of a commit that a poll found may arrive."""


class MissingNotificationDetector:
    """Detects, once per folder, that its commits are only found by polling.

    Args:
        on_missing: Called with such a folder.
        on_received: Called with a reported folder when it gets a notification after all.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        on_missing: Callable[[str], None],
        on_received: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._on_missing = on_missing
        self._on_received = on_received
        self._notified: set[str] = set()
        self._found_at: dict[str, float] = {}
        self._reported: set[str] = set()

    def note_notification(self, folder: str) -> None:
        """Record a notification of a commit."""
        self._notified.add(folder)
        self._found_at.pop(folder, None)
        if folder in self._reported:
            self._reported.discard(folder)
            self._on_received(folder)

    def on_poll(self, folder: str, is_unannounced: bool) -> None:
        """Record a poll of a log, and whether it found commits without a notification."""
        if folder in self._notified or folder in self._reported:
            return
        now = self._clock.monotonic()
        if is_unannounced:
            self._found_at.setdefault(folder, now)
        if now - self._found_at.get(folder, now) >= GRACE_SECONDS:
            self._reported.add(folder)
            self._on_missing(folder)
