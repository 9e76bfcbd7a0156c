"""The daemon with its state in a bucket: killed, joined by a second one, and failed by requests."""

from __future__ import annotations

import asyncio
import json
import random
from functools import partial
from pathlib import Path

import pytest

from tailerd.cli import run
from tailerd.config import load_config
from tailerd.daemon.daemon import Daemon
from tailerd.errors import StateInUseError, StorageError
from tailerd.state.leased_files import LeasedFiles, make_lease
from tailerd.state.state import Offsets
from tailerd.storage.base import ObjectStore
from tailerd.storage.lease import Holder, Lease
from tailerd.telemetry import events
from tests.clouds.buckets import CLOUDS, BucketServer
from tests.contracts.test_offset_store import saved
from tests.doubles.owned_state import leased_state
from tests.doubles.sim_clock import SimClock
from tests.integration.buckets.bucket_table import BucketTable, write_config
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    page,
    read_log,
    run_to_end,
)
from tests.s3.proxy import Fault, FaultProxy
from tests.waiting import PATIENCE_SECONDS, eventually

FAULTS = [Fault.REFUSE, Fault.RESET, Fault.LOSE_ANSWER, Fault.SLOW_DOWN, Fault.DENY]


@pytest.fixture
def table(server: BucketServer, tmp_path: Path) -> BucketTable:
    return BucketTable(tmp_path / "table", server)


def has_more_than(count: int, out: Path) -> bool:
    return len(delivered_ids(out)) > count


@pytest.mark.full
def test_killed_again_and_again_it_goes_on_without_a_disk(
    table: BucketTable, tmp_path: Path
) -> None:
    config = write_config(tmp_path, table)
    for _ in range(3):
        with daemon(config) as process:
            before = len(delivered_ids(tmp_path / "out"))
            for _ in range(4):
                table.append()
            eventually(partial(has_more_than, before, tmp_path / "out"))
            process.kill()
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert delivered_ids(tmp_path / "out") == table.ids
    assert not (tmp_path / "state").exists()


@pytest.mark.full
def test_a_state_in_a_bucket_serves_both_engines_and_resets(
    table: BucketTable, tmp_path: Path, engine: str
) -> None:
    config = write_config(tmp_path, table)
    out = tmp_path / "out"
    for _ in range(2):
        assert run(["run", "--config", str(config), "--once", "--engine", engine]) == 0
        assert delivered_ids(out) == table.ids
        table.append()
    reset = ["offsets", "reset", "orders", "--to", "1", "--config", str(config)]
    assert run(reset) == 0
    assert run(["run", "--config", str(config), "--once", "--engine", engine]) == 0
    assert delivered_ids(out) == table.ids
    assert not (tmp_path / "state").exists()


@pytest.mark.full
def test_a_second_daemon_is_refused_by_the_name_of_the_first(
    table: BucketTable, tmp_path: Path
) -> None:
    config = write_config(tmp_path, table, poll_interval="1s")
    with daemon(config) as process:
        eventually(lambda: delivered_ids(tmp_path / "out") == table.ids)
        second = run_to_end("run", "--config", config, "--once")
        assert second.returncode == 2
        assert f"process {process.pid} on " in second.stderr
        shown = run_to_end("offsets", "--config", config)
        assert shown.returncode == 0, shown.stderr
        assert "orders  arrow   version" in shown.stdout
        table.append()
        eventually(lambda: delivered_ids(tmp_path / "out") == table.ids)
    assert "taken over" not in read_log(config)


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_request_of_a_saving_failing_in_turn_loses_and_invents_no_offset(
    server: BucketServer, store: ObjectStore, proxy: FaultProxy, bucket: str, fault: Fault
) -> None:
    root = f"{bucket}/state"
    direct = server.store()
    state = leased_state(store, root)
    async with state.hold():
        for version in range(3):
            await state.offsets.save("orders", saved(version))
        for version in range(3, 8):
            proxy.fail_nth(version - 2, fault)
            try:
                await state.offsets.save("orders", saved(version))
            except StorageError:
                proxy.forget()
                found = await state.offsets.load("orders")
                assert found in (saved(version - 1), saved(version))
                await state.offsets.save("orders", saved(version))
            proxy.forget()
            assert await leased_state(direct, root).offsets.load("orders") == saved(version)


@pytest.fixture(params=["s3_versitygw", *CLOUDS])
def strict(request: pytest.FixtureRequest) -> BucketServer:
    # Between moto's look for a file and its putting it, another request may come.
    found: BucketServer = request.getfixturevalue(request.param)
    return found


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE_ANSWER, Fault.TRUNCATE])
async def test_with_a_fault_at_each_request_one_of_two_wins_and_no_saved_offset_is_lost(
    strict: BucketServer, fault: Fault, request: pytest.FixtureRequest
) -> None:
    """Two ask at once; the winner saves until, and after, a third takes over from it.

    Every request fails at one of three faults; with --kills, at each.
    """
    step = 1 if request.config.getoption("--kills") else 3
    with FaultProxy(strict.port) as proxy:
        store, bucket = strict.store(strict.url_at(proxy.port)), strict.new_bucket()
        # Whether the server honours conditions is found out once.
        await store.put(f"{bucket}/first", b"", if_absent=True)
        nth = [Fault.REFUSE, Fault.LOSE_ANSWER, Fault.TRUNCATE].index(fault) + 1 - step
        requested = step
        while nth + step <= requested:
            nth += step
            proxy.forget()
            proxy.fail_nth(nth, fault)
            await takes_over(store, f"{bucket}/state{nth}")
            requested = len(proxy.requests)


