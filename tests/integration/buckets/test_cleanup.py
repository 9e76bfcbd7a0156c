"""Cleanup of a log in a bucket of any server, and what is left where it fails."""

from __future__ import annotations

import pytest

from tailerd.errors import AccessDeniedError
from tailerd.storage.base import ObjectStore
from tests.clouds.buckets import BucketServer
from tests.integration.s3.test_cleanup import (
    KEPT,
    assert_right_or_an_error,
    clean,
    no_patience,
    old_table,
    read_log,
)
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder

__all__ = ["no_patience", "old_table"]


@pytest.fixture
def root(server: BucketServer, bucket: str, old_table: TableBuilder) -> str:
    upload(server, old_table.folder, bucket, "orders")
    return f"{bucket}/orders"


@pytest.mark.parametrize("fault", [None, Fault.LOSE_ANSWER, Fault.RESET, Fault.SLOW_DOWN])
async def test_what_has_expired_goes_also_where_a_request_fails(
    store: ObjectStore,
    proxy: FaultProxy,
    root: str,
    old_table: TableBuilder,
    fault: Fault | None,
) -> None:
    proxy.forget()
    if fault is not None:
        proxy.fail_nth(1, fault, kind="delete")
    result = await clean(store, root)
    # Eight commits, the checkpoint of 3, the compaction, two sidecars.
    assert (len(result.files), result.oldest_version) == (12, KEPT)
    assert fault in [seen.fault for seen in proxy.requests]
    assert (await read_log(store, root))[0] == f"{KEPT:020}.checkpoint.parquet"
    assert [m async for m in store.list_from(f"{root}/_delta_log/_sidecars")] == []
    await assert_right_or_an_error(store, root, old_table)


async def test_a_cleanup_that_may_not_delete_leaves_every_version_right(
    store: ObjectStore, proxy: FaultProxy, root: str, old_table: TableBuilder
) -> None:
    proxy.choose = lambda seen: Fault.DENY if seen.kind == "delete" else None
    with pytest.raises(AccessDeniedError):
        await clean(store, root)
    proxy.forget()
    await assert_right_or_an_error(store, root, old_table)
    assert (await clean(store, root)).oldest_version == KEPT
    await assert_right_or_an_error(store, root, old_table)
