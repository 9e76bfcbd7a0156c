"""Makes the moving picture of README.md from a real run: `python -m tests.docs.picture FILE.svg`.

A demo table is made and changed while `tailerd tail` follows it on a terminal of 92 columns. What
the terminal shows, and when, becomes an SVG whose lines appear at their times; browsers repeat it.
"""

from __future__ import annotations

import html
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailerd.formats.detect import find_demo
from tailerd.formats.parts import DemoTable

COLUMNS, ROWS = 92, 22
COMMITS = 7
PAUSE_SECONDS = 0.8
STILL_SECONDS = 3.0
CHARACTER, LINE, MARGIN = 8.4, 19, 16
COLOURS = {"31": "#f47067", "32": "#57ab5a", "33": "#daaa3f", "1": "#ffffff"}
_STYLE = re.compile(r"\x1b\[([0-9;]*)m")


@dataclass(frozen=True, slots=True)
class Line:
    """A line and the second at which it appeared."""

    seconds: float
    text: str


def record(folder: Path) -> list[Line]:
    """Run `tailerd tail` on a changing table; return what its terminal showed."""
    table = find_demo().table(folder / "orders", 7)
    table.create()
    master, slave = os.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "tailerd", "tail", "orders", "--from", "snapshot"]
    process = subprocess.Popen(
        command, stdout=slave, stderr=subprocess.DEVNULL, cwd=folder, env=environment
    )
    os.close(slave)
    began = threading.Event()
    writer = threading.Thread(target=_change, args=(table, began), daemon=True)
    writer.start()
    lines = _read(master, began, writer)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    os.close(master)
    return [Line(0.0, "$ tailerd tail orders --from snapshot"), *lines]


def _change(table: DemoTable, began: threading.Event) -> None:
    began.wait(30)
    for _ in range(COMMITS):
        time.sleep(PAUSE_SECONDS)
        table.change()


def _read(master: int, began: threading.Event, writer: threading.Thread) -> list[Line]:
    """Read until the writer is done and nothing more comes; times count from the first line."""
    lines: list[Line] = []
    start, rest = 0.0, ""
    while True:
        is_over = not writer.is_alive()
        if not select.select([master], [], [], 1.5 if is_over else 0.2)[0]:
            if is_over:
                return lines
            continue
        rest += os.read(master, 65_536).decode()
        *whole, rest = rest.replace("\r\n", "\n").split("\n")
        start = start or time.monotonic()
        lines += [Line(0.6 + time.monotonic() - start, text) for text in whole]
        began.set()


def picture(lines: Sequence[Line]) -> str:
    """Return the SVG of what a terminal showed; the last `ROWS` lines are on its screen."""
    total = lines[-1].seconds + STILL_SECONDS
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        ' role="img" aria-label="tailerd tail follows a table while it changes">',
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
        "fill:#adbac7;white-space:pre}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#1c2128"/>',
        f'<clipPath id="s"><rect x="0" y="{MARGIN - 4}" width="{width:.0f}"'
        f' height="{ROWS * LINE + 4}"/></clipPath><g clip-path="url(#s)"><g>',
        _scrolling(lines, total),
    ]
    for number, line in enumerate(lines):
        y = MARGIN + LINE * number + 14
        share = min(0.999, line.seconds / total)
        parts.append(
            f'<text x="{MARGIN}" y="{y}">{_spans(line.text)}<animate attributeName="opacity"'
            f' values="0;1;1" keyTimes="0;{share:.4f};1" dur="{total:.2f}s" calcMode="discrete"'
            ' repeatCount="indefinite"/></text>'
        )
    return "\n".join([*parts, "</g></g></svg>"]) + "\n"


def _scrolling(lines: Sequence[Line], total: float) -> str:
    """Return the animation that moves the lines up as a full screen does."""
    values, times = ["0 0"], ["0"]
    for number, line in enumerate(lines):
        if number >= ROWS:
            share = f"{min(0.999, line.seconds / total):.4f}"
            move = f"0 {-(number - ROWS + 1) * LINE}"
            if times[-1] == share:
                values[-1] = move
            else:
                values.append(move)
                times.append(share)
    return (
        '<animateTransform attributeName="transform" type="translate" calcMode="discrete"'
        f' values="{";".join(values)}" keyTimes="{";".join(times)}" dur="{total:.2f}s"'
        ' repeatCount="indefinite"/>'
    )


def _spans(text: str) -> str:
    """Return a line with its colours; other styles are left out."""
    colour, at, spans = "", 0, []
    for match in [*_STYLE.finditer(text), None]:
        piece = html.escape(text[at : match.start() if match else len(text)])
        if piece:
            fill = f' fill="{colour}"' if colour else ""
            spans.append(f"<tspan{fill}>{piece}</tspan>")
        if match:
            at = match.end()
            colour = COLOURS.get(match[1].split(";")[-1], "")
    return "".join(spans)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        Path(sys.argv[1]).write_text(picture(record(Path(temporary))), encoding="utf-8")
