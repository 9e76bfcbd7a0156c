"""The section `notifications`: the queue with notifications of commits in buckets."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tailerd.config.values import HttpUrl, Seconds

LONGEST_WAIT_SECONDS = 20.0


class NotificationsConfig(BaseModel):
    """An SQS queue with the notifications of buckets: direct, through SNS, through EventBridge.

    Credentials are those of `storage`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: HttpUrl = Field(
        description="URL of the queue. Only this daemon may read it: it deletes every message.",
        examples=["https://sqs.eu-central-1.amazonaws.com/123456789012/tailerd"],
    )
    region: str | None = Field(
        default=None,
        description="Region of the queue; without it, that of `storage`, or as the queue's URL"
        " says.",
        examples=["eu-central-1"],
    )
    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of the service; without it, AWS, or what AWS_ENDPOINT_URL says.",
        examples=["http://127.0.0.1:9324"],
    )
    wait: Seconds = Field(
        default=LONGEST_WAIT_SECONDS,
        ge=1.0,
        le=LONGEST_WAIT_SECONDS,
        description="How long one request waits for a message, with a unit.",
        examples=["20s"],
    )
    malformed_receives: int | None = Field(
        default=3,
        ge=1,
        le=1000,
        description="Receives after which a message that is not a notification is deleted; null"
        " leaves it to the queue's redrive policy.",
        examples=[3],
    )

    @model_validator(mode="after")
    def _names_a_queue(self) -> Self:
        if urlsplit(self.queue).path.count("/") < 1:
            raise ValueError("queue: write the queue's whole URL, with account and name")
        return self

    @property
    def queue_region(self) -> str:
        """The configured region, or the one in the URL of an AWS queue; empty if neither."""
        if self.region is not None:
            return self.region
        host = (urlsplit(self.queue).hostname or "").split(".")
        return host[1] if len(host) > 3 and host[0] == "sqs" and "amazonaws" in host else ""
