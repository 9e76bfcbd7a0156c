"""Maps failures of SQS and its client to error codes and messages."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.parsers import ResponseParserError

from tailerd.storage.s3.failures import are_stale

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


def failure_of(error: Exception, queue: str, right: str) -> QueueFailure:
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
            message=f"The credentials for {queue} have expired ({code or _said(error)}). Renew"
            " them at their source; they are read again at every attempt.",
        )
    if code in _DENIED or isinstance(error, _WITHOUT_CREDENTIALS):
        return QueueFailure(
            code="access_denied",
            message=f"{right} of {queue} is refused: {_said(error)}. Give the user or role that"
            " right, and check the credentials and the queue's policy.",
        )
    return QueueFailure(
        code="queue_unreachable",
        message=f"Requests to {queue} fail: {_said(error)}. Check `notifications.endpoint` and the"
        " network.",
    )


def _code(error: Exception) -> str:
    if not isinstance(error, ClientError):
        return ""
    code = str(error.response.get("Error", {}).get("Code", ""))
    # `AWS.SimpleQueueService.NonExistentQueue`, or a name after a namespace.
    return code.replace("#", ".").rpartition(".")[2]


def _said(error: Exception) -> str:
    """Return the error in one short line."""
    if isinstance(error, ClientError):
        about = error.response.get("Error", {})
        text = f"{about.get('Code', '')} ({about.get('Message', '')})"
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split()).rstrip(".")[:300]
