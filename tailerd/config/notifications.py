"""The section `notifications`: the queue with notifications of commits in buckets."""

from __future__ import annotations

import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tailerd.config.values import HttpUrl, Seconds, parse_http_url

LONGEST_WAIT_SECONDS = 20.0

_SUBSCRIPTION = re.compile(r"projects/[^/\s]+/subscriptions/[^/\s]+")


class NotificationsConfig(BaseModel):
    """The queue with the notifications of buckets: SQS, a storage queue of Azure, or Pub/Sub.

    Credentials are those of `storage`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: str = Field(
        min_length=1,
        description="URL of the queue, or projects/PROJECT/subscriptions/NAME. Only this daemon may"
        " read it: it deletes every message.",
        examples=["https://sqs.eu-central-1.amazonaws.com/123456789012/tailerd"],
    )
    kind: Literal["auto", "sqs", "azure", "pubsub"] = Field(
        default="auto",
        description="Service of the queue; by default, as its name shows.",
        examples=["azure"],
    )
    region: str | None = Field(
        default=None,
        description="Region of the queue; without it, that of `storage`, or as the queue's URL"
        " says.",
        examples=["eu-central-1"],
    )
    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of another server of SQS or Pub/Sub; without it, the cloud, or what"
        " AWS_ENDPOINT_URL and PUBSUB_EMULATOR_HOST say.",
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
        if self.service == "pubsub":
            if _SUBSCRIPTION.fullmatch(self.queue) is None:
                raise ValueError("queue: write projects/PROJECT/subscriptions/NAME")
            return self
        if urlsplit(parse_http_url(self.queue)).path.count("/") < 1:
            raise ValueError("queue: write the queue's whole URL, with account and name")
        if self.service == "azure" and self.endpoint is not None:
            raise ValueError("endpoint: leave it out; queue is the whole URL of a queue of Azure")
        return self

    @property
    def service(self) -> str:
        """The service: sqs, azure or pubsub."""
        if self.kind != "auto":
            return self.kind
        if self.queue.startswith("projects/"):
            return "pubsub"
        host = urlsplit(self.queue).hostname or ""
        return "azure" if ".queue.core." in host else "sqs"

    @property
    def queue_region(self) -> str:
        """The configured region, or the one in the URL of an AWS queue; empty if neither."""
        if self.region is not None:
            return self.region
        host = (urlsplit(self.queue).hostname or "").split(".")
        return host[1] if len(host) > 3 and host[0] == "sqs" and "amazonaws" in host else ""
