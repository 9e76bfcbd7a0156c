"""Follows a dataset in this process, and reads what its changes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import open_table
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.table_location import locate_table
from tailerd.transforms.options import make_view

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**15)
Rows = Counter[tuple[object, ...]]


class Follower:
    """A source and where it is; `step` gives what is new."""

    def __init__(self, source: ChangeSource, at: Offset, limit: ReadLimit) -> None:
        self.source, self.at, self.limit = source, at, limit

    @classmethod
    async def open(
        cls,
        location: Path | str,
        start: str = "snapshot",
        *,
        ledger: Path | None = None,
        changes: ChangeMode = ChangeMode.AUTO,
        limit: ReadLimit = EVERYTHING,
        columns: Sequence[str] | None = None,
        spool: str | None = None,
        identity: Sequence[str] = (),
    ) -> Follower:
        source = await opened(
            location,
            ledger=ledger,
            changes=changes,
            columns=columns,
            spool=spool,
            identity=identity,
        )
        return cls(source, await source.initial_offset(start), limit)

    async def step(self) -> list[ChangeBatch]:
        """Read one step and acknowledge it."""
        end = await self.source.latest_offset(self.at, self.limit)
        batches = [
            batch
            async for group in self.source.plan(self.at, end)
            for task in group.tasks
            for batch in self.source.read(task, BatchLimit())
        ]
        await self.source.commit(end)
        self.at = end
        return batches

    async def rest(self) -> list[ChangeBatch]:
        """Read until nothing is new."""
        found: list[ChangeBatch] = []
        before = None
        while before != self.at:
            before = self.at
            found += await self.step()
        return found


async def opened(
    location: Path | str,
    *,
    ledger: Path | None = None,
    changes: ChangeMode = ChangeMode.AUTO,
    columns: Sequence[str] | None = None,
    spool: str | None = None,
    identity: Sequence[str] = (),
) -> ChangeSource:
    request = OpenRequest(
        changes=changes,
        options={"spool": spool},
        ledger=None if ledger is None else LedgerLocation(str(ledger)),
        view=make_view(columns=columns),
        identity=identity,
    )
    return await open_table(locate_table(str(location)), request, "kartothek")


def inserted(batches: Iterable[ChangeBatch]) -> Rows:
    return _rows(batches, "insert")


def deleted(batches: Iterable[ChangeBatch]) -> Rows:
    return _rows(batches, "delete")


def _rows(batches: Iterable[ChangeBatch], kind: str) -> Rows:
    found: Rows = Counter()
    for batch in batches:
        for change, row in zip(
            batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True
        ):
            if change == kind:
                found[tuple(repr(value) for value in row.values())] += 1
    return found


def written(path: Path, rows: list[dict[str, object]], schema: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
