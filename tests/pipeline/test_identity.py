"""The offset of a pipeline is saved only for the table that it was delivered from."""

from __future__ import annotations

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import TableRecreatedError
from tailerd.pipeline.identity import OffsetKeeper
from tests.doubles.fake_source import FakeSource, FakeTable
from tests.doubles.memory_stores import MemoryOffsetStore


@pytest.mark.attack
async def test_an_offset_of_another_table_is_never_saved_as_one_of_this_table() -> None:
    store = MemoryOffsetStore()
    table = FakeTable(commits=[[[1]], [[2]]])
    offsets = OffsetKeeper(store, "orders", ChangeMode.AUTO)
    first = FakeSource(table)
    await offsets.save(await first.initial_offset("1"), first)
    kept = await store.load("orders")
    other = FakeSource(FakeTable(table_id="table-2", commits=[[[1]], [[2]], [[3]]]))
    assert kept is not None
    with pytest.raises(TableRecreatedError):
        await offsets.save(kept.offset, other)
    assert await store.load("orders") == kept
    # An operator, or a policy that crosses the gap, begins at an offset of the other table.
    start = await other.initial_offset("latest")
    await offsets.save(start, other)
    saved = await store.load("orders")
    assert saved is not None
    assert saved.offset.table_id == "table-2"
