"""Follows a Lance table in this process, and reads what its changes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import open_table
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table
from tailerd.transforms.options import make_view

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**15)
Row = Mapping[str, Any]
Change = tuple[str, Row]


async def opened(
    location: Path | str,
    *,
    changes: ChangeMode = ChangeMode.AUTO,
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    identity: Sequence[str] = (),
    allowed: Sequence[str] = (),
    net_above: int | None = None,
    ledger: Path | None = None,
    stores: Stores | None = None,
) -> ChangeSource:
    request = OpenRequest(
        changes=changes,
        view=make_view(columns=columns),
        identity=identity,
        net_above=net_above,
        ledger=None if ledger is None else LedgerLocation(str(ledger)),
    )
    return await open_table(locate_table(str(location), allowed, stores=stores), request, "lance")


async def batches(
    source: ChangeSource, start: Offset, end: Offset, limit: BatchLimit | None = None
) -> list[ChangeBatch]:
    """Read what lies between two offsets."""
    return [
        batch
        async for group in source.plan(start, end)
        for task in group.tasks
        for batch in source.read(task, limit or BatchLimit())
    ]


async def rest(
    source: ChangeSource, at: Offset, limit: ReadLimit = EVERYTHING
) -> tuple[list[ChangeBatch], Offset]:
    """Read until nothing is new; return what was read, and where that ends."""
    found: list[ChangeBatch] = []
    while (end := await source.latest_offset(at, limit)) != at:
        found += await batches(source, at, end)
        await source.commit(end)
        at = end
    return found, at


async def changes_from(source: ChangeSource, start: str) -> list[ChangeBatch]:
    """Read everything from a starting point on."""
    return (await rest(source, await source.initial_offset(start)))[0]


def changes(found: Iterable[ChangeBatch]) -> list[Change]:
    return [
        pair
        for batch in found
        for pair in zip(batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True)
    ]


def kinds(found: Iterable[ChangeBatch]) -> Counter[str]:
    return Counter(kind for kind, _ in changes(found))


def text(row: Row) -> str:
    """A row without its nulls, as columns that are added have them before."""
    return repr(sorted((name, repr(value)) for name, value in row.items() if value is not None))


def applied(state: Counter[str], found: Iterable[Change]) -> Counter[str]:
    """Replay changes; fails where a row goes that is not there."""
    state = state.copy()
    for kind, row in found:
        state[text(row)] += 1 if kind in ("insert", "update_postimage") else -1
    assert not -state, f"rows went that were not there: {list(-state)[:3]}"
    return +state
