"""Compaction, indices, tags and cleanup, decided by policy and done by the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pytest

from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.clock import SystemClock
from tailerd.errors import ConfigError, MissingVersionError, UsageError
from tailerd.formats.lance.maintenance import LanceMaintenance
from tailerd.formats.lance.statistics import LanceStatistics
from tailerd.formats.maintenance import (
    CleanupPolicy,
    Decision,
    LogAssessment,
    MaintenancePolicies,
    RetentionFloor,
)
from tailerd.formats.part_request import PartRequest
from tests.formats.lance.following import changes_from, kinds, opened
from tests.formats.lance.test_gaps import rows, written
from tests.tables.opened import part_request

CLEANING = CleanupPolicy(is_enabled=True, older_than_seconds=0.0)


def at(location: Path) -> PartRequest:
    return part_request(location, "lance")


def maintained(
    location: Path,
    *,
    needed: int | None = None,
    cleanup: CleanupPolicy = CLEANING,
    obstacle: str = "",
    **jobs: Any,
) -> LanceMaintenance:
    async def floor(_: str) -> RetentionFloor:
        return RetentionFloor(from_version=needed, obstacle=obstacle)

    policies = MaintenancePolicies(jobs=json.dumps(jobs), cleanup=cleanup)
    return LanceMaintenance(at(location), policies, SystemClock(), floor)


def decided(assessment: LogAssessment, job: str) -> Decision:
    [found] = [each for each in assessment.decisions if each.job == job]
    return found


async def do(work: LanceMaintenance, job: str) -> str:
    assessment = await work.assessment()
    decision = decided(assessment, job)
    assert decision.is_due, decision
    return (await work.apply(assessment, decision)).summary


async def test_small_fragments_are_compacted_and_no_row_changes(tmp_path: Path) -> None:
    written(tmp_path / "t")
    work = maintained(tmp_path / "t", compaction={"small_fragments": 3})
    assert "6 of 6 fragments" in decided(await work.assessment(), "compaction").reason
    assert await do(work, "compaction") == "6 fragments became 1."
    table = lance.dataset(str(tmp_path / "t"))
    assert len(table.get_fragments()) == 1
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(7))
    assert kinds(await changes_from(await opened(tmp_path / "t"), "7")) == {}
    assert not decided(await work.assessment(), "compaction").is_due


async def test_deleted_rows_make_compaction_due(tmp_path: Path) -> None:
    writer = written(tmp_path / "t", 1)
    writer.append(rows(*range(10, 30)))
    work = maintained(tmp_path / "t", compaction={"small_fragments": 50, "deleted_share": 0.2})
    assert not decided(await work.assessment(), "compaction").is_due
    writer.delete("id > 20")
    assert "40.9% of all rows" in decided(await work.assessment(), "compaction").reason
    await do(work, "compaction")


async def test_nothing_is_done_that_is_not_switched_on(tmp_path: Path) -> None:
    written(tmp_path / "t")
    work = maintained(tmp_path / "t", cleanup=CleanupPolicy())
    assessment = await work.assessment()
    assert not any(each.is_due for each in assessment.decisions)
    assert {each.job for each in assessment.decisions} == {
        *("compaction", "optimize_indices", "tag", "cleanup"),
    }


@pytest.mark.parametrize(
    ("needed", "kept"), [(None, [6]), (7, [6]), (5, [4, 5, 6]), (1, [1, 2, 3, 4, 5, 6])]
)
async def test_a_cleanup_keeps_what_the_slowest_pipeline_needs(
    tmp_path: Path, needed: int | None, kept: list[int]
) -> None:
    written(tmp_path / "t")
    work = maintained(tmp_path / "t", needed=needed)
    assessment = await work.assessment()
    decision = decided(assessment, "cleanup")
    assert decision.is_due is (len(kept) < 6), decision
    if decision.is_due:
        result = await work.apply(assessment, decision)
        assert result.outcome == "deleted"
        assert result.version == kept[0]
    table = lance.dataset(str(tmp_path / "t"))
    assert [each["version"] for each in table.versions()] == kept
    assert table.count_rows() == 7
    if needed is not None:
        source = await opened(tmp_path / "t")
        for version in range(needed, 7):
            assert (await source.initial_offset(str(version))).version == version


async def test_a_cleanup_that_became_needed_meanwhile_deletes_nothing(tmp_path: Path) -> None:
    written(tmp_path / "t")
    assessment = await maintained(tmp_path / "t").assessment()
    late = maintained(tmp_path / "t", needed=1)
    await late.assessment()
    result = await late.apply(assessment, decided(assessment, "cleanup"))
    assert result.outcome == "nothing_to_say"
    assert len(lance.dataset(str(tmp_path / "t")).versions()) == 6
    waiting = await maintained(tmp_path / "t", obstacle="Somebody has not reported.").assessment()
    assert decided(waiting, "cleanup").reason == "Somebody has not reported."


async def test_young_versions_and_those_to_be_kept_stay(tmp_path: Path) -> None:
    written(tmp_path / "t")
    young = CleanupPolicy(is_enabled=True)
    assert not decided(
        await maintained(tmp_path / "t", cleanup=young).assessment(), "cleanup"
    ).is_due
    keep = CleanupPolicy(is_enabled=True, older_than_seconds=0.0, keep_from=4)
    await do(maintained(tmp_path / "t", cleanup=keep), "cleanup")
    kept = [each["version"] for each in lance.dataset(str(tmp_path / "t")).versions()]
    assert kept == [3, 4, 5, 6]


async def test_a_tag_keeps_the_version_that_is_needed_from_cleanups_of_others(
    tmp_path: Path,
) -> None:
    writer = written(tmp_path / "t")
    work = maintained(tmp_path / "t", needed=4, cleanup=CleanupPolicy(), tag=True)
    await do(work, "tag")
    assert not decided(await work.assessment(), "tag").is_due
    table = writer.dataset
    assert table.tags.list()["tailerd"]["version"] == 3
    table.cleanup_old_versions(
        versions=[1, 2, 3, 4, 5], delete_unverified=True, error_if_tagged_old_versions=False
    )
    assert [each["version"] for each in table.versions()] == [3, 6]
    writer.append(rows(60))
    await do(maintained(tmp_path / "t", needed=7, cleanup=CleanupPolicy(), tag=True), "tag")
    assert writer.dataset.tags.list()["tailerd"]["version"] == 6


async def test_indices_are_brought_up_to_date(tmp_path: Path) -> None:
    writer = written(tmp_path / "t", 2)
    writer.dataset.create_scalar_index("id", "BTREE")
    work = maintained(tmp_path / "t", optimize_indices=1)
    assert not decided(await work.assessment(), "optimize_indices").is_due
    writer.append(rows(50))
    assert (
        "1 fragments are not indexed" in decided(await work.assessment(), "optimize_indices").reason
    )
    await do(work, "optimize_indices")
    assert not decided(await work.assessment(), "optimize_indices").is_due


async def test_a_version_is_pinned_while_its_changes_can_be_told(tmp_path: Path) -> None:
    writer = written(tmp_path / "t")
    work = maintained(tmp_path / "t")
    await work.check_readable_from(Version(7), "export")
    writer.clean_up_before(4)
    await work.check_readable_from(Version(5), "export")
    with pytest.raises(MissingVersionError):
        await work.check_readable_from(Version(4), "export")
    with pytest.raises(UsageError):
        await work.check_readable_from(Version(9), "export")
    with pytest.raises(ConfigError):
        maintained(tmp_path / "t", compaction={"small_fragments": "many"})


async def test_growth_follows_commits(tmp_path: Path) -> None:
    writer = written(tmp_path / "t", 2)
    source = await opened(tmp_path / "t")
    begin = await source.initial_offset("snapshot")
    growth = LanceStatistics(at(tmp_path / "t"))
    await growth.open(0.0, first=begin, next_up=begin)
    assert growth.has_identity(source.table_id)
    pending = growth.pending(begin)
    assert pending is not None
    assert pending.files == 2
    writer.delete("id = 1")
    writer.append(rows(5, 6))
    while await growth.advance(1.0):
        pass
    size = growth.size()
    assert (size.version, size.files, size.rows, size.deleted_rows) == (4, 3, 4, 1)
    assert (size.deletion_vectors, size.log_files) == (1, 4)
    assert size.bytes == sum(f.stat().st_size for f in (tmp_path / "t/data").iterdir())
    assert [each.operation for each in growth.take_commits()] == ["delete", "append"]
    after = Offset(table_id=source.table_id, version=Version(4), phase=Phase.FOLLOW)
    left = growth.pending(after)
    assert left is not None
    assert left.files == 1
    done = growth.pending(await source.offset_at(Version(5)))
    assert done is not None
    assert done.files == 0
