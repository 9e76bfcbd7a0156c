"""A table in a bucket whose commits go straight there, and the daemon that follows it."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.integration.buckets.bucket_table import PREFIX, BucketTable
from tests.s3.notified import NotifiedBucket
from tests.s3.servers import S3Server


class LivingTable(BucketTable):
    """A table in a bucket that notifies a queue."""

    server: S3Server

    def __init__(self, folder: Path, notified: NotifiedBucket, prefix: str = PREFIX) -> None:
        self.notified = notified
        super().__init__(folder, notified.server, notified.bucket, prefix)


def write_config(
    folder: Path,
    table: LivingTable,
    *,
    storage: str = "",
    queue: str = "",
    has_queue: bool = True,
    has_growth: bool = False,
    start: str = "snapshot",
    **options: object,
) -> Path:
    """Write a configuration of a file sink with state beside it.

    Args:
        storage, queue: Endpoints; the server's own by default.
        start: Where the table's delivery begins.
    """
    server = table.notified.server
    config: dict[str, object] = {
        "engine": "arrow",
        "state": str(folder / "state"),
        "table_metrics": has_growth,
        "http": {"listen": "127.0.0.1:0"},
        "storage": {**server.section(storage), "attempts": 2},
        "tables": {
            "orders": {
                "path": table.location,
                "from": start,
                "sink": {"kind": "file", "path": str(folder / "out")},
                **options,
            }
        },
    }
    if has_queue:
        config["notifications"] = {
            "queue": table.notified.queue,
            "endpoint": queue or server.endpoint,
            "wait": "2s",
        }
    path = folder / "tailerd.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
