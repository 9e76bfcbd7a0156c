from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import MissingVersionError, NotATableError, StorageError, TableRecreatedError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.log_continuity import FRESH_SECONDS
from tailerd.formats.delta.log import log_folder, log_reader
from tailerd.formats.delta.protocol import commit_file
from tailerd.formats.delta.protocol.actions import Line
from tailerd.formats.delta.protocol.commit_file import LineDecoder
from tailerd.formats.versioned_source import VersionedSource
from tailerd.storage.base import ObjectStore
from tailerd.storage.metered import KINDS, MeteredStore
from tailerd.transforms.options import make_view
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.tables.builder import TableBuilder
from tests.tables.feed import EVERYTHING, list_rows, read_batches
from tests.tables.opened import open_delta

NOTHING = dict.fromkeys(KINDS, 0)


def numbered(folder: Path, versions: int) -> TableBuilder:
    table = TableBuilder(folder)
    for number in range(versions):
        table.append([{"id": number, "name": ""}])
    return table


class Stores:
    """Puts a meter and a faulty store around the log's store, and keeps both."""

    def __init__(self) -> None:
        self.meters: list[MeteredStore] = []
        self.faulty: list[FaultyStore] = []

    def __call__(self, store: ObjectStore) -> ObjectStore:
        self.faulty.append(FaultyStore(store))
        self.meters.append(MeteredStore(self.faulty[-1]))
        return self.meters[-1]


async def test_an_idle_look_takes_one_request(tmp_path: Path) -> None:
    numbered(tmp_path, 30)
    stores, clock = Stores(), SimClock()
    source = await open_delta(str(tmp_path), OpenRequest(wrap_store=stores, clock=clock))
    at = await source.initial_offset("latest")
    assert await source.latest_offset(at, EVERYTHING) == at
    [meter] = stores.meters
    meter.reset()
    for _ in range(5):
        assert await source.latest_offset(at, EVERYTHING) == at
    assert meter.total <= 2 * 5
    assert meter.requests["list"] == 0


async def test_a_new_commit_takes_few_requests_however_long_the_log(tmp_path: Path) -> None:
    table = numbered(tmp_path, 130)
    stores, clock = Stores(), SimClock()
    source = await open_delta(str(tmp_path), OpenRequest(wrap_store=stores, clock=clock))
    at = await source.initial_offset("latest")
    at = await _step(source, at)
    [meter] = stores.meters
    for number in range(4):
        table.append([{"id": number, "name": ""}])
        await clock.advance(2 * FRESH_SECONDS)
        meter.reset()
        end = await _step(source, at)
        assert end != at
        at = end
        if number:
            assert meter.requests == {**NOTHING, "get": 2}


@pytest.mark.parametrize(("kept_bytes", "times"), [(1_000_000, 1), (0, 2)])
async def test_a_small_commit_is_decoded_once_from_finding_it_to_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, times: int
) -> None:
    decoded: list[str] = []

    class Counted(LineDecoder):
        def feed(self, chunk: bytes) -> list[Line]:
            decoded.append(self.name)
            return super().feed(chunk)

    monkeypatch.setattr(commit_file, "LineDecoder", Counted)
    monkeypatch.setattr(log_folder, "LineDecoder", Counted)
    monkeypatch.setattr(log_reader, "DECODED_ONCE_BYTES", kept_bytes)
    table = numbered(tmp_path, 2)
    source = await open_delta(str(tmp_path), OpenRequest())
    at = await source.initial_offset("latest")
    table.append([{"id": 7, "name": "seven"}])
    table.append([{"id": 8, "name": "eight"}])
    end = await source.latest_offset(at, EVERYTHING)
    rows = list_rows(await read_batches(source, at, end))
    assert sorted(row["id"] for row in rows) == [7, 8]
    assert [decoded.count(f"{version:020}.json") for version in (2, 3)] == [times, times]


async def _step(source: VersionedSource, at: Offset) -> Offset:
    end = await source.latest_offset(at, EVERYTHING)
    await read_batches(source, at, end)
    await source.commit(end)
    return end


async def test_a_storage_that_fails_once_loses_nothing(tmp_path: Path) -> None:
    table = numbered(tmp_path, 3)
    stores = Stores()
    source = await open_delta(str(tmp_path), OpenRequest(wrap_store=stores))
    at = await source.initial_offset("latest")
    table.append([{"id": 3, "name": ""}])
    stores.faulty[0].fail_nth(1, kind="get")
    with pytest.raises(StorageError):
        await source.latest_offset(at, EVERYTHING)
    end = await source.latest_offset(at, EVERYTHING)
    assert [row["id"] for row in list_rows(await read_batches(source, at, end))] == [3]


async def test_a_step_can_be_planned_again_after_its_commits_were_forgotten(
    tmp_path: Path,
) -> None:
    numbered(tmp_path, 5)
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("0")
    middle = await source.latest_offset(at, ReadLimit(max_files=3))
    first = list_rows(await read_batches(source, at, middle))
    await source.commit(middle)
    assert list_rows(await read_batches(source, at, middle)) == first
    end = await source.latest_offset(middle, EVERYTHING)
    assert [row["id"] for row in list_rows(await read_batches(source, middle, end))] == [3, 4]


async def test_a_planned_commit_that_vanishes_is_an_error_and_not_an_empty_range(
    tmp_path: Path,
) -> None:
    table = numbered(tmp_path, 3)
    start = Offset(table_id=table.table_id, version=Version(1))
    end = Offset(table_id=table.table_id, version=Version(3))
    table.checkpoint()
    table.commit_path(2).unlink()
    source = await open_delta(str(tmp_path))
    with pytest.raises(MissingVersionError, match="version 2"):
        await read_batches(source, start, end)


async def test_an_offset_of_another_table_is_refused_everywhere(tmp_path: Path) -> None:
    numbered(tmp_path, 2)
    source = await open_delta(str(tmp_path))
    other = Offset(table_id="another", version=Version(0))
    with pytest.raises(TableRecreatedError):
        await source.latest_offset(other, EVERYTHING)
    with pytest.raises(TableRecreatedError):
        await read_batches(source, other, other.after_version(source))


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty log", "foreign files"])
async def test_a_folder_without_a_log_is_no_table(tmp_path: Path, what: str) -> None:
    location = tmp_path / "t"
    match what:
        case "a file":
            location.write_text("x")
        case "an empty log":
            (location / "_delta_log").mkdir(parents=True)
        case "foreign files":
            (location / "_delta_log").mkdir(parents=True)
            (location / "_delta_log" / "readme.json").write_text("{}")
        case _:
            pass
    with pytest.raises(NotATableError):
        await open_delta(str(location))


async def test_the_backlog_counts_what_is_left(tmp_path: Path) -> None:
    table = numbered(tmp_path, 5)
    source = await open_delta(str(tmp_path))
    backlog = await source.backlog(await source.initial_offset("2"))
    assert (backlog.head_version, backlog.versions) == (4, 3)
    assert backlog.head_timestamp_ms == table.time_of(4)
    assert backlog.oldest_undelivered_timestamp_ms == table.time_of(2)


async def test_the_name_and_the_schema_are_those_of_the_table(tmp_path: Path) -> None:
    table = numbered(tmp_path, 1)
    source = await open_delta(str(tmp_path), OpenRequest(view=make_view(columns=["name"])))
    assert source.name == str(tmp_path)
    assert source.table_id == table.table_id
    assert (await source.arrow_schema()).names == ["name"]
