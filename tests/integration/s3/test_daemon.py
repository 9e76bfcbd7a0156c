"""The daemon on a table in a bucket: woken by a queue, killed, refused, and without its bucket."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tailerd.config import load_config
from tailerd.daemon.daemon import Daemon
from tailerd.telemetry import events
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    page,
    read_log,
    run_to_end,
)
from tests.integration.s3.living_table import LivingTable, write_config
from tests.kafka.ports import free_port
from tests.s3.notified import NotifiedBucket
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server
from tests.waiting import eventually

CONFIG = Path(__file__).parents[3] / "config" / "s3.yaml"
DEFAULT_KILLS = 3


@pytest.fixture
def living(s3_moto: S3Server, tmp_path: Path) -> LivingTable:
    return LivingTable(tmp_path / "table", NotifiedBucket(s3_moto, visible_seconds=5))


def has_all(living: LivingTable, folder: Path) -> bool:
    return delivered_ids(folder / "out") == living.ids


def test_the_example_runs_as_readme_says(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "s3.yaml"
    text = CONFIG.read_text().replace(":5000", f":{port}")
    config.write_text(text.replace("quickstart/", f"{tmp_path}/"))
    words = [sys.executable, "-m", "tests.s3", "--port", str(port), "--every", "0.5"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert any(line.startswith("Table") for line in server.stdout)
            with daemon(config) as process:
                eventually(lambda: read_log(config).count("Batch delivered") >= 4)
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
        finally:
            server.terminate()


def test_a_commit_is_delivered_when_the_queue_tells_of_it(
    living: LivingTable, tmp_path: Path
) -> None:
    config = write_config(tmp_path, living)
    with daemon(config) as process:
        eventually(lambda: has_all(living, tmp_path))
        for _ in range(5):
            living.append()
            # Nothing else looks for half a minute.
            eventually(lambda: has_all(living, tmp_path), seconds=10)
        eventually(lambda: living.notified.left() == 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.full
@pytest.mark.parametrize("has_growth", [False, True])
def test_a_commit_woken_by_the_queue_takes_three_requests(
    living: LivingTable, tmp_path: Path, has_growth: bool
) -> None:
    with FaultProxy(living.notified.server.port) as proxy:
        config = write_config(tmp_path, living, storage=proxy.endpoint, has_growth=has_growth)
        with daemon(config):
            eventually(lambda: has_all(living, tmp_path))
            living.append()
            eventually(lambda: has_all(living, tmp_path))
            eventually(lambda: living.notified.left() == 0)
            eventually(proxy.is_quiet)
            proxy.forget()
            living.append()
            eventually(lambda: has_all(living, tmp_path))
            eventually(proxy.is_quiet)
            assert sum(proxy.counts().values()) == 3, proxy.requests


@pytest.mark.full
def test_three_sinks_poll_and_read_the_log_with_the_requests_of_one(
    living: LivingTable, tmp_path: Path
) -> None:
    with FaultProxy(living.notified.server.port) as proxy:
        path = write_config(tmp_path, living, storage=proxy.endpoint, has_queue=False)
        config = yaml.safe_load(path.read_text())
        table = config["tables"]["orders"]
        del table["sink"]
        outs = {name: tmp_path / "out" / name for name in ("one", "two", "three")}
        table["sinks"] = {
            name: {"sink": {"kind": "file", "path": str(out)}} for name, out in outs.items()
        }
        table["poll_interval"] = "1s"
        path.write_text(yaml.safe_dump(config))

        def is_everywhere() -> bool:
            return all(delivered_ids(out) == living.ids for out in outs.values())

        with daemon(path):
            eventually(is_everywhere)
            proxy.forget()
            time.sleep(5.0)
            polls = [each for each in proxy.requests if "_delta_log" in str(each)]
            # One each second for all three, and one more where the clock ticks in between.
            assert len(polls) <= 7, polls
            living.append()
            eventually(is_everywhere)
            reads = [
                each for each in proxy.requests if f"{len(living.ids) - 1:020}.json" in str(each)
            ]
            assert len(reads) <= 10, reads


@pytest.mark.full
def test_killed_again_and_again_it_loses_and_doubles_nothing(
    living: LivingTable, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chances = random.Random(8)
    config = write_config(tmp_path, living, start="0")
    for _ in range(request.config.getoption("--kills") or DEFAULT_KILLS):
        with daemon(config) as process:
            done = len(delivered_ids(tmp_path / "out"))
            while len(delivered_ids(tmp_path / "out")) == done:
                living.append()
                time.sleep(chances.uniform(0.02, 0.1))
            for _ in range(chances.randrange(5)):
                living.append()
            process.kill()
    with daemon(config):
        eventually(lambda: has_all(living, tmp_path))


@pytest.mark.full
def test_a_message_of_what_a_killed_daemon_had_not_seen_comes_again(
    living: LivingTable, tmp_path: Path
) -> None:
    with FaultProxy(living.notified.server.port) as proxy:
        config = write_config(tmp_path, living, storage=proxy.endpoint)
        with daemon(config) as process:
            eventually(lambda: has_all(living, tmp_path))
            eventually(lambda: living.notified.left() == 0)
            proxy.fail_every(1, Fault.INTERNAL)
            living.append()
            # It was woken, and cannot look.
            eventually(lambda: "Attempt failed, retrying" in read_log(config))
            process.kill()
        assert not has_all(living, tmp_path)
        assert living.notified.left() > 0
        proxy.forget()
        with daemon(config):
            eventually(lambda: has_all(living, tmp_path))
            eventually(lambda: living.notified.left() == 0)


@pytest.mark.full
def test_credentials_that_expire_are_waited_for_and_told_of(
    living: LivingTable, tmp_path: Path
) -> None:
    with FaultProxy(living.notified.server.port) as proxy:
        config = write_config(tmp_path, living, storage=proxy.endpoint, queue=proxy.endpoint)
        with daemon(config):
            eventually(lambda: has_all(living, tmp_path))
            proxy.fail_every(1, Fault.EXPIRED)
            living.append()
            eventually(lambda: "Notifications unavailable" in read_log(config))
            [problem] = json.loads(page(config, "/status"))["problems"]
            assert (problem["part"], problem["path"]) == ("notifications", living.notified.queue)
            assert 'job="notifications"} 1.0' in page(config, "/metrics")
            assert not has_all(living, tmp_path)
            proxy.forget()
            eventually(lambda: has_all(living, tmp_path))
            eventually(lambda: "Notifications recovered" in read_log(config))
            eventually(lambda: json.loads(page(config, "/status"))["problems"] == [])


@pytest.mark.full
def test_a_bucket_that_is_gone_is_an_error_that_names_it(
    living: LivingTable, tmp_path: Path
) -> None:
    config = write_config(tmp_path, living, has_queue=False, poll_interval="200ms")
    with daemon(config) as process:
        eventually(lambda: has_all(living, tmp_path))
        s3 = living.notified.server.admin()
        bucket = living.notified.bucket
        listed = s3.list_objects_v2(Bucket=bucket)["Contents"]
        s3.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": each["Key"]} for each in listed]}
        )
        s3.delete_bucket(Bucket=bucket)
        assert process.wait(30) == 1
    assert "bucket_missing" in read_log(config)
    assert bucket in read_log(config)


@pytest.mark.full
async def test_a_bucket_that_does_not_notify_is_told_of_once_with_the_fix(
    living: LivingTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.watchers.queue.GRACE_SECONDS", 0.5)
    living.notified.server.admin().put_bucket_notification_configuration(
        Bucket=living.notified.bucket, NotificationConfiguration={}
    )
    living.notified.sqs.purge_queue(QueueUrl=living.notified.queue)
    config = write_config(tmp_path, living, start="0", poll_interval="200ms")
    reported: list[events.Event] = []
    daemon_here = Daemon(load_config(config), handlers=[reported.append])
    running = asyncio.create_task(daemon_here.run())
    try:
        for _ in range(30):
            await asyncio.to_thread(eventually, lambda: has_all(living, tmp_path))
            await asyncio.sleep(0.7)
            if any(isinstance(event, events.NotificationsMissed) for event in reported):
                break
            await asyncio.to_thread(living.append)
        await asyncio.to_thread(living.append)
        await asyncio.to_thread(eventually, lambda: has_all(living, tmp_path))
        daemon_here.stop()
        await running
    finally:
        running.cancel()
    [missed] = [event for event in reported if isinstance(event, events.NotificationsMissed)]
    assert missed.path == f"s3://{living.notified.bucket}"
    assert "s3:ObjectCreated:*" in missed.error
    assert living.notified.queue in missed.error


@pytest.mark.full
def test_a_lost_notification_costs_time_but_no_commit(living: LivingTable, tmp_path: Path) -> None:
    config = write_config(tmp_path, living, poll_interval="1s")
    with daemon(config):
        eventually(lambda: has_all(living, tmp_path))
        s3 = living.notified.server.admin()
        s3.put_bucket_notification_configuration(
            Bucket=living.notified.bucket, NotificationConfiguration={}
        )
        living.append()
        eventually(lambda: has_all(living, tmp_path))


@pytest.mark.full
def test_a_version_that_the_queue_names_and_the_log_lacks_stops_the_pipeline(
    living: LivingTable, tmp_path: Path
) -> None:
    config = write_config(tmp_path, living)
    with daemon(config) as process:
        eventually(lambda: has_all(living, tmp_path))
        eventually(lambda: living.notified.left() == 0)
        living.builder.version += 1
        living.append()
        assert process.wait(30) != 0
    assert "missing from the log" in read_log(config)


@pytest.mark.full
def test_once_delivers_a_table_in_a_bucket_and_ends(living: LivingTable, tmp_path: Path) -> None:
    for _ in range(3):
        living.append()
    config = write_config(tmp_path, living)
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    # A snapshot's files come in the order of their keys.
    assert sorted(delivered_ids(tmp_path / "out")) == living.ids
