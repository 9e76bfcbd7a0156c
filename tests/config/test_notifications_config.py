from __future__ import annotations

import pytest
from pydantic import ValidationError

from tailerd.config.notifications import NotificationsConfig

QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/tailerd"
AZURE = "https://account.queue.core.windows.net/tailerd"


def test_the_region_is_in_the_url_of_a_queue_of_aws() -> None:
    assert NotificationsConfig(queue=QUEUE).queue_region == "eu-central-1"
    assert NotificationsConfig(queue=QUEUE, region="us-east-2").queue_region == "us-east-2"
    assert NotificationsConfig(queue="http://127.0.0.1:9324/1/q").queue_region == ""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"queue": "tailerd"}, "URL"),
        ({"queue": "https://sqs.eu-central-1.amazonaws.com"}, "account and name"),
        ({"queue": "https://key:secret@sqs.local/1/q"}, "credentials"),
        ({"queue": QUEUE, "endpoint": "sqs.local"}, "URL"),
        ({"queue": AZURE, "endpoint": "http://127.0.0.1:1"}, "leave it out"),
        ({"queue": QUEUE, "wait": "21s"}, "20"),
        ({"queue": QUEUE, "malformed_receives": 0}, "1"),
        ({"queue": QUEUE, "topic": "t"}, "Extra"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_section_that_cannot_work_is_refused_with_the_reason(
    fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        NotificationsConfig.model_validate(fields)
