"""`python -m tests.s3 [--port PORT]`: a bucket, a queue and a table to try things with."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa

from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server

BUCKET, QUEUE = "lake", "tailerd"
TABLE = f"s3://{BUCKET}/orders"


def main() -> None:
    """Run moto until Ctrl-C or SIGTERM, with a table in it that changes every two seconds."""
    parser = argparse.ArgumentParser(prog="python -m tests.s3", description=main.__doc__)
    parser.add_argument("--port", type=int, default=5000, help="of S3 and SQS (5000)")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between commits (2)")
    arguments = parser.parse_args()
    # A shell starts what it puts into the background with Ctrl-C ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="tailerd-s3-") as temporary:
        server = S3Server.moto(Path(temporary), port=arguments.port)
        server.start()
        try:
            _set_up(server)
            _keep_changing(server, arguments.every)
        finally:
            server.stop()


def _set_up(server: S3Server) -> None:
    """Make bucket and queue, and let the one tell the other of commits."""
    sqs, s3 = server.client("sqs"), server.admin()
    url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_notification_configuration(
        Bucket=BUCKET, NotificationConfiguration=notification(arn["QueueArn"])
    )
    print(f"S3 and SQS {server.endpoint}, key {ACCESS_KEY}, secret {SECRET_KEY}")
    print(f"Queue {url}", flush=True)


def notification(queue_arn: str) -> dict[str, object]:
    """Return what a bucket has to be told, as README shows it."""
    rules = [{"Name": "suffix", "Value": ".json"}]
    return {
        "QueueConfigurations": [
            {
                "QueueArn": queue_arn,
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": rules}},
            }
        ]
    }


def _keep_changing(server: S3Server, every_seconds: float) -> None:
    options = {**server.environment(), "AWS_ALLOW_HTTP": "true", "conditional_put": "etag"}
    number = 0
    while True:
        rows = {"order_id": [number], "at": [datetime.now(UTC)]}
        deltalake.write_deltalake(
            TABLE,
            pa.table(rows),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
            storage_options=options,
        )
        if not number:
            print(f"Table {TABLE}, a row every {every_seconds:g} s", flush=True)
        number += 1
        time.sleep(every_seconds)


if __name__ == "__main__":
    main()
