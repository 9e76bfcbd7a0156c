"""`changes: net` gives the exact difference of two snapshots, whatever lies between them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.offset import Version
from tailerd.errors import SchemaChangedError, TableRecreatedError
from tailerd.formats.base import OpenRequest
from tests.property.test_exact_changes import KEYED, History, check_pairs, multiset
from tests.rows.random_tables import RandomTable, tables
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import field
from tests.tables.feed import EVERYTHING, read_batches
from tests.tables.opened import open_delta


async def net(
    folder: Path,
    first: int,
    last: int,
    limit: BatchLimit = DEFAULT_BATCH_LIMIT,
    identity: tuple[str, ...] = (),
) -> list[ChangeBatch]:
    """Return the net changes of versions first to last."""
    source = await open_delta(str(folder), OpenRequest(changes=ChangeMode.NET, identity=identity))
    start = await source.initial_offset(str(first))
    head = await source.latest_offset(start, EVERYTHING)
    assert head.version == (await source.initial_offset("latest")).version
    end = await source.offset_at(Version(last + 1))
    groups = [group async for group in source.plan(start, end)]
    assert [(group.start, group.end, group.change_source) for group in groups] == [
        (start, end, ChangeSourceKind.NET)
    ]
    return await read_batches(source, start, end, limit)


@given(tables(), st.integers(1, 4), st.integers(1, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_net_changes_are_the_difference_of_two_snapshots(
    table: RandomTable, commits: int, batch_rows: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, commits))
    last = data.draw(st.integers(first, commits))
    limit = BatchLimit(max_rows=batch_rows)
    with tempfile.TemporaryDirectory() as folder:
        history = History(data, table, Path(folder))
        for _ in range(commits):
            history.commit()
        found = asyncio.run(net(Path(folder), first, last, limit))
        again = asyncio.run(net(Path(folder), first, last))
    before = history.snapshots[first - 1] if first else type(history.snapshots[0])()
    after = history.snapshots[last]
    assert multiset(found, ChangeType.DELETE) == before - after
    assert multiset(found, ChangeType.INSERT) == after - before
    assert {batch.version for batch in found} <= {last}
    assert list_ids(found) == list_ids(again)


def list_ids(batches: list[ChangeBatch]) -> list[str]:
    """Return the ids of all rows, which must differ."""
    columns = [batch.ids() for batch in batches]
    found = [each for column in columns if column is not None for each in column.to_pylist()]
    assert len(set(found)) == len(found)
    return found


@given(st.integers(1, 3), st.data())
@settings(max_examples=20, deadline=None)
def test_net_changes_are_paired_by_key(commits: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(data, KEYED, Path(folder))
        for _ in range(commits):
            history.commit()
        found = asyncio.run(net(Path(folder), 1, commits, identity=("k",)))
    check_pairs(found, history.snapshots[0], history.snapshots[-1])


async def test_a_column_that_was_added_or_dropped_is_null_or_left_out(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]).adds
    table.fields = [field("id", "long"), field("more", "long")]
    rows = [{"id": 1, "more": None}, {"id": 2, "more": 5}]
    table.commit(table.metadata(), table.remove(add), table.data_file(rows))
    found = await net(tmp_path, 1, table.version)
    changes = [
        (row["_change_type"], row["id"], row["more"])
        for batch in found
        for row in batch.to_arrow().to_pylist()
    ]
    assert changes == [("delete", 2, None), ("insert", 2, 5)]


async def test_a_column_of_another_type_and_another_table_are_refused(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    table.fields = [field("id", "string")]
    table.commit(table.metadata(), table.remove(add), table.data_file([{"id": "1"}]))
    with pytest.raises(SchemaChangedError):
        await net(tmp_path, 1, table.version)
    table.commit(table.metadata(id="another"))
    with pytest.raises(TableRecreatedError):
        await net(tmp_path, 1, table.version)
