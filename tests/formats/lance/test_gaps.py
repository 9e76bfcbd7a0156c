"""Versions that are gone, tables made again, and what a look costs."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from pathlib import Path

import lance
import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import MissingVersionError, TableRecreatedError
from tailerd.formats.base import NetSteps
from tests.formats.lance.following import EVERYTHING, batches, changes, opened, rest
from tests.tables.lance_writer import LanceWriter, Rows


def rows(*ids: int) -> Rows:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def written(location: Path, commits: int = 6) -> LanceWriter:
    """Version 1 has rows 0 and 1; each further version one more row."""
    writer = LanceWriter(location)
    writer.append(rows(0, 1))
    for number in range(2, commits + 1):
        writer.append(rows(number))
    return writer


def ids(found: object) -> list[tuple[str, int]]:
    return [(kind, row["id"]) for kind, row in changes(found)]  # type: ignore[arg-type]


@pytest.mark.parametrize("gone", [[3], [2, 3], [2, 3, 4]])
async def test_versions_that_are_gone_in_the_middle_are_a_gap(
    tmp_path: Path, gone: list[int]
) -> None:
    writer = written(tmp_path / "t")
    source = await opened(tmp_path / "t")
    start = await source.offset_at(Version(gone[0]))
    writer.dataset.cleanup_old_versions(versions=gone)
    with pytest.raises(MissingVersionError, match=f"version {gone[0]}"):
        await rest(await opened(tmp_path / "t"), start)
    after = Version(gone[-1] + 1)
    source = await opened(tmp_path / "t")
    with pytest.raises(MissingVersionError, match=f"changes of version {after} are not known"):
        await source.initial_offset(str(after))
    found, _ = await rest(source, await source.offset_at(Version(after + 1)))
    assert ids(found) == [("insert", number) for number in range(after + 1, 7)]


@pytest.mark.parametrize("gone", [[3], [2, 3, 4]])
async def test_a_gap_is_crossed_by_the_difference_to_the_newest_version(
    tmp_path: Path, gone: list[int]
) -> None:
    writer = written(tmp_path / "t")
    writer.dataset.optimize.compact_files()
    writer.delete("id = 1")
    source = await opened(tmp_path / "t")
    start = await source.offset_at(Version(gone[0]))
    writer.dataset.cleanup_old_versions(versions=gone)
    source = await opened(tmp_path / "t")
    assert isinstance(source, NetSteps)
    marked = await source.over_gap(start)
    # The table goes on, and the step stays what it was.
    head = writer.dataset.version
    writer.append(rows(70))
    end = await (await opened(tmp_path / "t")).latest_offset(marked, EVERYTHING)
    assert end.version == head + 1
    found = await batches(source, marked, end)
    assert {batch.version for batch in found} == {head}
    assert {batch.change_source for batch in found} == {"net"}
    assert Counter(ids(found)) == Counter(
        [*(("insert", number) for number in range(gone[0], 7)), ("delete", 1)]
    )
    again = await batches(await opened(tmp_path / "t"), marked, end)
    assert changes(again) == changes(found)
    more, _ = await rest(source, end)
    assert ids(more) == [("insert", 70)]


async def test_a_gap_without_its_first_version_stays_one(tmp_path: Path) -> None:
    writer = written(tmp_path / "t")
    source = await opened(tmp_path / "t")
    start = await source.offset_at(Version(4))
    writer.clean_up_before(5)
    source = await opened(tmp_path / "t")
    assert isinstance(source, NetSteps)
    with pytest.raises(MissingVersionError):
        await source.over_gap(start)


async def test_many_new_versions_come_as_one_difference_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    writer = written(tmp_path / "t")
    source = await opened(tmp_path / "t", net_above=3)
    assert isinstance(source, NetSteps)
    start = await source.offset_at(Version(3))
    end = await source.latest_offset(start, EVERYTHING)
    pinned = source.pin_end(start, end)
    assert pinned != start
    writer.append(rows(70))
    again = await opened(tmp_path / "t")
    assert await again.latest_offset(pinned, EVERYTHING) == end
    found = await batches(again, pinned, end)
    assert {batch.version for batch in found} == {6}
    assert sorted(ids(found)) == [("insert", number) for number in (3, 4, 5, 6)]
    near = await source.offset_at(Version(6))
    assert (await source.latest_offset(near, EVERYTHING)).version == 8
    assert source.pin_end(near, end) == near


@pytest.mark.parametrize("commits", [2, 5, 9])
@pytest.mark.parametrize("is_open", [True, False])
async def test_a_table_that_is_made_again_is_another(
    tmp_path: Path, commits: int, is_open: bool
) -> None:
    written(tmp_path / "t", 5)
    source = await opened(tmp_path / "t", ledger=tmp_path / "ledger")
    before, at = await rest(source, await source.initial_offset("1"))
    assert len(changes(before)) == 6
    shutil.rmtree(tmp_path / "t")
    written(tmp_path / "t", commits)
    later = source if is_open else await opened(tmp_path / "t", ledger=tmp_path / "ledger")
    with pytest.raises(TableRecreatedError):
        await later.latest_offset(at, EVERYTHING)
    if not is_open:
        assert later.table_id != source.table_id


async def test_a_table_that_was_dropped_is_not_one_without_news(tmp_path: Path) -> None:
    written(tmp_path / "t")
    source = await opened(tmp_path / "t")
    at = await source.initial_offset("latest")
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(TableRecreatedError, match="dropped"):
        await source.latest_offset(at, EVERYTHING)


async def test_a_table_keeps_its_id_when_old_versions_go(tmp_path: Path) -> None:
    writer = written(tmp_path / "t")
    first = await opened(tmp_path / "t", ledger=tmp_path / "ledger")
    at = await first.initial_offset("latest")
    writer.clean_up_before(5)
    again = await opened(tmp_path / "t", ledger=tmp_path / "ledger")
    assert again.table_id == first.table_id
    assert await again.latest_offset(at, EVERYTHING) == at
    # Without a ledger the offset is known by its version's transaction.
    other = await opened(tmp_path / "t")
    writer.append(rows(50))
    found, _ = await rest(other, at)
    assert ids(found) == [("insert", 50)]


async def test_a_commit_half_given_is_finished_as_it_was_begun(tmp_path: Path) -> None:
    writer = written(tmp_path / "t")
    writer.dataset.update({"name": "'x'"}, where="id < 4")
    raw = await opened(tmp_path / "t")
    start = await raw.offset_at(Version(7))
    half = await raw.latest_offset(start, ReadLimit(max_files=1, max_bytes=1))
    assert half.position
    first = await batches(raw, start, half)
    keyed = await opened(tmp_path / "t", identity=["id"])
    rest_of_it, _ = await rest(keyed, half)
    whole, _ = await rest(raw, start)
    assert changes([*first, *rest_of_it]) == changes(whole)


async def test_times_name_versions(tmp_path: Path) -> None:
    written(tmp_path / "t")
    source = await opened(tmp_path / "t")
    for each in lance.dataset(str(tmp_path / "t")).versions():
        reported = each["timestamp"]
        assert isinstance(reported, dt.datetime)
        time = reported.astimezone(dt.UTC)
        at = await source.initial_offset(time.isoformat())
        assert at.version == each["version"]
        assert await source.end_version(time.isoformat()) == each["version"]


async def test_offsets_of_no_version_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "t", 3)
    source = await opened(tmp_path / "t")
    with pytest.raises(TableRecreatedError):
        await source.latest_offset(Offset(table_id=source.table_id, version=Version(9)), EVERYTHING)
    for version in ("0", "5"):
        with pytest.raises(MissingVersionError):
            await source.initial_offset(version)
    assert (await source.initial_offset("4")).version == 4
