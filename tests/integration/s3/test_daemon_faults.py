"""The daemon behind a proxy that fails, without its bucket, and with servers that cannot do all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon.running import daemon, page, read_log, run_to_end
from tests.integration.s3.configured import STATIC_KEYS, delivered, write_tables_config
from tests.integration.s3.living_table import LivingTable
from tests.s3.notified import NotifiedBucket
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server
from tests.waiting import eventually

LASTING = (
    Fault.DENY,
    Fault.SKEW,
    Fault.NO_CONDITIONS,
    Fault.NO_RANGES,
    Fault.UNKNOWN,
    Fault.NO_UPLOAD,
)
GOT_OVER = [fault for fault in Fault if fault not in LASTING]


@pytest.fixture
def living(s3_moto: S3Server, tmp_path: Path) -> LivingTable:
    return LivingTable(tmp_path / "table", NotifiedBucket(s3_moto))


def make_config(living: LivingTable, folder: Path, endpoint: str = "", state: str = "") -> Path:
    top: dict[str, Any] = {"state": state} if state else {}
    return write_tables_config(
        folder,
        living.notified.server,
        {"orders": living.location},
        endpoint=endpoint,
        keys={**STATIC_KEYS, "attempts": 3},
        **top,
    )


def ids(folder: Path) -> list[int]:
    return [row["id"] for row in delivered(folder, "orders")]


@pytest.mark.full
@pytest.mark.parametrize("has_state_in_bucket", [False, True], ids=["disk", "bucket"])
def test_whatever_a_third_of_all_requests_meets_each_row_arrives_once(
    living: LivingTable, tmp_path: Path, has_state_in_bucket: bool
) -> None:
    state = f"s3://{living.notified.bucket}/state" if has_state_in_bucket else ""
    with FaultProxy(living.notified.server.port, delay_seconds=0.2) as proxy:
        config = make_config(living, tmp_path, proxy.endpoint, state)
        with daemon(config) as process:
            for fault in GOT_OVER:
                proxy.forget()
                proxy.fail_one_of(1 if fault is Fault.STALE_LIST else 3, fault)
                for _ in range(3):
                    living.append()
                eventually(lambda: ids(tmp_path) == living.ids)
                assert fault in {seen.fault for seen in proxy.requests}
            assert process.poll() is None


@pytest.mark.full
def test_a_clock_that_is_wrong_is_told_of_until_it_is_right(
    living: LivingTable, tmp_path: Path
) -> None:
    with FaultProxy(living.notified.server.port) as proxy:
        config = make_config(living, tmp_path, proxy.endpoint)
        with daemon(config):
            eventually(lambda: ids(tmp_path) == living.ids)
            proxy.fail_every(1, Fault.SKEW)
            living.append()
            eventually(lambda: "clock_skew" in page(config, "/status"))
            [status] = json.loads(page(config, "/status"))["tables"]
            assert status["state"] == "retrying"
            assert "NTP" in status["last_error"]["message"]
            proxy.forget()
            eventually(lambda: ids(tmp_path) == living.ids)


@pytest.mark.full
def test_a_bucket_that_comes_back_is_gone_on_with_where_it_was_left(
    living: LivingTable, tmp_path: Path
) -> None:
    s3, bucket = living.notified.server.admin(), living.notified.bucket
    config = make_config(living, tmp_path)
    with daemon(config) as process:
        eventually(lambda: ids(tmp_path) == living.ids)
        keys = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]]
        kept = {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        s3.delete_bucket(Bucket=bucket)
        assert process.wait(30) == 1
    assert f"The bucket {bucket} does not exist" in read_log(config)
    s3.create_bucket(Bucket=bucket)
    for key, body in kept.items():
        s3.put_object(Bucket=bucket, Key=key, Body=body)
    living.append()
    with daemon(config):
        eventually(lambda: ids(tmp_path) == living.ids)


@pytest.mark.full
def test_without_conditional_put_state_in_a_bucket_is_refused_at_the_start(
    living: LivingTable, tmp_path: Path
) -> None:
    with FaultProxy(living.notified.server.port) as proxy:
        proxy.choose = lambda seen: Fault.NO_CONDITIONS if seen.kind == "put" else None
        state = f"s3://{living.notified.bucket}/state"
        config = make_config(living, tmp_path, proxy.endpoint, state)
        ran = run_to_end("run", "--config", config, "--once")
        assert ran.returncode == 1
        assert "error[conditional_put_unsupported]: " in ran.stderr
        assert "does not honour conditional writes" in ran.stderr
        assert ids(tmp_path) == []
        # With its state on a disk, the table is followed.
        ran = run_to_end("run", "--config", make_config(living, tmp_path, proxy.endpoint), "--once")
        assert (ran.returncode, ids(tmp_path)) == (0, living.ids)
