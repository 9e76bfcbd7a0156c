"""All jobs of maintenance in a bucket while requests fail at random: `--seeds 200` for many."""

from __future__ import annotations

import random
from pathlib import Path

import deltalake
import pytest

from tailerd.clock import SystemClock
from tailerd.errors import LogCleanedUpError, TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import (
    CheckpointPolicy,
    ChecksumPolicy,
    LogCompactionPolicy,
    Policies,
)
from tailerd.formats.maintenance import CleanupPolicy
from tailerd.storage.lease import Lease
from tailerd.storage.s3.store import S3Store
from tests.clouds.buckets import BucketServer
from tests.formats.delta.log_bodies import add
from tests.integration.buckets.test_table_faults import changes
from tests.maintenance.test_group_checks import GROUP, V2, backwards, grouped, regroup
from tests.maintenance.written import checkpoint_of
from tests.s3.proxy import Fault, FaultProxy, Seen
from tests.s3.servers import S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder

DEFAULT_SEEDS = 4
UNFAIR = (Fault.DELAY, Fault.NO_CONDITIONS, Fault.NO_RANGES, Fault.UNKNOWN, Fault.NO_UPLOAD)
FAULTS = [fault for fault in Fault if fault not in UNFAIR]
ALL_JOBS = Policies(
    checkpoint=CheckpointPolicy(every_commits=4, min_interval_seconds=0.0),
    log_compaction=LogCompactionPolicy(every_commits=2),
    checksum=ChecksumPolicy(is_enabled=True),
    cleanup=CleanupPolicy(is_enabled=True),
)
COMMITS = 10
MAX_TURNS = 40


class Later(SystemClock):
    """Two months on: all that is in a bucket has just been put there."""

    def now_ms(self) -> int:
        return super().now_ms() + 60 * 86_400_000


@pytest.fixture
def long_table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "long")
    for number in range(COMMITS):
        table.append([{"id": number, "name": "n"}])
    table.checkpoint(COMMITS - 5)
    return table


async def do_all_jobs(location: str) -> None:
    """Do what is due under a lease, as the keeper does."""
    work = DeltaMaintenance(LogReader.at(location), ALL_JOBS, clock=Later())
    lease = Lease(work.reader.store, work.reader.root, clock=SystemClock(), seconds=3)
    # One that could not be given back is waited for.
    async with lease.hold(is_patient=True):
        for _ in range(2):
            assessment = await work.assessment()
            for decision in assessment.decisions:
                if decision.is_due:
                    await work.apply(assessment, decision)


async def assert_that_nothing_is_left_to_do(location: str) -> None:
    """The bucket says it, not the answers: one may be lost after its job was done."""
    work = DeltaMaintenance(LogReader.at(location), ALL_JOBS, clock=Later())
    assessment = await work.assessment()
    assert not any(decision.is_due for decision in assessment.decisions)
    names = [meta.name async for meta in work.reader.store.list_from(work.reader.path)]
    assert any(name.startswith(f"{COMMITS - 1:020}.checkpoint") for name in names)
    assert f"{0:020}.json" not in names


@pytest.mark.full
@pytest.mark.slow
async def test_all_jobs_get_done_whatever_fails_and_no_row_is_lost(
    server: BucketServer, proxy: FaultProxy, bucket: str, long_table: TableBuilder, seed: int
) -> None:
    upload(server, long_table.folder, bucket, "orders")
    location = f"{server.scheme}://{bucket}/orders"
    before = await changes(location, "snapshot")
    chance = random.Random(seed)

    def choose(seen: Seen) -> Fault | None:
        return chance.choice(FAULTS) if chance.random() < 0.15 else None

    for _ in range(MAX_TURNS):
        proxy.choose = choose
        try:
            await do_all_jobs(location)
        except TailerdError:
            proxy.forget()
            # Whatever was half done when it failed: readers see the same table.
            assert await changes(location, "snapshot") == before
        else:
            break
    proxy.forget()
    await do_all_jobs(location)
    await assert_that_nothing_is_left_to_do(location)
    assert await changes(location, "snapshot") == before
    options = {**server.environment(), "allow_http": "true"}
    theirs = deltalake.DeltaTable(location, storage_options=options)
    assert theirs.version() == COMMITS - 1
    assert len(theirs.to_pyarrow_table()) == len(before)
    if isinstance(server, S3Server):
        assert "Uploads" not in server.admin().list_multipart_uploads(Bucket=bucket)


@pytest.mark.parametrize("is_v2", [False, True], ids=["one file", "sidecars"])
async def test_a_replaced_checkpoint_below_leaves_no_object_and_no_upload(
    s3_moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_v2: bool
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", 1)
    monkeypatch.setattr("tailerd.formats.delta.log.sidecar_writer.SIDECAR_FILES", GROUP)
    table, _ = await grouped(tmp_path)
    table.commit(table.protocol(minReaderVersion=3, **V2) if is_v2 else add("b"))
    bucket, admin = s3_moto.new_bucket(), s3_moto.admin()
    upload(s3_moto, table.folder, bucket, "orders")
    reader = LogReader(S3Store(s3_moto.settings()), f"{bucket}/orders")
    snapshot = await reader.open()
    path = checkpoint_of(table.log, 0)
    regroup(path, backwards)
    key = f"orders/_delta_log/{path.name}"
    admin.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    before = admin.list_objects_v2(Bucket=bucket)["KeyCount"]
    with monkeypatch.context() as small:
        if not is_v2:
            # Parts are sent before the last row group is known to be another. Only an upload that
            # is never completed may have such small ones.
            small.setattr("tailerd.storage.s3.multipart.PART_BYTES", 500)
        with pytest.raises(LogCleanedUpError, match=r"was replaced by another writer's"):
            await LogWriter(reader).write_checkpoint(snapshot)
    assert admin.list_objects_v2(Bucket=bucket)["KeyCount"] == before
    assert "Uploads" not in admin.list_multipart_uploads(Bucket=bucket)
    result = await LogWriter(reader).write_checkpoint(await reader.open())
    assert result.outcome == "written"
