"""Tables in a bucket: waking up, resting, the cost of a small request, rows against deltalake.

The server is moto, which answers about 500 requests a second: it bounds both sides.
"""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tests.benchmarks.conftest import Report
from tests.benchmarks.many_tables import is_ready
from tests.benchmarks.measuring import Row, milliseconds, paired, per_second, run_process
from tests.integration.daemon.running import daemon, delivered_ids, eventually
from tests.integration.s3.living_table import LivingTable, write_config
from tests.s3.notified import NotifiedBucket
from tests.s3.proxy import FaultProxy
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.s3.upload import upload
from tests.tables.builder import CDF, TableBuilder

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

COMMITS = 40
TABLES = 1000
IDLE_SECONDS = 60
GETS = 1000
FILE_ROWS = 300_000
FILES = 6

OURS_GET = f"""
    import asyncio, sys, time
    from tailerd.storage.s3.store import S3Store

    async def main():
        store = S3Store()
        for _ in range(50):
            await store.get(sys.argv[1])
        begin = time.process_time()
        for _ in range({GETS}):
            await store.get(sys.argv[1])
        return {{"cpu_seconds": (time.process_time() - begin) / {GETS}}}

    result = asyncio.run(main())
"""
PEER_GET = f"""
    import sys, time
    import boto3

    client = boto3.client("s3")
    bucket, _, key = sys.argv[1].partition("/")
    for _ in range(50):
        client.get_object(Bucket=bucket, Key=key)["Body"].read()
    begin = time.process_time()
    for _ in range({GETS}):
        client.get_object(Bucket=bucket, Key=key)["Body"].read()
    result = {{"cpu_seconds": (time.process_time() - begin) / {GETS}}}
"""
OURS_ROWS = """
    import asyncio, sys, time
    from tailerd.changefeed.change_task import ChangeMode
    from tailerd.changefeed.limits import BatchLimit, ReadLimit
    from tailerd.pipeline.change_stream import ChangeStream
    from tailerd.sources.delta.source import DeltaChangeSource

    async def main():
        source = await DeltaChangeSource.open(sys.argv[1], changes=ChangeMode.CDF)
        begin = time.perf_counter()
        offset, rows = await source.initial_offset("1"), 0
        while (end := await source.latest_offset(offset, ReadLimit())) != offset:
            stream = ChangeStream(source, offset, end, limit=BatchLimit())
            async for batch in stream.batches():
                rows += batch.num_rows
            await source.commit(end)
            offset = end
        return {"rows": rows, "seconds": time.perf_counter() - begin}

    result = asyncio.run(main())
"""
PEER_ROWS = """
    import sys, time
    import deltalake

    table = deltalake.DeltaTable(sys.argv[1])
    begin, rows = time.perf_counter(), 0
    for batch in table.load_cdf(starting_version=1):
        rows += batch.num_rows
    result = {"rows": rows, "seconds": time.perf_counter() - begin}
"""


