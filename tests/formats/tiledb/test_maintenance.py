"""Merging and deleting through TileDB's own calls: what harms no reader, and when."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.clock import SystemClock
from tailerd.errors import MissingVersionError
from tailerd.formats.maintenance import (
    CLEANUP,
    CleanupPolicy,
    LogAssessment,
    MaintenancePolicies,
    RetentionFloor,
)
from tailerd.formats.tiledb.maintenance import ArrayMaintenance
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import EVERYTHING, applied, changes, opened
from tests.tables.opened import part_request

TIMES = (1000, 1010, 1020, 1030)


def work(
    path: Path, jobs: Mapping[str, object], *, floor: int | None = None, cleans: bool = False
) -> ArrayMaintenance:
    async def ask(_: str) -> RetentionFloor:
        return RetentionFloor(from_version=floor)

    return ArrayMaintenance(
        part_request(path, "tiledb"),
        MaintenancePolicies(jobs=json.dumps(jobs), cleanup=CleanupPolicy(is_enabled=cleans)),
        SystemClock(),
        ask,
    )


def due(assessment: LogAssessment) -> list[str]:
    return [each.job for each in assessment.decisions if each.is_due]


async def do_all(found: ArrayMaintenance) -> list[str]:
    done = []
    assessment = await found.assessment()
    for decision in assessment.decisions:
        assert decision.reason
        if decision.is_due:
            result = await found.apply(assessment, decision)
            assert result.summary
            done.append(result.job)
    return done


def written(path: Path, kind: str) -> dict[int, object]:
    draw = random.Random(kind)
    arrays.create(path, is_sparse=kind == "sparse")
    for time in TIMES:
        if kind == "sparse":
            cells = sorted({(draw.randrange(40),) for _ in range(6)})
            arrays.write(path, time, cells, arrays.values(len(cells), draw))
        else:
            low = draw.randrange(30)
            arrays.write_box(path, time, [(low, low + 5)], draw)
    return {time: arrays.state(path, time) for time in TIMES}


@pytest.mark.parametrize("kind", ["sparse", "dense"])
async def test_merging_commits_and_metadata_harms_no_history(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "array"
    before = written(path, kind)
    jobs = {"commits": {"every_commits": 3}, "fragment_meta": {"every_commits": 3}}
    found = work(path, jobs)
    assert await do_all(found) == ["commits", "fragment_meta"]
    assert {time: arrays.state(path, time) for time in TIMES} == before
    assert not list((path / "__commits").glob("*.wrt"))
    assert due(await found.assessment()) == []
    source = await opened(path)
    assert source.next_version(Version(TIMES[0])) == TIMES[1]


async def test_commits_with_a_delete_are_left_as_the_library_merges_them_only_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "array"
    written(path, "sparse")
    arrays.delete(path, 1040, "v == 1")
    found = work(path, {"commits": {"every_commits": 3}, "fragment_meta": None})
    assessment = await found.assessment()
    assert due(assessment) == []
    assert {each.job: each.reason for each in assessment.decisions}["commits"] == (
        "5 commit files are not merged; due at 3. TileDB cannot merge commits again that have"
        " deletes, and there are 1."
    )


async def test_a_survey_changes_nothing_and_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "array"
    written(path, "sparse")
    names = sorted(each.name for each in (path / "__commits").iterdir())
    assessment = await work(path, {"commits": {"every_commits": 5}}).assessment()
    assert due(assessment) == []
    assert {each.job: each.reason for each in assessment.decisions}["commits"] == (
        "4 commit files are not merged; due at 5."
    )
    assert sorted(each.name for each in (path / "__commits").iterdir()) == names


@pytest.mark.parametrize("kind", ["sparse", "dense"])
async def test_fragments_are_merged_and_deleted_only_behind_the_slowest_pipeline(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "array"
    before = written(path, kind)
    jobs: dict[str, object] = {"fragments": {"every_commits": 2}, "fragment_meta": None}
    # Somebody has yet to read 1020, which leads there from 1010.
    found = work(path, jobs, floor=TIMES[2], cleans=True)
    assert await do_all(found) == ["fragments"]
    assert await do_all(found) == [CLEANUP]
    left = sorted(each.name.split("_")[2:4] for each in (path / "__fragments").iterdir())
    assert left == [["1000", "1010"], ["1020", "1020"], ["1030", "1030"]]
    assert {time: arrays.state(path, time) for time in TIMES[1:]} == {
        time: before[time] for time in TIMES[1:]
    }
    source = await opened(path)
    start = Offset(table_id=source.table_id, version=Version(TIMES[2]))
    end = await source.latest_offset(start, EVERYTHING)
    assert applied(before[TIMES[1]], await changes(source, start, end)) == before[TIMES[3]]  # type: ignore[arg-type]
    if kind == "sparse":
        assert arrays.state(path, TIMES[0]) == before[TIMES[0]], "the cells keep their times"
        await found.check_readable_from(Version(TIMES[0] + 1), "export")
    else:
        with pytest.raises(MissingVersionError):
            await found.check_readable_from(Version(TIMES[0] + 1), "export")


async def test_what_was_merged_stays_where_nobody_switched_cleanup_on(tmp_path: Path) -> None:
    path = tmp_path / "array"
    written(path, "dense")
    arrays.consolidate(path)
    assessment = await work(path, {"fragment_meta": None}).assessment()
    assert due(assessment) == []
    assert "not switched on" in assessment.decisions[-1].reason
    held = await work(path, {"fragment_meta": None}, floor=TIMES[1], cleans=True).assessment()
    assert due(held) == []
    assert "must stay readable" in held.decisions[-1].reason
