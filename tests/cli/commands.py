"""Runs the command line: in this process, or as a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from tailerd.cli import run
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended and what it printed."""

    status: int
    output: str
    errors: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines of standard output."""
        return [json.loads(line) for line in self.output.splitlines()]


@dataclass(frozen=True, slots=True)
class Commands:
    """Runs `tailerd` in this process."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object) -> Ran:
        self.capture.readouterr()
        status = run([str(argument) for argument in arguments])
        seen = self.capture.readouterr()
        return Ran(status, seen.out, seen.err)

    def tail(self, folder: Path, *arguments: object) -> Ran:
        """Run `tail --once --format jsonl`."""
        return self("tail", folder, "--once", "--format", "jsonl", *arguments)


class Process:
    """A running `tailerd` whose lines of output can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def line(self, timeout_seconds: float = PATIENCE_SECONDS) -> str:
        """Return the next line; fail when none comes in time."""
        try:
            return self._lines.get(timeout=timeout_seconds)
        except Empty:
            raise AssertionError(f"no line in {timeout_seconds} s") from None

    def is_quiet(self, seconds: float) -> bool:
        """Take lines until none comes for so long; return whether none came at all."""
        count = 0
        while True:
            try:
                self._lines.get(timeout=seconds)
                count += 1
            except Empty:
                return count == 0

    def end(self, timeout_seconds: float = PATIENCE_SECONDS) -> tuple[int, str]:
        """Wait for the end; return exit status and standard error."""
        status = self.process.wait(timeout_seconds)
        assert self.process.stderr is not None
        return status, self.process.stderr.read()


@contextmanager
def started(*arguments: object) -> Iterator[Process]:
    """Start `tailerd` as a process of its own; it is gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tailerd", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


class Terminal:
    """A pseudo-terminal on which a command runs."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self.text = ""

    def wait_for(self, text: str, timeout_seconds: float = PATIENCE_SECONDS) -> str:
        """Read until a text is shown; return all that was shown so far."""
        self._read_while(lambda: text not in self.text, timeout_seconds)
        assert text in self.text, self.text
        return self.text

    def end(self, timeout_seconds: float = PATIENCE_SECONDS) -> str:
        """Read until the command ends; return all that was shown."""
        self._read_while(lambda: True, timeout_seconds)
        self.process.wait(timeout_seconds)
        return self.text

    def press(self, keys: bytes) -> None:
        """Type on the terminal."""
        os.write(self._master, keys)

    def _read_while(self, is_unfinished: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while is_unfinished() and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    piece = os.read(self._master, 65_536)
                except OSError:
                    # Linux ends a terminal on which nobody writes any longer with EIO.
                    return
                self.text += piece.decode().replace("\r\n", "\n")


@contextmanager
def on_terminal(
    *arguments: object, columns: int = 80, lines: int = 24, **environment: str
) -> Iterator[Terminal]:
    """Start `tailerd` on a terminal of this size; it is gone at the end."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tailerd", *map(str, arguments)],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**inherited, "TERM": "xterm-256color", **environment},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
