"""One budget for all tables: what it bounds, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.memory_budget import SMALLEST_PIECE, MemoryBudget, Piece
from tests.doubles.fake_source import FakeSource, FakeTable, never_fails
from tests.waiting import PATIENCE_SECONDS

MIB = 1024 * 1024


def test_one_table_leaves_room_for_the_next() -> None:
    budget = MemoryBudget(64 * MIB)
    greedy, late = budget.join(), budget.join()
    held: list[Piece] = []
    while (piece := greedy.admit_ahead(4 * MIB)) is not None:
        held.append(piece)
    assert 20 * MIB < budget.used_bytes <= 24 * MIB
    first = late.admit_ahead(4 * MIB)
    assert first is not None
    assert first.size_bytes == 4 * MIB


@pytest.mark.parametrize("tables", [1, 3, 50, 200])
def test_what_is_admitted_never_exceeds_the_budget(tables: int) -> None:
    budget = MemoryBudget(64 * MIB)
    parts = [budget.join() for _ in range(tables)]
    for part in parts:
        # Each has the piece its sink waits for, and all it gets ahead.
        assert part.admit(32 * MIB).size_bytes >= SMALLEST_PIECE
        while part.admit_ahead(32 * MIB) is not None:
            pass
    assert budget.used_bytes <= budget.total_bytes


def test_a_piece_larger_than_the_budget_is_admitted_and_counted() -> None:
    budget = MemoryBudget(16 * MIB)
    table, other = budget.join(), budget.join()
    piece = table.admit(4 * MIB)
    piece.resize(100 * MIB)
    assert budget.used_bytes == 100 * MIB
    assert other.admit_ahead(MIB) is None
    assert other.admit(MIB).size_bytes == MIB
    piece.release()
    piece.release()
    assert budget.used_bytes == MIB


def test_tables_that_leave_give_their_share_of_the_reserve_back() -> None:
    budget = MemoryBudget(64 * MIB)
    parts = [budget.join() for _ in range(16)]
    full = [parts[0].admit(48 * MIB), parts[1].admit(48 * MIB)]
    blocked = budget.join()
    for part in parts:
        while part.admit_ahead(SMALLEST_PIECE) is not None:
            pass
    small = blocked.admit(16 * MIB).size_bytes
    for part in parts:
        part.close()
        part.close()
    assert small < blocked.admit(16 * MIB).size_bytes
    assert full


@pytest.mark.parametrize("beginning", range(30))
def test_whatever_is_admitted_and_released_the_sum_stays_right(beginning: int) -> None:
    source = random.Random(beginning)
    budget = MemoryBudget(16 * MIB)
    parts = [budget.join() for _ in range(source.randint(1, 20))]
    held: list[Piece] = []
    for _ in range(500):
        part, expected = source.choice(parts), source.randint(1, 4 * MIB)
        if source.random() < 0.5 and held:
            held.pop(source.randrange(len(held))).release()
        elif (piece := part.admit_ahead(expected)) is not None:
            piece.resize(source.randint(0, piece.size_bytes))
            held.append(piece)
        assert budget.used_bytes == sum(piece.size_bytes for piece in held)
        assert budget.used_bytes <= budget.total_bytes
    for piece in held:
        piece.release()
    assert budget.used_bytes == 0


def wide_table(commits: int) -> FakeTable:
    """Each commit is one file of 64 KiB in memory."""
    table = FakeTable()
    for number in range(commits):
        table.commit(range(number * 8192, (number + 1) * 8192))
    return table


def stream_of(
    table: FakeTable, budget: MemoryBudget, fails: Callable[[str], None] = never_fails
) -> tuple[FakeSource, ChangeStream]:
    source = FakeSource(table, fails)
    start = Offset(table_id=table.table_id, version=Version(0))
    end = Offset(table_id=table.table_id, version=Version(table.head + 1))
    limit = BatchLimit(max_rows=8192, max_bytes=256 * 1024)
    return source, ChangeStream(source, start, end, limit=limit, memory=budget.join())


async def test_many_tables_with_slow_sinks_stay_within_the_budget_and_all_get_on() -> None:
    budget = MemoryBudget(8 * MIB)
    sources: list[FakeSource] = []
    gate = asyncio.Event()

    async def slowly(number: int) -> int:
        source, stream = stream_of(wide_table(40), budget)
        sources.append(source)
        rows = 0
        batches = stream.batches()
        async for batch in batches:
            rows += batch.num_rows
            if not gate.is_set():
                await gate.wait()
        return rows

    tasks = [asyncio.create_task(slowly(number)) for number in range(30)]
    # All are stuck with one piece in hand; everything read ahead is counted.
    for _ in range(50):
        await asyncio.sleep(0.005)
    assert 2 * MIB < budget.used_bytes <= budget.total_bytes
    _, fast = stream_of(wide_table(40), budget)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await list_rows(fast.batches()) == 40 * 8192
    gate.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await asyncio.gather(*tasks) == [40 * 8192] * 30
    assert budget.most_used_bytes <= budget.total_bytes
    assert budget.used_bytes == 0
    assert all(source.open_reads == 0 for source in sources)


async def list_rows(batches: AsyncIterator[ChangeBatch]) -> int:
    return sum([batch.num_rows async for batch in batches])


@pytest.mark.parametrize("taken", [0, 1, 5])
async def test_a_stream_that_is_given_up_frees_all_its_memory(taken: int) -> None:
    budget = MemoryBudget(8 * MIB)
    source, stream = stream_of(wide_table(60), budget)
    batches = stream.batches()
    for _ in range(taken):
        await anext(batches)
    await batches.aclose()
    assert budget.used_bytes == 0
    assert source.open_reads == 0


async def test_a_read_that_fails_frees_its_memory() -> None:
    budget = MemoryBudget(8 * MIB)
    table = wide_table(60)
    table.lost = {(20, 0)}
    _, stream = stream_of(table, budget)
    with pytest.raises(Exception, match="is gone"):
        await list_rows(stream.batches())
    assert budget.used_bytes == 0


@pytest.mark.attack
@pytest.mark.parametrize("cancellations", [1, 2, 4])
async def test_a_stream_that_is_cancelled_while_it_is_given_up_frees_all_its_memory(
    cancellations: int,
) -> None:
    budget = MemoryBudget(8 * MIB)
    blocked, may_read, reads = threading.Event(), threading.Event(), iter(range(1000))

    def block_later_reads(location: str) -> None:
        if location == "read" and next(reads) >= 20:
            blocked.set()
            may_read.wait(10)

    source, stream = stream_of(wide_table(60), budget, block_later_reads)

    async def consume() -> None:
        async with aclosing(stream.batches()) as batches:
            await list_rows(batches)

    consumer = asyncio.create_task(consume())
    await asyncio.to_thread(blocked.wait, 10)
    for _ in range(cancellations):
        consumer.cancel()
        await asyncio.sleep(0.01)
    may_read.set()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert budget.used_bytes == 0
    assert source.open_reads == 0