@pytest.fixture
def environment(s3_moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**s3_moto.environment(), "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)


def servers_own_delay(server: S3Server) -> float:
    """Return the median time from a put to a message of it, with nothing of ours between."""
    notified = NotifiedBucket(server)
    seconds = []
    for number in range(COMMITS):
        began = time.monotonic()
        notified.put(f"t/_delta_log/{number:020}.json")
        found: list[dict[str, str]] = []
        while not any(f"{number:020}" in each["Body"] for each in found):
            answer = notified.sqs.receive_message(
                QueueUrl=notified.queue, MaxNumberOfMessages=10, WaitTimeSeconds=20
            )
            found = answer.get("Messages", [])
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


def test_a_commit_woken_by_the_queue(s3_moto: S3Server, tmp_path: Path, report: Report) -> None:
    own = servers_own_delay(s3_moto)
    living = LivingTable(tmp_path / "t", NotifiedBucket(s3_moto))
    out = tmp_path / "out"
    seconds = []
    with daemon(write_config(tmp_path, living, start="0")):
        eventually(lambda: delivered_ids(out) == living.ids)
        for _ in range(COMMITS):
            time.sleep(0.2)
            living.append()
            began = time.monotonic()
            eventually(lambda: len(list(out.glob("*.jsonl"))) >= len(living.ids))
            seconds.append(time.monotonic() - began)
    found = statistics.median(seconds) - own
    report(
        [
            Row(
                f"commit -> its file, woken by SQS, above the server's own {milliseconds(own)}",
                milliseconds(found),
                "",
                None,
                "p50 <= 100 ms",
                found <= 0.1,
            )
        ]
    )


def test_a_thousand_tables_at_rest(s3_moto: S3Server, tmp_path: Path, report: Report) -> None:
    notified = NotifiedBucket(s3_moto)
    TableBuilder(tmp_path / "t").append([{"id": 1, "name": "x"}])
    with ThreadPoolExecutor(8) as pool:
        for number in range(TABLES):
            pool.submit(upload, s3_moto, tmp_path / "t", notified.bucket, f"t{number}")
    config = tmp_path / "tailerd.yaml"
    with FaultProxy(s3_moto.port) as proxy:
        about = {
            "engine": "arrow",
            "state": str(tmp_path / "state"),
            "growth": False,
            "http": {"listen": "127.0.0.1:0"},
            "storage": {
                "endpoint": proxy.endpoint,
                "region": "us-east-1",
                "access_key_id": ACCESS_KEY,
                "secret_access_key": SECRET_KEY,
            },
            "notifications": {"queue": notified.queue, "endpoint": proxy.endpoint},
            "tables": {
                f"t{number}": {
                    "path": f"s3://{notified.bucket}/t{number}",
                    "sink": {"kind": "file", "path": str(tmp_path / "out" / str(number))},
                }
                for number in range(TABLES)
            },
        }
        config.write_text(yaml.safe_dump(about, sort_keys=False))
        with daemon(config):
            eventually(lambda: is_ready(config), seconds=300)
            # Until the floor has passed over all tables once, some are looked at that just were.
            eventually(lambda: notified.left() == 0, seconds=120)
            time.sleep(5)
            proxy.forget()
            time.sleep(IDLE_SECONDS)
            found = sum(proxy.counts().values()) / IDLE_SECONDS
    report(
        [Row(f"{TABLES:,} tables idle: requests", f"{found:.2f}/s", "", None, "<= 2/s", found <= 2)]
    )


@pytest.mark.usefixtures("environment")
def test_the_cpu_of_a_small_get(s3_moto: S3Server, report: Report) -> None:
    bucket = s3_moto.new_bucket()
    s3_moto.admin().put_object(Bucket=bucket, Key="a", Body=os.urandom(1000))
    ours, peer = paired(
        lambda: run_process(OURS_GET, f"{bucket}/a"), lambda: run_process(PEER_GET, f"{bucket}/a")
    )
    one, other = ours.result["cpu_seconds"], peer.result["cpu_seconds"]
    report(
        [
            Row(
                "client CPU of a small get, boto3",
                milliseconds(one),
                milliseconds(other),
                one / other,
                "<= 1",
                one <= other,
            )
        ]
    )


@pytest.mark.usefixtures("environment")
def test_change_rows_of_a_bucket(s3_moto: S3Server, tmp_path: Path, report: Report) -> None:
    table = TableBuilder(
        tmp_path / "t", fields=[("id", "long"), ("value", "double")], properties=CDF
    )
    table.create()
    chance = np.random.default_rng(8)
    for number in range(FILES):
        rows = FILE_ROWS * (number + 1)
        columns = {
            "id": chance.integers(0, 2**60, rows),
            "value": chance.random(rows),
            "_change_type": pa.repeat("insert", rows),
        }
        table.commit(table.cdc_file(pa.table(columns)))
    bucket = s3_moto.new_bucket()
    upload(s3_moto, tmp_path / "t", bucket, "t")
    place = f"s3://{bucket}/t"
    ours, peer = paired(
        lambda: run_process(OURS_ROWS, place), lambda: run_process(PEER_ROWS, place), times=3
    )
    assert ours.result["rows"] == peer.result["rows"]
    rows, one, other = ours.result["rows"], ours.result["seconds"], peer.result["seconds"]
    report(
        [
            Row(
                "change rows of files of 5 to 30 MB, load_cdf",
                per_second(rows, one),
                per_second(rows, other),
                other / one,
                ">= 1.5",
                other >= 1.5 * one,
            )
        ]
    )
