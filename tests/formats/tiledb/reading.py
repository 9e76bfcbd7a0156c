"""What the format says of an array that a test wrote."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import open_table
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.table_location import locate_table
from tests.formats.tiledb.arrays import Row, plain

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**15)
PLUS = (ChangeType.INSERT.value, ChangeType.UPDATE_POSTIMAGE.value)


async def opened(path: Path, ledger: Path | None = None, **options: object) -> ChangeSource:
    location = None if ledger is None else LedgerLocation(str(ledger))
    request = OpenRequest(ledger=location, options=options)
    return await open_table(locate_table(str(path)), request, "tiledb")


async def batches(source: ChangeSource, start: Offset, end: Offset) -> list[ChangeBatch]:
    return [
        batch
        async for group in source.plan(start, end)
        for task in group.tasks
        for batch in source.read(task, DEFAULT_BATCH_LIMIT)
    ]


def list_rows(batch: ChangeBatch) -> list[tuple[str, Row]]:
    rows = [tuple(map(plain, row.values())) for row in batch.rows.to_pylist()]
    return list(zip(batch.change_types().to_pylist(), rows, strict=True))


async def changes(source: ChangeSource, start: Offset, end: Offset) -> list[tuple[str, Row]]:
    return [row for batch in await batches(source, start, end) for row in list_rows(batch)]


def applied(before: Counter[Row], found: list[tuple[str, Row]]) -> Counter[Row]:
    """Return rows after changes; each row that is taken away must be there."""
    after = Counter(before)
    for kind, row in found:
        after[row] += 1 if kind in PLUS else -1
        assert after[row] >= 0, (kind, row)
    return +after


async def snapshot(source: ChangeSource, version: int) -> Counter[Row]:
    start = await source.offset_at(Version(version), Phase.SNAPSHOT)
    found = await changes(source, start, start.after_version(source))
    assert {kind for kind, _ in found} <= {"insert"}
    return Counter(row for _, row in found)
