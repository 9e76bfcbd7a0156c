"""Notifications of Azure: Event Grid puts them into a queue of a storage account.

Both of its schemas are supported, its own and CloudEvents. A commit is a created blob, or a renamed
one where the account has folders.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.storage.queue.aio import QueueClient

from tailerd.config.notifications import NotificationsConfig
from tailerd.storage.object_store.accounts import AzureAccount
from tailerd.watchers.queue import Message, ObjectCreated, QueueFailure

IDLE_SECONDS = 1.0
"""Pause after an answer without messages: this service cannot wait for them."""
_HIDDEN_SECONDS = 60
"""How long a received message is delivered to nobody else."""
_NAMES_BLOB = "/blobServices/default/containers/"
_DENIED = frozenset({401, 403})


class AzureQueue:
    """A queue of a storage account; as `queue.Queue`."""

    schemes = frozenset({"az", "abfs", "abfss"})
    batch_messages = 32
    errors: tuple[type[Exception], ...] = (AzureError, OSError, TimeoutError, ValueError)
    setup = (
        "Let an event subscription of the storage account send Microsoft.Storage.BlobCreated (and"
        " BlobRenamed) of subjects that end with .json to it; `tailerd help azure` shows how."
    )

    def __init__(self, config: NotificationsConfig, account: AzureAccount) -> None:
        """Initialize; sends no request."""
        self.url = config.queue
        self.malformed_receives = config.malformed_receives
        self._account = account
        self._client: QueueClient | None = None
        self._credential: Any = None

    async def receive(self) -> list[Message]:
        """Ask for messages; wait a moment if there are none."""
        found = [
            Message(
                identity=str(each.id),
                receipt=str(each.pop_receipt),
                created=created_blobs(str(each.content)),
                receives=int(each.dequeue_count or 1),
            )
            async for each in self._connect().receive_messages(
                messages_per_page=self.batch_messages,
                max_messages=self.batch_messages,
                visibility_timeout=_HIDDEN_SECONDS,
            )
        ]
        if not found:
            await asyncio.sleep(IDLE_SECONDS)
        return found

    async def delete(self, messages: Sequence[tuple[str, str]]) -> None:
        """Delete messages, each with a request."""
        client = self._connect()
        requests = (client.delete_message(identity, receipt) for identity, receipt in messages)
        found = await asyncio.gather(*requests, return_exceptions=True)
        for error in found:
            # One that was delivered again in the meantime is deleted after that delivery.
            if isinstance(error, BaseException) and not isinstance(error, ResourceNotFoundError):
                raise error

    def classify(self, error: Exception, *, is_deletion: bool) -> QueueFailure:
        """Return the failure for an error."""
        doing = "Deleting messages" if is_deletion else "Receiving messages"
        status = error.status_code if isinstance(error, HttpResponseError) else None
        code = str(getattr(error, "error_code", "") or status or type(error).__name__)
        if isinstance(error, ResourceNotFoundError):
            return QueueFailure(
                code="queue_missing",
                message=f"There is no queue {self.url}. Check `notifications.queue`.",
            )
        if isinstance(error, ClientAuthenticationError) or status in _DENIED:
            return QueueFailure(
                code="access_denied",
                message=f"{doing} of {self.url} is refused ({code}). Check storage.azure, and the"
                " role Storage Queue Data Message Processor.",
            )
        return QueueFailure(
            code="queue_unreachable",
            message=f"Requests to {self.url} fail ({code}). Check `notifications.queue` and the"
            " network.",
        )

    async def close(self) -> None:
        """Close the connection."""
        client, credential = self._client, self._credential
        self._client = self._credential = None
        if client is not None:
            await client.close()
        if hasattr(credential, "close"):
            await credential.close()

    def _connect(self) -> QueueClient:
        if self._client is None:
            self._credential = _credential(self._account, self.url)
            self._client = QueueClient.from_queue_url(
                self.url,
                credential=self._credential,
                retry_total=0,
                connection_timeout=5,
                read_timeout=20,
            )
        return self._client


def _credential(account: AzureAccount, queue: str) -> Any:
    """Return what the vendor's library takes as credentials."""
    if account.account_key:
        name = account.account or (urlsplit(queue).hostname or "").partition(".")[0]
        return {"account_name": name, "account_key": account.account_key}
    if account.sas_token or account.is_anonymous:
        return account.sas_token or None
    from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential

    if account.client_secret:
        return ClientSecretCredential(account.tenant_id, account.client_id, account.client_secret)
    client = {"managed_identity_client_id": account.client_id} if account.client_id else {}
    return DefaultAzureCredential(**client)


def created_blobs(body: str) -> tuple[ObjectCreated, ...] | None:
    """Return the blobs that a message reports as created or renamed; its other events are ignored.

    Returns:
        None if the body is no event, or is malformed.
    """
    try:
        # Event Grid encodes; who sends by hand may not.
        text = body if body.lstrip()[:1] in ("{", "[") else base64.b64decode(body, validate=True)
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = []
    for event in value if isinstance(value, list) else [value]:
        if not isinstance(event, dict):
            return None
        kind = event.get("eventType", event.get("type"))
        if kind == "Microsoft.EventGrid.SubscriptionValidationEvent":
            continue
        created = _read_event(event) if isinstance(kind, str) else None
        if created is None:
            return None
        if kind in ("Microsoft.Storage.BlobCreated", "Microsoft.Storage.BlobRenamed"):
            found.append(created)
    return tuple(found)


def _read_event(event: dict[str, object]) -> ObjectCreated | None:
    data = event.get("data")
    target = data.get("destinationUrl") if isinstance(data, dict) else None
    if isinstance(target, str):
        container, _, key = unquote(urlsplit(target).path).lstrip("/").partition("/")
        return ObjectCreated(container, key) if key else None
    subject = event.get("subject")
    if not isinstance(subject, str) or not subject.startswith(_NAMES_BLOB):
        return None
    container, _, key = subject.removeprefix(_NAMES_BLOB).partition("/blobs/")
    return ObjectCreated(container, key) if container and key else None
