"""A table in a bucket of any server, and the configuration of a daemon that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tailerd.storage.base import ObjectStore
from tests.clouds.buckets import BucketServer
from tests.tables.builder import TableBuilder

PREFIX = "lake/orders"


class BucketTable:
    """A table whose commits go to a bucket: data first, then the commit.

    Attributes:
        ids: Of all rows, in order.
    """

    def __init__(
        self, folder: Path, server: BucketServer, bucket: str = "", prefix: str = PREFIX
    ) -> None:
        self.builder = TableBuilder(folder)
        self.server = server
        self.bucket = bucket or server.new_bucket()
        self.prefix = prefix
        self.location = f"{server.scheme}://{self.bucket}/{prefix}"
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
        """Put the files that are not in the bucket yet."""
        folder = self.builder.folder
        found = {path for path in folder.rglob("*") if path.is_file()} - self._known
        for path in sorted(found, key=lambda path: ("_delta_log" in path.parts, path)):
            key = f"{self.prefix}/{path.relative_to(folder).as_posix()}"
            self.server.put(self.bucket, key, path.read_bytes())
        self._known |= found

    @property
    def store(self) -> ObjectStore:
        """The store that it is in."""
        return self.server.store()


def write_config(
    folder: Path,
    table: BucketTable,
    *,
    notifications: dict[str, Any] | None = None,
    poll_interval: str | None = "200ms",
    endpoint: str = "",
    attempts: int = 2,
    **fields: Any,
) -> Path:
    """Write the configuration of a daemon with a file sink and its state in the table's bucket."""
    orders = {
        "path": table.location,
        "from": "0",
        "poll_interval": poll_interval,
        "sink": {"kind": "file", "path": str(folder / "out")},
        **fields,
    }
    config: dict[str, Any] = {
        "engine": "arrow",
        "state": f"{table.server.scheme}://{table.bucket}/state",
        "http": {"listen": "127.0.0.1:0"},
        "storage": {**table.server.section(endpoint), "attempts": attempts},
        "tables": {"orders": orders},
    }
    if notifications is not None:
        config["notifications"] = notifications
    path = folder / "tailerd.yaml"
    path.write_text(yaml.safe_dump(config))
    return path
