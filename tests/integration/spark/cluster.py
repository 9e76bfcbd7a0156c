"""A real standalone cluster: a master and two workers from the PySpark package, on loopback."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyspark

from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess
from tests.process_tree import pids_below
from tests.waiting import PATIENCE_SECONDS

LOOPBACK = "127.0.0.1"
# Executors have the dependencies, and the package only from what is submitted.
CLEAN = (
    *("/usr/bin/env", "-u", "PYTHONPATH", "-u", "SPARK_HOME", "-u", "PYSPARK_PYTHON"),
    *("-u", "PYSPARK_DRIVER_PYTHON", "-u", "PYSPARK_GATEWAY_PORT", "-u", "PYSPARK_GATEWAY_SECRET"),
    *(f"SPARK_LOCAL_IP={LOOPBACK}", "TZ=UTC"),
)


class Cluster:
    """A master and workers with one core each; every process ends with `stop`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[ServerProcess] = []
        self._port = str(free_port())
        self.master = f"spark://{LOOPBACK}:{self._port}"
        self.folder = folder
        self.home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
        self._java_options = " ".join(
            # Spark refuses its own settings there.
            word
            for word in os.environ.get("SPARK_SUBMIT_OPTS", "").split()
            if not word.startswith("-Dspark")
        )

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
        java = f"SPARK_HOME={self.home}", f"SPARK_DAEMON_JAVA_OPTS={self._java_options}"
        command = *java, str(self.home / "bin/spark-class"), f"org.apache.spark.deploy.{kind}"
        common = "--host", LOOPBACK, "--webui-port", "0"
        log = self._folder / f"{name}.log"
        self._processes.append(
            ServerProcess([*CLEAN, *command, *common, *arguments], log=log, cwd=self._folder)
        )

    def _until_said(self, name: str, words: str) -> None:
        log = self._folder / f"{name}.log"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while words not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            assert all(process.is_running for process in self._processes), log.read_text()
            time.sleep(0.1)

    def conf(self) -> dict[str, str]:
        """What a driver on this machine is told."""
        return {
            "spark.driver.host": LOOPBACK,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": self._java_options,
        }

    def executors(self) -> list[int]:
        """The processes of executors."""
        workers = self._processes[1:]
        return [pid for worker in workers for pid in pids_below(worker.pid, "java")]
