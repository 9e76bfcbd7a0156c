"""Policy looks at the saved offset; where that cannot be read just now, it looks again."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import StorageError
from tailerd.pipeline.policies import OnGap
from tests.doubles.fake_source import FakeTable
from tests.doubles.memory_stores import MemoryOffsetStore
from tests.pipeline.runs import Run


@dataclass
class FailingStore:
    """Fails in the loads of these numbers, counted from 1."""

    fails_at: set[int]
    loads: int = 0
    inner: MemoryOffsetStore = field(default_factory=MemoryOffsetStore)

    async def load(self, pipeline: str) -> SavedOffset | None:
        self.loads += 1
        if self.loads in self.fails_at:
            raise StorageError("It failed for a moment.")
        return await self.inner.load(pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        await self.inner.save(pipeline, saved)


async def test_a_gap_is_crossed_though_the_offset_cannot_be_read_when_it_is_met() -> None:
    table = FakeTable()
    table.commit([1])
    offsets = FailingStore(fails_at=set())
    run = Run(table=table, offsets=offsets, on_gap=OnGap.LATEST)
    await run.once()
    table.commit([2])
    table.commit([3])
    table.first = 3
    # The delivery loop reads it first, and then policy does.
    offsets.fails_at = {offsets.loads + 2}
    pipeline = await run.once()
    assert pipeline.error is None
    saved = await offsets.inner.load("orders")
    assert saved is not None
    assert saved.offset.version == 3
