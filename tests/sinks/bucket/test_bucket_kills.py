"""Files in a bucket after a kill between any two requests, and beside a former owner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import SinkError, SinkFencedError
from tailerd.storage.s3.settings import S3Settings
from tailerd.storage.stores import Stores, StoreSettings
from tests.clouds.buckets import BucketServer
from tests.clouds.servers import CloudServer
from tests.s3.proxy import Fault, FaultProxy, Seen
from tests.sinks.bucket.feed import Feed, batch, delivery, offset, rows_until, run
from tests.sinks.bucket.readers import manifest_rows

HEAD = 4


@pytest.fixture(params=["s3_moto", "azurite", "fake_gcs"])
def server(request: pytest.FixtureRequest) -> BucketServer:
    found: BucketServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: BucketServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as proxy:
        yield proxy


def stores_behind(server: BucketServer, proxy: FaultProxy) -> Stores:
    """Return stores that reach the server through a proxy and repeat no request."""
    account = replace(server.account(server.url_at(proxy.port)), attempts=1)
    if isinstance(server, CloudServer):
        return Stores(StoreSettings(((server.account().cloud, account),)))
    return Stores(StoreSettings((("s3", S3Settings(default=account)),)))  # type: ignore[arg-type]


def die_at(proxy: FaultProxy, nth: int, fault: Fault) -> None:
    """Let the nth request from now meet a fault, and the server hear of none after it."""
    count = 0

    def choose(seen: Seen) -> Fault | None:
        nonlocal count
        count += 1
        return None if count < nth else fault if count == nth else Fault.REFUSE

    proxy.forget()
    proxy.choose = choose


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE_ANSWER], ids=lambda each: each.value)
async def test_after_a_kill_at_any_request_readers_of_all_files_see_each_row_once(
    server: BucketServer, proxy: FaultProxy, fault: Fault, tmp_path: Path
) -> None:
    nth, has_died = 0, True
    while has_died:
        nth += 1
        feed = Feed(server)
        die_at(proxy, nth, fault)
        try:
            await run(feed.sink(stores_behind(server, proxy)), HEAD, limit=2, rows=40)
            has_died = False
        except SinkError:
            pass
        # The next process reads other batches, wants other ends, and has another configuration.
        after = feed.sink(max_bytes_per_file=4096, compression="zstd")
        await run(after, HEAD, limit=3, rows=7)
        assert feed.read_by_listing(tmp_path / str(nth)) == rows_until(HEAD), f"request {nth}"
        by_manifest = Counter((row[0], row[2]) for row in manifest_rows(server, feed.url))
        assert by_manifest == rows_until(HEAD)
    # An intent, three entries, and at least two files for each of three deliveries.
    assert nth > 12


async def test_a_former_owner_that_goes_on_in_a_delivery_adds_no_row(
    server: BucketServer, tmp_path: Path
) -> None:
    goes_on, is_in_the_middle = asyncio.Event(), asyncio.Event()

    async def stalls() -> AsyncIterator[ChangeBatch]:
        yield batch(0)
        is_in_the_middle.set()
        await goes_on.wait()
        yield batch(1)
        yield batch(2)

    feed = Feed(server)
    former, owner = feed.sink(), feed.sink(max_bytes_per_file=8192)
    await former.resume(offset(0))
    writing = asyncio.create_task(former.write(replace(delivery(0, 3), batches=stalls())))
    await is_in_the_middle.wait()
    await run(owner, 4, limit=1, rows=11)
    goes_on.set()
    with pytest.raises(SinkFencedError):
        await writing
    await run(feed.sink(), HEAD, limit=1, rows=40)
    assert feed.read_by_listing(tmp_path) == rows_until(HEAD)


@pytest.mark.parametrize("end", [1, 2, 3])
async def test_a_former_owner_that_begins_a_delivery_of_the_past_writes_nothing(
    server: BucketServer, tmp_path: Path, end: int
) -> None:
    feed = Feed(server)
    former, owner = feed.sink(), feed.sink()
    await former.resume(offset(0))
    await run(owner, 4, limit=2, rows=40)
    with pytest.raises(SinkFencedError):
        await former.write(delivery(0, end))
    assert feed.read_by_listing(tmp_path) == rows_until(4)


async def test_two_processes_that_take_turns_at_random_deliver_each_row_once(
    server: BucketServer, tmp_path: Path
) -> None:
    feed = Feed(server, {"format": "parquet", "max_bytes_per_file": 1024})

    async def keep_trying(limit: int) -> None:
        for _ in range(20):
            try:
                await run(feed.sink(), HEAD, limit=limit, rows=limit * 3)
            except SinkError:
                await asyncio.sleep(0)
            else:
                return

    await asyncio.gather(*(keep_trying(limit) for limit in (1, 2, 3)))
    await run(feed.sink(), HEAD, limit=1, rows=40)
    assert feed.read_by_listing(tmp_path) == rows_until(HEAD)
