"""A real standalone cluster: a master and two workers from the PySpark package, on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
SPARK = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
# Executors have the dependencies, and the package only from what is submitted.
CLEAN = (
    *("/usr/bin/env", "-u", "PYTHONPATH", "-u", "SPARK_HOME", "-u", "PYSPARK_PYTHON"),
    *("-u", "PYSPARK_DRIVER_PYTHON", "-u", "PYSPARK_GATEWAY_PORT", "-u", "PYSPARK_GATEWAY_SECRET"),
    *(f"SPARK_LOCAL_IP={LOOPBACK}", "TZ=UTC"),
)
START_SECONDS = 120.0
SUBMIT_SECONDS = 400.0


class Cluster:
    """A master and workers with one core each; every process ends with `stop`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[ServerProcess] = []
        self._port = str(free_port())
        self.master = f"spark://{LOOPBACK}:{self._port}"

    def start(self, workers: int) -> None:
        self._run("master", "master.Master", "--port", self._port)
        self._until_said("master", "New state: ALIVE")
        names = [f"worker-{number}" for number in range(workers)]
        limits = ("--cores", "1", "--memory", "1g", "--work-dir")
        for name in names:
            self._run(name, "worker.Worker", *limits, str(self._folder / name), self.master)
        for name in names:
            self._until_said(name, "Successfully registered")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.end(signal.SIGTERM, seconds=20)

    def _run(self, name: str, kind: str, *arguments: str) -> None:
        command = str(SPARK / "bin/spark-class"), f"org.apache.spark.deploy.{kind}"
        common = "--host", LOOPBACK, "--webui-port", "0"
        log = self._folder / f"{name}.log"
        self._processes.append(
            ServerProcess([*CLEAN, *command, *common, *arguments], log=log, cwd=self._folder)
        )

    def _until_said(self, name: str, words: str) -> None:
        log = self._folder / f"{name}.log"
        deadline = time.monotonic() + START_SECONDS
        while words not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            assert all(process.is_running for process in self._processes), log.read_text()
            time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    require_java()
    cluster = Cluster(tmp_path)
    try:
        cluster.start(workers=2)
        yield cluster
    finally:
        cluster.stop()


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
    done = subprocess.run(
        [
            *CLEAN,
            *(SPARK / "bin/spark-submit", "--master", cluster.master, "--py-files", package),
            *("--conf", f"spark.pyspark.python={sys.executable}"),
            *("--conf", f"spark.driver.host={LOOPBACK}", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.executor.memory=512m", "--conf", "spark.log.level=ERROR"),
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
    assert len({folder for folder, _ in answer["places"]}) == 2, answer
    assert all("tailerd.zip" in package for _, package in answer["places"]), answer
    rows = [json.loads(line) for f in (tmp_path / "out/rows").iterdir() for line in f.open()]
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in table.rows())
