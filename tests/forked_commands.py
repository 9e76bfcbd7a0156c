"""`tailerd` as a command, a thousand times without starting Python a thousand times."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.process import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 120


@contextmanager
def forked_commands(folder: Path, local: Path, remote: str | None = None) -> Iterator[str]:
    """Give a command line that does what `tailerd` does, in the environment of this moment.

    Args:
        folder: For the socket and the log.
        local, remote: Where an argument names something in this folder, its copy there is meant.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "socket"
    command = [sys.executable, "-m", "tests.fork_server", place, local, remote or local]
    server = ServerProcess([str(word) for word in command], log=folder / "log", cwd=ROOT)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not place.exists():
            assert server.is_running, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"{sys.executable} -S -E {ROOT}/tests/fork_client.py {place}"
    finally:
        server.end(signal.SIGTERM, seconds=5)
