"""Cleanup of a log in a bucket: what one request deletes, and what is left where it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tailerd.errors import AccessDeniedError, StorageError, TailerdError
from tailerd.formats.delta.log import log_reader
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.log_cleanup import CleanupResult, LogCleanup
from tailerd.storage.base import ObjectStore
from tailerd.storage.metered import MeteredStore
from tailerd.storage.s3.store import S3Store
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import assert_is
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder

_LATER_MS = 60 * 86_400_000
KEPT = 8


@pytest.fixture
def old_table(tmp_path: Path) -> TableBuilder:
    """Versions 0 to 11, of which those before the checkpoint of 8 expire."""
    table = TableBuilder(tmp_path / "old", reader_features=["v2Checkpoint"])
    for number in range(12):
        table.append([{"id": number, "name": "x"}])
    table.checkpoint(3, layout="v2-json", sidecars=2)
    table.checkpoint(KEPT)
    table.compact(1, 4)
    return table


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is at work: what a listing lacks is gone."""
    monkeypatch.setattr(log_reader, "GAP_PATIENCE_SECONDS", 0.0)


@pytest.fixture
def copy(s3_moto: S3Server, bucket: str, old_table: TableBuilder) -> Callable[[int], str]:
    def copied(number: int = 0) -> str:
        upload(s3_moto, old_table.folder, bucket, f"copy{number}")
        return f"{bucket}/copy{number}"

    return copied


