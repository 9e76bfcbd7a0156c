"""Commands with tables in buckets, as processes, and the tables written by others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clouds.buckets import BucketServer
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]


def tailerd(
    server: BucketServer, *words: str, endpoint: str = "", cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailerd", *words],
        cwd=cwd,
        env={**os.environ, **server.environment(endpoint)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def test_what_is_in_a_bucket_instead_of_a_table_is_named(
    s3_moto: S3Server, table: TableBuilder, tmp_path: Path
) -> None:
    bucket = s3_moto.new_bucket()
    upload(s3_moto, table.log.parent, bucket, "lake/orders")
    made = tmp_path / "made"
    (made / ".hoodie").mkdir(parents=True)
    (made / ".hoodie/hoodie.properties").write_text("{}")
    (made / "part-0.parquet").write_bytes(b"PAR1")
    upload(s3_moto, made, bucket, "hudi")
    upload(s3_moto, made / ".hoodie", bucket, "texts")
    (made / ".hoodie/hoodie.properties").unlink()
    upload(s3_moto, made, bucket, "parquet")
    for place, words in {
        "lake": f"a folder with 1 table: orders. Type: `tailerd tail s3://{bucket}/lake/orders`",
        "lake/orders/_delta_log": f"inside the table s3://{bucket}/lake/orders",
        "hudi": "it is a Hudi table",
        "parquet": "it has Parquet files, but no log",
        "texts": "the folder has neither a log nor Parquet files",
        "nothing": "there are no files",
    }.items():
        ran = tailerd(s3_moto, "tail", f"s3://{bucket}/{place}", "--once")
        assert ran.returncode == 3, ran.stderr
        assert words in ran.stderr, ran.stderr
        assert "Traceback" not in ran.stderr


def configuration(server: S3Server, endpoint: str, folder: Path, location: str) -> Path:
    account = server.account(endpoint)
    file = folder / "tailerd.yaml"
    file.write_text(
        f"""
engine: arrow
state: {folder}/state
http: {{listen: null}}
storage:
  endpoint: {account.endpoint}
  region: {account.region}
  access_key_id: {account.access_key_id}
  secret_access_key: {account.secret_access_key}
tables:
  orders:
    path: {location}
    from: snapshot
    sink: {{kind: file, path: {folder}/out, format: jsonl}}
    maintenance: {{checkpoint: {{every_commits: 1, min_interval: 0s}}}}
"""
    )
    return file


@pytest.mark.full
def test_without_conditional_put_rows_are_delivered_and_maintenance_says_why_not(
    s3_moto: S3Server, table: TableBuilder, tmp_path: Path
) -> None:
    bucket = s3_moto.new_bucket()
    count = upload(s3_moto, table.log.parent, bucket, "orders")
    with FaultProxy(s3_moto.port) as proxy:
        proxy.choose = lambda seen: Fault.NO_CONDITIONS if seen.kind == "put" else None
        file = configuration(s3_moto, proxy.endpoint, tmp_path, f"s3://{bucket}/orders")
        ran = tailerd(s3_moto, "run", "--config", str(file), "--once")
    assert ran.returncode == 1
    assert "error[conditional_put_unsupported]: " in ran.stderr
    files = (tmp_path / "out").rglob("*.jsonl")
    assert sum(len(path.read_text().splitlines()) for path in files) == len(table.rows())
    assert s3_moto.admin().list_objects_v2(Bucket=bucket)["KeyCount"] == count


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "right"), [("list", "list"), ("get", "get"), ("put", "put"), ("delete", "delete")]
)
def test_validate_names_the_right_that_is_missing(
    s3_moto: S3Server, table: TableBuilder, tmp_path: Path, kind: str, right: str
) -> None:
    bucket = s3_moto.new_bucket()
    upload(s3_moto, table.log.parent, bucket, "orders")
    with FaultProxy(s3_moto.port) as proxy:
        proxy.choose = lambda seen: Fault.DENY if seen.kind == kind else None
        file = configuration(s3_moto, proxy.endpoint, tmp_path, f"s3://{bucket}/orders")
        ran = tailerd(s3_moto, "validate", str(file), "--json")
    report = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert (report["error_code"], right in report["missing_rights"]) == ("access_denied", True)
    assert f"Missing for s3://{bucket}/orders: " in ran.stderr


@pytest.mark.full
def test_validate_names_what_only_a_sweep_lacks_and_does_not_fail(
    s3_moto: S3Server, table: TableBuilder, tmp_path: Path
) -> None:
    bucket = s3_moto.new_bucket()
    upload(s3_moto, table.log.parent, bucket, "orders")
    with FaultProxy(s3_moto.port) as proxy:
        proxy.choose = lambda seen: Fault.DENY if "uploads" in seen.query else None
        file = configuration(s3_moto, proxy.endpoint, tmp_path, f"s3://{bucket}/orders")
        plain = tailerd(s3_moto, "validate", str(file), "--json")
        file.write_text(
            file.read_text().replace(
                "min_interval: 0s}", "min_interval: 0s}, cleanup: {enabled: true}"
            )
        )
        ran = tailerd(s3_moto, "validate", str(file), "--json")
        reported = tailerd(s3_moto, "validate", str(file))
    assert json.loads(plain.stdout)["missing_rights"] == []
    assert (ran.returncode, json.loads(ran.stdout)["missing_rights"]) == (0, ["list uploads"])
    assert "Missing, of use to a cleanup: list uploads" in reported.stdout


@pytest.mark.full
def test_validate_says_that_a_server_has_no_conditional_put_and_leaves_nothing_behind(
    s3_moto: S3Server, table: TableBuilder, tmp_path: Path
) -> None:
    bucket = s3_moto.new_bucket()
    count = upload(s3_moto, table.log.parent, bucket, "orders")
    location = f"s3://{bucket}/orders"
    with FaultProxy(s3_moto.port) as proxy:
        proxy.choose = lambda seen: Fault.NO_CONDITIONS if seen.kind == "put" else None
        file = configuration(s3_moto, proxy.endpoint, tmp_path, location)
        ran = tailerd(s3_moto, "validate", str(file), "--json")
        assert json.loads(ran.stdout)["missing_rights"] == ["conditional put"]
        # Following needs none.
        tail = tailerd(s3_moto, "tail", location, "--from", "0", "--once", endpoint=proxy.endpoint)
        assert tail.returncode == 0
    assert s3_moto.admin().list_objects_v2(Bucket=bucket)["KeyCount"] == count
