"""Results of benchmarks, kept as JSON: one file for each kind of machine, one line for each run.

`python -m pytest tests/benchmarks --benchmark --keep-results` appends a line; `python -m
tests.benchmarks.trend` draws what became of each figure.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.measuring import ROOT, Row

HISTORY = Path(__file__).parent / "history"
_FIGURE = re.compile(r"-?[\d,]*\.?\d+")
_GIBIBYTE = 2**30
_PROCESSOR = ("cpu family", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of one run.

    Attributes:
        commit: What was measured, "unknown" outside a clone; ends in "+" where the work tree had
            changes.
        date: Day of the run, UTC, as 2026-01-31.
        python: Version of the interpreter.
        rows: In the order of the table that was printed.
    """

    commit: str
    date: str
    python: str
    rows: tuple[Row, ...]


def machine_kind() -> str:
    """Return what makes timings comparable, such as `x86_64-6-207-2-cores-24-gib`.

    The numbers after the architecture are the family and model of the processor: of two machines
    with as many cores, one took twice as long for the same work.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    size = f"{cores}-cores-{round(memory / _GIBIBYTE)}-gib"
    return "-".join((platform.machine().lower(), *_processor(), size))


def _processor() -> list[str]:
    """Return the family and model of the processor, as far as the system tells them."""
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    found = (re.search(rf"^{name}\s*: (\d+)$", about, re.MULTILINE) for name in _PROCESSOR)
    return [each[1] for each in found if each is not None]


def this_run(rows: Sequence[Row]) -> Run:
    """Return the results of the tree as it is."""
    commit = _git("rev-parse", "--short=8", "HEAD")
    return Run(
        commit=f"{commit}+" if _git("status", "--porcelain", "tailerd") else commit,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        python=platform.python_version(),
        rows=tuple(rows),
    )


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if done.returncode else "")


def keep(run: Run, file: Path) -> None:
    """Append a run to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")


def kept(file: Path) -> list[Run]:
    """Return the runs of a file, oldest first."""
    return list(_runs(file))


def _runs(file: Path) -> Iterator[Run]:
    for line in file.read_text().splitlines():
        content = json.loads(line)
        yield Run(**{**content, "rows": tuple(Row(**row) for row in content["rows"])})


def figure(text: str) -> tuple[float, str]:
    """Return the number that a cell begins with, and its unit: `3.53 M/s` is (3.53, "M/s").

    Raises:
        ValueError: It begins with none.
    """
    found = _FIGURE.match(text)
    if found is None:
        raise ValueError(f"{text!r} begins with no number")
    return float(found[0].replace(",", "")), text[found.end() :].split(",")[0].strip()
