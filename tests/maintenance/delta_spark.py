"""Delta Spark, the reference implementation, for tests; the fixture `delta_spark` gives it."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.spark_session import give_up, require_java

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300
ANSWER_SECONDS = 180


class DeltaSparkError(Exception):
    """What the reference implementation said."""


class DeltaSpark:
    """A process that runs Delta Spark and answers one request at a time.

    Args:
        log: Where its standard error goes.
        is_measured: Whether it runs with what large tables need, not with what makes tests short.
    """

    def __init__(self, log: Path, *, is_measured: bool = False) -> None:
        self._log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        measured = ["--measured"] if is_measured else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.maintenance.delta_spark_program", *measured],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("@", '{"ready"')):
                self._lines.put(line.removeprefix("@"))
        self._lines.put(None)

    def _next(self, seconds: float) -> dict[str, Any]:
        line = self._lines.get(timeout=seconds)
        if line is None:
            raise DeltaSparkError(self._log.read_text()[-3000:])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_ready(self) -> None:
        self._next(START_SECONDS)

    def ask(self, do: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        answer = self._next(ANSWER_SECONDS)
        if "error" in answer:
            raise DeltaSparkError(answer["error"])
        return answer["answer"]

    def rows(self, table: Path, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("read", path=str(table), **more)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def delta_spark(log: Path) -> Iterator[DeltaSpark]:
    """Start the reference implementation; its jars come through Ivy once and stay in its cache.

    Skips where there is no Java or the jars are not to be had; with CI set it fails there.
    """
    require_java()
    server = DeltaSpark(log)
    try:
        try:
            server.wait_ready()
        except (DeltaSparkError, queue.Empty) as error:
            give_up(f"Delta Spark does not start: {error!r}")
        yield server
    finally:
        server.close()
