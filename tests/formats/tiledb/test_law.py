"""The state before and the changes of a version are the next state, by tiledb's own time travel."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tiledb

from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import MissingVersionError
from tailerd.formats.tiledb import task_plan
from tailerd.formats.tiledb.scan import decode_payload
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import EVERYTHING, applied, changes, opened, snapshot

CONDITIONS = (
    "v >= 4", "v < 2 and x > 20", "f > 1", "n == 3", "n in [1, 2]", "s == 'a' or v == 0",
    "s != 'zzz' and x < 9", "not (v < 5)", "x == 7", "v == -1", "f <= -2.0 or n < 1",
)  # fmt: skip

KINDS: dict[str, dict[str, Any]] = {
    "sparse": {"is_sparse": True},
    "duplicates": {"is_sparse": True, "has_duplicates": True},
    "dense": {"is_sparse": False},
    "sparse_2d": {"is_sparse": True, "dimensions": 2},
    "dense_2d": {"is_sparse": False, "dimensions": 2},
}


def written(path: Path, draw: random.Random, kind: str) -> list[int]:
    """Write a random array; return the times of its commits."""
    shape = KINDS[kind]
    arrays.create(path, **shape)
    dimensions, time = shape.get("dimensions", 1), 1000
    times: list[int] = []
    for _ in range(draw.randrange(4, 11)):
        time += draw.randrange(1, 20)
        if not shape["is_sparse"]:
            box = [sorted(draw.choices(range(40), k=2)) for _ in range(dimensions)]
            small = [(low, min(high, low + 9)) for low, high in box]
            arrays.write_box(path, time, small, draw)
        elif times and draw.random() < 0.3:
            arrays.delete(path, time, draw.choice(CONDITIONS))
        else:
            count = draw.randrange(1, 12)
            cells = [tuple(draw.choices(range(40), k=dimensions)) for _ in range(count)]
            if not shape.get("has_duplicates"):
                cells = sorted(set(cells))
            arrays.write(path, time, cells, arrays.values(len(cells), draw))
        times.append(time)
    return times


async def check(path: Path, times: list[int]) -> None:
    source = await opened(path)
    before, after = arrays.state(path, 0), before_times(times)
    for time in times:
        start = await source.initial_offset(str(time))
        end = Offset(table_id=start.table_id, version=Version(time + 1))
        found = await changes(source, start, end)
        expected = arrays.state(path, time)
        assert applied(before, found) == expected, (time, after)
        assert await snapshot(source, time) == expected
        assert not unchanged(found)
        before = expected


def before_times(times: list[int]) -> str:
    return f"commits at {times}"


def unchanged(found: list[tuple[str, arrays.Row]]) -> Counter[arrays.Row]:
    """Return rows that are taken away and given back."""
    plus = Counter(row for kind, row in found if kind in ("insert", "update_postimage"))
    minus = Counter(row for kind, row in found if kind in ("delete", "update_preimage"))
    return plus & minus


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(3))
async def test_each_commit_of_a_random_array_leads_to_the_next_state(
    tmp_path: Path, kind: str, number: int
) -> None:
    draw = random.Random(f"{kind} {number}")
    times = written(tmp_path / "array", draw, kind)
    await check(tmp_path / "array", times)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_large_step_is_read_in_ranges_and_shows_it_nowhere(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = written(tmp_path / "array", random.Random(f"ranges {kind}"), kind)

    async def every_step() -> list[tuple[int, list[tuple[str, arrays.Row]]]]:
        source, found = await opened(tmp_path / "array"), []
        for time in times:
            start = await source.initial_offset(str(time))
            end = Offset(table_id=start.table_id, version=Version(time + 1))
            tasks = [task async for group in source.plan(start, end) for task in group.tasks]
            ranges = [len(decode_payload(task).first_ranges) for task in tasks]
            found.append((max(ranges), await changes(source, start, end)))
        return found

    whole = await every_step()
    monkeypatch.setattr(task_plan, "SHARE_BYTES", 4000)
    cut = await every_step()
    assert max(ranges for ranges, _ in whole) == 0
    assert max(ranges for ranges, _ in cut) > 3
    assert [rows for _, rows in cut] == [rows for _, rows in whole]


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_a_snapshot_in_shares_goes_on_after_restarts(
    tmp_path: Path, has_ledger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ledger = tmp_path / "array", tmp_path / "ledger" if has_ledger else None
    times = written(path, random.Random("shares"), "sparse")
    monkeypatch.setattr(task_plan, "SHARE_BYTES", 4000)
    at = await (await opened(path, ledger)).initial_offset("snapshot")
    found: list[tuple[str, arrays.Row]] = []
    steps = 0
    while at.phase is Phase.SNAPSHOT:
        source = await opened(path, ledger)
        at = Offset.from_json(at.to_json())
        end = await source.latest_offset(at, ReadLimit(max_files=1, max_bytes=1))
        found += await changes(source, at, end)
        # The choice of shares stays with the offset.
        monkeypatch.setattr(task_plan, "SHARE_BYTES", 10**9)
        at, steps = end, steps + 1
    assert steps > 3
    assert applied(Counter(), found) == arrays.state(path, times[-1])


@pytest.mark.parametrize("kind", ["sparse", "duplicates", "sparse_2d"])
@pytest.mark.parametrize("number", range(2))
async def test_merged_and_vacuumed_sparse_arrays_keep_every_version_between(
    tmp_path: Path, kind: str, number: int
) -> None:
    draw = random.Random(f"merged {kind} {number}")
    path = tmp_path / "array"
    times = written(path, draw, kind)
    states = {time: arrays.state(path, time) for time in times}
    arrays.consolidate(path)
    assert [version async for version in versions_of(path)] == times
    await check(path, times)
    arrays.vacuum(path)
    arrays.consolidate(path, "commits")
    arrays.vacuum(path, "commits")
    assert {time: arrays.state(path, time) for time in times} == states
    source = await opened(path)
    for at, time in enumerate(times):
        # Behind any time the rest is exact, whatever versions are left.
        offset = Offset(table_id=source.table_id, version=Version(time + 1))
        end = await source.latest_offset(offset, EVERYTHING)
        found = await changes(source, offset, end)
        assert applied(states[time], found) == states[times[-1]], at


async def versions_of(path: Path) -> AsyncIterator[int]:
    source = await opened(path)
    version = source.next_version(Version(-1))
    head = (await source.initial_offset("latest")).version
    while version < head:
        yield version
        version = source.next_version(version)


@pytest.mark.parametrize("number", range(2))
async def test_what_a_merged_dense_array_can_no_longer_tell_is_a_gap(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"dense merged {number}")
    path = tmp_path / "array"
    times = written(path, draw, "dense")
    last = arrays.state(path, times[-1])
    arrays.consolidate(path)
    assert [version async for version in versions_of(path)] == times
    arrays.vacuum(path)
    assert [version async for version in versions_of(path)] == [times[-1]]
    source = await opened(path)
    begin = await source.initial_offset("1970-01-01T00:00:00Z")
    found = await changes(source, begin, await source.latest_offset(begin, EVERYTHING))
    assert applied(Counter(), found) == last
    offset = Offset(table_id=source.table_id, version=Version(times[1] + 1))
    with pytest.raises(MissingVersionError, match="merged into"):
        await source.latest_offset(offset, EVERYTHING)
    with pytest.raises(MissingVersionError):
        await source.initial_offset(str(times[1]))


async def test_writes_and_deletes_of_one_millisecond_are_one_version(tmp_path: Path) -> None:
    path, draw = tmp_path / "array", random.Random(5)
    arrays.create(path)
    cells = [(x,) for x in range(10)]
    arrays.write(path, 10, cells, arrays.values(10, draw))
    arrays.write(path, 20, [(1,), (30,)], arrays.values(2, draw))
    arrays.delete(path, 20, "x > 5")
    arrays.write(path, 20, [(2,)], arrays.values(1, draw))
    await check(path, [10, 20])


async def test_an_attribute_that_is_added_gives_pairs_where_cells_are_written(
    tmp_path: Path,
) -> None:
    path, draw = tmp_path / "array", random.Random(6)
    number = [tiledb.Attr("v", dtype="int64")]
    arrays.create(path, attributes=number)
    with tiledb.open(str(path), "w") as array:
        array[[1, 2, 3]] = {"v": [1, 2, 3]}
    context = tiledb.default_ctx()
    evolution = tiledb.ArraySchemaEvolution(context)
    evolution.add_attribute(tiledb.Attr("w", dtype="int32", fill=-5))
    evolution.add_attribute(tiledb.Attr("z", dtype="int32", nullable=True))
    source = await opened(path)
    latest = await source.initial_offset("latest")
    evolution.timestamp(int(latest.version))
    evolution.array_evolve(str(path))
    with tiledb.open(str(path), "w", timestamp=int(latest.version) + 1) as array:
        array[[2, 9]] = {"v": [2, 9], "w": [7, 7], "z": [draw.randrange(3), 1]}
    while (end := await source.latest_offset(latest, EVERYTHING)) == latest:
        pass
    found = await changes(source, latest, end)
    assert [(kind, row[:3]) for kind, row in found] == [
        (ChangeType.UPDATE_PREIMAGE, (2, 2, -5)),
        (ChangeType.UPDATE_POSTIMAGE, (2, 2, 7)),
        (ChangeType.INSERT, (9, 9, 7)),
    ]
    assert (await source.arrow_schema()).names == ["x", "v", "w", "z"]
