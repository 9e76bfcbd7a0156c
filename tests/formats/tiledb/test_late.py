"""Commits that appear behind what was delivered, and history that was rewritten."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import ConfigError, LogChangedError, MissingVersionError
from tailerd.formats.base import ChangeSource
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import EVERYTHING, applied, batches, changes, opened
from tests.formats.tiledb.test_law import CONDITIONS, KINDS

HEAD = 1100


def base(path: Path, draw: random.Random, kind: str) -> None:
    shape = KINDS[kind]
    arrays.create(path, **shape)
    for time in (1000, 1020, 1040, 1060, 1080, HEAD):
        commit(path, draw, kind, time)


def plain(path: Path, draw: random.Random) -> None:
    """Write a cell at each of six times."""
    arrays.create(path)
    for number, time in enumerate((1000, 1020, 1040, 1060, 1080, HEAD)):
        arrays.write(path, time, [(number,)], arrays.values(1, draw))


def commit(path: Path, draw: random.Random, kind: str, time: int) -> None:
    shape = KINDS[kind]
    if not shape["is_sparse"]:
        low = draw.randrange(30)
        arrays.write_box(path, time, [(low, low + draw.randrange(1, 9))], draw)
    elif time > 1000 and draw.random() < 0.3:
        simple = [each for each in CONDITIONS if " in " not in each]
        arrays.delete(path, time, draw.choice(simple))
    else:
        dimensions = shape.get("dimensions", 1)
        cells = sorted({tuple(draw.choices(range(40), k=dimensions)) for _ in range(9)})
        arrays.write(path, time, cells, arrays.values(len(cells), draw))


@pytest.mark.parametrize("kind", ["sparse", "duplicates", "dense", "sparse_2d"])
@pytest.mark.parametrize("number", range(2))
async def test_late_commits_lead_from_what_was_delivered_to_what_is_there(
    tmp_path: Path, kind: str, number: int
) -> None:
    draw, path = random.Random(f"late {kind} {number}"), tmp_path / "array"
    base(path, draw, kind)
    source = await opened(path, tmp_path / "ledger")
    offset = await source.initial_offset("latest")
    before = arrays.state(path, HEAD)
    for time in draw.sample((1010, 1030, 1050, 1070, 1090), 3):
        commit(path, draw, kind, time)
    # Another process goes on.
    source = await opened(path, tmp_path / "ledger")
    end = await source.latest_offset(offset, EVERYTHING)
    found = await batches(source, offset, end)
    assert {int(batch.version) for batch in found} <= {HEAD}
    assert all(batch.timestamp_us < HEAD * 1000 for batch in found)
    assert {batch.change_source for batch in found} <= {"late"}
    assert applied(before, await changes(source, offset, end)) == arrays.state(path, HEAD)
    assert await source.latest_offset(end, EVERYTHING) == end, "they come once"
    commit(path, draw, kind, HEAD + 1)
    after = await source.latest_offset(end, EVERYTHING)
    known = arrays.state(path, HEAD)
    assert applied(known, await changes(source, end, after)) == arrays.state(path, HEAD + 1)
    ids = [each for batch in found for each in batch.ids().to_pylist()]  # type: ignore[union-attr]
    assert len(set(ids)) == len(ids)


async def test_a_late_commit_is_given_after_an_interrupted_delivery_too(tmp_path: Path) -> None:
    draw, path = random.Random(3), tmp_path / "array"
    plain(path, draw)
    source = await opened(path, tmp_path / "ledger")
    offset = await source.initial_offset("latest")
    arrays.write(path, 1010, [(39,)], arrays.values(1, draw))
    end = await source.latest_offset(offset, EVERYTHING)
    first = await changes(source, offset, end)
    again = await opened(path, tmp_path / "ledger")
    assert await again.latest_offset(offset, EVERYTHING) == end
    assert await changes(again, offset, end) == first
    assert len(first) == 1


async def test_without_a_ledger_late_commits_are_not_looked_for(tmp_path: Path) -> None:
    draw, path = random.Random(4), tmp_path / "array"
    base(path, draw, "sparse")
    source = await opened(path)
    offset = await source.initial_offset("latest")
    arrays.write(path, 1010, [(39,)], arrays.values(1, draw))
    assert await source.latest_offset(offset, EVERYTHING) == offset


async def test_a_late_commit_stops_where_that_is_asked_for(tmp_path: Path) -> None:
    draw, path = random.Random(5), tmp_path / "array"
    base(path, draw, "sparse")
    source = await opened(path, tmp_path / "ledger", on_late="stop")
    offset = await source.initial_offset("latest")
    arrays.write(path, 1010, [(39,)], arrays.values(1, draw))
    with pytest.raises(MissingVersionError, match="came late"):
        await source.latest_offset(offset, EVERYTHING)
    with pytest.raises(ConfigError, match="on_late"):
        await opened(path, on_late="wait")


async def test_fragments_that_are_gone_and_merged_nowhere_are_a_gap(tmp_path: Path) -> None:
    draw, path = random.Random(6), tmp_path / "array"
    base(path, draw, "dense")
    source = await opened(path, tmp_path / "ledger")
    offset = await source.initial_offset("latest")
    assert await source.latest_offset(offset, EVERYTHING) == offset
    [commit_file] = (path / "__commits").glob("__1040_*")
    commit_file.unlink()
    with pytest.raises(MissingVersionError, match="rewritten"):
        await source.latest_offset(offset, EVERYTHING)


async def test_a_ledger_that_was_lost_is_a_gap_and_no_fresh_start(tmp_path: Path) -> None:
    draw, path = random.Random(7), tmp_path / "array"
    base(path, draw, "sparse")
    source = await opened(path, tmp_path / "ledger")
    offset = await source.initial_offset("latest")
    shutil.rmtree(tmp_path / "ledger")
    again = await opened(path, tmp_path / "ledger")
    with pytest.raises(MissingVersionError, match="ledger"):
        await again.latest_offset(offset, EVERYTHING)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
async def test_consolidation_and_vacuum_give_nothing_and_are_no_gap_at_the_head(
    tmp_path: Path, kind: str
) -> None:
    draw, path = random.Random(8), tmp_path / "array"
    base(path, draw, kind)
    source = await opened(path, tmp_path / "ledger")
    offset = await source.initial_offset("latest")
    for mode in ("fragments", "commits", "fragment_meta"):
        arrays.consolidate(path, mode)
        assert await source.latest_offset(offset, EVERYTHING) == offset
        arrays.vacuum(path, mode)
        assert await source.latest_offset(offset, EVERYTHING) == offset
    again = await opened(path, tmp_path / "ledger")
    before = arrays.state(path, HEAD)
    commit(path, draw, kind, HEAD + 30)
    end = await again.latest_offset(offset, EVERYTHING)
    assert end.version == Version(HEAD + 31)
    assert applied(before, await changes(again, offset, end)) == arrays.state(path, HEAD + 30)


async def behind_three(path: Path, ledger: Path) -> tuple[ChangeSource, Offset, Offset]:
    """Return a source at 1040 of an array with commits of 1000, 1020 and so on, and its end."""
    plain(path, random.Random(0))
    source = await opened(path, ledger)
    start = await source.offset_at(Version(1041))
    return source, start, await source.latest_offset(start, EVERYTHING)


def write_one(path: Path, time: int) -> None:
    arrays.write(path, time, [(20,)], arrays.values(1, random.Random(time)))


async def test_what_appears_before_it_is_planned_is_planned_again(tmp_path: Path) -> None:
    path = tmp_path / "array"
    source, start, end = await behind_three(path, tmp_path / "ledger")
    write_one(path, 1070)
    # Metrics look too, while a delivery is planned.
    await source.backlog(start)
    with pytest.raises(LogChangedError):
        await batches(source, start, end)
    again = await source.latest_offset(start, EVERYTHING)
    assert len(await changes(source, start, again)) == 4
    assert await source.latest_offset(again, EVERYTHING) == again


@pytest.mark.parametrize("time", [1030, 1070])
async def test_what_appears_before_it_is_read_is_planned_again(tmp_path: Path, time: int) -> None:
    path = tmp_path / "array"
    source, start, end = await behind_three(path, tmp_path / "ledger")
    groups = [group async for group in source.plan(start, end)]
    write_one(path, time)
    tasks = [task for group in groups for task in group.tasks]
    assert len(tasks) == 3
    for task in tasks:
        with pytest.raises(LogChangedError):
            list(source.read(task, DEFAULT_BATCH_LIMIT))
    found = Counter[object]()
    while (again := await source.latest_offset(start, EVERYTHING)) != start:
        found.update(row[0] for _, row in await changes(source, start, again))
        start = again
    assert found == Counter({3: 1, 4: 1, 5: 1, 20: 1})


async def test_what_appears_behind_the_end_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "array"
    source, start, end = await behind_three(path, tmp_path / "ledger")
    write_one(path, HEAD + 10)
    assert len(await changes(source, start, end)) == 3


async def test_without_a_ledger_nothing_is_given_twice_whatever_appears(tmp_path: Path) -> None:
    path = tmp_path / "array"
    plain(path, random.Random(0))
    source = await opened(path)
    start = await source.offset_at(Version(1041))
    end = await source.latest_offset(start, EVERYTHING)
    write_one(path, 1070)
    assert len(await changes(source, start, end)) == 4
