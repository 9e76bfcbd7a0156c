"""Whose turn it is: one holder at a time, expiry by the observer's own clock, tokens that grow."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailerd.clock import SystemClock
from tailerd.errors import MaintenanceBusyError, StorageError
from tailerd.storage.lease import MAINTENANCE, Holder, Lease
from tailerd.storage.local import LocalStore
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.waiting import PATIENCE_SECONDS

FAR = Holder(machine="elsewhere", pid=1, name="process 1 on elsewhere")
OTHER = Holder(machine="elsewhere", pid=2, name="process 2 on elsewhere")
DAY_MS = 86_400_000


def lease(folder: Path, clock: SimClock, holder: Holder = FAR) -> Lease:
    return Lease(LocalStore(), str(folder), clock=clock, seconds=60, holder=holder)


def papers(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / MAINTENANCE.folder).iterdir())


async def is_refused(requested: Lease) -> bool:
    try:
        await requested.acquire()
    except MaintenanceBusyError:
        return True
    return False


async def test_a_lease_that_is_held_is_refused_and_names_its_holder(tmp_path: Path) -> None:
    clock = SimClock()
    await lease(tmp_path, clock).acquire()
    with pytest.raises(MaintenanceBusyError, match="process 1 on elsewhere"):
        await lease(tmp_path, clock, OTHER).acquire()


async def test_a_lease_that_is_given_back_can_be_taken_at_once_with_a_greater_token(
    tmp_path: Path,
) -> None:
    clock = SimClock()
    tokens = []
    for holder in (FAR, OTHER, FAR):
        mine = lease(tmp_path, clock, holder)
        await mine.acquire()
        tokens.append(mine.token)
        await mine.release()
        assert mine.token is None
    assert tokens == [1, 2, 3]
    assert len(papers(tmp_path)) == 1


async def test_a_lease_expires_only_after_nothing_was_heard_for_its_whole_duration(
    tmp_path: Path,
) -> None:
    clock = SimClock(is_automatic=True)
    first, second = lease(tmp_path, clock), lease(tmp_path, clock, OTHER)
    await first.acquire()
    assert await is_refused(second)
    await clock.sleep(59)
    assert await is_refused(second)
    assert await first.renew()
    await clock.sleep(59)
    assert await is_refused(second), "it was heard of a minute ago at most"
    await clock.sleep(61)
    assert not await is_refused(second)
    assert not await first.renew()
    assert not await first.is_mine()


async def test_wall_clocks_that_jump_by_a_day_change_nothing(tmp_path: Path) -> None:
    clock = SimClock(is_automatic=True)
    first, second = lease(tmp_path, clock), lease(tmp_path, clock, OTHER)
    await first.acquire()
    for jump in (DAY_MS, -2 * DAY_MS):
        clock.jump_wall(jump)
        assert await is_refused(second)
        assert await first.is_mine()


async def test_a_holder_that_slept_is_fenced_off_and_takes_nothing_back(tmp_path: Path) -> None:
    clock = SimClock(is_automatic=True)
    first, second = lease(tmp_path, clock), lease(tmp_path, clock, OTHER)
    await first.acquire()
    await is_refused(second)
    await clock.sleep(61)
    await second.acquire()
    await first.release()
    assert await second.is_mine()
    assert second.token == 2


async def test_a_dead_process_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await done.wait()
    me = Holder.this_process()
    clock = SimClock()
    await lease(tmp_path, clock, Holder(machine=me.machine, pid=done.pid, name="gone")).acquire()
    mine = Lease(LocalStore(), str(tmp_path), clock=clock)
    await mine.acquire()
    assert mine.token == 2


async def test_a_living_process_of_this_machine_is_respected(tmp_path: Path) -> None:
    clock = SimClock()
    await Lease(LocalStore(), str(tmp_path), clock=clock).acquire()
    with pytest.raises(MaintenanceBusyError, match=str(os.getpid())):
        await Lease(LocalStore(), str(tmp_path), clock=clock).acquire()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"beat": 1}', b"\xff\xfe", b"null"])
async def test_a_damaged_lease_holds_nobody_up_for_ever(tmp_path: Path, body: bytes) -> None:
    folder = tmp_path / MAINTENANCE.folder
    folder.mkdir(parents=True)
    (folder / f"{7:020}.lease").write_bytes(body)
    clock = SimClock(is_automatic=True)
    requested = lease(tmp_path, clock)
    assert await is_refused(requested)
    await clock.sleep(61)
    await requested.acquire()
    assert requested.token == 8


async def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / MAINTENANCE.folder
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "x.lease").write_text("mine")
    requested = lease(tmp_path, SimClock())
    await requested.acquire()
    assert papers(tmp_path) == [f"{1:020}.lease", "notes.txt", "x.lease"]


async def test_a_lease_is_kept_while_it_is_used_and_given_back_at_once(tmp_path: Path) -> None:
    mine = Lease(LocalStore(), str(tmp_path), clock=SystemClock(), seconds=0.4, holder=FAR)
    other = Lease(LocalStore(), str(tmp_path), clock=SystemClock(), seconds=0.4, holder=OTHER)
    async with mine.hold():
        for _ in range(8):
            assert await is_refused(other)
            await asyncio.sleep(0.1)
    await other.acquire()


async def test_no_beat_comes_after_the_release(tmp_path: Path) -> None:
    """With a clock that makes a holder beat without a rest."""
    for _ in range(50):
        mine = lease(tmp_path, SimClock(is_automatic=True))
        async with mine.hold():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.002)
        [paper] = papers(tmp_path)
        assert json.loads((tmp_path / MAINTENANCE.folder / paper).read_text())["is_released"]


async def test_a_holder_that_is_cancelled_gives_the_lease_back(tmp_path: Path) -> None:
    mine = lease(tmp_path, SimClock())

    async def work() -> None:
        async with mine.hold():
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    while mine.token is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    await lease(tmp_path, SimClock(), OTHER).acquire()


class Sleeping(LocalStore):
    """Its conditional puts wait: their process was suspended, or the request is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.goes_on = asyncio.Event(), asyncio.Event()

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        if if_absent:
            self.is_reached.set()
            await self.goes_on.wait()
        await super().put(path, data, if_absent=if_absent)


