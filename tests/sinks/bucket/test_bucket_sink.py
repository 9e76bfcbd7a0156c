"""Folders, intents and refusals of the sink, in a real bucket."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import SinkError, SinkRefusedError
from tailerd.sinks.bucket.sink import BucketSink
from tailerd.sinks.file.config import FileSinkConfig
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server
from tests.sinks.bucket.feed import Feed, delivery, offset, rows_until, run, saved_at
from tests.sinks.bucket.readers import manifest_entries


def entries(feed: Feed) -> list[dict[str, Any]]:
    store, root = feed.server.stores().locate(feed.url)
    return list(manifest_entries(store, root))


async def moved(sink: BucketSink, to: Offset) -> int:
    """Return the folder of rows after an offset was saved."""
    await sink.offsets.save("orders", saved_at(to))
    return sink._manifest._newest.epoch  # type: ignore[union-attr]


SNAPSHOT = offset(9, 0, Phase.SNAPSHOT)


@pytest.mark.parametrize(
    ("to", "epoch"),
    [
        (offset(4), 1),
        (offset(9), 1),
        (offset(3), 2),
        (SNAPSHOT, 2),
        (Offset(table_id="other", version=offset(9).version), 2),
    ],
    ids=["same", "later", "earlier", "snapshot", "other-table"],
)
async def test_rows_that_come_again_go_to_the_next_folder(
    s3_moto: S3Server, to: Offset, epoch: int
) -> None:
    feed = Feed(s3_moto)
    sink = feed.sink()
    await run(sink, 4, limit=4, rows=40)
    assert await moved(sink, to) == epoch
    assert await moved(feed.sink(), to) == epoch


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "parquet", "partition_by": ["region"]},
        {"format": "jsonl"},
        {"format": "jsonl", "compression": "zstd"},
        {"format": "jsonl", "compression": "none"},
    ],
    ids=str,
)
async def test_rows_are_read_back_without_those_that_came_again(
    s3_moto: S3Server, fields: dict[str, Any]
) -> None:
    feed = Feed(s3_moto, {"max_bytes_per_file": 1024, **fields})
    sink = feed.sink()
    await run(sink, 5, limit=2, rows=16)
    for to in (5, 1):
        await moved(sink, offset(to))
        await run(feed.sink(), 7, limit=3, rows=40)
        found = Counter[tuple[int, int]]()
        async for lines in feed.sink().read_back():
            rows = map(json.loads, lines)
            found.update((row["id"], row["_commit_version"]) for row in rows)
        first = 0 if to == 5 else to
        assert found == {each: 1 for each in rows_until(7) if each[1] >= first}
        sink = feed.sink()
    names = [file["path"] for entry in entries(feed) for file in entry["files"]]
    await sink._target.store.delete(f"{sink._target.root}/{names[-1]}")
    with pytest.raises(SinkRefusedError, match=re.escape(names[-1].rpartition("/")[2])):
        async for _ in feed.sink().read_back():
            pass


async def test_a_delivery_that_is_never_finished_ends_its_folder(s3_moto: S3Server) -> None:
    feed = Feed(s3_moto)
    sink = feed.sink()
    await run(sink, 4, limit=4, rows=40)
    broken = delivery(4, 6)
    await sink._begin(broken, 1)
    assert await feed.sink().pinned_end(offset(4)) == offset(6)
    # A commit is left out: rows from 4 on may be in the folder already.
    assert await moved(feed.sink(), offset(5)) == 2


async def test_a_gap_is_recorded_and_a_snapshot_follows_in_a_new_folder(
    s3_moto: S3Server, tmp_path: Path
) -> None:
    feed = Feed(s3_moto)
    sink = feed.sink()
    await run(sink, 2, limit=1, rows=40)
    gap = Gap(table="orders", start=offset(2), end=SNAPSHOT, reason="missing_version")
    await sink.note_gap(gap)
    assert await sink.offsets.load("orders") == saved_at(offset(2))
    await sink.offsets.save("orders", saved_at(SNAPSHOT))
    await sink.resume(SNAPSHOT)
    again = delivery(0, 2)
    object.__setattr__(again, "start", SNAPSHOT)
    object.__setattr__(again, "end", offset(10))
    await sink.write(again)
    [entry] = [each for each in entries(feed) if each["kind"] == "gap"]
    assert (entry["start"]["version"], entry["reason"]) == (2, "missing_version")
    last = entries(feed)[-1]
    assert all(file["path"].startswith("epoch=2/") for file in last["files"])
    assert set(feed.read_by_listing(tmp_path).values()) == {2}


async def test_other_transforms_cannot_finish_a_delivery_that_was_begun(s3_moto: S3Server) -> None:
    feed = Feed(s3_moto)
    sink = feed.sink()
    await sink.resume(offset(0))
    await sink._begin(delivery(0, 2), 1)
    after = feed.sink()
    await after.resume(offset(0))
    with pytest.raises(SinkRefusedError, match="other transforms"):
        await after.write(delivery(0, 2, view="masked"))
    assert await after.write(delivery(0, 2)) == 80


async def test_another_end_is_refused_until_the_pinned_one_is_used(s3_moto: S3Server) -> None:
    feed = Feed(s3_moto)
    sink = feed.sink()
    await sink.resume(offset(0))
    await sink._begin(delivery(0, 2), 1)
    with pytest.raises(SinkError, match="to version 2, not to 3") as caught:
        await sink.write(delivery(0, 3))
    assert caught.value.retryable
    assert await sink.pinned_end(offset(0)) == offset(2)
    await sink.write(delivery(0, 2))
    assert await sink.pinned_end(offset(2)) is None


async def test_a_server_without_conditions_is_refused_unless_rows_may_repeat(
    s3_moto: S3Server, tmp_path: Path
) -> None:
    with FaultProxy(s3_moto.port) as proxy:
        proxy.fail_every(1, Fault.NO_CONDITIONS)
        feed = Feed(s3_moto)
        sink = feed.sink(s3_moto.stores(s3_moto.url_at(proxy.port)))
        for call in (sink.healthcheck(), sink.resume(offset(0))):
            with pytest.raises(SinkRefusedError, match="exactly once") as caught:
                await call
            assert "at-least-once" in caught.value.remedy
        assert entries(feed) == []
        stores = s3_moto.stores(s3_moto.url_at(proxy.port))
        accepted = feed.sink(stores, delivery="at-least-once")
        await accepted.healthcheck()
        await run(accepted, 4, limit=3, rows=40)
    assert feed.read_by_listing(tmp_path) == rows_until(4)


async def test_a_missing_right_is_found_and_named(s3_moto: S3Server) -> None:
    with FaultProxy(s3_moto.port) as proxy:
        feed = Feed(s3_moto)
        sink = feed.sink(s3_moto.stores(s3_moto.url_at(proxy.port)))
        proxy.choose = lambda seen: Fault.DENY if seen.kind == "put" else None
        with pytest.raises(SinkRefusedError, match=feed.url):
            await sink.healthcheck()
        # Nothing is deleted, so that right is not needed.
        proxy.choose = lambda seen: Fault.DENY if seen.kind in ("delete", "list") else None
        await sink.healthcheck()


async def test_the_newest_of_many_entries_is_found_with_few_requests(s3_moto: S3Server) -> None:
    feed = Feed(s3_moto)
    sink = feed.sink()
    await sink.resume(offset(0))
    for _ in range(40):
        await sink.offsets.save("orders", saved_at(offset(7)))
    with FaultProxy(s3_moto.port) as proxy:
        after = feed.sink(s3_moto.stores(s3_moto.url_at(proxy.port)))
        assert await after.offsets.load("orders") == saved_at(offset(7))
        assert len(proxy.requests) <= 14


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"path": "ftp://a/b"}, "a URL of a bucket"),
        ({"path": "s3://key:secret@a/b"}, "credentials"),
        ({"path": "s3://a/b", "mode": "0640"}, "mode is for files in a folder"),
        ({"path": "/a", "partition_by": ["day"]}, "partition_by is for files in a bucket"),
        ({"path": "/a", "delivery": "at-least-once"}, "delivery is for files in a bucket"),
        ({"path": "s3://a/b", "partition_by": ["a", "a"]}, "each column once"),
    ],
    ids=["scheme", "credentials", "mode", "partitions", "delivery", "twice"],
)
def test_fields_that_do_not_fit_the_location_are_refused(
    fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        FileSinkConfig.model_validate({"kind": "file", **fields})


async def test_a_file_is_never_replaced(s3_moto: S3Server) -> None:
    feed = Feed(s3_moto, {"format": "parquet"})
    sink = feed.sink()
    await sink.resume(offset(0))
    await sink.write(delivery(0, 1))
    [file] = entries(feed)[-1]["files"]
    feed = Feed(s3_moto, {"format": "parquet"})
    _, bucket, *folder = feed.url.split("/", 3)[1:]
    s3_moto.put(bucket, f"{folder[0]}/{file['path']}", b"the same rows")
    sink = feed.sink()
    await sink.resume(offset(0))
    await sink.write(delivery(0, 1))
    store, root = s3_moto.stores().locate(feed.url)
    assert await store.get(f"{root}/{file['path']}") == b"the same rows"
