"""How large an array is, and what of it is still to be delivered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.formats.detect import table_format
from tailerd.formats.statistics import PendingWork, TableStatistics
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import opened
from tests.tables.opened import part_request


def measured(path: Path) -> TableStatistics:
    found = table_format("tiledb")
    assert found.statistics is not None
    return found.statistics(part_request(path, "tiledb"))


def fragment_bytes(path: Path, *times: int) -> int:
    """Return the bytes of the fragments that were written then."""
    folders = (path / "__fragments").iterdir()
    expected = [each for each in folders if int(each.name.split("_")[3]) in times]
    return sum(file.stat().st_size for each in expected for file in each.rglob("*"))


def at(version: int, phase: Phase = Phase.FOLLOW) -> Offset:
    return Offset(table_id="", version=Version(version), phase=phase)


async def test_fragments_and_bytes_follow_the_commits(tmp_path: Path) -> None:
    path = tmp_path / "array"
    arrays.create_named(path)
    arrays.write_named(path, 1000, [1, 2])
    found = measured(path)
    await found.open(0, first=None, next_up=None)
    assert found.has_identity((await opened(path)).table_id)
    assert [name for name, _ in found.columns()] == ["id", "name"]
    arrays.write_named(path, 2000, [3])
    arrays.delete(path, 3000, "id == 1")
    assert found.version == 1000
    assert not await found.advance(1)
    size = found.size()
    assert (size.version, size.files, size.log_files) == (3000, 2, 3)
    assert size.bytes == fragment_bytes(path, 1000, 2000)
    assert sum(size.size_counts) == 2
    commits = [(each.version, each.operation, each.files_added) for each in found.take_commits()]
    assert commits == [(2000, "write", 1), (3000, "delete", 0)]
    assert found.take_commits() == []
    assert found.pending(at(2000)) == PendingWork(files=1, bytes=fragment_bytes(path, 2000))
    assert found.pending(at(3001)) == found.pending(None) == PendingWork(files=0, bytes=0)


async def test_what_was_merged_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "array"
    arrays.create_named(path)
    for time in (1000, 2000, 3000):
        arrays.write_named(path, time, [time])
    found = measured(path)
    await found.open(0, first=None, next_up=None)
    assert found.size().files == 3
    arrays.consolidate(path)
    arrays.vacuum(path)
    await found.advance(1)
    assert (found.size().files, found.version, found.take_commits()) == (1, 3000, [])


async def test_a_snapshot_that_is_given_in_part_has_the_rest_left(tmp_path: Path) -> None:
    path = tmp_path / "array"
    arrays.create_named(path)
    for time in (1000, 2000):
        arrays.write_named(path, time, [time])
    found = measured(path)
    await found.open(0, first=None, next_up=None)
    whole = fragment_bytes(path, 1000, 2000)
    start = at(2000, Phase.SNAPSHOT)
    assert found.pending(start) == PendingWork(files=2, bytes=whole)
    part = replace(start.at(3), mark="0.0/4")
    assert found.pending(part) == PendingWork(files=0, bytes=round(whole / 4))
    newer = at(1000, Phase.SNAPSHOT)
    assert found.pending(newer) == PendingWork(files=2, bytes=whole)


async def test_a_schema_that_changes_is_told_with_its_commit(tmp_path: Path) -> None:
    import tiledb

    path = tmp_path / "array"
    arrays.create_named(path)
    arrays.write_named(path, 1000, [1])
    found = measured(path)
    await found.open(0, first=None, next_up=None)
    context = tiledb.Ctx()
    evolution = tiledb.ArraySchemaEvolution(context)
    evolution.add_attribute(tiledb.Attr("more", dtype="int64"))
    evolution.timestamp(2000)
    evolution.array_evolve(str(path))
    with tiledb.open(str(path), "w", timestamp=3000) as array:
        array[[5]] = {"name": ["a"], "more": [1]}
    await found.advance(1)
    [commit] = found.take_commits()
    assert commit.columns is not None
    assert [name for name, _ in commit.columns] == ["id", "name", "more"]