async def takes_over(store: ObjectStore, root: str) -> None:
    leases = [lease_of(store, root, number) for number in (1, 2)]
    results = await asyncio.gather(*(lease.acquire() for lease in leases), return_exceptions=True)
    [winner] = [lease for lease, result in zip(leases, results, strict=True) if result is None]
    assert [type(result) for result in results if result is not None] == [StateInUseError]
    first = offsets_of(store, root, winner)
    await first.load("orders")
    for version in (1, 2):
        await first.save("orders", saved(version))
    third = lease_of(store, root, 3)
    await third.acquire_waiting()
    second = offsets_of(store, root, third)
    assert await second.load("orders") == saved(2)
    with pytest.raises(StateInUseError, match="process 3 on m3"):
        await first.save("orders", saved(9))
    await second.save("orders", saved(3))
    assert await second.load("orders") == saved(3)
    assert not await winner.renew()


def lease_of(store: ObjectStore, root: str, number: int) -> Lease:
    holder = Holder(machine=f"m{number}", pid=1, name=f"process {number} on m{number}")
    return make_lease(store, root, clock=SimClock(is_automatic=True), seconds=0.05, holder=holder)


def offsets_of(store: ObjectStore, root: str, lease: Lease) -> Offsets:
    """Return the offsets of a process that acquired the lease and does not renew it."""
    files = LeasedFiles(store, root, lease)
    files._is_held = True
    return Offsets(files)


@pytest.mark.full
@pytest.mark.slow
def test_whichever_request_of_a_takeover_fails_no_row_is_lost_or_doubled(
    table: BucketTable, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chances = random.Random(3)
    faults = [Fault.LOSE_ANSWER, Fault.RESET, Fault.SLOW_DOWN, Fault.EXPIRED]
    with FaultProxy(table.server.port) as proxy:
        config = write_config(tmp_path, table, endpoint=table.server.url_at(proxy.port))
        rounds = request.config.getoption("--kills") or 3
        for number in range(rounds):
            with daemon(config) as process:
                before = len(delivered_ids(tmp_path / "out"))
                for _ in range(3):
                    table.append()
                eventually(partial(has_more_than, before, tmp_path / "out"))
                table.append()
                # Those of the next one's way from its start to its first delivery, over and over.
                proxy.fail_nth(1 + (number * 5) % 20, chances.choice(faults))
                process.kill()
        proxy.fail_every(7, Fault.LOSE_ANSWER)
        done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert delivered_ids(tmp_path / "out") == table.ids


def claim(table: BucketTable, token: int, **fields: object) -> None:
    """Write a lease of the daemon's state as another machine's daemon would."""
    paper = {
        "format": 1,
        "token": token,
        "beat": 0,
        "seconds": 4,
        "is_released": False,
        "holder": {"machine": "elsewhere", "pid": 7, "name": "process 7 on elsewhere"},
        **fields,
    }
    key = f"state/lease/{token:020}.lease"
    table.server.put(table.bucket, key, json.dumps(paper).encode())


@pytest.mark.full
def test_waiting_for_a_daemon_that_died_elsewhere_is_shown_with_its_longest_time(
    table: BucketTable, tmp_path: Path
) -> None:
    config = write_config(tmp_path, table)
    claim(table, 1)
    with daemon(config):
        eventually(lambda: "http://" in read_log(config))
        [problem] = json.loads(page(config, "/status"))["problems"]
        assert problem["part"] == "state"
        assert "process 7 on elsewhere has it." in problem["error"]["message"]
        assert "starts within 4 s" in problem["error"]["message"]
        eventually(lambda: delivered_ids(tmp_path / "out") == table.ids)
        eventually(lambda: json.loads(page(config, "/status"))["problems"] == [])
    assert "State lock acquired" in read_log(config)


async def test_an_idle_daemon_that_was_replaced_notices_at_its_next_beat_and_ends(
    table: BucketTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.daemon.offsets.make_lease", partial(make_lease, seconds=2))
    reported: list[events.Event] = []
    running = asyncio.create_task(
        Daemon(load_config(write_config(tmp_path, table)), handlers=[reported.append]).run()
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            out = tmp_path / "out"
            await asyncio.to_thread(eventually, lambda: delivered_ids(out) == table.ids)
            # Above every token of this daemon: those of a new state begin at the time.
            await asyncio.to_thread(claim, table, 10**15)
            with pytest.raises(StateInUseError, match="taken over by process 7 on elsewhere"):
                await running
    finally:
        running.cancel()
    assert any(isinstance(event, events.StateLeaseLost) for event in reported)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "fault", "right"),
    [
        ("list", Fault.DENY, "list"),
        ("put", Fault.NO_CONDITIONS, "conditional put"),
        ("", None, ""),
    ],
)
def test_validate_names_the_right_that_the_state_lacks(
    table: BucketTable, tmp_path: Path, kind: str, fault: Fault | None, right: str
) -> None:
    if fault is Fault.NO_CONDITIONS and table.server.scheme != "s3":
        pytest.skip("Azure and Google honour conditions")
    with FaultProxy(table.server.port) as proxy:
        proxy.choose = lambda seen: (
            fault if seen.kind == kind and ("state" in seen.path + seen.query) else None
        )
        done = run_to_end(
            "validate",
            write_config(tmp_path, table, endpoint=table.server.url_at(proxy.port)),
            "--json",
        )
    state, orders = (json.loads(line) for line in done.stdout.splitlines())
    assert state["missing_rights"] == ([right] if right else [])
    assert (done.returncode != 0) == bool(right)
    location = f"{table.server.scheme}://{table.bucket}/state"
    assert (f"Missing for {location}: {right}. " in done.stderr) == bool(right)
    assert orders["table"] == "orders"
    assert table.server.names(f"{table.bucket}/state") == []
