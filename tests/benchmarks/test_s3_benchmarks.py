"""Tables in a bucket: waking up, resting, the cost of a small request, rows against deltalake.

moto, which has queues, answers about 500 requests a second and ends the connection with each; it
would bound both sides, so rows come from versitygw.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.benchmarks.big_tables import change_feed
from tests.benchmarks.conftest import Report
from tests.benchmarks.many_tables import is_ready
from tests.benchmarks.measuring import Row, milliseconds, paired, per_second, run_process
from tests.clouds.buckets import CLOUDS
from tests.clouds.servers import CloudServer
from tests.integration.daemon.running import daemon, delivered_ids
from tests.integration.s3.living_table import LivingTable, write_config
from tests.s3.notified import NotifiedBucket
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

COMMITS = 40
TABLES = 200
IDLE_SECONDS = 60
GETS = 1000
FEEDS = {"1 MB": (60, 40_000), "9 MB": (12, 400_000), "45 MB": (4, 2_000_000)}
"""Commits, and rows of each; the files are about as large as is said."""
AWAY_SECONDS = 0.02
"""Until the first byte of an answer, as from S3 to a machine in its region."""

OURS_GET = f"""
    import asyncio, sys, time
    from tailerd.storage.stores import Stores

    async def main():
        store, path = Stores().locate(sys.argv[1])
        for _ in range(50):
            await store.get(path)
        begin = time.process_time()
        for _ in range({GETS}):
            await store.get(path)
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
    from tailerd.arrow_start import start_arrow

    # As every process of tailerd begins.
    start_arrow()
    from tailerd.changefeed.change_task import ChangeMode
    from tailerd.changefeed.limits import BatchLimit, ReadLimit
    from tailerd.pipeline.change_stream import ChangeStream
    from tailerd.formats.base import OpenRequest
    from tests.tables.opened import open_delta

    async def main():
        source = await open_delta(sys.argv[1], OpenRequest(changes=ChangeMode.CDF))
        begin, cpu = time.perf_counter(), time.process_time()
        offset, rows = await source.initial_offset("1"), 0
        while (end := await source.latest_offset(offset, ReadLimit())) != offset:
            stream = ChangeStream(source, offset, end, limit=BatchLimit())
            async for batch in stream.batches():
                rows += batch.num_rows
            await source.commit(end)
            offset = end
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return {"rows": rows, "seconds": seconds, "cpu_seconds": cpu}

    result = asyncio.run(main())
