"""What is wrong around a log: full disks, files in the way, damaged files, senseless properties."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path

import deltalake
import pytest

from tailerd.errors import TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, Policies
from tailerd.formats.maintenance import CleanupPolicy
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.integration.daemon.running import (
    TAILERD,
    daemon,
    delivered_ids,
    file_table,
    run_to_end,
    write_config,
)
from tests.maintenance.tables import grow, living_table
from tests.maintenance.test_cleanup import DAY, FIRST, commits_of, daily
from tests.maintenance.test_daemon_keeps_logs import (
    big_table,
    checkpoints,
    kept,
    lines_of,
    make_table,
    often,
)
from tests.maintenance.written import (
    assert_same,
    checkpoint_actions,
    expected,
    parquet_actions,
    state_of,
)
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS, eventually

SMALL_BYTES = 64 * 1024
OFTEN = Policies(checkpoint=CheckpointPolicy(every_commits=1, min_interval_seconds=0))


@pytest.mark.full
def test_a_disk_that_is_full_in_the_middle_of_a_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    table = big_table(tmp_path / "orders", commits=11, files=3000)
    before = set(table.log.iterdir())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_BYTES, SMALL_BYTES))

    failed = subprocess.run(
        [*TAILERD, "maintain", str(table.folder), "--apply"],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("error[storage]: ")
    assert set(table.log.iterdir()) == before
    done = run_to_end("maintain", table.folder, "--apply")
    assert done.returncode == 0, done.stderr
    assert checkpoints(table.folder) == [table.version]
    assert len(deltalake.DeltaTable(table.folder).file_uris()) == 33_000


@pytest.mark.full
def test_a_daemon_whose_disk_is_full_delivers_on_and_checkpoints_later(tmp_path: Path) -> None:
    small, table = make_table(tmp_path / "small", 1), big_table(tmp_path / "big", 2, 10_000)
    config = write_config(
        tmp_path,
        small=file_table(small.folder, tmp_path / "out"),
        big=kept(table.folder, checkpoint=often(3)),
    )
    failed = "Maintenance job failed, retrying"
    with daemon(config) as process:
        # The processes of jobs inherit it, and other files of the daemon are smaller.
        hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (SMALL_BYTES, hard))
        table.append([{"id": 1}])
        eventually(lambda: bool(lines_of(config, failed)))
        small.append([{"id": 2}])
        eventually(lambda: delivered_ids(tmp_path / "out") == [1, 2])
        assert checkpoints(table.folder) == []
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        eventually(lambda: checkpoints(table.folder) == [table.version])
    assert {line["error_code"] for line in lines_of(config, failed)} == {"storage"}


@pytest.mark.full
def test_a_file_where_the_folder_of_leases_must_be_is_told_and_nothing_is_done(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path / "orders", 12)
    (table.folder / "_tailerd").write_text("in the way")
    before = set(table.log.iterdir())
    failed = run_to_end("maintain", table.folder, "--apply")
    assert failed.returncode == 1
    assert "_tailerd" in failed.stderr
    assert "a file is where a folder must be" in failed.stderr
    assert set(table.log.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unwritable for root")
def test_a_log_that_may_not_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    table = make_table(tmp_path / "orders", 12)
    before = set(table.log.iterdir())
    table.log.chmod(0o500)
    try:
        failed = run_to_end("maintain", table.folder, "--apply")
    finally:
        table.log.chmod(0o700)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error[access_denied]: ")
    assert set(table.log.iterdir()) == before


async def checkpoint_at_last(work: DeltaMaintenance, tries: int = 3) -> int:
    """Do what is due as the daemon does: a job that fails is done by a later try."""
    for _ in range(tries):
        try:
            assessment = await work.assessment()
            for decision in assessment.decisions:
                if decision.is_due:
                    return (await work.apply(assessment, decision)).version
        except TailerdError:
            continue
    raise AssertionError("it was never done")


def open_work(table: TableBuilder) -> DeltaMaintenance:
    return DeltaMaintenance(LogReader(LocalStore(), str(table.folder)), OFTEN)


def assert_whole(table: TableBuilder) -> None:
    """The newest checkpoint alone, with all it names, is the table."""
    found = state_of(checkpoint_actions(table.log, table.version), table.version)
    assert_same(found, expected(table.state(), now_ms=time.time_ns() // 1_000_000))


def part_of(table: TableBuilder, kind: str) -> Path:
    """The file of the checkpoint that has these actions."""
    if not (table.log / "_sidecars").exists():
        [path] = table.log.glob("*.checkpoint.parquet")
        return path
    paths = (table.log / "_sidecars").iterdir()
    [found] = [path for path in paths if kind in parquet_actions(path)[0]]
    return found


def harmed(body: bytes) -> dict[str, bytes | None]:
    return {
        "missing": None,
        "empty": b"",
        "zeros": bytes(len(body)),
        "cut short": body[: len(body) // 2],
    }


@pytest.mark.parametrize("is_held", [True, False], ids=["while it is held", "before the start"])
@pytest.mark.parametrize("harm", harmed(b""))
@pytest.mark.parametrize(
    ("is_v2", "kind"),
    [(False, "add"), (True, "add"), (True, "remove")],
    ids=["v1", "sidecar of adds", "sidecar of removes"],
)
async def test_the_next_checkpoint_is_whole_whatever_became_of_the_one_before(
    tmp_path: Path, is_v2: bool, kind: str, harm: str, is_held: bool
) -> None:
    table = living_table(tmp_path, is_v2=is_v2)
    work = open_work(table)
    assert await checkpoint_at_last(work) == table.version
    grow(table, 20)
    path = part_of(table, kind)
    body = harmed(path.read_bytes())[harm]
    path.unlink()
    if body is not None:
        path.write_bytes(body)
    assert await checkpoint_at_last(work if is_held else open_work(table)) == table.version
    assert_whole(table)


SENSELESS = {
    "delta.checkpointInterval": ["--1", "²", "-1", "0", "1e3", "99999999999999999999"],
    "delta.deletedFileRetentionDuration": [
        "soon",
        "interval -2 days",
        "interval 999999999999 weeks",
    ],
    "delta.setTransactionRetentionDuration": [
        "soon",
        "interval -2 days",
        "interval 999999999999 weeks",
    ],
    "delta.checkpoint.writeStatsAsJson": ["maybe", ""],
    "delta.checkpoint.writeStatsAsStruct": ["maybe", ""],
    "delta.checkpointPolicy": ["v9", ""],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in SENSELESS.items() for value in values]
)
async def test_a_property_out_of_range_makes_no_wrong_checkpoint(
    tmp_path: Path, name: str, value: str
) -> None:
    table = living_table(tmp_path / "table", is_v2=False, **{name: value})
    assert await checkpoint_at_last(open_work(table)) == table.version
    assert_whole(table)


@pytest.mark.parametrize(
    "retention", ["soon", "interval -2 days", "interval 1 month", "", "interval 999999999999 weeks"]
)
async def test_a_log_retention_that_is_none_or_out_of_range_deletes_nothing(
    tmp_path: Path, retention: str
) -> None:
    table = daily(tmp_path, properties={"delta.logRetentionDuration": retention})
    table.checkpoint(3)
    table.checkpoint(7)
    work = DeltaMaintenance(
        LogReader(LocalStore(), str(tmp_path)),
        Policies(
            checkpoint=CheckpointPolicy(is_enabled=False), cleanup=CleanupPolicy(is_enabled=True)
        ),
        clock=SimClock(FIRST + 40 * DAY),
    )
    assessment = await work.assessment()
    for decision in assessment.decisions:
        if decision.is_due:
            await work.apply(assessment, decision)
    assert commits_of(table)[0] == 0
