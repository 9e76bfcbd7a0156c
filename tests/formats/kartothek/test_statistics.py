"""How large a dataset is, and what of it is still to be delivered."""

from __future__ import annotations

from pathlib import Path

from tailerd.formats.detect import table_format
from tailerd.formats.statistics import PendingWork, TableStatistics
from tailerd.state.ledger import LedgerLocation
from tests.formats.kartothek.observing import Follower
from tests.formats.kartothek.test_daemon import rows
from tests.tables.dataset_writer import DatasetWriter
from tests.tables.opened import part_request


def measured(location: Path, ledger: Path | None = None) -> TableStatistics:
    found = table_format("kartothek")
    assert found.statistics is not None
    kept = None if ledger is None else LedgerLocation(str(ledger))
    return found.statistics(part_request(location, "kartothek", ledger=kept))


def stored(writer: DatasetWriter) -> list[int]:
    keys = [key for files in writer.partitions.values() for key in files.values()]
    return [writer.path(key).stat().st_size for key in keys]


async def test_files_bytes_and_rows_follow_the_commits(tmp_path: Path) -> None:
    writer, ledger = DatasetWriter(tmp_path / "store"), tmp_path / "ledger"
    [first] = writer.commit(rows(1, 2, 3))
    follower = await Follower.open(writer.location, "latest", ledger=ledger)
    found = measured(writer.location, ledger)
    await found.open(0, first=follower.at, next_up=follower.at)
    assert found.has_identity(follower.at.table_id)
    writer.commit(rows(4, 5), without=lambda label: label == first)
    writer.commit(rows(6))
    start = follower.at
    end = await follower.source.latest_offset(start, follower.limit)
    assert not await found.advance(1)
    size = found.size()
    assert (size.version, size.files, size.rows) == (1, 2, 3)
    assert size.bytes == sum(stored(writer))
    assert sum(size.size_counts) == 2
    [commit] = found.take_commits()
    assert (commit.version, commit.files_added, commit.files_removed) == (1, 2, 1)
    assert found.take_commits() == []
    left = found.pending(start)
    assert left is not None
    assert left.files == 3
    assert found.pending(end) == PendingWork(files=0, bytes=0)


async def test_a_snapshot_that_is_given_in_part_has_files_left(tmp_path: Path) -> None:
    writer, ledger = DatasetWriter(tmp_path / "store"), tmp_path / "ledger"
    for number in range(3):
        writer.commit(rows(number))
    follower = await Follower.open(writer.location, ledger=ledger)
    found = measured(writer.location, ledger)
    at = follower.at.at(1)
    await found.open(0, first=at, next_up=at)
    left = found.pending(at)
    assert left == PendingWork(files=2, bytes=sum(stored(writer)) // 3 * 2)


async def test_without_a_ledger_it_is_measured_as_it_is(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1, 2))
    found = measured(writer.location)
    await found.open(0, first=None, next_up=None)
    assert (found.size().files, found.size().rows, found.version) == (1, 2, 0)
