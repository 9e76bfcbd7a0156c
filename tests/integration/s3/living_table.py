"""A table in a bucket whose commits go straight there, and the daemon that follows it."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.s3.notified import NotifiedBucket
from tests.s3.servers import ACCESS_KEY, SECRET_KEY
from tests.tables.builder import TableBuilder

PREFIX = "lake/orders"


class LivingTable:
    """Makes commits in a folder and puts them into the bucket: data first, then the commit.

    Attributes:
        ids: Of all rows, in order.
    """

    def __init__(self, folder: Path, notified: NotifiedBucket, prefix: str = PREFIX) -> None:
        self.builder = TableBuilder(folder)
        self.notified = notified
        self.prefix = prefix
        self.location = f"s3://{notified.bucket}/{prefix}"
        self.ids: list[int] = []
        self._known: set[Path] = set()
        self.append()

    def append(self) -> int:
        """Commit a row; return the version."""
        self.ids.append(len(self.ids))
        version = self.builder.append([{"id": self.ids[-1], "name": "x"}]).version
        self.put_new()
        return version

    def put_new(self) -> None:
        """Put what is not in the bucket yet."""
        folder = self.builder.folder
        found = {path for path in folder.rglob("*") if path.is_file()} - self._known
        for path in sorted(found, key=lambda path: ("_delta_log" in path.parts, path)):
            key = f"{self.prefix}/{path.relative_to(folder).as_posix()}"
            self.notified.put(key, path.read_bytes())
        self._known |= found


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
        "storage": {
            "endpoint": storage or server.endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "attempts": 2,
        },
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
