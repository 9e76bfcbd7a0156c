"""A watcher that fails ends the stream: what is idle would never hear of a commit again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.errors import BugError, StorageError
from tailerd.spark import table_source
from tailerd.spark.options import ReadOptions
from tailerd.spark.table_source import FollowedTable
from tailerd.watchers.base import StorageEvent
from tests.tables.builder import TableBuilder


class _Failing:
    """A watcher that ends with an error as soon as it is listened to."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def events(self) -> AsyncGenerator[StorageEvent]:
        raise self._error
        yield StorageEvent(folder="")


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "orders")
    table.append([{"id": 0, "name": "x"}])
    return table


@pytest.mark.parametrize(
    ("error", "kind", "reported"),
    [
        (StorageError("The queue is gone."), StorageError, "queue is gone"),
        (ValueError("odd"), BugError, r"ValueError\('odd'\)"),
    ],
)
async def test_a_stream_gives_what_is_there_and_then_ends(
    error: Exception,
    kind: type[Exception],
    reported: str,
    table: TableBuilder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_source, "_watchers", lambda *_: [_Failing(error)])
    followed = await FollowedTable.open(ReadOptions.parse({"path": str(table.folder)}))
    try:
        start = await followed.source.initial_offset("0")
        head = await followed.latest(start, ReadLimit(), 0.05)
        assert head.version == 1
        with pytest.raises(kind, match=reported):
            await followed.latest(head, ReadLimit(), 0.05)
    finally:
        await followed.aclose()
