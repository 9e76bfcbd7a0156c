"""Tables with real rows that maintenance is done on and other engines read afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.storage.local import LocalStore
from tests.tables.builder import TableBuilder

STRUCT_STATS = {"delta.checkpoint.writeStatsAsStruct": "true"}
V2 = {"delta.checkpointPolicy": "v2"}


def living_table(folder: Path, *, is_v2: bool = False, **properties: str) -> TableBuilder:
    """Make a partitioned table of ten versions: appends, removes, transactions, a domain."""
    options = {"reader_features": ["v2Checkpoint"]} if is_v2 else {"reader_features": []}
    table = TableBuilder(
        folder,
        fields=[("id", "long"), ("name", "string"), ("day", "date")],
        partition_by=["day"],
        properties={**(V2 if is_v2 else {}), **properties},
        writer_features=["domainMetadata", "appendOnly", "invariants"],
        start_ms=None,
        **options,  # type: ignore[arg-type]
    )
    day = "2020-01-0"
    table.append([{"id": n, "name": f"n{n}", "day": f"{day}{n % 2 + 1}"} for n in range(4)])
    for version in range(1, 8):
        grow(table, version)
    table.commit({"txn": {"appId": "app", "version": 7}})
    table.commit({"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}})
    return table


def grow(table: TableBuilder, version: int) -> None:
    """Append a file, and every third time remove one that is there."""
    adds = table.append([{"id": 100 + version, "name": f"v{version}", "day": "2020-02-01"}]).adds
    if version % 3 == 0:
        [path, _] = next(iter(table.state().adds))
        gone = {"add": table.state().adds[path, ""]}
        table.commit(table.remove(gone))
    assert adds


def maintain(
    folder: Path,
    *,
    checkpoint: bool = True,
    compaction: tuple[int, int] | None = None,
    manifest: Literal["json", "parquet"] = "json",
) -> None:
    """Do jobs at the newest version; always its checksum too."""

    async def jobs() -> None:
        reader = LogReader(LocalStore(), str(folder))
        snapshot, writer = await reader.open(), LogWriter(reader)
        await writer.write_checksum(snapshot)
        if compaction is not None:
            result = await writer.write_compaction(snapshot.state, *compaction)
            assert result.outcome == "written"
        if checkpoint:
            done = await writer.write_checkpoint(snapshot, manifest=manifest)
            assert done.outcome == "written"

    asyncio.run(jobs())


def hide(table: TableBuilder, first: int, last: int) -> None:
    """Take commits away, and checkpoints of versions before the last of them."""
    for version in range(first, last + 1):
        table.commit_path(version).unlink(missing_ok=True)
        if version < last:
            for path in table.log.glob(f"{version:020}.checkpoint*"):
                path.unlink()
