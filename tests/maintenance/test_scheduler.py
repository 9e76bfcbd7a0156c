"""Maintenance runs each job in a process: it is killed, stopped, and deliveries never notice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tailerd.backoff import Backoff
from tailerd.changefeed.offset import Offset, Version
from tailerd.clock import SystemClock
from tailerd.formats.delta.maintenance.policies import (
    CheckpointPolicy,
    ChecksumPolicy,
    LogCompactionPolicy,
    Policies,
)
from tailerd.formats.maintenance import CleanupPolicy, DailyPause
from tailerd.maintenance import programs, scheduler
from tailerd.maintenance.programs import MaintenanceTarget
from tailerd.maintenance.scheduler import MaintenanceScheduler
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.wakeups import WakeupRegistry
from tests.integration.daemon.running import daemon, write_config
from tests.maintenance.opened_tables import convert_policies
from tests.maintenance.tables import living_table
from tests.maintenance.test_cleanup import commits_of, daily
from tests.maintenance.test_daemon_keeps_logs import (
    big_table,
    checkpoints,
    kept,
    lines_of,
    make_table,
    often,
    status_of,
)
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS, eventually

OFTEN = Policies(
    checkpoint=CheckpointPolicy(every_commits=3, min_interval_seconds=0),
    checksum=ChecksumPolicy(is_enabled=True),
)


class Kept:
    """A scheduler with everything it reported."""

    def __init__(self, *, is_once: bool = False) -> None:
        self.reported: list[Any] = []
        self._is_told = asyncio.Event()
        self.scheduler = MaintenanceScheduler(
            wakeups=WakeupRegistry(),
            telemetry=Telemetry([self._on_message]),
            clock=SystemClock(),
            stores=Stores(),
            is_once=is_once,
        )

    def _on_message(self, event: events.Event) -> None:
        self.reported.append(event)
        self._is_told.set()

    def keep(self, policies: Policies = OFTEN, /, **tables: TableBuilder) -> None:
        self.scheduler.set_tables(
            {
                name: MaintenanceTarget(
                    location=str(table.folder),
                    folder=str(table.log),
                    policies=convert_policies(policies),
                    is_alone=True,
                )
                for name, table in tables.items()
            },
            {},
        )

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.reported if isinstance(event, kind)]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                self._is_told.clear()
                await self._is_told.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.scheduler.run())
        try:
            yield task
        finally:
            self.scheduler.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await task


def is_there(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(pid: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Processes end while one looks.
        with suppress(OSError):
            parent = (process / "stat").read_text().rpartition(") ")[2].split()[1]
            if int(parent) == pid and b".job_program" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


async def job_of(keeper: Kept, job: str) -> int:
    """Wait until a job of a table runs; return the number of its process."""
    begun = events.MaintenanceStarted(table="big", job=job)
    await keeper.until(lambda: begun in keeper.reported)
    await asyncio.to_thread(eventually, lambda: bool(children_of(os.getpid())))
    [found] = children_of(os.getpid())
    # Its priority is low as soon as it has loaded what it needs.
    await asyncio.to_thread(eventually, lambda: os.getpriority(os.PRIO_PROCESS, found) >= 10)
    return found


@pytest.mark.full
@pytest.mark.parametrize("end", [MaintenanceScheduler.stop, MaintenanceScheduler.cancel])
async def test_it_ends_with_its_job_when_stopped_and_at_once_when_cancelled(
    tmp_path: Path, end: Callable[[MaintenanceScheduler], None]
) -> None:
    table, keeper = big_table(tmp_path / "big"), Kept()
    keeper.keep(Policies(checkpoint=CheckpointPolicy(every_commits=3)), big=table)
    async with keeper.running() as running:
        pid = await job_of(keeper, "checkpoint")
        end(keeper.scheduler)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running
    assert not is_there(pid)
    assert not keeper.of(events.MaintenanceFailed)
    is_done = bool(keeper.of(events.LogMaintained))
    assert is_done == (end is MaintenanceScheduler.stop)
    assert checkpoints(table.folder) == ([table.version] if is_done else [])


@pytest.mark.full
async def test_a_job_that_is_killed_fails_alone_and_is_tried_again(tmp_path: Path) -> None:
    table, keeper = big_table(tmp_path / "big"), Kept()
    small = living_table(tmp_path / "small")
    before = {path.name for path in table.log.iterdir()}
    keeper.keep(Policies(checkpoint=CheckpointPolicy(every_commits=3)), big=table)
    async with keeper.running():
        pid = await job_of(keeper, "checkpoint")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # They are meant for the daemon.
            os.kill(pid, number)
        await asyncio.sleep(0.1)
        assert is_there(pid)
        os.kill(pid, signal.SIGKILL)
        await keeper.until(lambda: keeper.of(events.MaintenanceFailed))
        assert len(deltalake.DeltaTable(table.folder).file_uris()) == 60_000
        keeper.keep(OFTEN, big=table, small=small)
        await keeper.until(
            lambda: (
                {e.table for e in keeper.of(events.LogMaintained) if e.job == "checkpoint"}
                == {"small", "big"}
            )
        )
    [failed] = keeper.of(events.MaintenanceFailed)
    assert (failed.table, failed.job, failed.error_code) == (
        "big",
        "checkpoint",
        "maintenance_process",
    )
    assert "SIGKILL" in failed.error
    after = {path.name for path in table.log.iterdir() if not path.name.startswith(".")}
    assert after - before == {
        f"{table.version:020}.checkpoint.parquet",
        f"{table.version:020}.crc",
        "_last_checkpoint",
    }


@pytest.mark.full
async def test_a_measurement_that_is_killed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_MEASURE_RETRY", Backoff(first_seconds=1.0, max_seconds=1.0))
    table, keeper = big_table(tmp_path / "big"), Kept()
    big = MaintenanceTarget(
        location=str(table.folder),
        folder=str(table.log),
        policies=convert_policies(Policies(checkpoint=CheckpointPolicy(every_commits=1000))),
        is_alone=True,
        is_measured=True,
    )
    keeper.scheduler.set_tables({"big": big}, {})
    async with keeper.running():
        os.kill(await job_of(keeper, "measure"), signal.SIGKILL)
        await keeper.until(lambda: keeper.of(events.GrowthUnavailable))
        await keeper.until(lambda: keeper.of(events.TableMeasured))
    [failed] = keeper.of(events.GrowthUnavailable)
    assert failed.error_code == "maintenance_process"


async def test_a_program_that_cannot_be_started_is_reported_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_PROGRAM", "tailerd.no_such_program")
    keeper = Kept()
    keeper.keep(orders=living_table(tmp_path))
    async with keeper.running():
        await keeper.until(lambda: keeper.of(events.MaintenanceFailed))
    failed = keeper.of(events.MaintenanceFailed)[0]
    assert failed.error_code == "maintenance_process"
    assert "no_such_program" in failed.error


async def test_a_cleanup_in_a_process_asks_what_pipelines_need(tmp_path: Path) -> None:
    table, keeper = daily(tmp_path / "orders"), Kept()
    table.checkpoint(12)
    table.checkpoint(30)
    cleanup = CleanupPolicy(is_enabled=True, every_seconds=1)
    folder = str(table.log)
    kept_table = MaintenanceTarget(
        location=str(table.folder),
        folder=folder,
        policies=convert_policies(
            Policies(checkpoint=CheckpointPolicy(every_commits=None), cleanup=cleanup)
        ),
        is_alone=False,
    )
    keeper.scheduler.set_tables({"orders": kept_table}, {"view": folder})
    async with keeper.running():
        await keeper.until(lambda: keeper.of(events.LogAssessed))
        await asyncio.sleep(0.5)
        assert commits_of(table)[0] == 0, "the pipeline has not reported its position"
        offset = Offset(table_id=table.table_id, version=Version(15)).to_json()
        keeper.scheduler.handle(
            events.OffsetSaved(
                table="view", engine="arrow", version=15, offset=offset, duration_seconds=0.0
            )
        )
        await keeper.until(lambda: keeper.of(events.LogMaintained))
    done = keeper.of(events.LogMaintained)[0]
    assert (done.job, done.result) == ("cleanup", "deleted")
    assert commits_of(table)[0] == 12


@pytest.mark.full
def test_a_daemon_of_which_a_job_is_killed_goes_on_and_says_so(tmp_path: Path) -> None:
    table = big_table(tmp_path / "orders")
    config = write_config(tmp_path, orders=kept(table.folder, checkpoint=often()))
    with daemon(config) as process:
        eventually(lambda: bool(children_of(process.pid)))
        [child] = children_of(process.pid)
        os.kill(child, signal.SIGKILL)
        eventually(lambda: checkpoints(table.folder) == [table.version])
        assert status_of(config, "orders")["state"] == "running"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    [line] = lines_of(config, "Maintenance job failed, retrying")
    assert line["error_code"] == "maintenance_process"


async def test_every_policy_and_event_goes_through_the_pipe(tmp_path: Path) -> None:
    everything = Policies(
        checkpoint=CheckpointPolicy(
            every_commits=3, every_seconds=5.5, max_replay_seconds=1, min_interval_seconds=0
        ),
        log_compaction=LogCompactionPolicy(every_commits=100),
        checksum=ChecksumPolicy(is_enabled=True),
        cleanup=CleanupPolicy(is_enabled=True, older_than_seconds=1e7, every_seconds=60),
        pauses=(DailyPause(0, 0),),
    )
    keeper = Kept()
    keeper.keep(everything, orders=living_table(tmp_path))
    async with keeper.running():
        await keeper.until(lambda: len(keeper.of(events.LogMaintained)) == 2)
    assert isinstance(keeper.reported[0], events.TableAdded)
    assessed = keeper.of(events.LogAssessed)[0]
    assert (assessed.table, assessed.is_alone) == ("orders", True)
    assert assessed.due == ("checksum", "checkpoint")
    assert [event.job for event in keeper.of(events.LogMaintained)] == ["checksum", "checkpoint"]
    requests = {e.operation: e.count for e in keeper.of(events.StorageRequested)}
    assert requests.keys() >= {"list", "get", "put"}


async def test_asked_to_end_before_it_began_it_ends(tmp_path: Path) -> None:
    keeper = Kept()
    keeper.keep(orders=living_table(tmp_path))
    async with keeper.running() as running:
        await asyncio.sleep(0)
        keeper.scheduler.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running
    assert not keeper.of(events.LogMaintained)


@pytest.mark.full
async def test_once_errors_of_tables_come_back_and_the_others_are_done(tmp_path: Path) -> None:
    refused = TableBuilder(tmp_path / "refused", reader_features=[], writer_features=["new"])
    refused.create()
    keeper = Kept(is_once=True)
    keeper.keep(refused=refused, orders=living_table(tmp_path / "orders"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await keeper.scheduler.run()
    [error] = keeper.scheduler.errors
    assert error.code == "unsupported_feature"
    assert len(keeper.of(events.LogMaintained)) == 2


@pytest.mark.full
def test_the_process_goes_with_a_daemon_that_is_killed_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    table = big_table(tmp_path / "orders")
    config = write_config(tmp_path, orders=kept(table.folder, checkpoint=often()))
    with daemon(config) as process:
        eventually(lambda: bool(children_of(process.pid)))
        [child] = children_of(process.pid)
        # In the middle of its job.
        eventually(lambda: (table.folder / "_tailerd/maintenance").exists())
        process.kill()
        process.wait(10)
        eventually(lambda: not is_there(child))
    assert len(deltalake.DeltaTable(table.folder).file_uris()) == 60_000
    with daemon(config) as process:
        eventually(lambda: checkpoints(table.folder) == [table.version])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_the_program_ends_by_itself_where_nobody_talks_to_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tailerd.maintenance.job_program"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == b""


@pytest.mark.full
async def test_a_table_that_nobody_delivers_is_measured_as_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MEASURE_SHARE", 1)
    table, keeper = make_table(tmp_path, 4), Kept()
    location = MaintenanceTarget(
        location=str(tmp_path),
        folder=str(table.log),
        policies=convert_policies(OFTEN),
        is_alone=True,
        is_measured=True,
    )
    keeper.scheduler.set_tables({"orders": location}, {})
    async with keeper.running():
        await keeper.until(lambda: keeper.of(events.TableMeasured))
        first = keeper.of(events.TableMeasured)[0]
        assert (first.version, first.files, first.rows) == (4, 4, 4)
        assert (first.checkpoint_version, first.commits_since_checkpoint) == (4, 0)
        assert (first.pending_files, first.pending_bytes) == (None, None)
        table.append([{"id": 5}, {"id": 6}])
        keeper.scheduler.wake("orders")
        await keeper.until(lambda: keeper.of(events.TableMeasured)[-1].version == 5)
        last = keeper.of(events.TableMeasured)[-1]
        assert (last.files, last.rows, last.commits_since_checkpoint) == (5, 6, 1)
        assert last.bytes > first.bytes
        # Another table of this location, with as many versions.
        table.folder.rename(tmp_path.with_name("gone"))
        other = TableBuilder(tmp_path, table_id="00000000-0000-4000-8000-000000000007")
        other.create()
        for number in range(5):
            other.append([{"id": number}])
        keeper.scheduler.wake("orders")
        await keeper.until(lambda: keeper.of(events.TableMeasured)[-1].rows == 5)


async def test_what_is_let_go_is_not_shown_again(tmp_path: Path) -> None:
    keeper = Kept()
    keeper.keep(orders=living_table(tmp_path / "a"), others=living_table(tmp_path / "b"))
    async with keeper.running():
        await keeper.until(lambda: keeper.of(events.LogMaintained))
        keeper.scheduler.remove_all_but({})
        removed = len(keeper.reported)
        await asyncio.sleep(1.5)
    assert not [e for e in keeper.reported[removed:] if isinstance(e, events.LogAssessed)]


async def test_a_table_that_is_let_go_in_its_turn_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Kept()
    handle = keeper._on_message

    def let_go(event: events.Event) -> None:
        handle(event)
        if isinstance(event, events.LogAssessed) and event.table == "first":
            keeper.scheduler.remove_all_but({})

    monkeypatch.setattr(keeper.scheduler, "_telemetry", Telemetry([let_go]))
    first = living_table(tmp_path / "first")
    table = MaintenanceTarget(
        location=str(first.folder),
        folder=str(first.log),
        policies=convert_policies(OFTEN),
        is_alone=True,
        is_measured=True,
    )
    keeper.scheduler.set_tables({"first": table}, {})
    async with keeper.running() as running:
        await keeper.until(lambda: keeper.of(events.TableRemoved))
        keeper.keep(second=living_table(tmp_path / "second"))
        await keeper.until(
            lambda: [e.table for e in keeper.of(events.LogMaintained)] == ["second"] * 2
        )
        assert not running.done()
    assert not keeper.of(events.MaintenanceFailed)


async def test_an_unexpected_error_of_one_table_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MaintenanceScheduler._turn

    async def turn(self: MaintenanceScheduler, name: str) -> None:
        if name == "bad":
            raise ValueError("unexpected")
        await whole(self, name)

    monkeypatch.setattr(MaintenanceScheduler, "_turn", turn)
    keeper = Kept()
    keeper.keep(bad=living_table(tmp_path / "bad"), good=living_table(tmp_path / "good"))
    async with keeper.running():
        await keeper.until(lambda: len(keeper.of(events.LogMaintained)) == 2)
    [failed] = keeper.of(events.MaintenanceFailed)
    assert (failed.table, failed.error_code) == ("bad", "bug")
