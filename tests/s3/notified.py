"""A bucket that tells a queue of what is put into it, by each of the ways there are."""

from __future__ import annotations

import json
import secrets
from typing import Any, Literal

from tests.s3.servers import S3Server

Way = Literal["direct", "topic", "raw-topic", "event-bridge"]
WAYS: tuple[Way, ...] = ("direct", "topic", "raw-topic", "event-bridge")


class NotifiedBucket:
    """One bucket and its queue on moto.

    Attributes:
        bucket, queue, arn: Name of the bucket, URL and name of the queue.
    """

    def __init__(self, server: S3Server, way: Way = "direct", *, visible_seconds: int = 30) -> None:
        """Make both."""
        self.server = server
        self.bucket = server.new_bucket()
        self.sqs = server.client("sqs")
        name = f"q-{secrets.token_hex(6)}"
        made = self.sqs.create_queue(
            QueueName=name, Attributes={"VisibilityTimeout": str(visible_seconds)}
        )
        self.queue = str(made["QueueUrl"])
        self.arn = f"arn:aws:sqs:us-east-1:123456789012:{name}"
        s3 = server.admin()
        s3.put_bucket_notification_configuration(
            Bucket=self.bucket, NotificationConfiguration=self._configuration(way)
        )

    def _configuration(self, way: Way) -> dict[str, Any]:
        created = {"Events": ["s3:ObjectCreated:*"]}
        if way == "direct":
            return {"QueueConfigurations": [{"QueueArn": self.arn, **created}]}
        if way == "event-bridge":
            rules = self.server.client("events")
            rule = f"r-{secrets.token_hex(6)}"
            pattern = {"source": ["aws.s3"], "detail": {"bucket": {"name": [self.bucket]}}}
            rules.put_rule(Name=rule, EventPattern=json.dumps(pattern))
            rules.put_targets(Rule=rule, Targets=[{"Id": "1", "Arn": self.arn}])
            return {"EventBridgeConfiguration": {}}
        sns = self.server.client("sns")
        topic = sns.create_topic(Name=f"t-{secrets.token_hex(6)}")["TopicArn"]
        raw = {"RawMessageDelivery": "true"} if way == "raw-topic" else {}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=self.arn, Attributes=raw)
        return {"TopicConfigurations": [{"TopicArn": topic, **created}]}

    def put(self, key: str, body: bytes = b"{}") -> None:
        """Put an object."""
        self.server.admin().put_object(Bucket=self.bucket, Key=key, Body=body)

    def send(self, body: str) -> None:
        """Send a message that no bucket sent."""
        self.sqs.send_message(QueueUrl=self.queue, MessageBody=body)

    def left(self) -> int:
        """Return how many messages there are, those included that somebody is at work on."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)
