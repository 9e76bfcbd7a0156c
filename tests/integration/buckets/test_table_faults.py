"""Each request of opening, following and maintaining a table fails in turn."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, ReadLimit
from tailerd.clock import SystemClock
from tailerd.errors import AccessDeniedError, MaintenanceBusyError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import Policies
from tailerd.storage.lease import Lease
from tailerd.storage.stores import Stores
from tests.clouds.buckets import BucketServer
from tests.s3.proxy import Fault, FaultProxy, Seen
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta

GET_OVER = [Fault.LOSE_ANSWER, Fault.TRUNCATE, Fault.SLOW_DOWN, Fault.EXPIRED]
"""One of each family; what the store makes of all of them, its own tests say."""

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**18)


async def changes(location: str, start: str) -> list[tuple[Any, ...]]:
    """Return every change row from `start` to the head, as pipelines plan and read them."""
    source = await open_delta(location, OpenRequest(changes=ChangeMode.AUTO))
    offset = await source.initial_offset(start)
    rows: list[tuple[Any, ...]] = []
    while (end := await source.latest_offset(offset, EVERYTHING)) != offset:
        async for group in source.plan(offset, end):
            for task in group.tasks:
                for batch in await asyncio.to_thread(
                    lambda task=task: list(source.read(task, DEFAULT_BATCH_LIMIT))  # type: ignore[misc]
                ):
                    for row in batch.to_arrow().to_pylist():
                        rows.append((row["_commit_version"], row["_change_type"], row["id"]))
        offset = end
    return sorted(rows)


async def test_the_bucket_gives_the_rows_the_folder_gives(
    location: str, table: TableBuilder, proxy: FaultProxy
) -> None:
    folder = str(table.log.parent)
    for start in ("0", "snapshot"):
        assert await changes(location, start) == await changes(folder, start) != []


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("fault", GET_OVER, ids=lambda fault: fault.value)
async def test_a_fault_at_each_request_in_turn_changes_no_row(
    location: str, proxy: FaultProxy, fault: Fault
) -> None:
    expected = await changes(location, "2")
    proxy.forget()
    assert await changes(location, "2") == expected
    requested = len(proxy.requests)
    assert requested > 5
    for nth in range(1, requested + 1):
        proxy.forget()
        proxy.fail_nth(nth, fault)
        assert await changes(location, "2") == expected, f"request {nth} of {requested}"


@pytest.mark.full
@pytest.mark.parametrize("every", [2, 3])
async def test_faults_at_every_nth_request_change_no_row(
    location: str, proxy: FaultProxy, every: int
) -> None:
    expected = await changes(location, "snapshot")
    for fault in (Fault.RESET, Fault.SLOW_DOWN):
        proxy.forget()
        proxy.fail_every(every, fault)
        assert await changes(location, "snapshot") == expected


async def test_a_right_that_is_missing_at_any_request_is_an_error_and_no_wrong_row(
    location: str, proxy: FaultProxy
) -> None:
    expected = await changes(location, "2")
    proxy.forget()
    await changes(location, "2")
    count = len(proxy.requests)
    tolerated: list[Seen] = []
    refused: list[Seen] = []
    errors: list[AccessDeniedError] = []
    for nth in range(1, count + 1):
        proxy.forget()
        proxy.fail_nth(nth, Fault.DENY)
        try:
            assert await changes(location, "2") == expected
            outcome = tolerated
        except AccessDeniedError as error:
            errors.append(error)
            outcome = refused
        outcome += [seen for seen in proxy.requests if seen.fault is not None]
    assert len(tolerated) + len(refused) == count
    assert all("is refused" in error.message and error.remedy for error in errors)
    # The answer to a head has no reason, so it is asked again with new credentials. The files of
    # commits in memory are judged together: a refusal of one is no verdict, and it is asked for
    # again at its turn. The machine's speed decides how many commits are in memory.
    assert {seen.kind for seen in refused} == {"get", "list"}
    again = [seen for seen in tolerated if seen.kind != "head"]
    assert {seen.kind for seen in again} == {"get"}
    assert len(again) >= 2
    assert all(seen.path.endswith(".parquet") and "_delta_log" not in seen.path for seen in again)
    assert len({seen.path for seen in again}) < len({seen.path for seen in refused})


async def test_a_listing_that_is_behind_loses_nothing(
    location: str, proxy: FaultProxy, server: BucketServer, bucket: str, table: TableBuilder
) -> None:
    source = await open_delta(location)
    offset = await source.initial_offset("latest")
    assert await source.latest_offset(offset, EVERYTHING) == offset
    table.append([{"id": 12, "name": "twelve"}])
    for path in [table.commit_path(4), *table.log.parent.glob("*.parquet")]:
        key = f"lake/orders/{path.relative_to(table.log.parent).as_posix()}"
        server.put(bucket, key, path.read_bytes())
    proxy.choose = lambda seen: Fault.STALE_LIST if seen.kind == "list" else None
    end = await source.latest_offset(offset, EVERYTHING)
    assert end.version == offset.version + 1


def maintenance(location: str) -> DeltaMaintenance:
    return DeltaMaintenance(LogReader.at(location), Policies())


async def maintain(location: str) -> list[str]:
    """Do what is due under a lease, as the command does."""
    work = maintenance(location)
    assessment = await work.assessment()
    lease = Lease(work.reader.store, work.reader.root, clock=SystemClock())
    async with lease.hold():
        return [
            (await work.apply(assessment, decision)).outcome
            for decision in assessment.decisions
            if decision.is_due
        ]


@pytest.fixture
def long_table(tmp_path: Path) -> TableBuilder:
    """Enough commits for a checkpoint, and none yet."""
    table = TableBuilder(tmp_path / "long")
    for number in range(12):
        table.append([{"id": 100 + number, "name": "more"}])
    return table


@pytest.fixture
def fresh_copy(server: BucketServer, long_table: TableBuilder, bucket: str) -> Callable[[int], str]:
    def copy(number: int) -> str:
        upload(server, long_table.log.parent, bucket, f"copy{number}")
        return f"{server.scheme}://{bucket}/copy{number}"

    return copy


async def test_a_checkpoint_is_written_into_a_bucket_and_read_back(
    fresh_copy: Callable[[int], str], proxy: FaultProxy
) -> None:
    location = fresh_copy(0)
    before = await changes(location, "snapshot")
    assert await maintain(location) == ["written"]
    snapshot, segment = await LogReader.at(location).open_listed()
    assert [file.version for file in segment.checkpoint] == [11]
    assert snapshot.num_files == 12
    assert await changes(location, "snapshot") == before


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "shift"),
    [
        *((Fault.LOSE_ANSWER, shift) for shift in range(3)),
        *((Fault.RESET, 1), (Fault.SLOW_DOWN, 2)),
    ],
)
async def test_maintenance_gets_over_a_fault_at_every_third_request(
    fresh_copy: Callable[[int], str], proxy: FaultProxy, fault: Fault, shift: int
) -> None:
    location = fresh_copy(shift)
    expected = await changes(location, "snapshot")
    proxy.forget()
    requested = itertools.count()
    proxy.choose = lambda seen: fault if next(requested) % 3 == shift else None
    assert await maintain(location) == ["written"]
    proxy.forget()
    assert await changes(location, "snapshot") == expected


async def test_only_one_of_two_processes_has_the_lease(location: str, proxy: FaultProxy) -> None:
    store, root = Stores().locate(location)
    clock = SystemClock()

    async def attempt() -> bool:
        try:
            await Lease(store, root, clock=clock).acquire()
        except MaintenanceBusyError:
            return False
        return True

    proxy.fail_every(4, Fault.LOSE_ANSWER)
    assert sorted(await asyncio.gather(*(attempt() for _ in range(4)))).count(True) == 1