"""
PEER_ROWS = """
    import sys, time
    import deltalake

    table = deltalake.DeltaTable(sys.argv[1])
    begin, cpu, rows = time.perf_counter(), time.process_time(), 0
    for batch in table.load_cdf(starting_version=0):
        rows += batch.num_rows
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    result = {"rows": rows, "seconds": seconds, "cpu_seconds": cpu}
"""


@pytest.fixture
def server(s3_versitygw: S3Server) -> S3Server:
    return s3_versitygw


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


def test_tables_at_rest(s3_moto: S3Server, tmp_path: Path, report: Report) -> None:
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
            "table_metrics": False,
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
            eventually(lambda: notified.left() == 0, seconds=300)
            time.sleep(5)
            proxy.forget()
            time.sleep(IDLE_SECONDS)
            found = sum(proxy.counts().values()) / IDLE_SECONDS
    report(
        [
            Row(
                f"{TABLES} tables idle: requests",
                f"{found:.2f}/s",
                "",
                None,
                "<= 0.5/s",
                found <= 0.5,
            )
        ]
    )


def test_the_cpu_of_a_small_get(
    server: S3Server, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment(monkeypatch, server.environment())
    bucket = server.new_bucket()
    server.admin().put_object(Bucket=bucket, Key="a", Body=os.urandom(1000))
    ours, peer = paired(
        lambda: run_process(OURS_GET, f"s3://{bucket}/a"),
        lambda: run_process(PEER_GET, f"{bucket}/a"),
    )
    one, other = ours.result["cpu_seconds"], peer.result["cpu_seconds"]
    report(
        [
            Row(
                f"client CPU of a small get from {server.name}, boto3",
                milliseconds(one),
                milliseconds(other),
                one / other,
                "<= 1",
                one <= other,
            )
        ]
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_cpu_of_a_small_get_from_another_cloud(
    request: pytest.FixtureRequest,
    s3_versitygw: S3Server,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
    cloud: str,
) -> None:
    server: CloudServer = request.getfixturevalue(cloud)
    use_environment(monkeypatch, s3_versitygw.environment() | server.environment())
    body, bucket, s3_bucket = os.urandom(1000), server.new_bucket(), s3_versitygw.new_bucket()
    asyncio.run(server.store().put(f"{bucket}/a", body))
    s3_versitygw.admin().put_object(Bucket=s3_bucket, Key="a", Body=body)
    ours, s3 = paired(
        lambda: run_process(OURS_GET, f"{server.scheme}://{bucket}/a"),
        lambda: run_process(OURS_GET, f"s3://{s3_bucket}/a"),
    )
    one, other = ours.result["cpu_seconds"], s3.result["cpu_seconds"]
    report(
        [
            Row(
                f"client CPU of a small get from {cloud}, our own from S3",
                milliseconds(one),
                milliseconds(other),
                one / other,
                "<= 1.1",
                one <= 1.1 * other,
            )
        ]
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_change_rows_of_another_cloud(
    request: pytest.FixtureRequest,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
    cloud: str,
) -> None:
    server: CloudServer = request.getfixturevalue(cloud)
    use_environment(monkeypatch, server.environment())
    bucket, folder = server.new_bucket(), change_feed(*FEEDS["9 MB"])
    for path in folder.rglob("*"):
        if path.is_file():
            key = path.relative_to(folder).as_posix()
            asyncio.run(server.store().put(f"{bucket}/t/{key}", path.read_bytes()))
    location = f"{server.scheme}://{bucket}/t"
    report([row_of(f"change rows of files of 9 MB from {cloud}", location)])


@pytest.mark.parametrize("size", FEEDS)
def test_change_rows_of_a_bucket(
    server: S3Server, report: Report, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    use_environment(monkeypatch, server.environment())
    bucket = server.new_bucket()
    upload(server, change_feed(*FEEDS[size]), bucket, "t")
    report([row_of(f"change rows of files of {size} from {server.name}", f"s3://{bucket}/t")])


@pytest.mark.parametrize("size", ["1 MB", "9 MB"])
def test_change_rows_of_a_bucket_that_is_not_next_door(
    s3_versitygw: S3Server, report: Report, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    bucket = s3_versitygw.new_bucket()
    upload(s3_versitygw, change_feed(*FEEDS[size]), bucket, "t")
    with FaultProxy(s3_versitygw.port, delay_seconds=AWAY_SECONDS) as proxy:
        proxy.choose = lambda seen: Fault.DELAY
        use_environment(monkeypatch, s3_versitygw.environment(proxy.endpoint))
        away = milliseconds(AWAY_SECONDS)
        report([row_of(f"the same of {size}, answers {away} later", f"s3://{bucket}/t")])


def use_environment(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in {**values, "AWS_ALLOW_HTTP": "true", "AZURE_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)


def row_of(work: str, location: str) -> Row:
    """Read a table's changes with ours and the peer in turns; the CPU is of that alone."""
    ours, peer = paired(
        lambda: run_process(OURS_ROWS, location), lambda: run_process(PEER_ROWS, location), times=3
    )
    assert ours.result["rows"] == peer.result["rows"]
    rows, one, other = ours.result["rows"], ours.result["seconds"], peer.result["seconds"]
    shown, peers = (
        f"{per_second(rows, run.result['seconds'])} ({run.result['cpu_seconds']:.2f} s CPU)"
        for run in (ours, peer)
    )
    return Row(f"{work}, load_cdf", shown, peers, other / one, ">= 1.5", other >= 1.5 * one)
