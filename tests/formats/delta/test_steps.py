"""Rows 8, 9, 10, 53, 54 of the corners: what one step delivers, and what a repeated one does."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.formats.delta.log import log_reader
from tests.cli.commands import Commands
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import (
    EVERYTHING,
    ONE_FILE,
    Row,
    changes,
    list_rows,
    read_batches,
    steps,
)
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


def rows(*numbers: int) -> list[dict[str, object]]:
    return [{"id": number, "name": str(number)} for number in numbers]


def change_rows(*numbers: int) -> list[dict[str, object]]:
    return [{**row, "_change_type": "insert"} for row in rows(*numbers)]


async def test_row_08_a_commit_of_change_files_is_one_step_however_small_the_limit(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.create()
    table.commit(*(table.cdc_file(change_rows(number)) for number in range(5)))
    table.commit(*(table.cdc_file(change_rows(number)) for number in range(5, 7)))
    taken = await steps(tmp_path, "1", limit=ONE_FILE, restarts=True)
    assert [[row["id"] for row in delivered] for _, _, delivered in taken] == [
        [0, 1, 2, 3, 4],
        [5, 6],
    ]


async def test_row_08_a_commit_with_a_vector_is_one_step_however_small_the_limit(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    adds = table.create(*(table.data_file(rows(n, n + 10)) for n in range(4))).adds
    table.commit(*(table.with_vector(add, [0]) for add in adds), *map(table.remove, adds))
    taken = await steps(tmp_path, "1", limit=ONE_FILE)
    assert len(taken) == 1
    assert sorted(row["id"] for row in taken[0][2]) == [0, 1, 2, 3]


async def test_row_08_a_step_ends_before_a_commit_that_does_not_fit_and_never_skips_it(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.append(rows(0))
    table.commit(*(table.cdc_file(change_rows(number)) for number in range(1, 4)))
    table.append(rows(4))
    taken = await steps(tmp_path, "0", limit=ReadLimit(max_files=2))
    assert [(start.version, end.version) for start, end, _ in taken] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("max_files", [1, 2, 3, 4, 100])
async def test_row_09_a_commit_of_adds_is_resumed_at_the_task_where_it_was_left(
    tmp_path: Path, max_files: int
) -> None:
    table = TableBuilder(tmp_path)
    table.create()
    table.commit(*(table.data_file(rows(number)) for number in range(7)))
    table.append(rows(7))
    taken = await steps(tmp_path, "0", limit=ReadLimit(max_files=max_files), restarts=True)
    assert [row["id"] for _, _, delivered in taken for row in delivered] == list(range(8))
    assert all(len(delivered) <= max_files for _, _, delivered in taken)


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("max_files", [1, 2, 5, 100])
@pytest.mark.parametrize("mode", [ChangeMode.AUTO, ChangeMode.FILES])
async def test_row_09_of_a_rewrite_what_is_deleted_comes_first_however_it_is_split(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: ChangeMode,
    max_files: int,
    is_streamed: bool,
    restarts: bool,
) -> None:
    if is_streamed:
        monkeypatch.setattr(log_reader, "LARGE_COMMIT_BYTES", 0)
    table = TableBuilder(tmp_path)
    adds = table.create(*(table.data_file(rows(number)) for number in range(4))).adds
    rewritten = [table.data_file([{"id": number, "name": f"new {number}"}]) for number in range(4)]
    # As writers list them: a key's new row before its old one.
    table.commit(*rewritten, *map(table.remove, adds), operation="UPDATE")
    limit = ReadLimit(max_files=max_files)
    taken = await steps(tmp_path, "1", mode=mode, limit=limit, restarts=restarts)
    delivered = [row for _, _, found in taken for row in found]
    assert [(row["id"], row["_change_type"]) for row in delivered] == [
        *((number, "delete") for number in range(4)),
        *((number, "insert") for number in range(4)),
    ]
    # Rows are compared within the whole commit, which is therefore one step.
    assert len(taken) == (1 if mode is ChangeMode.AUTO else -(-8 // max_files))


async def test_row_09_positions_do_not_depend_on_what_is_read_of_a_task(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    quiet = table.data_file(rows(100), data_change=False)
    table.create(*(table.data_file(rows(number)) for number in range(3)), quiet)
    whole = await steps(tmp_path, "0", limit=ONE_FILE)
    narrow = await steps(tmp_path, "0", limit=ONE_FILE, columns=["name"])
    assert [(start, end) for start, end, _ in whole] == [(start, end) for start, end, _ in narrow]


async def test_row_09_bytes_limit_a_step_too_and_the_first_file_always_comes(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    adds = [table.data_file(rows(number)) for number in range(3)]
    table.create(*adds)
    size = adds[0]["add"]["size"]
    taken = await steps(tmp_path, "0", limit=ReadLimit(max_bytes=2 * size))
    assert [len(delivered) for _, _, delivered in taken] == [2, 1]
    taken = await steps(tmp_path, "0", limit=ReadLimit(max_bytes=1))
    assert [len(delivered) for _, _, delivered in taken] == [1, 1, 1]


async def test_row_10_commits_without_data_change_give_no_rows_and_move_the_offset(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    [first, second] = table.create(table.data_file(rows(1)), table.data_file(rows(2))).adds
    table.commit(
        table.remove(first, data_change=False),
        table.remove(second, data_change=False),
        table.data_file(rows(1, 2), data_change=False),
        operation="OPTIMIZE",
    )
    taken = await steps(tmp_path, "1")
    assert [(start.version, end.version, delivered) for start, end, delivered in taken] == [
        (1, 2, [])
    ]
    assert len(await changes(tmp_path, "snapshot")) == 2


async def test_row_10_of_a_commit_only_the_actions_that_change_data_count(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(rows(1)).adds
    table.commit(
        table.remove(add, data_change=False),
        table.data_file(rows(1), data_change=False),
        table.data_file(rows(2)),
    )
    found = await changes(tmp_path, "1")
    assert [(row["id"], row["_change_type"]) for row in found] == [(2, "insert")]


async def test_row_53_an_empty_range_is_no_error(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append(rows(1))
    assert await changes(tmp_path, "latest") == []
    assert await changes(tmp_path, "1") == []


def test_row_53_the_command_ends_well_where_there_is_nothing_to_tell(
    tmp_path: Path, command: Commands
) -> None:
    TableBuilder(tmp_path).append(rows(1))
    for arguments in ([], ["--from", 1], ["--from", 1, "--to", 0], ["--from", 0, "--to", 0]):
        ran = command.tail(tmp_path, *arguments)
        assert (ran.status, ran.errors) == (0, "")
        assert len(ran.rows) == (1 if arguments[-2:] == ["--to", 0] and arguments[1] == 0 else 0)


async def test_row_54_a_step_that_is_repeated_delivers_the_same_rows_in_the_same_order(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"], partition_by=["name"])
    adds = table.append(rows(*range(20))).adds
    table.commit(*(table.with_vector(add, [0]) for add in adds[:9]), *map(table.remove, adds))
    for start in ("0", "snapshot"):
        first = await steps(tmp_path, start, limit=ReadLimit(max_files=6))
        again = await steps(tmp_path, start, limit=ReadLimit(max_files=6), restarts=True)
        assert first == again


async def test_update_images_stay_in_one_batch_however_small_batches_are(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.create()
    images: list[dict[str, object]] = []
    for number in range(9):
        images.append({"id": number, "name": "old", "_change_type": "update_preimage"})
        images.append({"id": number, "name": "new", "_change_type": "update_postimage"})
        images.append({"id": 100 + number, "name": "", "_change_type": "delete"})
    table.commit(table.cdc_file(images))
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("1")
    end = await source.latest_offset(at, EVERYTHING)
    for max_rows, max_bytes in itertools.product((1, 2, 3, 4, 7), (1, 40, 10**9)):
        limit = BatchLimit(max_rows=max_rows, max_bytes=max_bytes)
        batches = await read_batches(source, at, end, limit)
        assert len(list_rows(batches)) == len(images)
        for batch in batches:
            kinds = batch.change_types().to_pylist()
            pairs = kinds.count("update_preimage")
            assert pairs == kinds.count("update_postimage")
            assert batch.num_rows <= max(max_rows, 2) + 1


def mixed(folder: Path) -> TableBuilder:
    """A table whose commits are of every kind a step may meet."""
    table = TableBuilder(folder, reader_features=["deletionVectors"])
    adds = table.create(*(table.data_file(rows(n, n + 50)) for n in range(5))).adds
    table.commit(*(table.data_file(rows(n)) for n in range(10, 16)))
    table.delete_rows(adds[0], [1])
    table.change_metadata(properties=CDF)
    table.commit(*(table.cdc_file(change_rows(n)) for n in range(20, 23)))
    table.commit(*map(table.remove, adds[1:]))
    table.append(rows(30))
    return table


LIMITS = st.builds(
    ReadLimit,
    max_files=st.integers(1, 9),
    max_bytes=st.one_of(st.integers(1, 8000), st.just(10**12)),
)


@pytest.fixture(scope="module")
def mixed_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    mixed(folder)
    return folder


@pytest.mark.full
@pytest.mark.parametrize("start", ["0", "snapshot"])
async def test_row_09_any_sequence_of_steps_delivers_everything_once_and_in_order(
    mixed_table: Path, start: str
) -> None:
    whole = await changes(mixed_table, start)
    assert len(whole) == (29 if start == "0" else 8)

    @given(limits=st.lists(LIMITS, min_size=1, max_size=6), restarts=st.booleans())
    def any_steps(limits: list[ReadLimit], restarts: bool) -> None:
        delivered = asyncio.run(_walk(mixed_table, start, limits, restarts))
        assert delivered == whole

    await asyncio.to_thread(any_steps)


async def _walk(folder: Path, start: str, limits: list[ReadLimit], restarts: bool) -> list[Row]:
    """Take steps with these limits in turn; a restart forgets all but the offset."""
    source = await open_delta(str(folder))
    at = await source.initial_offset(start)
    delivered: list[Row] = []
    for limit in itertools.cycle(limits):
        if (end := await source.latest_offset(at, limit)) == at:
            return delivered
        assert at.is_before(end)
        delivered += list_rows(await read_batches(source, at, end))
        at = Offset.from_json(end.to_json())
        if restarts:
            source = await open_delta(str(folder))
    raise AssertionError("limits were given")


async def test_row_09_groups_of_one_plan_join_without_hole_or_overlap(mixed_table: Path) -> None:
    source = await open_delta(str(mixed_table))
    at = await source.initial_offset("0")
    end = await source.latest_offset(at, EVERYTHING)
    reached = at
    async for group in source.plan(at, end):
        assert group.start == reached
        reached = group.end
    assert reached == end
