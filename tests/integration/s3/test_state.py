"""The daemon with its state in a bucket: killed, joined by a second one, and failed by requests."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import yaml

from tailerd.clock import SystemClock
from tailerd.errors import StateInUseError, StorageError
from tailerd.pipeline.bucket_offset_store import BucketOffsetStore
from tailerd.storage.lease import Holder, Lease
from tailerd.storage.s3.store import S3Store
from tests.contracts.test_offset_store import saved
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    eventually,
    log_of,
    run_to_end,
)
from tests.integration.s3.living_table import LivingTable, write_config
from tests.s3.notified import NotifiedBucket
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server

FAULTS = [Fault.REFUSE, Fault.RESET, Fault.LOSE_ANSWER, Fault.SLOW_DOWN, Fault.DENY]


@pytest.fixture
def living(s3_moto: S3Server, tmp_path: Path) -> LivingTable:
    return LivingTable(tmp_path / "table", NotifiedBucket(s3_moto, visible_seconds=5))


def config_of(folder: Path, living: LivingTable) -> Path:
    path = write_config(folder, living, has_queue=False, start="0", poll_interval="200ms")
    config = yaml.safe_load(path.read_text())
    config["state"] = f"s3://{living.notified.bucket}/state"
    path.write_text(yaml.safe_dump(config))
    return path


def has_more_than(count: int, out: Path) -> bool:
    return len(delivered_ids(out)) > count


def test_killed_again_and_again_it_goes_on_without_a_disk(
    living: LivingTable, tmp_path: Path
) -> None:
    config = config_of(tmp_path, living)
    for _ in range(3):
        with daemon(config) as process:
            before = len(delivered_ids(tmp_path / "out"))
            for _ in range(4):
                living.append()
            eventually(partial(has_more_than, before, tmp_path / "out"))
            process.kill()
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert delivered_ids(tmp_path / "out") == living.ids
    assert not (tmp_path / "state").exists()


def test_a_second_daemon_is_refused_by_the_name_of_the_first(
    living: LivingTable, tmp_path: Path
) -> None:
    config = config_of(tmp_path, living)
    with daemon(config) as process:
        eventually(lambda: delivered_ids(tmp_path / "out") == living.ids)
        second = run_to_end("run", "--config", config, "--once")
        assert second.returncode == 2
        assert f"process {process.pid} on " in second.stderr
        shown = run_to_end("offsets", "--config", config)
        assert shown.returncode == 0, shown.stderr
        assert "orders (arrow): next is version" in shown.stdout
        living.append()
        eventually(lambda: delivered_ids(tmp_path / "out") == living.ids)
    assert "taken over" not in log_of(config)


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_request_of_a_saving_failing_in_turn_loses_and_invents_no_offset(
    s3_moto: S3Server, bucket: str, fault: Fault
) -> None:
    root = f"{bucket}/state"
    direct = S3Store(s3_moto.settings())
    with FaultProxy(s3_moto.port) as proxy:
        store = S3Store(s3_moto.settings(proxy.endpoint))
        lease = Lease(store, root, clock=SystemClock())
        await lease.take()
        offsets = BucketOffsetStore(store, f"{root}/offsets", lease)
        for version in range(3):
            await offsets.save("orders", saved(version))
        for version in range(3, 8):
            proxy.fail_nth(version - 2, fault)
            try:
                await offsets.save("orders", saved(version))
            except StorageError:
                proxy.forget()
                assert await offsets.load("orders") in (saved(version - 1), saved(version))
                await offsets.save("orders", saved(version))
            proxy.forget()
            found = await BucketOffsetStore(direct, f"{root}/offsets").load("orders")
            assert found == saved(version)


async def test_a_daemon_that_was_replaced_saves_nothing_on_either_server(server: S3Server) -> None:
    store, root = S3Store(server.settings()), f"{server.new_bucket()}/state"
    stores = []
    for number in (1, 2):
        holder = Holder(machine=f"m{number}", pid=1, name=f"process 1 on m{number}")
        lease = Lease(store, root, clock=SystemClock(), seconds=0.1, holder=holder)
        await lease.take_patiently()
        stores.append(BucketOffsetStore(store, f"{root}/offsets", lease))
        await stores[-1].load("orders")
    first, second = stores
    await second.save("orders", saved(2))
    with pytest.raises(StateInUseError, match="process 1 on m2"):
        await first.save("orders", saved(1))
    assert await second.load("orders") == saved(2)
