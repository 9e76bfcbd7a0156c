"""Cleanup deletes what expired and nothing a version that is kept could need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import pytest

from tailerd.errors import (
    CorruptLogError,
    MissingVersionError,
    StorageError,
    UnsupportedFeatureError,
)
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.maintenance.log_cleanup import CleanupResult, LogCleanup
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import assert_described, assert_is, live_files
from tests.formats.delta.log_bodies import add, remove
from tests.tables.builder import IN_COMMIT_TIMESTAMPS, TableBuilder

DAY = 86_400_000
FIRST = 1_704_067_200_000 + 3_600_000  # one o'clock
OLD_SIDECAR = "00000000-0000-4000-8000-000000000000.parquet"


def daily(folder: Path, days: int = 40, **options: object) -> TableBuilder:
    """One commit a day from midday on; version n is of day n."""
    options.setdefault("reader_features", ["v2Checkpoint"])
    table = TableBuilder(folder, **options)  # type: ignore[arg-type]
    table.create(add("a0"), mtime_ms=FIRST)
    for day in range(1, days):
        table.commit(add(f"a{day}"), remove(f"a{day - 2}"), mtime_ms=FIRST + day * DAY)
    return table


def clean(
    table: Path, *, today: int, needed_from: int | None = None, seconds: int = 0
) -> CleanupResult:
    """Clean up on a day, counted as the versions are."""

    async def job() -> CleanupResult:
        reader = LogReader(LocalStore(), str(table))
        snapshot, _ = await reader.open_listed()
        clock = SimClock(FIRST + today * DAY + seconds * 1000)
        cleanup = LogCleanup(reader, clock=clock)
        return await cleanup.apply(await cleanup.plan(snapshot.state, needed_from))

    return asyncio.run(job())


def commits_of(table: TableBuilder) -> list[int]:
    return sorted(int(path.stem) for path in table.log.glob("*.json") if path.stem.isdigit())


def assert_readable(table: TableBuilder, whole: Path, versions: range) -> None:
    """Compare versions with the same table before cleanup."""
    before = TableBuilder(whole)

    async def read() -> None:
        reader = LogReader(LocalStore(), str(table.folder))
        for version in versions:
            snapshot = await reader.open(version)
            state = before.state(version)
            assert_is(snapshot, state)
            assert_described(await live_files(reader, snapshot), state)

    asyncio.run(read())


@pytest.mark.parametrize("layout", ["v1", "v2-json", "v2-parquet"])
def test_expired_entries_go_and_kept_versions_can_be_read(tmp_path: Path, layout: str) -> None:
    table = daily(tmp_path / "table")
    for version in (3, 7, 12, 30):
        table.checkpoint(
            version,
            layout=layout,  # type: ignore[arg-type]
            sidecars=2 if layout != "v1" else 0,
        )
    table.compact(1, 4)
    table.compact(6, 9)
    table.compact(8, 11)
    table.checksum(5)
    table.checksum(9)
    shutil.copytree(table.folder, tmp_path / "whole")
    # Retention is 30 days: on day 40 the days up to 9 have expired.
    result = clean(table.folder, today=40)
    assert result.oldest_version == 7
    assert commits_of(table) == list(range(7, 40))
    names = {path.name for path in table.log.iterdir()}
    assert not any(name.startswith((f"{3:020}", f"{5:020}")) for name in names)
    assert f"{6:020}.{9:020}.compacted.json" not in names
    assert f"{8:020}.{11:020}.compacted.json" in names
    assert f"{9:020}.crc" in names
    assert_readable(table, tmp_path / "whole", range(7, 40))


def test_the_day_is_counted_from_its_midnight(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    midnight = FIRST - 3_600_000
    table.create(add("a"), mtime_ms=midnight - 1000)
    table.commit(add("b"), mtime_ms=midnight)
    table.commit(add("c"), mtime_ms=midnight + 1)
    for version in range(3):
        table.checkpoint(version)
    # On the last second of the 30th day after, only what was there at midnight has expired.
    assert clean(tmp_path, today=30, seconds=22 * 3600).oldest_version == 1
    assert commits_of(table) == [1, 2]


def test_without_a_checkpoint_nothing_goes(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(20)
    result = clean(tmp_path, today=40)
    assert result.files == ()
    assert "no checkpoint" in result.reason
    assert commits_of(table) == list(range(40))


def test_the_tables_own_retention_counts(tmp_path: Path) -> None:
    table = daily(tmp_path, properties={"delta.logRetentionDuration": "interval 5 days"})
    table.checkpoint(20)
    table.checkpoint(37)
    assert clean(tmp_path, today=40).oldest_version == 20
    assert commits_of(table) == list(range(20, 40))


def test_a_table_that_forbids_cleanup_keeps_everything(tmp_path: Path) -> None:
    table = daily(tmp_path, properties={"delta.enableExpiredLogCleanup": "false"})
    table.checkpoint(5)
    result = clean(tmp_path, today=400)
    assert (result.files, result.oldest_version) == ((), None)
    assert "delta.enableExpiredLogCleanup" in result.reason


@pytest.mark.parametrize(("needed", "oldest"), [(4, 3), (3, 3), (8, 7), (2, None), (100, 7)])
def test_versions_that_a_pipeline_still_wants_stay(
    tmp_path: Path, needed: int, oldest: int | None
) -> None:
    table = daily(tmp_path)
    for version in (3, 7, 12):
        table.checkpoint(version)
    result = clean(tmp_path, today=40, needed_from=needed)
    assert result.oldest_version == oldest
    assert commits_of(table)[0] == (oldest or 0)


def test_protected_checkpoints_stay(tmp_path: Path) -> None:
    table = daily(
        tmp_path,
        writer_features=["checkpointProtection"],
        properties={"delta.requireCheckpointProtectionBeforeVersion": "10"},
    )
    table.checkpoint(3)
    table.checkpoint(7)
    table.checkpoint(12)
    result = clean(tmp_path, today=40)
    assert result.files == ()
    assert "protected" in result.reason
    assert clean(tmp_path, today=45).oldest_version == 12


def test_in_commit_times_count_where_the_table_has_them(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path,
        reader_features=[],
        writer_features=["inCommitTimestamp"],
        properties=IN_COMMIT_TIMESTAMPS,
    )
    # Files that were copied lately have young times, and files of tapes very old ones.
    table.create(add("a"), mtime_ms=1000, in_commit_ms=FIRST)
    for day in range(1, 10):
        table.commit(add(f"a{day}"), mtime_ms=1000 + day, in_commit_ms=FIRST + day * DAY)
    for version in (2, 5, 8):
        table.checkpoint(version)
    assert clean(tmp_path, today=37).oldest_version == 5
    assert commits_of(table) == [5, 6, 7, 8, 9]


def test_sidecars_go_when_nobody_names_them_and_they_are_old(tmp_path: Path) -> None:
    table = daily(tmp_path)
    today = 40
    table.checkpoint(3, layout="v2-json", sidecars=2)
    table.checkpoint(7, layout="v2-parquet", sidecars=1)
    table.checkpoint(12, layout="v2-json", sidecars=1)
    folder = table.log / "_sidecars"
    kept = 2
    young = OLD_SIDECAR.replace("0000-4", "0001-4")
    for name, age in ((OLD_SIDECAR, 5), (young, 1), ("no sidecar.parquet", 9)):
        (folder / name).write_bytes(b"")
        seconds = (FIRST + (today - age) * DAY) / 1000
        os.utime(folder / name, (seconds, seconds))
    seconds = (FIRST + 3 * DAY) / 1000
    for path in folder.glob("*-*-*.parquet"):
        if path.name != young:
            os.utime(path, (seconds, seconds))
    result = clean(tmp_path, today=today)
    assert sum(name.startswith("_sidecars/") for name in result.files) == 3
    left = {path.name for path in folder.iterdir()}
    assert {young, "no sidecar.parquet"} <= left
    assert len(left) == kept + 2
    assert OLD_SIDECAR not in left


def test_sidecars_stay_while_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(7, layout="v2-json", sidecars=1)
    (table.log / f"{9:020}.checkpoint.parquet").write_bytes(b"PAR1 torn")
    folder = table.log / "_sidecars"
    (folder / OLD_SIDECAR).write_bytes(b"")
    os.utime(folder / OLD_SIDECAR, (1, 1))
    with pytest.raises(CorruptLogError, match="Cleanup was skipped"):
        clean(tmp_path, today=40)
    assert commits_of(table)[0] == 0
    result = clean(tmp_path, today=40, needed_from=8)
    assert result.oldest_version == 7
    assert (folder / OLD_SIDECAR).exists()


def test_a_checkpoint_that_is_damaged_anywhere_stands_for_nothing(tmp_path: Path) -> None:
    table = daily(tmp_path)
    [path] = table.checkpoint(7)
    body = bytearray(path.read_bytes())
    # The statistics are near the end of the data, and opening a table does not look at them.
    body[200:700] = bytes(500)
    path.write_bytes(bytes(body))
    with pytest.raises(CorruptLogError, match="Cleanup was skipped"):
        clean(tmp_path, today=40)
    assert commits_of(table)[0] == 0


def test_leftovers_of_dead_writers_are_swept(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(7)
    for name, age in ((".tailerd-tmp-old", 5), (".tailerd-tmp-young", 1)):
        (table.log / name).write_bytes(b"")
        seconds = (FIRST + (40 - age) * DAY) / 1000
        os.utime(table.log / name, (seconds, seconds))
    assert clean(tmp_path, today=40).leftovers == 1
    assert not (table.log / ".tailerd-tmp-old").exists()
    assert (table.log / ".tailerd-tmp-young").exists()


def test_files_of_others_stay(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(7)
    for name in (f"{3:020}.json.tmp", "_commits", f".{3:020}.json.crc", "notes"):
        (table.log / name).write_text("x")
    clean(tmp_path, today=40)
    for name in (f"{3:020}.json.tmp", "_commits", f".{3:020}.json.crc", "notes"):
        assert (table.log / name).exists()


def test_a_table_with_unknown_writer_features_is_not_cleaned_up(tmp_path: Path) -> None:
    table = daily(tmp_path, reader_features=[], writer_features=["somethingNew"])
    table.checkpoint(7)
    with pytest.raises(UnsupportedFeatureError, match="somethingNew"):
        clean(tmp_path, today=40)
    assert commits_of(table)[0] == 0


@pytest.mark.parametrize("stop_after", range(0, 20, 3))
def test_a_cleanup_that_stops_anywhere_leaves_kept_versions_whole(
    tmp_path: Path, stop_after: int
) -> None:
    table = daily(tmp_path / "table")
    for version in (3, 7, 12):
        table.checkpoint(version)
    table.compact(1, 4)
    table.checksum(5)
    shutil.copytree(table.folder, tmp_path / "whole")

    class Dying(LocalStore):
        left = stop_after

        async def delete(self, path: str) -> None:
            self.left -= 1
            if self.left < 0:
                raise StorageError("The process died, as the test told it to.")
            await super().delete(path)

    async def job() -> None:
        reader = LogReader(Dying(), str(table.folder))
        snapshot, _ = await reader.open_listed()
        cleanup = LogCleanup(reader, clock=SimClock(FIRST + 40 * DAY))
        plan = await cleanup.plan(snapshot.state)
        with contextlib.suppress(StorageError):
            await cleanup.apply(plan)

    asyncio.run(job())
    assert_readable(table, tmp_path / "whole", range(7, 40))


def test_our_checkpoint_lets_an_old_log_be_cut(tmp_path: Path) -> None:
    table = daily(tmp_path / "table")
    shutil.copytree(table.folder, tmp_path / "whole")

    async def checkpoint() -> None:
        reader = LogReader(LocalStore(), str(table.folder))
        await LogWriter(reader, clock=SimClock(FIRST)).write_checkpoint(await reader.open(9))

    asyncio.run(checkpoint())
    assert clean(table.folder, today=40).oldest_version == 9
    assert_readable(table, tmp_path / "whole", range(9, 40))

    async def gone() -> None:
        with pytest.raises(MissingVersionError):
            await LogReader(LocalStore(), str(table.folder)).open(8)

    asyncio.run(gone())
