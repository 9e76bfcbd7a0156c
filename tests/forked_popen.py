"""Makes `subprocess` fork the command `tailerd` from a process that has loaded it.

Loading takes more than a second of a processor, and tests start the command a thousand times. What
is started so is a process of its own all the same: its number, signals, streams, working folder and
environment are those of any other. Where a test asks for more than that (another interpreter's
options, variables that Python or Arrow read when they start), the command is started as always.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NUMBERS = struct.Struct("=i")
"""What the server answers: a process's number, then its status as `os.waitpid` has it."""

_STARTS = (
    [sys.executable, "-m", "tailerd"],
    [sys.executable, "-c", "from tailerd.cli import main; main()"],
)
_PROGRAMS = (
    "tests.integration.kafka.transaction_program",
    "tests.integration.spark.supervised",
)
"""Programs of tests that are started often; they load little beside what the command does."""
_READ_AT_START = ("PYTHON", "ARROW_", "OMP_", "OPENBLAS_", "LD_", "MALLOC_", "LC_", "LANG")
"""Variables of other values than the server's make a difference once and for all."""
_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 120
_PYTHON_OF_SPARK = """\
#!/bin/sh
case "$1 $2" in "-m pyspark."*) [ -S {place} ] && exec {python} -S -E {client} {place} "$@" ;; esac
exec {python} "$@"
"""
"""What Spark starts in place of Python; without the server it is Python all the same."""

_plain = subprocess.Popen
_environment: dict[str, str] = {}
"""Of this process when `install` was called."""


class _Server:
    """The process that forks, started with the first command of a worker."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="tailerd-forks-")
        self.limits = _limits()
        self._place = f"{self._folder}/socket"
        self._process = _plain(
            [sys.executable, "-m", "tests.fork_server", self._place],
            cwd=_ROOT,
            # Not of this moment: a test may have set what the next ones do not have.
            env=dict(_environment),
        )
        atexit.register(self.end, os.getpid())
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not Path(self._place).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("The server that forks commands did not start.")
            time.sleep(0.02)
        python = Path(self._folder) / "python"
        client = _ROOT / "tests/fork_client.py"
        python.write_text(
            _PYTHON_OF_SPARK.format(place=self._place, python=sys.executable, client=client)
        )
        python.chmod(0o755)
        os.environ.setdefault("PYSPARK_PYTHON", str(python))

    def connect(self) -> socket.socket:
        """Return a connection for one command."""
        client = socket.socket(socket.AF_UNIX)
        client.connect(self._place)
        return client

    def end(self, starter: int) -> None:
        """End it, in the process that started it."""
        if os.getpid() == starter:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)


_server: list[_Server] = []


def _program_of(words: Sequence[Any]) -> str | None:
    """Return the module to run: empty for the command `tailerd`, None for other programs."""
    start = [str(word) for word in words[:3]]
    if start in _STARTS:
        return ""
    is_ours = start[:2] == [sys.executable, "-m"] and start[-1] in _PROGRAMS
    return start[-1] if is_ours else None


def _limits() -> list[tuple[int, int]]:
    names = (name for name in dir(resource) if name.startswith("RLIMIT_"))
    return [resource.getrlimit(getattr(resource, name)) for name in names]


def _umask() -> int:
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` that forks where that makes no difference."""

    _client: socket.socket | None = None
    _waitpid_lock: threading.Lock

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        preexec_fn, _, pass_fds, cwd, env, _, _, shell, *pipes = rest[:14]
        *_, restore_signals, gid, gids, uid, umask, session, group = rest
        words = [] if isinstance(args, str | bytes | os.PathLike) else list(args)
        module = _program_of(words)
        is_plain = (
            preexec_fn is None
            and executable is None
            and not (pass_fds or shell or gids)
            and restore_signals
            and (gid, uid, umask, group) == (None, None, -1, -1)
        )
        environment = dict(os.environ if env is None else env)
        if module is None or not is_plain or not self._fits(environment):
            super()._execute_child(args, executable, *rest)  # type: ignore[misc]
            return
        start_server()
        request = {
            "module": module,
            "arguments": [os.fsdecode(word) for word in words[3:]],
            "folder": os.getcwd() if cwd is None else os.fspath(cwd),
            "environment": environment,
            "session": bool(session),
            "umask": _umask(),
        }
        streams = [
            number if own == -1 else own
            for number, own in enumerate((pipes[0], pipes[3], pipes[5]))
        ]
        self._client = _server[0].connect()
        socket.send_fds(self._client, [json.dumps(request).encode() + b"\n"], streams)
        [self.pid] = NUMBERS.unpack(self._client.recv(NUMBERS.size, socket.MSG_WAITALL))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    @staticmethod
    def _fits(environment: dict[str, str]) -> bool:
        names = _environment.keys() | environment.keys()
        differing = {name for name in names if _environment.get(name) != environment.get(name)}
        has_limits = not _server or _server[0].limits == _limits()
        return has_limits and not any(name.startswith(_READ_AT_START) for name in differing)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._client is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        self._client.setblocking(wait_flags == 0)
        try:
            status = self._client.recv(NUMBERS.size)
        except BlockingIOError:
            return 0, 0
        # Without an answer the server was ended, and with it what it forked is out of reach.
        return self.pid, NUMBERS.unpack(status)[0] if status else signal.SIGKILL

    def _internal_poll(self, _deadstate: int | None = None, *rest: Any) -> int | None:
        if self._client is None:
            found: int | None = super()._internal_poll(_deadstate, *rest)  # type: ignore[misc]
            return found
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                # Another thread may have waited meanwhile.
                if self.returncode is None:
                    number, status = self._try_wait(os.WNOHANG)
                    if number == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _handle_exitstatus(self, status: int, *rest: Any) -> None:
        super()._handle_exitstatus(status, *rest)  # type: ignore[misc]
        if self._client is not None and self.returncode is not None:
            self._client.close()


def start_server() -> None:
    """Start the process that forks, unless this process has it."""
    if not _server:
        _server.append(_Server())


def install() -> None:
    """Make it the `Popen` of this process."""
    _environment.update(os.environ)
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
