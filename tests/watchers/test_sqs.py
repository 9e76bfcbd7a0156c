"""What SQS calls a failure has a code of ours, and says what to do."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from tailerd.watchers.sqs import classify_failure

QUEUE = "https://sqs.eu-central-1.amazonaws.com/1/tailerd"


def answered(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "Because."}}, "ReceiveMessage")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (answered("AWS.SimpleQueueService.NonExistentQueue"), "queue_missing", "its region"),
        (answered("com.amazonaws.sqs#QueueDoesNotExist"), "queue_missing", "notifications.queue"),
        (answered("ExpiredToken"), "credentials_expired", "Renew"),
        (answered("AccessDeniedException"), "access_denied", "sqs:ReceiveMessage"),
        (answered("InvalidClientTokenId"), "access_denied", "credentials"),
        (NoCredentialsError(), "access_denied", "credentials"),
        (answered("ServiceUnavailable"), "queue_unreachable", "ServiceUnavailable (Because.)"),
        (EndpointConnectionError(endpoint_url=QUEUE), "queue_unreachable", "network"),
        (TimeoutError(), "queue_unreachable", "TimeoutError"),
        (ValueError("Invalid endpoint: x"), "queue_unreachable", "notifications.endpoint"),
    ],
)
def test_a_failure_has_a_code_and_a_way_out(error: Exception, code: str, words: str) -> None:
    failure = classify_failure(error, QUEUE, "sqs:ReceiveMessage")
    assert failure.code == code
    assert words in failure.message
    assert QUEUE in failure.message
