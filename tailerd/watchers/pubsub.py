"""Notifications of Google Cloud Storage through a subscription of Pub/Sub.

The attributes of a message name the event, the bucket and the object; its body is not read.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import google.auth
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import (
    DeadlineExceeded,
    Forbidden,
    GoogleAPIError,
    NotFound,
    Unauthenticated,
)
from google.auth.exceptions import GoogleAuthError
from google.oauth2.service_account import Credentials
from google.pubsub_v1.services.subscriber import SubscriberAsyncClient
from google.pubsub_v1.services.subscriber.transports import SubscriberTransport

from tailerd.config.notifications import NotificationsConfig
from tailerd.storage.object_store.accounts import GoogleAccount
from tailerd.watchers.queue import Message, ObjectCreated, QueueFailure

IDLE_SECONDS = 1.0
"""Shortest time between two answers without messages."""


class PubSubQueue:
    """A subscription; as `queue.Queue`."""

    schemes = frozenset({"gs", "gcs"})
    batch_messages = 100
    errors: tuple[type[Exception], ...] = (
        GoogleAPIError,
        GoogleAuthError,
        OSError,
        TimeoutError,
        ValueError,
    )
    setup = (
        "Let the bucket send OBJECT_FINALIZE to the subscription's topic; `tailerd help google`"
        " shows how."
    )

    def __init__(self, config: NotificationsConfig, account: GoogleAccount) -> None:
        """Initialize; sends no request."""
        self.url = config.queue
        self.malformed_receives = config.malformed_receives
        self._wait_seconds = config.wait
        self._endpoint = config.endpoint or os.environ.get("PUBSUB_EMULATOR_HOST", "")
        self._account = account
        self._client: SubscriberAsyncClient | None = None

    async def receive(self) -> list[Message]:
        """Wait for messages."""
        started = time.monotonic()
        client = await self._connect()
        try:
            answer = await client.pull(
                subscription=self.url,
                max_messages=self.batch_messages,
                retry=None,
                timeout=self._wait_seconds,
            )
        except DeadlineExceeded:
            return []
        if not answer.received_messages:
            await asyncio.sleep(max(0.0, IDLE_SECONDS - (time.monotonic() - started)))
        return [
            Message(
                identity=str(each.message.message_id),
                receipt=str(each.ack_id),
                created=created_objects(each.message.attributes),
                # Counted only where the subscription has a topic for dead letters.
                receives=each.delivery_attempt or None,
            )
            for each in answer.received_messages
        ]

    async def delete(self, messages: Sequence[tuple[str, str]]) -> None:
        """Acknowledge messages in one request."""
        client = await self._connect()
        receipts = [receipt for _, receipt in messages]
        await client.acknowledge(subscription=self.url, ack_ids=receipts, retry=None, timeout=20)

    def classify(self, error: Exception, *, is_deletion: bool) -> QueueFailure:
        """Return the failure for an error."""
        doing = "Acknowledging messages" if is_deletion else "Pulling messages"
        code = type(error).__name__
        if isinstance(error, NotFound):
            return QueueFailure(
                code="queue_missing",
                message=f"There is no subscription {self.url}. Check `notifications.queue`.",
            )
        if isinstance(error, Forbidden | Unauthenticated | GoogleAuthError):
            return QueueFailure(
                code="access_denied",
                message=f"{doing} of {self.url} is refused ({code}). Check storage.google, and the"
                " role Pub/Sub Subscriber.",
            )
        return QueueFailure(
            code="queue_unreachable",
            message=f"Requests to {self.url} fail ({code}). Check `notifications.endpoint` and the"
            " network.",
        )

    async def close(self) -> None:
        """Close the connection."""
        client: Any = self._client
        self._client = None
        if client is not None:
            await client.transport.close()

    async def _connect(self) -> SubscriberAsyncClient:
        if self._client is None:
            if self._endpoint and not self._endpoint.startswith("https://"):
                self._client = SubscriberAsyncClient(transport=_plain_transport(self._endpoint))
            else:
                # Credentials are read from files and from the machine's metadata server.
                credentials = await asyncio.to_thread(_read_credentials, self._account)
                self._client = SubscriberAsyncClient(
                    credentials=credentials,
                    client_options=ClientOptions(
                        api_endpoint=urlsplit(self._endpoint).netloc or None
                    ),
                )
        return self._client


def _read_credentials(account: GoogleAccount) -> Any:
    scopes = SubscriberTransport.AUTH_SCOPES
    if account.service_account_file:
        from_file: Any = Credentials.from_service_account_file
        return from_file(account.service_account_file, scopes=scopes)
    found, _ = google.auth.default(scopes=scopes)
    return found


def _plain_transport(endpoint: str) -> Any:
    """Return a connection without TLS and credentials, as emulators need it."""
    import grpc
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

    host = endpoint.removeprefix("http://").rstrip("/")
    return SubscriberGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(host))


def created_objects(attributes: Mapping[str, str]) -> tuple[ObjectCreated, ...] | None:
    """Return the object that a message reports as created; none for other events.

    Returns:
        None if it is no notification of a bucket.
    """
    event = attributes.get("eventType")
    bucket, key = attributes.get("bucketId", ""), attributes.get("objectId", "")
    if not event or not bucket or not key:
        return None
    return (ObjectCreated(bucket, key),) if event == "OBJECT_FINALIZE" else ()
