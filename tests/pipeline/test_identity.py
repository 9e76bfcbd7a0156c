"""The offset of a pipeline is saved only for the table that it was delivered from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Version
from tailerd.errors import SchemaChangedError, TableRecreatedError
from tailerd.pipeline.claim import PipelineClaim
from tailerd.pipeline.identity import PipelineOffsets
from tailerd.state.pipeline_records import PipelineRecord
from tests.doubles.fake_source import FakeSource, FakeTable
from tests.doubles.memory_stores import MemoryOffsetStore
from tests.doubles.owned_state import owned_state
from tests.pipeline.collecting_sink import CollectingSink


class KeyedSink(CollectingSink):
    """Has keys, as a topic does."""

    key = ("id",)


class ManyTopicsSink(CollectingSink):
    """A column chooses its topics."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, str] = {}

    async def cluster_id(self) -> str:
        return "cluster"

    def expect(self, topics: Mapping[str, str]) -> None:
        self.topics |= topics

    async def watch(self) -> None: ...


@pytest.mark.attack
async def test_the_ids_of_all_topics_that_a_column_chose_are_kept(tmp_path: Path) -> None:
    state, source = owned_state(tmp_path), FakeSource(FakeTable(commits=[[[1]], [[2]]]))

    def keeper(sink: ManyTopicsSink) -> PipelineOffsets:
        claim = PipelineClaim(state.pipelines, "orders", always)
        return PipelineOffsets(state.offsets, "orders", ChangeMode.AUTO, sink=sink, claim=claim)

    sink = ManyTopicsSink()
    offsets = keeper(sink)
    await offsets.claim()
    await offsets.save(await source.initial_offset("0"), source)
    await offsets.note()
    for number in range(2000):
        sink.topics[f"orders.{number}"] = f"id-{number}"
    await offsets.save(await source.initial_offset("1"), source)
    await offsets.note_changes()
    saved = await state.offsets.load("orders")
    assert saved is not None
    assert len(saved.topics) == 500
    assert "orders.1999" in saved.topics
    successor = ManyTopicsSink()
    assert await keeper(successor).claim()
    assert successor.topics == sink.topics


async def always(_: PipelineRecord) -> bool:
    return True


class TypedSource(FakeSource):
    """Its key column has the type that a test sets."""

    kind = pa.int32()

    async def schema_at(
        self, version: Version | None, columns: Sequence[str] | None = None
    ) -> pa.Schema:
        return pa.schema([("id", self.kind)])


@pytest.mark.attack
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_key_column_of_another_type_stops_the_pipeline_until_a_reset(
    is_restarted: bool,
) -> None:
    store = MemoryOffsetStore()
    table = FakeTable(commits=[[[1]], [[2]], [[3]]])
    offsets = PipelineOffsets(store, "orders", ChangeMode.AUTO, sink=KeyedSink())
    await offsets.save(await TypedSource(table).offset_at(Version(1)), TypedSource(table))
    table.schema_id = "schema-2"
    changed = TypedSource(table)
    changed.kind = pa.float64()
    if is_restarted:
        offsets = PipelineOffsets(store, "orders", ChangeMode.AUTO, sink=KeyedSink())
        await offsets.load()
    before = await store.load("orders")
    end = await changed.offset_at(Version(2))
    for _ in range(2):
        with pytest.raises(SchemaChangedError, match="'id' of orders was int64 and is double"):
            await offsets.save(end, changed)
    assert await store.load("orders") == before
    await offsets.begin_at(end, changed)
    await offsets.save(end, changed)


@pytest.mark.attack
async def test_an_offset_of_another_table_is_never_saved_as_one_of_this_table() -> None:
    store = MemoryOffsetStore()
    table = FakeTable(commits=[[[1]], [[2]]])
    offsets = PipelineOffsets(store, "orders", ChangeMode.AUTO)
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
