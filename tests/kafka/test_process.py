"""A server process ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.kafka.process import ServerProcess

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


def test_a_paused_server_has_stopped_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    server = ServerProcess(["sleep", "60"], log=tmp_path / "log", cwd=tmp_path)
    try:
        server.pause()
        assert _state(server.pid) == "T"
        server.resume()
        assert _state(server.pid) != "T"
        assert server.is_running
    finally:
        server.end(signal.SIGTERM, seconds=5)
    assert not server.is_running


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # Where nobody collects orphans an ended one stays listed.
        return _state(pid) != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0]
