from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.errors import CorruptLogError, MissingVersionError
from tailerd.formats.delta.log import log_folder
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.storage.local import LocalStore
from tests.formats.delta.histories import (
    CHECKPOINT_KINDS,
    CheckpointKind,
    assert_described,
    live_files,
    write_checkpoint,
    write_history,
)
from tests.formats.delta.log_bodies import add, remove
from tests.tables.builder import TableBuilder

LARGEST = 2**64


def make_reader(table: TableBuilder) -> LogReader:
    return LogReader(LocalStore(), str(table.folder))


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
async def test_every_live_file_is_found_once_in_any_range_of_keys(
    tmp_path: Path, kind: CheckpointKind
) -> None:
    table = write_history(tmp_path)
    write_checkpoint(table, kind, 5)
    reader = make_reader(table)
    snapshot = await reader.open()
    everything = await live_files(reader, snapshot)
    assert_described(everything, table.state(), has_stats=kind != "classic-no-stats")
    keys = [file.key for file in everything]
    for bound in {0, 1, *keys, *(key + 1 for key in keys), LARGEST - 1}:
        below = await live_files(reader, snapshot, until=bound)
        above = await live_files(reader, snapshot, first=bound)
        assert below + above == everything
        assert [file.key for file in below] == [key for key in keys if key < bound]
    assert await live_files(reader, snapshot, first=keys[2], until=keys[5]) == everything[2:5]
    assert await live_files(reader, snapshot, first=keys[2], until=keys[2]) == []


async def test_statistics_are_read_only_where_they_are_wanted(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.create(add("a", stats='{"numRecords":7}'))
    for stats in ("json", "struct", "both"):
        table.checkpoint(stats=stats)
        reader = make_reader(table)
        snapshot = await reader.open()
        for with_stats, count in ((True, 7), (False, None)):
            [[file]] = [
                files async for files in read_live_files(reader, snapshot, with_stats=with_stats)
            ]
            assert file.num_records == count


async def test_a_large_commit_is_found_again_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_folder, "LINES_SLICE_BYTES", 512)
    table = TableBuilder(tmp_path)
    table.create(*(add(f"f{number}") for number in range(50)))
    table.commit(*(remove(f"f{number}") for number in range(0, 50, 2)))
    reader = make_reader(table)
    snapshot = await reader.open()
    lists = [files async for files in read_live_files(reader, snapshot)]
    assert len(lists) > 1
    assert {file.path for files in lists for file in files} == {
        f"f{number}" for number in range(1, 50, 2)
    }


async def test_a_log_cleaned_up_meanwhile_is_an_error_and_not_a_shorter_list(
    tmp_path: Path,
) -> None:
    table = write_history(tmp_path)
    reader = make_reader(table)
    snapshot = await reader.open()
    table.commit_path(9).unlink()
    with pytest.raises(MissingVersionError, match="version 9 no longer exists"):
        await live_files(reader, snapshot)


async def test_a_commit_replaced_meanwhile_is_an_error_and_not_a_shorter_list(
    tmp_path: Path,
) -> None:
    table = write_history(tmp_path)
    reader = make_reader(table)
    snapshot = await reader.open()
    table.commit(add("other"), version=9)
    with pytest.raises(CorruptLogError, match="the log changed while it was read"):
        await live_files(reader, snapshot)
