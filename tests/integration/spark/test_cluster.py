"""On a real standalone cluster: a submitted program, `tailerd run`, and kills under load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.spark.cluster import CLEAN, Cluster
from tests.tables.builder import TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
SUBMIT_SECONDS = 400.0


@pytest.mark.full
def test_a_program_submitted_with_the_package_runs_on_every_worker(
    cluster: Cluster, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "table")
    for version in range(5):
        table.append([{"id": version * 10 + n, "name": "x"} for n in range(2)])
    # As README says it.
    package = tmp_path / "tailerd.zip"
    subprocess.run(
        [sys.executable, "-m", "zipfile", "-c", package, "tailerd"], cwd=ROOT, check=True
    )
    program = tmp_path / "program.py"
    program.write_bytes((ROOT / "tests/integration/spark/cluster_program.py").read_bytes())
    conf = {
        **cluster.conf(),
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    done = subprocess.run(
        [
            *(*CLEAN, f"SPARK_HOME={cluster.home}", cluster.home / "bin/spark-submit"),
            *("--master", cluster.master, "--py-files", package),
            *(word for pair in conf.items() for word in ("--conf", "=".join(pair))),
            *(program, table.folder, tmp_path / "out"),
        ],
        cwd=tmp_path,
        capture_output=True,
        timeout=SUBMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]
    answer = json.loads(done.stdout.decode().splitlines()[-1])
    assert answer["master"] == cluster.master
    assert answer["rows"] == [10, 11, 20, 21, 30, 31, 40, 41]
    assert len({folder for folder, _ in answer["folders"]}) == 2, answer
    assert all("tailerd.zip" in package for _, package in answer["folders"]), answer
    rows = [json.loads(line) for f in (tmp_path / "out/rows").glob("*.json") for line in f.open()]
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in table.rows())


@pytest.mark.full
def test_the_daemon_runs_on_a_cluster_and_brings_the_package_itself(
    cluster: Cluster, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "table", start_ms=None)
    for version in range(4):
        table.append([{"id": version * 10 + n, "name": "x"} for n in range(2)])
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    orders = {"path": str(table.folder), "from": "0", "max_files_per_batch": 2, "sink": sink}
    config = tmp_path / "tailerd.yaml"
    config.write_text(
        json.dumps(
            {
                "state": str(tmp_path / "state"),
                "http": {"listen": "127.0.0.1:0"},
                "spark": {"master": cluster.master, "conf": cluster.conf()},
                "tables": {"orders": orders},
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "tailerd", "run", "--config", config, "--once"],
        cwd=ROOT,
        capture_output=True,
        timeout=SUBMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]
    rows = [json.loads(line) for f in (tmp_path / "out").glob("*.jsonl") for line in f.open()]
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in table.rows())
    # Executors copy what they are given into folders of their own.
    assert list(cluster.folder.glob("worker-*/app-*/*/tailerd.zip"))
