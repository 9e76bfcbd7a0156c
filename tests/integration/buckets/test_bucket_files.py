"""Files in buckets as a user gets them: the daemon, its commands, and the shipped example."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.clouds.servers import FakeGcs
from tests.conftest import ROOT
from tests.integration.buckets.bucket_table import BucketTable, write_config
from tests.integration.daemon.running import daemon, run_to_end
from tests.kafka.ports import free_port
from tests.s3.servers import S3Server
from tests.sinks.bucket.readers import manifest_rows
from tests.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture
def table(tmp_path: Path, s3_moto: S3Server) -> BucketTable:
    return BucketTable(tmp_path / "table", s3_moto)


@pytest.fixture
def config(tmp_path: Path, table: BucketTable) -> Path:
    path = f"s3://{table.bucket}/changes/orders"
    sink = {"kind": "file", "path": path, "format": "parquet", "partition_by": ["name"]}
    return write_config(tmp_path, table, sink=sink)


def delivered(table: BucketTable) -> list[int]:
    rows = manifest_rows(table.server, f"s3://{table.bucket}/changes/orders")
    return sorted(row[0] for row in rows)


def has_more_than(table: BucketTable, before: int) -> bool:
    return len(delivered(table)) > before


def test_a_killed_daemon_loses_and_doubles_nothing(
    table: BucketTable, config: Path, tmp_path: Path
) -> None:
    for _ in range(3):
        before = len(delivered(table))
        with daemon(config) as process:
            table.append()
            eventually(partial(has_more_than, table, before))
            process.kill()
            process.wait(10)
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert delivered(table) == table.ids


def test_commands_know_where_the_offset_is_and_a_reset_begins_a_new_folder(
    table: BucketTable, config: Path
) -> None:
    table.append()
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    for command in (("doctor", config), ("validate", config)):
        done = run_to_end(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    shown = run_to_end("offsets", "--config", config)
    assert shown.returncode == 0, shown.stderr
    done = run_to_end("offsets", "reset", "orders", "--to", "0", "--config", config, "--yes")
    assert done.returncode == 0, done.stderr
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert Counter(delivered(table)) == dict.fromkeys(table.ids, 2)
    folders = f"{table.bucket}/changes/orders/epoch=2/name=x"
    assert len(table.server.names(folders)) >= 1


def test_verify_reads_the_files_back_also_after_a_snapshot(
    table: BucketTable, config: Path
) -> None:
    table.append()
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    reset = ("offsets", "reset", "orders", "--to", "snapshot", "--config", config, "--yes")
    assert run_to_end(*reset).returncode == 0
    table.append()
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    done = run_to_end("verify", "orders", "--config", config, "--json")
    verdict = json.loads(done.stdout)
    assert (verdict["is_equal"], verdict["records"]) == (True, len(table.ids))


def test_a_bucket_that_is_missing_is_a_problem_of_doctor(table: BucketTable, config: Path) -> None:
    fields = yaml.safe_load(config.read_text())
    fields["tables"]["orders"]["sink"]["path"] = "s3://there-is-no-such-bucket/changes"
    config.write_text(yaml.safe_dump(fields))
    done = run_to_end("doctor", config, "--json")
    assert done.returncode != 0
    assert "there-is-no-such-bucket" in done.stdout


def test_the_shipped_example_delivers_the_emulators_table(
    fake_gcs: FakeGcs, tmp_path: Path
) -> None:
    port = free_port()
    words = [sys.executable, "-m", "tests.clouds", "google", "--port", str(port), "--every", "0.2"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TAILERD__STORAGE__GOOGLE__ENDPOINT": f"http://127.0.0.1:{port}",
    }
    server = subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert "gs://lake/orders" in server.stdout.readline()
        command = [sys.executable, "-m", "tailerd", "run", "--once", "--config"]
        done = subprocess.run(
            [*command, ROOT / "config/bucket-files.yaml"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        names = f"http://127.0.0.1:{port}/storage/v1/b/lake/o?prefix=changes/orders/"
        with urllib.request.urlopen(names, timeout=10) as answer:
            found = [item["name"] for item in json.load(answer)["items"]]
        assert any("/epoch=1/name=order%200/" in name for name in found), found
        assert any(name.endswith(".intent") for name in found)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
