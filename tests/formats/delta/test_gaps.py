"""Rows 20, 26, 27, 50, 51 of the corners: what is missing is told, and never skipped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.errors import (
    CorruptLogError,
    MissingDataFileError,
    MissingVersionError,
    TornCommitError,
    UnreadableDataFileError,
)
from tailerd.formats.base import OpenRequest
from tailerd.storage.local import LocalStore
from tests.cli.commands import Commands
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import EVERYTHING, ONE_FILE, changes, list_rows, read_batches, reported
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


def numbered(folder: Path, versions: int, **options: object) -> TableBuilder:
    table = TableBuilder(folder, **options)  # type: ignore[arg-type]
    for number in range(versions):
        table.append([{"id": number, "name": ""}])
    return table


@pytest.mark.parametrize("limit", [EVERYTHING, ONE_FILE], ids=["at once", "step by step"])
@pytest.mark.parametrize("missing", [[2], [2, 3], [1, 3]], ids=repr)
async def test_row_20_a_gap_inside_the_range_is_an_error_and_nothing_behind_it_comes(
    tmp_path: Path, missing: list[int], limit: ReadLimit
) -> None:
    table = numbered(tmp_path, 6)
    table.checkpoint()
    for version in missing:
        table.commit_path(version).unlink()
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("0")
    seen: list[int] = []

    async def follow(at: Offset) -> None:
        while (end := await source.latest_offset(at, limit)) != at:
            seen.extend(row["id"] for row in list_rows(await read_batches(source, at, end)))
            at = end

    with pytest.raises(MissingVersionError, match=f"ersion {missing[0]} "):
        await follow(at)
    assert seen == list(range(missing[0]))


async def test_row_20_a_gap_that_opens_while_following_is_an_error(tmp_path: Path) -> None:
    table = numbered(tmp_path, 2)
    clock = SimClock()
    source = await open_delta(str(tmp_path), OpenRequest(clock=clock))
    at = await source.initial_offset("latest")
    assert await source.latest_offset(at, EVERYTHING) == at
    table.append([{"id": 2, "name": ""}])
    table.append([{"id": 3, "name": ""}])
    table.commit_path(2).unlink()
    await clock.advance(60)
    with pytest.raises(MissingVersionError, match=r"Version 2 of .* is missing"):
        await source.latest_offset(at, EVERYTHING)


async def test_row_20_a_commit_that_shows_late_is_no_gap(tmp_path: Path) -> None:
    table = numbered(tmp_path, 4)
    source = await open_delta(str(tmp_path))
    at = (await source.initial_offset("1")).after_version(source)
    source = await open_delta(str(tmp_path))
    hidden = table.commit_path(2).read_bytes()
    table.commit_path(2).unlink()

    async def appear() -> None:
        await asyncio.sleep(0.1)
        table.raw_commit(hidden, version=2)

    async with asyncio.TaskGroup() as group:
        group.create_task(appear())
        end = await source.latest_offset(at, EVERYTHING)
    assert end.version == 4


async def test_row_20_a_checkpoint_between_hides_no_commit(tmp_path: Path) -> None:
    table = numbered(tmp_path, 4)
    table.checkpoint(1)
    table.compact(0, 2)
    assert [row["id"] for row in await changes(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("start", ["0", "1"])
def test_row_26_a_start_that_was_cleaned_up_is_named_with_the_oldest_left(
    tmp_path: Path, start: str, command: Commands
) -> None:
    table = numbered(tmp_path, 5)
    table.checkpoint(2)
    for version in (0, 1):
        table.commit_path(version).unlink()
    ran = command.tail(tmp_path, "--from", start)
    assert (ran.status, ran.output) == (3, "")
    assert ran.errors.startswith(f"error[missing_version]: The commit of version {start} ")
    assert "the oldest is 2" in ran.errors
    assert [row["id"] for row in command.tail(tmp_path, "--from", 2).rows] == [2, 3, 4]


async def test_row_26_a_version_ahead_of_the_table_is_refused_but_the_next_is_not(
    tmp_path: Path,
) -> None:
    numbered(tmp_path, 2)
    source = await open_delta(str(tmp_path))
    assert (await source.initial_offset("2")).version == 2
    with pytest.raises(MissingVersionError, match="ahead of the table: the newest is 1"):
        await source.initial_offset("3")


async def test_row_26_a_log_that_starts_at_its_checkpoint_is_read_from_there(
    tmp_path: Path,
) -> None:
    table = numbered(tmp_path, 4)
    table.checkpoint(2)
    for version in (0, 1):
        table.commit_path(version).unlink()
    assert reported(await changes(tmp_path, "2"), "id") == [(2, "insert", 2), (3, "insert", 3)]


async def test_row_26_without_the_version_before_a_commit_that_changes_the_schema_is_refused(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    table.fields = TableBuilder(tmp_path, fields=[("id", "string")]).fields
    table.commit(table.metadata(), table.remove(add), table.data_file([{"id": "x"}]))
    table.checkpoint(1)
    table.commit_path(0).unlink()
    with pytest.raises(MissingVersionError):
        await changes(tmp_path, "1")


@pytest.mark.parametrize("start", ["0", "snapshot"])
def test_row_26_a_missing_data_file_is_named_with_the_reason(
    tmp_path: Path, start: str, command: Commands
) -> None:
    table = numbered(tmp_path, 2)
    [gone] = table.contents.keys() - {next(iter(table.contents))}
    (tmp_path / gone).unlink()
    ran = command.tail(tmp_path, "--from", start)
    assert ran.status == 3
    assert ran.errors.startswith(f"error[missing_data_file]: The file {tmp_path}/{gone} is named")
    assert "deletedFileRetentionDuration" in ran.errors
    assert "Traceback" not in ran.errors


async def test_row_27_a_vacuumed_change_file_is_named_with_the_reason(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.create()
    row = {"id": 1, "name": "a"}
    table.commit(table.data_file([row]), table.cdc_file([{**row, "_change_type": "insert"}]))
    [file] = (tmp_path / "_change_data").iterdir()
    file.unlink()
    with pytest.raises(MissingDataFileError, match=rf"_change_data/{file.name}.*VACUUM"):
        await changes(tmp_path, "1")


@pytest.mark.parametrize("damage", ["torn", "empty", "text"])
async def test_row_51_a_damaged_data_file_is_named(tmp_path: Path, damage: str) -> None:
    table = numbered(tmp_path, 1)
    [name] = table.contents
    file = tmp_path / name
    body = {"torn": file.read_bytes()[:-20], "empty": b"", "text": b"id,name\n1,a\n"}[damage]
    file.write_bytes(body)
    with pytest.raises(UnreadableDataFileError, match=name):
        await changes(tmp_path)


async def test_row_50_temporary_and_foreign_files_in_the_log_are_no_commits(
    tmp_path: Path,
) -> None:
    table = numbered(tmp_path, 2)
    for name in (
        f".{2:020}.json.tmp",
        f".{1:020}.json.crc",
        f"{2:020}.json.tmp",
        f"{2:020}.crc.tmp",
        "2.json",
        "readme.txt",
        "00000000000000000002.json.abc.tmp",
    ):
        (table.log / name).write_text("{")
    (table.log / "_staged_commits").mkdir()
    (table.log / "_staged_commits" / f"{2:020}.5f1d.json").write_text("{}")
    assert [row["id"] for row in await changes(tmp_path)] == [0, 1]


TORN = {"empty": 0, "within the first line": 5, "within the last line": -9}


@pytest.mark.parametrize("cut", TORN)
async def test_row_51_a_torn_newest_commit_is_named_after_a_while(tmp_path: Path, cut: str) -> None:
    table = numbered(tmp_path, 2)
    body = table.commit_path(1).read_bytes()
    table.raw_commit(body[: TORN[cut]], version=2)
    table.commit_path(2).rename(tmp_path / "aside")
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("1")
    (tmp_path / "aside").rename(table.commit_path(2))
    end = await source.latest_offset(at, EVERYTHING)
    assert end.version == 2, "what is whole comes first"
    with pytest.raises(TornCommitError) as caught:
        await source.latest_offset(end, EVERYTHING)
    assert caught.value.retryable
    assert f"{2:020}.json" in str(caught.value)


@pytest.mark.parametrize("cut", TORN)
async def test_row_51_a_torn_commit_that_becomes_whole_meanwhile_is_served(
    tmp_path: Path, cut: str
) -> None:
    table = numbered(tmp_path, 1)
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("latest")
    table.append([{"id": 5, "name": "x"}])
    body = table.commit_path(1).read_bytes()
    table.raw_commit(body[: TORN[cut]], version=1)

    async def finish() -> None:
        await asyncio.sleep(0.2)
        table.raw_commit(body, version=1)

    async with asyncio.TaskGroup() as group:
        group.create_task(finish())
        end = await source.latest_offset(at, EVERYTHING)
    assert [row["id"] for row in list_rows(await read_batches(source, at, end))] == [5]


async def test_row_51_a_last_line_without_its_end_is_whole(tmp_path: Path) -> None:
    table = numbered(tmp_path, 2)
    table.raw_commit(table.commit_path(1).read_bytes().rstrip(b"\n"), version=1)
    assert [row["id"] for row in await changes(tmp_path)] == [0, 1]


@pytest.mark.parametrize("line", [b"not json\n", b'{"add":5}\n', b"[]\n", b"\xff\xfe\n"])
async def test_row_51_a_line_that_is_no_action_is_named_by_its_number(
    tmp_path: Path, line: bytes
) -> None:
    table = numbered(tmp_path, 2)
    first, *rest = table.commit_path(1).read_bytes().splitlines(keepends=True)
    table.raw_commit(b"".join([first, line, *rest]), version=1)
    table.append([{"id": 9, "name": ""}])
    with pytest.raises(CorruptLogError, match=f"Line 2 of {1:020}.json"):
        await changes(tmp_path, "1")


async def test_row_20_a_start_that_one_listing_does_not_show_is_there(tmp_path: Path) -> None:
    table = numbered(tmp_path, 5)
    store = FaultyStore(LocalStore())
    source = await open_delta(str(tmp_path), OpenRequest(wrap_store=lambda _: store))
    store.hide_from_listings(table.commit_path(3).name)
    assert (await source.initial_offset("3")).version == 3


async def test_row_20_opened_by_a_listing_with_a_hole_a_pipeline_loses_no_row(
    tmp_path: Path,
) -> None:
    table = numbered(tmp_path, 5)
    store = FaultyStore(LocalStore())
    store.hide_from_listings(table.commit_path(3).name)
    source = await open_delta(str(tmp_path), OpenRequest(wrap_store=lambda _: store))
    start = await source.initial_offset("0")
    end = await source.latest_offset(start, EVERYTHING)
    found = [row["id"] for row in list_rows(await read_batches(source, start, end))]
    assert found == [0, 1, 2, 3, 4]
