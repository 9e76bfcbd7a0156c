"""A sink that keeps the offset with the rows: the pipeline believes it, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tailerd.changefeed.offset import ConsecutiveVersions, Offset
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import SinkError
from tailerd.sinks.base import Delivery
from tailerd.telemetry import events
from tests.doubles.fake_source import FakeTable
from tests.doubles.memory_stores import MemoryOffsetStore
from tests.pipeline.runs import Run


@dataclass
class Ledger:
    """Rows and offset that change together; told to lose answers.

    Attributes:
        ids: Every row that was kept.
        explicit: What the pipeline asked to save by itself.
        lose_answers: How many more writes keep everything and then fail.
    """

    ids: list[int] = field(default_factory=list)
    store: MemoryOffsetStore = field(default_factory=MemoryOffsetStore)
    explicit: list[Offset] = field(default_factory=list)
    lose_answers: int = 0
    calls: list[str] = field(default_factory=list)
    max_in_flight: int = 1

    @property
    def offsets(self) -> Ledger:
        return self

    async def fence(self) -> None:
        self.calls.append("fence")

    async def load(self, pipeline: str) -> SavedOffset | None:
        self.calls.append("load")
        return await self.store.load(pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        self.explicit.append(saved.offset)
        await self.store.save(pipeline, saved)

    async def healthcheck(self) -> None:
        return

    async def resume(self, offset: Offset) -> None:
        self.calls.append("resume")

    async def write(self, delivery: Delivery) -> int:
        ids = [i async for b in delivery.batches for i in b.rows.column("id").to_pylist()]
        self.ids += ids
        await self.store.save(delivery.table, delivery.saved)
        if self.lose_answers:
            self.lose_answers -= 1
            raise SinkError("The answer got lost.")
        return len(ids)

    async def aclose(self) -> None:
        return


def run_into(ledger: Ledger, table: FakeTable) -> Run:
    return Run(table=table, sink=ledger, offsets=ledger, max_files=1)


async def test_only_the_first_offset_is_saved_by_the_pipeline_itself() -> None:
    ledger, table = Ledger(), FakeTable()
    table.commit([1, 2], [3])
    table.commit([4])
    run = run_into(ledger, table)
    await run.once()
    assert ledger.ids == [1, 2, 3, 4]
    assert [offset.version for offset in ledger.explicit] == [0]
    kept = await ledger.load("orders")
    assert kept is not None
    assert (kept.offset.version, kept.schema_id) == (2, "schema-1")
    assert len(run.reported(events.OffsetSaved)) == 3


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_an_answer_that_gets_lost_behind_kept_rows_doubles_nothing(lost: int) -> None:
    ledger, table = Ledger(lose_answers=lost), FakeTable()
    table.commit([1], [2], [3])
    table.commit([4])
    pipeline = await run_into(ledger, table).once()
    assert pipeline.error is None
    assert ledger.ids == [1, 2, 3, 4]


async def test_an_offset_that_another_process_moved_is_gone_on_from() -> None:
    ledger, table = Ledger(), FakeTable()
    table.commit([1])
    await run_into(ledger, table).once()
    table.commit([2])
    table.commit([3])
    kept = await ledger.load("orders")
    assert kept is not None
    await ledger.store.save(
        "orders",
        SavedOffset(
            offset=kept.offset.after_version(ConsecutiveVersions()),
            changes=kept.changes,
            schema_id=kept.schema_id,
        ),
    )
    await run_into(ledger, table).once()
    assert ledger.ids == [1, 3]


async def test_others_are_shut_out_before_the_offset_is_looked_up() -> None:
    ledger, table = Ledger(lose_answers=1), FakeTable()
    table.commit([1])
    await run_into(ledger, table).once()
    assert ledger.calls == ["fence", "load", "resume"] * 2
