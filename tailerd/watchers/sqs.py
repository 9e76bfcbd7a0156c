"""S3 notifications through an SQS queue.

Three envelopes are supported: the bucket's own notification (`Records`), an SNS message around it
(`Type: Notification`, without raw delivery), and an EventBridge event (`detail-type`). They may be
nested if a topic forwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import unquote_plus

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

from tailerd.config.notifications import NotificationsConfig
from tailerd.storage.s3.failures import are_stale
from tailerd.storage.s3.settings import S3Account
from tailerd.watchers.queue import Message, ObjectCreated, QueueFailure


class SqsQueue:
    """A queue of SQS; as `queue.Queue`."""

    schemes = frozenset({"s3", "s3a", "s3n"})
    batch_messages = 10
    setup = (
        "Let the bucket send s3:ObjectCreated:* of keys that end with .json to it (`tailerd help"
        " s3` shows how), with no filter that excludes this table, and let the queue's policy allow"
        " the bucket sqs:SendMessage."
    )

    def __init__(self, config: NotificationsConfig, account: S3Account) -> None:
        """Initialize; sends no request.

        Args:
            account: The account with the credentials for it.
        """
        self.url = config.queue
        self.malformed_receives = config.malformed_receives
        self.errors: tuple[type[Exception], ...] = VENDOR_ERRORS
        self._config = config
        self._account = account
        self._stack = AsyncExitStack()
        self._client: Any = None

    async def receive(self) -> list[Message]:
        """Wait for messages."""
        client = await self._connect_client()
        answer = await client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=self.batch_messages,
            WaitTimeSeconds=int(self._config.wait),
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        return [
            Message(
                identity=str(each["MessageId"]),
                receipt=str(each["ReceiptHandle"]),
                created=created_objects(str(each.get("Body", ""))),
                receives=int(each.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
            )
            for each in answer.get("Messages", [])
        ]

    async def delete(self, messages: Sequence[tuple[str, str]]) -> None:
        """Delete messages in one request."""
        client = await self._connect_client()
        entries = [
            {"Id": str(number), "ReceiptHandle": receipt}
            for number, (_, receipt) in enumerate(messages)
        ]
        await client.delete_message_batch(QueueUrl=self.url, Entries=entries)

    def classify(self, error: Exception, *, is_deletion: bool) -> QueueFailure:
        """Return the failure for an error."""
        right = "sqs:DeleteMessage" if is_deletion else "sqs:ReceiveMessage"
        return classify_failure(error, self.url, right)

    async def close(self) -> None:
        """Close the connection."""
        stack, self._stack, self._client = self._stack, AsyncExitStack(), None
        await stack.aclose()

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


_DEEPEST = 3
_CREATED = ("ObjectCreated:", "s3:ObjectCreated:")


def created_objects(body: str) -> tuple[ObjectCreated, ...] | None:
    """Return the objects that a message reports as created; its other events are ignored.

    Returns:
        None if the body is not one of the envelopes, or is malformed.
    """
    return _parse_text(body, _DEEPEST)


def _parse_text(text: str, depth: int) -> tuple[ObjectCreated, ...] | None:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or depth == 0:
        return None
    if value.get("Type") == "Notification":
        inner = value.get("Message")
        return _parse_text(inner, depth - 1) if isinstance(inner, str) else None
    if "detail-type" in value:
        return _parse_event_bridge(value)
    if value.get("Event") == "s3:TestEvent":
        # S3 sends this when a notification is configured.
        return ()
    return _parse_records(value.get("Records"))


def _parse_records(records: object) -> tuple[ObjectCreated, ...] | None:
    if not isinstance(records, list):
        return None
    found = []
    for record in records:
        what, about = _text(record, "eventName"), _inner(record, "s3")
        bucket, key = _text(_inner(about, "bucket"), "name"), _text(_inner(about, "object"), "key")
        if what is None or not bucket or not key:
            return None
        if what.startswith(_CREATED):
            found.append(ObjectCreated(bucket, unquote_plus(key)))
    return tuple(found)


def _parse_event_bridge(event: Mapping[str, object]) -> tuple[ObjectCreated, ...] | None:
    about = _inner(event, "detail")
    bucket, key = _text(_inner(about, "bucket"), "name"), _text(_inner(about, "object"), "key")
    if not bucket or not key:
        return None
    if event["detail-type"] != "Object Created":
        return ()
    # EventBridge does not URL-encode keys.
    return (ObjectCreated(bucket, key),)


def _inner(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: object, name: str) -> str | None:
    found = _inner(value, name)
    return found if isinstance(found, str) else None
