"""A server process ends with the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_STARTS_AND_CRASHES = """
import os, pathlib, sys
from tests.kafka.process import ServerProcess
server = ServerProcess(["sleep", "60"], log=pathlib.Path(sys.argv[1]), cwd=pathlib.Path("."))
print(server.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_server_does_not_outlive_a_crashed_parent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STARTS_AND_CRASHES, str(tmp_path / "log")],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    deadline = time.monotonic() + 10
    while _is_running(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # Where nobody collects orphans an ended one stays listed.
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
