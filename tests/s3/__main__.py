"""`python -m tests.s3 [--port PORT]`: a bucket, a queue and a table to try things with."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import deltalake
import pyarrow as pa

from tests.kafka.proxy import Proxy
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
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="tailerd-s3-") as temporary:
        server = S3Server.moto(Path(temporary))
        server.start()
        try:
            queue = _set_up(server)
            _append(server, 0)
            # Who asks at this port finds everything there.
            with Proxy(arguments.port, server.port):
                _tell(arguments.port, queue, arguments.every)
                for number in itertools.count(1):
                    time.sleep(arguments.every)
                    _append(server, number)
        finally:
            server.stop()


def _tell(port: int, queue: str, every_seconds: float) -> None:
    endpoint = f"http://127.0.0.1:{port}"
    print(f"S3 and SQS {endpoint}, key {ACCESS_KEY}, secret {SECRET_KEY}")
    print(f"Queue {endpoint}{urlsplit(queue).path}")
    print(f"Table {TABLE}, a row every {every_seconds:g} s", flush=True)


def _set_up(server: S3Server) -> str:
    """Make bucket and queue, let the one tell the other of commits, and return the queue's URL."""
    sqs, s3 = server.client("sqs"), server.admin()
    url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_notification_configuration(
        Bucket=BUCKET, NotificationConfiguration=notification(arn["QueueArn"])
    )
    return str(url)


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


def _append(server: S3Server, number: int) -> None:
    options = {**server.environment(), "AWS_ALLOW_HTTP": "true", "conditional_put": "etag"}
    deltalake.write_deltalake(
        TABLE,
        pa.table({"order_id": [number], "at": [datetime.now(UTC)]}),
        mode="append",
        configuration={"delta.enableChangeDataFeed": "true"},
        storage_options=options,
    )


if __name__ == "__main__":
    main()