async def test_a_taker_that_slept_while_others_took_turns_gets_no_token_of_the_past(
    tmp_path: Path,
) -> None:
    clock, store = SimClock(), Sleeping()
    late = Lease(store, str(tmp_path), clock=clock, holder=FAR)
    taking = asyncio.create_task(late.acquire())
    await store.is_reached.wait()
    second = lease(tmp_path, clock, OTHER)
    await second.acquire()
    await second.release()
    third = lease(tmp_path, clock, OTHER)
    await third.acquire()
    store.goes_on.set()
    with pytest.raises(MaintenanceBusyError, match="was faster"):
        await taking
    assert late.token is None
    assert (third.token, await third.is_mine()) == (2, True)
    assert papers(tmp_path) == [f"{2:020}.lease"]


async def test_a_lease_that_could_not_be_made_sure_of_is_given_back(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore())
    mine = Lease(store, str(tmp_path), clock=SimClock(), holder=FAR)
    store.fail_nth(2, kind="list")
    with pytest.raises(StorageError, match="because the test told it to"):
        await mine.acquire()
    assert mine.token is None
    other = lease(tmp_path, SimClock(), OTHER)
    await other.acquire()
    assert other.token == 2


async def test_a_lease_that_is_beaten_no_more_is_lost_and_says_why(tmp_path: Path) -> None:
    store, is_lost = FaultyStore(LocalStore()), asyncio.Event()
    mine = Lease(store, str(tmp_path), clock=SystemClock(), seconds=0.1, holder=FAR)

    async def on_lost() -> None:
        is_lost.set()

    async def work() -> None:
        async with mine.hold(on_lost=on_lost):
            store.fail_nth(1, ValueError("nobody thought of that"), kind="put")
            await asyncio.wait_for(is_lost.wait(), PATIENCE_SECONDS)

    with pytest.raises(ValueError, match="nobody thought of that"):
        await work()
    await lease(tmp_path, SimClock(), OTHER).acquire()


PROGRAM = """
import asyncio, sys
from tailerd.clock import SystemClock
from tailerd.errors import MaintenanceBusyError
from tailerd.storage.lease import Lease
from tailerd.storage.local import LocalStore

async def main():
    lease = Lease(LocalStore(), sys.argv[1], clock=SystemClock())
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        await lease.acquire()
        print(lease.token, flush=True)
    except MaintenanceBusyError:
        print("busy", flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""


@pytest.mark.full
def test_of_two_processes_at_once_one_gets_the_lease(tmp_path: Path) -> None:
    for turn in range(1, 4):
        with (
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as one,
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as two,
        ):
            both = (one, two)
            for process in both:
                assert process.stdin is not None
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in both:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            reported = sorted(p.stdout.readline().strip() for p in both if p.stdout is not None)
            assert reported == sorted([str(turn), "busy"])
            [paper] = papers(tmp_path)
            assert json.loads((tmp_path / MAINTENANCE.folder / paper).read_text())["token"] == turn
            for process in both:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