async def clean(store: ObjectStore, root: str) -> CleanupResult:
    """Clean up as of two months from now."""
    reader = LogReader(store, root)
    snapshot, _ = await reader.open_listed(with_files=False)
    job = LogCleanup(reader, clock=SimClock(time.time_ns() // 1_000_000 + _LATER_MS))
    return await job.apply(await job.plan(snapshot.state))


async def read_log(store: ObjectStore, root: str) -> list[str]:
    return [meta.name async for meta in store.list_from(f"{root}/_delta_log")]


async def assert_right_or_an_error(store: ObjectStore, root: str, table: TableBuilder) -> None:
    """Rebuild every version: kept ones are whole, others are right or cannot be had."""
    reader = LogReader(store, root)
    for version in range(table.version + 1):
        try:
            snapshot = await reader.open(version)
        except TailerdError:
            assert version < KEPT
        else:
            assert_is(snapshot, table.state(version))
    assert (await reader.open()).version == table.version


async def test_what_has_expired_goes_with_one_request_for_the_log_and_one_for_sidecars(
    server: S3Server, old_table: TableBuilder
) -> None:
    bucket = server.new_bucket()
    upload(server, old_table.folder, bucket, "orders")
    with FaultProxy(server.port) as proxy:
        store = S3Store(server.settings(proxy.endpoint))
        metered = MeteredStore(store)
        result = await clean(metered, f"{bucket}/orders")
        assert proxy.counts()["delete"] == metered.requests["delete"] == 2
        # Eight commits, the checkpoint of 3, the compaction, two sidecars.
        assert (len(result.files), result.oldest_version) == (12, KEPT)
        assert (await read_log(store, f"{bucket}/orders"))[0] == f"{KEPT:020}.checkpoint.parquet"
        assert [m async for m in store.list_from(f"{bucket}/orders/_delta_log/_sidecars")] == []
        await assert_right_or_an_error(store, f"{bucket}/orders", old_table)


@pytest.mark.parametrize(
    "fault", [Fault.LOSE_ANSWER, Fault.RESET, Fault.SLOW_DOWN, Fault.HALF_DELETED, Fault.NO_BATCHES]
)
async def test_a_deletion_that_fails_is_repeated_for_what_is_left(
    store: S3Store, proxy: FaultProxy, copy: Callable[[int], str], fault: Fault
) -> None:
    root = copy(0)
    if fault is Fault.NO_BATCHES:
        proxy.choose = lambda seen: fault if seen.kind == "delete" else None
    else:
        proxy.fail_nth(1, fault, kind="delete")
    assert len((await clean(store, root)).files) == 12
    # Repeated, or file by file where the server knows nothing else.
    most = 12 + 2 if fault is Fault.NO_BATCHES else 3
    assert proxy.counts()["delete"] == most
    assert (await read_log(store, root))[0] == f"{KEPT:020}.checkpoint.parquet"


@pytest.mark.parametrize("fault", [Fault.DENY, Fault.UNKNOWN], ids=lambda fault: fault.value)
async def test_a_cleanup_that_may_not_look_for_unfinished_uploads_is_done_all_the_same(
    store: S3Store, proxy: FaultProxy, copy: Callable[[int], str], fault: Fault
) -> None:
    root = copy(0)
    proxy.choose = lambda seen: fault if "uploads" in seen.query else None
    result = await clean(store, root)
    assert (len(result.files), result.leftovers) == (12, 0)
    assert fault in [seen.fault for seen in proxy.requests]


@pytest.mark.full
@pytest.mark.parametrize("fault", [Fault.HALF_DELETED, Fault.DENY, Fault.REFUSE])
async def test_where_a_batch_goes_only_in_part_no_version_comes_out_wrong(
    store: S3Store,
    proxy: FaultProxy,
    copy: Callable[[int], str],
    old_table: TableBuilder,
    fault: Fault,
) -> None:
    root = copy(0)
    proxy.choose = lambda seen: fault if seen.kind == "delete" else None
    with pytest.raises(StorageError) as caught:
        await clean(store, root)
    assert isinstance(caught.value, AccessDeniedError) == (fault is Fault.DENY)
    if fault is Fault.HALF_DELETED:
        assert len(await read_log(store, root)) < 12 + 3
        assert "files were not deleted, first" in str(caught.value)
    proxy.forget()
    await assert_right_or_an_error(store, root, old_table)
    assert (await clean(store, root)).oldest_version == KEPT
    await assert_right_or_an_error(store, root, old_table)
    assert (await read_log(store, root))[0] == f"{KEPT:020}.checkpoint.parquet"


@pytest.mark.full
@pytest.mark.slow
async def test_whichever_files_of_a_batch_are_gone_no_version_comes_out_wrong(
    store: S3Store, proxy: FaultProxy, s3_moto: S3Server, bucket: str, old_table: TableBuilder
) -> None:
    """A server deletes a batch in an order of its own, and a reader may come in between."""
    upload(s3_moto, old_table.folder, bucket, "orders")
    root = f"{bucket}/orders"
    reader = LogReader(store, root)
    snapshot, _ = await reader.open_listed(with_files=False)
    job = LogCleanup(reader, clock=SimClock(time.time_ns() // 1_000_000 + _LATER_MS))
    plan = await job.plan(snapshot.state)
    names = [file.name for file in plan.files]
    # From the end: the most unlike the order that is asked for.
    for name in reversed(names):
        await store.delete(f"{root}/_delta_log/{name}")
        await assert_right_or_an_error(store, root, old_table)
    assert (await job.apply(plan)).oldest_version == KEPT


async def test_later_batches_wait_for_earlier_ones(
    store: S3Store, proxy: FaultProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.storage.s3.store.BATCH_FILES", 3)
    paths = [f"{bucket}/{n}" for n in range(8)]
    for path in paths:
        await store.put(path, b"")
    proxy.forget()
    deleted = 0

    def deny_the_second(seen: object) -> Fault | None:
        nonlocal deleted
        deleted += 1
        return Fault.DENY if deleted == 2 else None

    proxy.choose = deny_the_second
    with pytest.raises(AccessDeniedError):
        await store.delete_many(paths)
    proxy.forget()
    assert [meta.path async for meta in store.list_from(bucket)] == paths[3:]
    await store.delete_many(paths)
    assert proxy.counts()["delete"] == 3
    assert [meta async for meta in store.list_from(bucket)] == []
