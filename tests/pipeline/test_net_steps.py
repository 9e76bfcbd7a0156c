"""Several commits as one difference, in a pipeline: far behind, over a gap, after a restart."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.errors import SinkError
from tailerd.formats.base import ChangeSource, NetSteps, OpenRequest
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.pipeline.policies import OnGap
from tailerd.sinks.base import Delivery
from tailerd.storage.memory import MemoryStore
from tailerd.telemetry import events
from tests.doubles.owned_state import owned_scratch, scratch_in
from tests.pipeline.runs import Run
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta

Change = tuple[str, int, str]


class RecordingSink:
    """Keeps every delivery that came, also those that failed afterwards, as topics do."""

    max_in_flight = 2
    offsets = None

    def __init__(self) -> None:
        self.deliveries: list[tuple[Offset, Offset, list[Change]]] = []
        self.failures = 0

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(start.version, end.version) for start, end, _ in self.deliveries]

    async def healthcheck(self) -> None: ...

    async def resume(self, offset: Offset) -> None: ...

    async def write(self, delivery: Delivery) -> int:
        changes: list[Change] = []
        async for batch in delivery.batches:
            table = batch.to_arrow()
            kinds, ids, names = (
                table.column(name).to_pylist() for name in ("_change_type", "id", "name")
            )
            changes += zip(kinds, ids, names, strict=True)
        self.deliveries.append((delivery.start, delivery.end, sorted(changes)))
        if self.failures:
            self.failures -= 1
            raise SinkError("The test told it to.")
        return len(changes)

    async def aclose(self) -> None: ...


@dataclass
class DeltaRun(Run):
    """A pipeline over a real table, whose every step is one commit unless it is a difference."""

    location: Path = Path()
    net_above: int | None = None
    spool: Spool | None = None
    recorded: RecordingSink = field(default_factory=RecordingSink)

    def __post_init__(self) -> None:
        self.sink = self.recorded
        self.max_files = 1

    async def open(self) -> ChangeSource:
        return await open_delta(
            str(self.location),
            OpenRequest(changes=self.changes, net_above=self.net_above),
            spool=self.spool,
        )


class BusyTable(TableBuilder):
    """Version 0 has row 0; each later one replaces the file with row 1, under another name."""

    def __init__(self, folder: Path, commits: int) -> None:
        super().__init__(folder)
        self.append([{"id": 0, "name": "stays"}])
        [self._last] = self.append([{"id": 1, "name": "v1"}]).adds
        for version in range(2, commits):
            self.rename(f"v{version}")

    def rename(self, name: str) -> None:
        new = self.data_file([{"id": 1, "name": name}])
        self.commit(self.remove(self._last), new)
        self._last = new


async def test_commits_come_one_by_one_unless_too_many_are_new(tmp_path: Path) -> None:
    table = BusyTable(tmp_path, 10)
    run = DeltaRun(location=tmp_path, start="2", net_above=3)
    await run.once()
    [(start, end, changes)] = run.recorded.deliveries
    assert (start.version, end.version) == (2, 10)
    assert changes == [("delete", 1, "v1"), ("insert", 1, "v9")]
    table.append([{"id": 2, "name": "new"}])
    table.rename("v11")
    await run.once()
    assert sorted(run.recorded.ranges[1:]) == [(10, 11), (11, 12)]


async def test_the_same_difference_comes_after_a_failure_though_the_table_went_on(
    tmp_path: Path,
) -> None:
    table = BusyTable(tmp_path, 6)
    run = DeltaRun(location=tmp_path, start="2", changes=ChangeMode.NET, max_attempts=1)
    run.recorded.failures = 1
    await run.once()
    table.rename("later")
    await run.once()
    first, again, rest = run.recorded.deliveries
    assert first == again
    assert first[2] == [("delete", 1, "v1"), ("insert", 1, "v5")]
    assert (rest[0].version, rest[1].version) == (6, 7)
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert (saved.offset.version, saved.offset.mark) == (7, "")


@pytest.mark.parametrize("location", ["disk", "bucket"])
async def test_a_difference_under_way_outlives_the_log_of_its_versions(
    tmp_path: Path, location: str
) -> None:
    table = BusyTable(tmp_path / "table", 6)
    bucket = MemoryStore()

    def spool(machine: str) -> Spool:
        if location == "disk":
            return Spool(owned_scratch(tmp_path / "state"))
        return Spool(scratch_in(bucket, "/state", tmp_path / machine))

    run = DeltaRun(
        location=table.folder, start="2", changes=ChangeMode.NET, max_attempts=1, spool=spool("a")
    )
    run.recorded.failures = 1
    await run.once()
    table.rename("later")
    table.append([{"id": 2, "name": "new"}])
    table.checkpoint()
    for version in range(table.version):
        table.commit_path(version).unlink()
    run.spool = spool("b")
    await run.once()
    first, again = run.recorded.deliveries[:2]
    assert first == again
    assert first[2] == [("delete", 1, "v1"), ("insert", 1, "v5")]
    assert not list((tmp_path / "state").glob("*"))
    assert [file async for file in bucket.list_from("/state")] == []


async def test_over_a_gap_the_difference_is_exact(tmp_path: Path) -> None:
    table = BusyTable(tmp_path, 4)
    run = DeltaRun(location=tmp_path, on_gap=OnGap.NET, max_attempts=3)
    await run.once()
    table.rename("gone")
    table.rename("kept")
    table.checkpoint()
    table.commit_path(4).unlink()
    await run.once()
    assert run.recorded.ranges[-1] == (4, 6)
    assert run.recorded.deliveries[-1][2] == [("delete", 1, "v3"), ("insert", 1, "kept")]
    [gap] = run.reported(events.GapMet)
    assert isinstance(gap, events.GapMet)
    assert (gap.start_version, gap.end_version) == (4, 6)


async def test_over_a_gap_there_is_none_where_what_was_delivered_last_cannot_be_read(
    tmp_path: Path,
) -> None:
    table = BusyTable(tmp_path, 4)
    run = DeltaRun(location=tmp_path, on_gap=OnGap.NET, max_attempts=2)
    await run.once()
    table.rename("gone")
    table.rename("kept")
    table.checkpoint()
    for version in range(5):
        table.commit_path(version).unlink()
    await run.once()
    assert max(run.recorded.ranges) == (3, 4)
    assert not run.reported(events.GapMet)
    [failed] = run.reported(events.PipelineFailed)
    assert isinstance(failed, events.PipelineFailed)
    assert failed.error_code == "missing_version"


@pytest.mark.attack
async def test_a_table_that_was_created_again_is_refused_at_every_start(tmp_path: Path) -> None:
    BusyTable(tmp_path, 4)
    run = DeltaRun(location=tmp_path, on_gap=OnGap.NET, max_attempts=3)
    await run.once()
    before = await run.offsets.load("orders")
    shutil.rmtree(tmp_path)
    other = TableBuilder(tmp_path, table_id="9e5d0e1c-0000-4000-8000-000000000000")
    for number in range(5):
        other.append([{"id": 100 + number, "name": "new"}])
    for _ in range(3):
        pipeline = await run.once()
        assert pipeline.error is not None
        assert pipeline.error.code == "table_recreated"
    assert await run.offsets.load("orders") == before
    assert max(run.recorded.ranges) == (3, 4)


async def test_far_behind_a_table_that_was_replaced_tells_its_commits(tmp_path: Path) -> None:
    table = BusyTable(tmp_path, 8)
    table.commit(table.metadata(id="9e5d0e1c-0000-4000-8000-000000000000"))
    run = DeltaRun(location=tmp_path, start="2", net_above=2)
    await run.once()
    assert sorted(run.recorded.ranges) == [(version, version + 1) for version in range(2, 9)]


@pytest.mark.parametrize("limit", [1, 1000])
async def test_a_difference_that_was_begun_ends_where_it_did(tmp_path: Path, limit: int) -> None:
    table = BusyTable(tmp_path, 6)
    source = await open_delta(str(tmp_path), OpenRequest(net_above=2))
    assert isinstance(source, NetSteps)
    start = await source.initial_offset("2")
    end = await source.latest_offset(start, ReadLimit(max_files=limit))
    marked = source.pin_end(start, end)
    assert Offset.from_json(marked.to_json()) == marked != start
    table.rename("later")
    opened = await open_delta(str(tmp_path))
    assert await opened.latest_offset(marked, ReadLimit(max_files=limit)) == end
