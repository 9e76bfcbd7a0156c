"""A log is assessed, its policies decide, and what is due is done."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tailerd.errors import ConfigError, UnsupportedFeatureError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance, LogState
from tailerd.formats.delta.maintenance.policies import (
    CheckpointPolicy,
    ChecksumPolicy,
    LogCompactionPolicy,
    LogStats,
    Policies,
)
from tailerd.formats.maintenance import CleanupPolicy, JobResult, RetentionFloor
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import write_history
from tests.formats.delta.log_bodies import add
from tests.maintenance.test_cleanup import DAY, FIRST, assert_readable, commits_of, daily
from tests.tables.builder import TableBuilder


def maintenance(table: TableBuilder, policies: Policies, **more: object) -> DeltaMaintenance:
    reader = LogReader(LocalStore(), str(table.folder))
    clock = SimClock(FIRST + 40 * DAY)
    return DeltaMaintenance(reader, policies, clock=clock, **more)  # type: ignore[arg-type]


def wanting(version: int) -> Callable[[str], Awaitable[RetentionFloor]]:
    async def needs(_: str) -> RetentionFloor:
        return RetentionFloor(from_version=version + 1)

    return needs


async def stats_found(table: TableBuilder) -> LogStats:
    found = (await maintenance(table, Policies()).assessment()).payload
    assert isinstance(found, LogState)
    return found.stats


async def do_all(work: DeltaMaintenance) -> dict[str, JobResult]:
    """LogAssessment again and again until nothing is due."""
    done: dict[str, JobResult] = {}
    for _ in range(9):
        assessment = await work.assessment()
        due = [decision for decision in assessment.decisions if decision.is_due]
        if not due:
            return done
        for decision in due:
            done[decision.job] = await work.apply(assessment, decision)
    raise AssertionError(f"never done: {done}")


async def test_a_survey_counts_what_readers_replay(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.checkpoint(3)
    table.compact(4, 6)
    table.checksum()
    table.change_metadata(properties={"delta.checkpointInterval": "7"})
    stats = await stats_found(table)
    assert [commit.version for commit in stats.commits] == list(range(4, table.version + 1))
    assert stats.commit_bytes == sum(
        table.commit_path(version).stat().st_size for version in range(4, table.version + 1)
    )
    assert (stats.checkpoint_version, stats.compacted_until) == (3, 6)
    assert (stats.table_interval, stats.has_checksum) == (7, False)


@pytest.mark.parametrize("interval", ["0", "-5", "many", ""])
async def test_an_interval_out_of_range_is_as_good_as_none(tmp_path: Path, interval: str) -> None:
    table = TableBuilder(tmp_path, properties={"delta.checkpointInterval": interval})
    table.create(add("a"))
    assert (await stats_found(table)).table_interval is None


async def test_what_is_due_is_done_once(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    policies = Policies(
        checkpoint=CheckpointPolicy(every_commits=3), checksum=ChecksumPolicy(is_enabled=True)
    )
    done = await do_all(maintenance(table, policies))
    assert {job: result.outcome for job, result in done.items()} == {
        "checksum": "written",
        "checkpoint": "written",
    }
    assert list(table.log.glob(f"{table.version:020}.checkpoint*"))
    assert await do_all(maintenance(table, policies)) == {}


async def test_a_compaction_is_done_between_checkpoints(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.checkpoint(2)
    policies = Policies(
        checkpoint=CheckpointPolicy(every_commits=100),
        log_compaction=LogCompactionPolicy(every_commits=3),
    )
    done = await do_all(maintenance(table, policies))
    assert done["log_compaction"].outcome == "written"
    assert (table.log / f"{3:020}.{table.version:020}.compacted.json").exists()


async def test_cleanup_is_off_unless_it_is_switched_on(tmp_path: Path) -> None:
    table = daily(tmp_path / "table")
    table.checkpoint(7)
    shutil.copytree(table.folder, tmp_path / "whole")
    none = Policies(checkpoint=CheckpointPolicy(every_commits=1000))
    assert await do_all(maintenance(table, none)) == {}
    cleaning = Policies(checkpoint=none.checkpoint, cleanup=CleanupPolicy(is_enabled=True))
    assert await do_all(maintenance(table, cleaning, floor=wanting(4))) == {}
    done = await do_all(maintenance(table, cleaning))
    assert done["cleanup"].files == 7
    assert commits_of(table)[0] == 7


async def test_cleanup_may_keep_more_than_the_table_says_but_not_less(tmp_path: Path) -> None:
    table = daily(tmp_path)
    table.checkpoint(3)
    table.checkpoint(7)
    longer = Policies(
        checkpoint=CheckpointPolicy(every_commits=1000),
        cleanup=CleanupPolicy(is_enabled=True, older_than_seconds=35 * 86_400),
    )
    await do_all(maintenance(table, longer))
    assert commits_of(table)[0] == 3
    shorter = Policies(cleanup=CleanupPolicy(is_enabled=True, older_than_seconds=86_400))
    with pytest.raises(ConfigError, match=r"retains: its delta.logRetentionDuration is 30 days"):
        await maintenance(table, shorter).assessment()


async def test_a_table_with_unknown_writer_features_is_not_even_surveyed(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=[], writer_features=["somethingNew"])
    table.create(add("a"))
    with pytest.raises(UnsupportedFeatureError, match="somethingNew"):
        await maintenance(table, Policies()).assessment()


async def test_kept_versions_are_right_after_all_jobs(tmp_path: Path) -> None:
    table = daily(tmp_path / "table")
    shutil.copytree(table.folder, tmp_path / "whole")
    policies = Policies(
        checksum=ChecksumPolicy(is_enabled=True), cleanup=CleanupPolicy(is_enabled=True)
    )
    table.checkpoint(5)
    done = await do_all(maintenance(table, policies))
    assert done.keys() == {"checkpoint", "checksum", "cleanup"}
    shutil.copytree(table.folder, tmp_path / "after")
    whole, after = tmp_path / "whole", TableBuilder(tmp_path / "after")
    await asyncio.to_thread(assert_readable, after, whole, range(5, 40))


async def test_a_survey_tells_why_nothing_can_be_cleaned_up_and_what_else_is_due(
    tmp_path: Path,
) -> None:
    table = daily(tmp_path)
    [damaged] = table.checkpoint(7)
    damaged.write_bytes(b"PAR1 torn")
    work = maintenance(table, Policies(cleanup=CleanupPolicy(is_enabled=True)))
    assessment = await work.assessment()
    assert [each.job for each in assessment.decisions if each.is_due] == ["checkpoint"]
    [cleanup] = [each for each in assessment.decisions if each.job == "cleanup"]
    assert "checkpoint of version 7" in cleanup.reason
    assert assessment.cleanup_error is not None
    assert assessment.cleanup_error.code == "corrupt_log"


async def test_commits_that_say_nothing_are_not_read_at_every_turn(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.create(add("a"))
    table.checkpoint(0)
    for _ in range(3):
        table.commit()
    compacting = Policies(
        checkpoint=CheckpointPolicy(every_commits=1000),
        log_compaction=LogCompactionPolicy(every_commits=3),
    )
    work = maintenance(table, compacting)
    done = await do_all(work)
    assert done["log_compaction"].outcome == "nothing_to_say"
    for number in range(3):
        table.commit(add(f"b{number}"))
    [due] = [each for each in (await work.assessment()).decisions if each.is_due]
    assert (due.start_version, due.end_version) == (4, 6)
    assert (await do_all(work))["log_compaction"].outcome == "written"
    # Another table of this location.
    (tmp_path / "gone").mkdir()
    table.log.rename(tmp_path / "gone" / "_delta_log")
    other = TableBuilder(tmp_path, table_id="00000000-0000-4000-8000-000000000007")
    other.create(add("a"))
    other.checkpoint(0)
    for number in range(3):
        other.commit(add(f"c{number}"))
    assert (await do_all(work))["log_compaction"].outcome == "written"
