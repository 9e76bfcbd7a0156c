"""A server process that never outlives the process that started it, not even after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

_WATCH = 'read -r _; kill -9 "$0" 2>/dev/null'


class ServerProcess:
    """One child in a session of its own, its output in a file.

    A shell beside it holds the read end of a pipe. When this process ends, however it ends, the
    pipe closes and the shell kills the child: an interrupted or crashed test run leaves nothing.
    """

    def __init__(self, command: Sequence[str], *, log: Path, cwd: Path) -> None:
        """Start `command`; standard output and error are appended to `log`."""
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(self._child.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether the child has not ended."""
        return self._child.poll() is None

    def end(self, sent: signal.Signals, *, seconds: float) -> bool:
        """Send a signal and wait; after `seconds` kill it. Returns whether it ended by itself."""
        # The watch goes first: later the number could be another process's.
        self._watch.kill()
        self._watch.wait()
        if self._watch.stdin:
            self._watch.stdin.close()
        if self.is_running:
            os.kill(self.pid, sent)
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            return False
        return True

    def pause(self) -> None:
        """Stop the child without ending it: it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine its threads go on for a moment, in which they answered a request.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused child go on."""
        os.kill(self.pid, signal.SIGCONT)
