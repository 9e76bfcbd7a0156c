"""Commands run in separate processes, with what they took: memory, time, what they said."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

MIB = 1024 * 1024

SHOWN_BYTES = 4000
"""Of what a command says of errors: a message may name what is a megabyte long."""

_PROGRAM = """
import resource, sys
from pathlib import Path
# A failing test ends with MemoryError in this process, before the machine feels it.
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from tailerd.cli import run
status = run(sys.argv[2:], is_own_process=True)
# Unlike the usage a parent is told of, this leaves out what was before the program began.
Path(sys.argv[1]).write_text(Path("/proc/self/status").read_text())
sys.exit(status)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What became of a command.

    Attributes:
        status: Its exit status; None where it did not end in time.
        peak_bytes: The most memory it had resident.
        cpu_seconds: The time its threads computed, in user and system mode.
    """

    status: int | None
    out: str = field(repr=False)
    err: str
    peak_bytes: int
    cpu_seconds: float


def measured(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 90.0,
    is_out_kept: bool = True,
) -> Measured:
    """Run `tailerd` with arguments; it is killed at the timeout."""
    before = _cpu_seconds_of_children()
    with TemporaryDirectory() as folder:
        out, err, about = (Path(folder) / name for name in ("out", "err", "about"))
        with (out if is_out_kept else Path(os.devnull)).open("wb") as to, err.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(about), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=errors,
                env={**os.environ, **(environment or {})},
            )
            try:
                status: int | None = process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                status = None
                process.kill()
                process.wait()
        return Measured(
            status=status,
            out=out.read_text(errors="replace") if is_out_kept else "",
            err=err.read_text(errors="replace")[:SHOWN_BYTES],
            peak_bytes=_peak_bytes(about.read_text()) if about.exists() else 0,
            cpu_seconds=_cpu_seconds_of_children() - before,
        )


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _peak_bytes(about: str) -> int:
    [line] = [line for line in about.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
