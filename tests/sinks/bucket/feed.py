"""A table of 40 rows in each version, and what a pipeline does with a sink in a bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.records.json import JsonEncoder
from tailerd.sinks.base import Delivery
from tailerd.sinks.bucket.sink import BucketSink
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.resources import SinkResources
from tailerd.storage.stores import Stores
from tests.clouds.buckets import BucketServer
from tests.sinks.bucket.readers import download

ROWS = 40


@dataclass
class Feed:
    """A location in a bucket of its own.

    Attributes:
        fields: Of the sink's section.
    """

    server: BucketServer
    fields: dict[str, Any] = field(default_factory=lambda: {"max_bytes_per_file": 1024})

    def __post_init__(self) -> None:
        self.url = f"{self.server.scheme}://{self.server.new_bucket()}/changes/orders"

    def sink(self, stores: Stores | None = None, **fields: Any) -> BucketSink:
        """Return the sink of a new process."""
        config = FileSinkConfig.model_validate(
            {"kind": "file", "path": self.url, **self.fields, **fields}
        )
        encode = JsonEncoder().encode_lines
        stores = stores or self.server.stores()
        return BucketSink(config, SinkResources(table="orders", encode=encode, stores=stores))

    def read_by_listing(self, folder: Path) -> Counter[tuple[int, int]]:
        """Return how often each row (id, version) is in the files, as DuckDB finds them."""
        download(self.server, self.url, folder)
        ending = "parquet" if self.fields.get("format") == "parquet" else "jsonl.*"
        reader = "read_parquet" if ending == "parquet" else "read_json_auto"
        if not list(folder.rglob(f"*.{ending}")):
            return Counter()
        found = duckdb.execute(
            f"SELECT id, _commit_version, count(*) FROM {reader}('{folder}/**/*.{ending}')"
            " GROUP BY ALL"
        )
        return Counter({(row[0], row[1]): row[2] for row in found.fetchall()})


def offset(version: int, position: int = 0, phase: Phase = Phase.FOLLOW) -> Offset:
    """Return an offset of the table."""
    return Offset(table_id="table-1", version=Version(version), position=position, phase=phase)


def saved_at(end: Offset, *, epoch: int = 1, view: str = "") -> SavedOffset:
    """Return what a pipeline saves."""
    return SavedOffset(offset=end, changes=ChangeMode.AUTO, epoch=epoch, view=view)


def rows_until(version: int) -> Counter[tuple[int, int]]:
    """Return each row of the versions before this one, once."""
    return Counter({(v * 100 + n, v): 1 for v in range(version) for n in range(ROWS)})


def delivery(start: int, end: int, *, rows: int = ROWS, view: str = "") -> Delivery:
    """Return the delivery of some versions, in batches of so many rows."""

    async def read() -> AsyncIterator[ChangeBatch]:
        for version in range(start, end):
            whole = batch(version)
            for first in range(0, whole.num_rows, rows):
                yield whole.slice(first, min(rows, whole.num_rows - first))

    saved = saved_at(offset(end), view=view)
    return Delivery(
        table="orders", start=offset(start), end=offset(end), saved=saved, batches=read()
    )


def batch(version: int) -> ChangeBatch:
    """Return the rows of a version."""
    ids = [version * 100 + n for n in range(ROWS)]
    return ChangeBatch(
        rows=pa.record_batch(
            {"id": pa.array(ids, pa.int64()), "region": [f"r{n % 3}" for n in range(ROWS)]}
        ),
        change_type=ChangeType.INSERT,
        version=Version(version),
        timestamp_us=1_700_000_000_000_000,
        change_source=ChangeSourceKind.FILES,
    )


async def run(sink: BucketSink, head: int, *, limit: int, rows: int) -> None:
    """Deliver up to version `head`, as a pipeline does: `limit` versions at a time."""
    saved = await sink.offsets.load("orders")
    start = offset(0) if saved is None else saved.offset
    if saved is not None:
        await sink.offsets.save("orders", saved_at(start, epoch=saved.epoch + 1))
    await sink.resume(start)
    if saved is None:
        await sink.offsets.save("orders", saved_at(start))
    while start.version < head:
        end = await sink.pinned_end(start) or offset(min(start.version + limit, head))
        await sink.write(delivery(start.version, end.version, rows=rows))
        start = end
