"""Reads a table's changes as pipelines do: offset, plan, tasks, batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.partition_zone import PartitionZone
from tailerd.formats.versioned_source import VersionedSource
from tailerd.transforms.options import make_view
from tests.tables.opened import open_delta

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**18)
COMMIT_BY_COMMIT = [mode for mode in ChangeMode if mode is not ChangeMode.NET]
"""Modes that give the changes of each commit."""
ONE_FILE = ReadLimit(max_files=1, max_bytes=1)

Row = dict[str, Any]


async def read_batches(
    source: VersionedSource,
    start: Offset,
    end: Offset,
    limit: BatchLimit = DEFAULT_BATCH_LIMIT,
) -> list[ChangeBatch]:
    """Return every batch of [start, end)."""
    found: list[ChangeBatch] = []
    async for group in source.plan(start, end):
        for task in group.tasks:
            found += source.read(task, limit)
    return found


def list_rows(batches: Iterable[ChangeBatch]) -> list[Row]:
    """Return rows with their change columns and `change_source`."""
    return [
        {**row, "change_source": batch.change_source.value}
        for batch in batches
        for row in batch.to_arrow().to_pylist()
    ]


async def changes(
    folder: Path | str,
    start: str = "0",
    *,
    mode: ChangeMode = ChangeMode.AUTO,
    limit: ReadLimit = EVERYTHING,
    restarts: bool = False,
    columns: Sequence[str] | None = None,
    allowed: Sequence[str] = (),
    zone: str | None = None,
) -> list[Row]:
    """Return every change row from `start` to the head.

    Args:
        restarts: Whether each step is taken by a new source, from the offset as it is saved.
    """
    found: list[Row] = []
    for _, _, rows in await steps(
        folder,
        start,
        mode=mode,
        limit=limit,
        restarts=restarts,
        columns=columns,
        allowed=allowed,
        zone=zone,
    ):
        found += rows
    return found


async def steps(
    folder: Path | str,
    start: str = "0",
    *,
    mode: ChangeMode = ChangeMode.AUTO,
    limit: ReadLimit = EVERYTHING,
    restarts: bool = False,
    columns: Sequence[str] | None = None,
    allowed: Sequence[str] = (),
    zone: str | None = None,
) -> list[tuple[Offset, Offset, list[Row]]]:
    """Return what each step from `start` to the head delivers: its offsets and rows."""

    async def opened() -> VersionedSource:
        return await open_delta(
            str(folder),
            OpenRequest(changes=mode, view=make_view(columns=columns)),
            allowed=allowed,
            zone=PartitionZone(str(folder), zone),
        )

    source = await opened()
    at = await source.initial_offset(start)
    taken = []
    while (end := await source.latest_offset(at, limit)) != at:
        taken.append((at, end, list_rows(await read_batches(source, at, end))))
        await source.commit(end)
        at = end
        if restarts:
            source = await opened()
            at = Offset.from_json(at.to_json())
    return taken


def reported(rows: Iterable[Row], *names: str) -> list[tuple[Any, ...]]:
    """Return (version, change, the named columns) of each row, sorted."""
    return sorted(
        ((row["_commit_version"], row["_change_type"], *(row[n] for n in names)) for row in rows),
        key=repr,
    )


def counted(rows: Iterable[Row]) -> Counter[str]:
    """Return rows as a multiset."""
    return Counter(repr(sorted(row.items())) for row in rows)
