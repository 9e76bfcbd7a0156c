"""Files of a bucket read at random: the right bytes, with few requests."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import StorageError
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.storage.base import ObjectStore
from tailerd.storage.remote_input import AHEAD_BYTES, PART_BYTES, TAIL_BYTES
from tests.clouds.buckets import BucketServer
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder
from tests.tables.feed import EVERYTHING
from tests.tables.opened import open_delta


@pytest.mark.parametrize("size", [0, 1, TAIL_BYTES, TAIL_BYTES + 1, 3 * PART_BYTES + 7])
async def test_every_read_gives_the_bytes_the_file_has(
    store: ObjectStore, bucket: str, size: int
) -> None:
    body = np.random.default_rng(size).bytes(size)
    await store.put(f"{bucket}/file", body)
    chance = random.Random(size)
    lengths = [0, 1, 100, AHEAD_BYTES, AHEAD_BYTES + 1, TAIL_BYTES, 2 * PART_BYTES, -1]
    with store.open_input(f"{bucket}/file") as source:
        for _ in range(40):
            start, length = chance.randint(0, size + 5), chance.choice(lengths)
            assert source.seek(start) == start
            end = size if length < 0 else start + length
            assert source.read(length) == body[start:end], (start, length)
            assert source.tell() == max(start, min(size, end))
        assert source.seek(-min(3, size), io.SEEK_END) == size - min(3, size)
        assert source.read() == body[-3:]


async def test_a_small_file_is_one_request_and_columns_of_a_large_one_few(
    store: ObjectStore, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    random_values = np.random.default_rng(1).random(1_000_000)
    columns = dict.fromkeys("abcd", random_values)
    large = tmp_path / "large.parquet"
    pq.write_table(pa.table(columns), large, row_group_size=500_000, use_dictionary=False)
    await store.put(f"{bucket}/large", large.read_bytes())
    await store.put(f"{bucket}/small", b"x" * 100_000)
    proxy.forget()
    with store.open_input(f"{bucket}/small") as source:
        assert len(source.read()) == 100_000
    assert proxy.counts() == {"get": 1}
    proxy.forget()
    with store.open_input(f"{bucket}/large") as source:
        found = pq.ParquetFile(source, pre_buffer=True).read(columns=["b", "c"])
    assert found.column("b").to_pylist() == list(random_values)
    # The footer; then two neighbouring columns of each of two row groups, 8 MB, in two parts.
    assert sum(proxy.counts().values()) <= 5


async def test_a_file_that_is_replaced_while_it_is_read_is_an_error_and_no_mixture(
    server: BucketServer,
) -> None:
    bucket, strict = server.new_bucket(), server.store()
    await strict.put(f"{bucket}/file", b"a" * 6_000_000)
    with strict.open_input(f"{bucket}/file") as source:
        assert source.read(10) == b"a" * 10
        await strict.put(f"{bucket}/file", b"b" * 6_000_000)
        source.seek(1_500_000)
        with pytest.raises(StorageError, match="was replaced while it was read"):
            source.read(600_000)


async def test_small_files_read_in_a_row_are_one_request_each_and_under_way_together(
    server: BucketServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    table, names = TableBuilder(tmp_path / "t"), set()
    for number in range(8):
        names |= {add["add"]["path"] for add in table.append([{"id": number, "name": "x"}]).adds}
    bucket = server.new_bucket()
    upload(server, tmp_path / "t", bucket, "t")
    source = await open_delta(f"{server.scheme}://{bucket}/t")
    start = await source.initial_offset("snapshot")
    end = await source.latest_offset(start, EVERYTHING)
    proxy.forget()
    proxy.delay_seconds = 0.5
    proxy.choose = lambda seen: Fault.DELAY if seen.path.endswith(".parquet") else None
    began = time.monotonic()
    stream = ChangeStream(source, start, end, limit=BatchLimit())
    rows = [row["id"] async for batch in stream.batches() for row in batch.rows.to_pylist()]
    # One after the other, each answer would cost its delay.
    assert time.monotonic() - began < proxy.delay_seconds * len(names)
    assert sorted(rows) == list(range(8))
    files = [seen.path.rpartition("/")[2] for seen in proxy.requests if seen.fault]
    assert sorted(files) == sorted(names)
