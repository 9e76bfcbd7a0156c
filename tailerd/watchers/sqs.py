"""S3 notifications through an SQS queue: one queue for any number of tables.

A message is deleted once every pipeline it concerns has polled the log since it arrived; until then
the queue keeps it and redelivers it after a crash. Lost, duplicated or reordered messages do no
harm: a message only triggers a poll, and the log is the source of truth.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.parsers import ResponseParserError

from tailerd.backoff import Backoff
from tailerd.clock import Clock
from tailerd.config.notifications import NotificationsConfig
from tailerd.storage.s3.failures import are_stale
from tailerd.storage.s3.settings import S3Account
from tailerd.watchers.base import Names, StorageEvent
from tailerd.watchers.s3_events import commit_events, created_objects

BATCH_MESSAGES = 10
"""SQS's limit of messages per request."""
GATHER_SECONDS = 0.5
"""How long deletions are batched, because each is a request too."""

_BACKOFF = Backoff(first_seconds=0.5, max_seconds=30.0)
_Message = dict[str, Any]


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


class SqsWatcher:
    """Watches `_delta_log` folders, `bucket/...`, by the messages of one queue."""

    def __init__(
        self,
        folders: Names,
        config: NotificationsConfig,
        account: S3Account,
        *,
        reports: QueueReports,
        clock: Clock,
    ) -> None:
        """Initialize; sends no request before `events`.

        Args:
            folders: Paths in the bucket store, with how commits are named there.
            config: The queue.
            account: The account with the credentials for it.
        """
        self._folders = dict(folders)
        self._config = config
        self._account = account
        self._reports = reports
        self._clock = clock
        self._chance = random.Random()
        self._stack = AsyncExitStack()
        self._client: Any = None
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
        receiving: asyncio.Future[list[_Message]] = asyncio.ensure_future(self._receive())
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
            await self._disconnect()

    def _events(self, message: _Message) -> Iterator[StorageEvent]:
        """Yield the events of a message, but only once until it is deleted."""
        identity, receipt = str(message["MessageId"]), str(message["ReceiptHandle"])
        if identity in self._open:
            self._open[identity].receipt = receipt
            return
        objects = created_objects(str(message.get("Body", "")))
        if objects is None:
            self._not_understood(message, identity, receipt)
            return
        events = list(commit_events(objects, self._folders))
        self._open[identity] = _Open(receipt, len(events))
        if not events:
            self._finish(identity)
        for event in events:
            self._detector.note_notification(event.folder)
            yield StorageEvent(event.folder, event.version, partial(self._note_identity, identity))

    def _not_understood(self, message: _Message, identity: str, receipt: str) -> None:
        most = self._config.malformed_receives
        times = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))
        is_deleted = most is not None and times >= most
        self._reports.not_understood(identity, is_deleted)
        if is_deleted:
            self._open[identity] = _Open(receipt, 0)
            self._finish(identity)

    def _note_identity(self, identity: str) -> None:
        known = self._open[identity]
        known.unseen -= 1
        if known.unseen == 0:
            self._finish(identity)

    def _finish(self, identity: str) -> None:
        self._done[identity] = None
        self._something_done.set()

    async def _receive(self) -> list[_Message]:
        """Wait for messages; return none after a failure and a pause."""
        try:
            client = await self._connect_client()
            answer = await client.receive_message(
                QueueUrl=self._config.queue,
                MaxNumberOfMessages=BATCH_MESSAGES,
                WaitTimeSeconds=int(self._config.wait),
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        except VENDOR_ERRORS as error:
            self._is_readable = False
            self._failures += 1
            self._report_failure(error, "sqs:ReceiveMessage", self._failures)
            # A new client resolves credentials again.
            await self._disconnect()
            await self._clock.sleep(_BACKOFF.wait_seconds(self._failures - 1, self._chance))
            return []
        if self._failures:
            self._failures = 0
            self._report_resumed()
        self._is_readable = True
        return list(answer.get("Messages", []))

    def _report_failure(self, error: Exception, right: str, attempt: int) -> None:
        failure = classify_failure(error, self._config.queue, right)
        self._reports.report_failure(failure.code, failure.message, attempt)

    def _report_resumed(self) -> None:
        if not self._failures and not self._undeleted:
            self._reports.report_resumption()

    async def _delete(self) -> None:
        """Wait for processed messages and delete a batch of them."""
        await self._something_done.wait()
        await self._clock.sleep(GATHER_SECONDS)
        batch = list(self._done)[:BATCH_MESSAGES]
        entries = [
            {"Id": str(number), "ReceiptHandle": self._open[identity].receipt}
            for number, identity in enumerate(batch)
        ]
        for identity in batch:
            del self._done[identity], self._open[identity]
        if not self._done:
            self._something_done.clear()
        try:
            client = await self._connect_client()
            await client.delete_message_batch(QueueUrl=self._config.queue, Entries=entries)
        except VENDOR_ERRORS as error:
            # The messages are redelivered and processed again. Other failures are reported by
            # `_receive`; only a missing right to delete shows up here.
            right = "sqs:DeleteMessage"
            if classify_failure(error, self._config.queue, right).code == "access_denied":
                self._undeleted += 1
                self._report_failure(error, right, self._undeleted)
            return
        if self._undeleted:
            self._undeleted = 0
            self._report_resumed()

    async def _connect_client(self) -> Any:
        if self._client is None:
            use, about = self._account, self._config
            session = AioSession(profile=use.profile or None)
            region = about.queue_region or use.region or session.get_config_variable("region")
            context = session.create_client(
                "sqs",
                region_name=region or "us-east-1",
                endpoint_url=about.endpoint,
                aws_access_key_id=use.access_key_id or None,
                aws_secret_access_key=use.secret_access_key or None,
                aws_session_token=use.session_token or None,
                config=AioConfig(
                    connect_timeout=5,
                    read_timeout=about.wait + 10,
                    retries={"total_max_attempts": 1},
                    tcp_keepalive=True,
                ),
            )
            self._client = await self._stack.enter_async_context(context)
        return self._client

    async def _disconnect(self) -> None:
        stack, self._stack, self._client = self._stack, AsyncExitStack(), None
        await stack.aclose()


VENDOR_ERRORS = (
    *(ClientError, BotoCoreError, ResponseParserError),
    *(aiohttp.ClientError, OSError, TimeoutError, ValueError),
    # Raised if the credential provider returned expired credentials.
    RuntimeError,
)

_MISSING = frozenset({"NonExistentQueue", "QueueDoesNotExist", "QueueDeletedRecently"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_DENIED = frozenset(
    {
        *(
            "AccessDenied",
            "AccessDeniedException",
            "UnauthorizedOperation",
            "SignatureDoesNotMatch",
        ),
        *("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException"),
        *("InvalidSecurity", "MissingAuthenticationToken", "403"),
    }
)
_WITHOUT_CREDENTIALS = (
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    CredentialRetrievalError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFailure:
    """Why a queue cannot be used: one of tailerd's error codes, and a message with a remedy."""

    code: str
    message: str


def classify_failure(error: Exception, queue: str, right: str) -> QueueFailure:
    """Return the failure for an error.

    Args:
        queue: The queue's URL.
        right: The right that was used, `sqs:ReceiveMessage` or `sqs:DeleteMessage`.
    """
    code = _code(error)
    if code in _MISSING:
        return QueueFailure(
            code="queue_missing",
            message=f"There is no queue {queue}. Check `notifications.queue`, its account and its"
            " region.",
        )
    if code in _EXPIRED or are_stale(error):
        return QueueFailure(
            code="credentials_expired",
            message=f"The credentials for {queue} have expired ({code or _shorten(error)}). Renew"
            " them at their source; they are read again at every attempt.",
        )
    if code in _DENIED or isinstance(error, _WITHOUT_CREDENTIALS):
        return QueueFailure(
            code="access_denied",
            message=f"{right} of {queue} is refused: {_shorten(error)}. Give the user or role that"
            " right, and check the credentials and the queue's policy.",
        )
    return QueueFailure(
        code="queue_unreachable",
        message=f"Requests to {queue} fail: {_shorten(error)}. Check `notifications.endpoint` and"
        " the network.",
    )


def _code(error: Exception) -> str:
    if not isinstance(error, ClientError):
        return ""
    code = str(error.response.get("Error", {}).get("Code", ""))
    # `AWS.SimpleQueueService.NonExistentQueue`, or a name after a namespace.
    return code.replace("#", ".").rpartition(".")[2]


def _shorten(error: Exception) -> str:
    """Return the error in one short line."""
    if isinstance(error, ClientError):
        about = error.response.get("Error", {})
        text = f"{about.get('Code', '')} ({about.get('Message', '')})"
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split()).rstrip(".")[:300]


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
