"""Commands with tables in buckets of every server, as processes, and the tables of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.clouds.buckets import BucketServer
from tests.golden.scoring import failures
from tests.integration.buckets.bucket_table import BucketTable, write_config
from tests.integration.daemon.running import delivered_ids
from tests.integration.s3.test_commands import tailerd
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.full


def test_commands_take_a_table_in_a_bucket(server: BucketServer, table: TableBuilder) -> None:
    bucket = server.new_bucket()
    upload(server, table.log.parent, bucket, "lake/or ders")
    location = f"{server.scheme}://{bucket}/lake/or ders"
    tail = tailerd(server, "tail", location, "--from", "2", "--once", "--format", "jsonl")
    assert tail.stderr == ""
    assert len(tail.stdout.splitlines()) == 6
    history = tailerd(server, "history", location, "--json")
    assert len(history.stdout.splitlines()) == 4
    inspected = json.loads(tailerd(server, "inspect", location, "--json").stdout)
    assert (inspected["version"], inspected["num_files"], inspected["path"]) == (3, 2, location)
    kept = tailerd(server, "maintain", location)
    assert "checkpoint: not due" in kept.stdout
    missing = tailerd(server, "inspect", f"{server.scheme}://{bucket}/nothing")
    assert missing.returncode == 3
    there = f"{server.scheme}://{bucket}"
    assert missing.stderr.startswith(f"error[not_a_table]: There is no table at {there}")


def test_what_init_writes_of_a_bucket_is_valid_and_runs(
    server: BucketServer, tmp_path: Path
) -> None:
    table = BucketTable(tmp_path / "table", server)
    config, out = tmp_path / "tailerd.yaml", tmp_path / "out"
    lake = table.location.removesuffix("/orders")
    words = ("--sink", "file", "--folder", str(out), "--output", str(config))
    made = tailerd(server, "init", lake, *words)
    assert made.returncode == 0, made.stderr
    content = yaml.safe_load(config.read_text())
    assert content["tables"]["orders"]["path"] == table.location
    # Another daemon may have the port.
    content |= {"http": {"listen": "127.0.0.1:0"}}
    content["tables"]["orders"]["from"] = "0"
    config.write_text(yaml.safe_dump(content))
    for command in (("validate", str(config)), ("doctor", "--config", str(config))):
        ran = tailerd(server, *command, cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    ran = tailerd(server, "run", "--config", str(config), "--once", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert delivered_ids(out / "orders") == table.ids


def test_the_daemon_delivers_and_maintains_a_table_in_a_bucket(
    server: BucketServer, tmp_path: Path
) -> None:
    table = BucketTable(tmp_path / "table", server)
    for _ in range(3):
        table.append()
    log = f"{table.bucket}/lake/orders/_delta_log"
    job = {"checkpoint": {"every_commits": 1, "min_interval": "0s"}}
    with FaultProxy(server.port) as proxy:
        proxy.fail_every(5, Fault.RESET)
        endpoint = server.url_at(proxy.port)
        file = write_config(tmp_path, table, endpoint=endpoint, attempts=6, maintenance=job)
        ran = tailerd(server, "run", "--config", str(file), "--once")
        assert ran.returncode == 0, ran.stderr
        # What the file says counts, not the environment.
        nobody = server.url_at(1)
        verified = tailerd(server, "verify", "orders", "--config", str(file), endpoint=nobody)
        assert verified.returncode == 0, verified.stderr
    assert delivered_ids(tmp_path / "out") == table.ids
    assert f"{table.builder.version:020}.checkpoint.parquet" in server.names(log)


@pytest.mark.golden
@pytest.mark.slow
def test_the_tables_of_others_are_answered_rightly_from_a_bucket(
    request: pytest.FixtureRequest,
    given_tables: Path,
    server: BucketServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """With --all-tables every table; the order of their commits' times is kept, not the times."""
    is_all = bool(request.config.getoption("--all-tables"))
    if not is_all and server is not request.getfixturevalue("s3_moto"):
        pytest.skip("only with --all-tables, since it takes minutes")
    part = "" if is_all else "delta-kernel-rs/kernel/tests/data"
    bucket = server.new_bucket()
    upload(server, given_tables / "tables" / part, bucket, f"tables/{part}".rstrip("/"))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    failed = failures(
        monkeypatch,
        given_tables,
        tmp_path / "report.jsonl",
        only=part,
        remote=f"{server.scheme}://{bucket}/tables",
        least_passed=300 if is_all else 50,
    )
    assert failed == {}
