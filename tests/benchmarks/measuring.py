"""Measures ours and a peer alike, in one run, and prints `work | ours | peer | ratio | goal`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_REPORT = """
import json as _json, re as _re
_high = _re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(_json.dumps({"peak_bytes": int(_high.group(1)) * 1024, "result": globals().get("result")}))
"""

RESET_PEAK = 'open("/proc/self/clear_refs", "w").write("5")'
"""A statement after which the peak counts from what is in use now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One process from start to end.

    Attributes:
        seconds: Wall time, the interpreter's start included.
        peak_bytes: Highest resident memory.
        result: The program's variable `result`.
    """

    seconds: float
    peak_bytes: int
    result: Any


def run_process(program: str, *arguments: str | Path) -> Measured:
    """Run a program of Python text in its own process; `sys.argv[1:]` are the arguments."""
    code = textwrap.dedent(program) + _REPORT
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    return Measured(seconds=seconds, **report)


def paired(ours: Callable[[], Measured], peer: Callable[[], Measured], times: int = 3) -> list[Any]:
    """Run both in turns, so that a noisy machine disturbs both; return the medians of each."""
    runs = [(ours(), peer()) for _ in range(times)]
    return [middle([pair[side] for pair in runs]) for side in (0, 1)]


def middle(runs: Sequence[Measured]) -> Measured:
    """Return median times and median peak of several runs."""
    result = runs[-1].result
    if isinstance(result, dict):
        # What a program timed itself.
        timed = [name for name in result if name.endswith("seconds")]
        medians = {name: statistics.median(run.result[name] for run in runs) for name in timed}
        result = {**result, **medians}
    return Measured(
        seconds=statistics.median(run.seconds for run in runs),
        peak_bytes=round(statistics.median(run.peak_bytes for run in runs)),
        result=result,
    )


def per_second(count: int, seconds: float) -> str:
    return f"{count / seconds / 1e6:.2f} M/s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def mebibytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"


@dataclass(slots=True)
class Row:
    """One line of the table of results."""

    work: str
    ours: str
    peer: str
    ratio: float | None
    goal: str
    is_met: bool


def as_table(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    header = ("work", "ours", "peer", "ratio", "goal", "")
    lines = [header]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:,.3g}"
        met = "met" if row.is_met else "MISSED"
        lines.append((row.work, row.ours, row.peer, ratio, row.goal, met))
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def delivery_program(sink: str) -> str:
    """Return a program that delivers once as a configuration says, for `run_process`.

    Args:
        sink: Module of the sink, which is loaded before time is taken.
    """
    return f"""
    import asyncio, pathlib, sys, time
    from tailerd.arrow_start import start_arrow
    start_arrow()
    # What is timed is the delivery, not the loading of modules.
    import tailerd.formats.delta.changes.log
    import {sink}
    from tailerd.config import load_config
    from tailerd.daemon.daemon import Daemon
    from tailerd.telemetry import events

    told = []
    def hear(event):
        if isinstance(event, events.DeliveryAcknowledged):
            told.append(event)

    config = load_config(pathlib.Path(sys.argv[1]))
    {RESET_PEAK}
    def resident():
        status = open("/proc/self/status").read()
        names = ("VmRSS", "VmHWM")
        return {{name: int(status.split(name + ":")[1].split()[0]) * 1024 for name in names}}
    idle = resident()["VmRSS"]
    start, cpu = time.perf_counter(), time.process_time()
    asyncio.run(Daemon(config, is_once=True, handlers=[hear]).run())
    result = {{
        "rows": sum(sum(event.rows.values()) for event in told),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "above_idle_bytes": resident()["VmHWM"] - idle,
    }}
"""
