"""Commands of pages, run in their order in one shell."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT

MARK = "\x01"


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def without_comments(block: str) -> list[str]:
    """Return the commands of a block."""
    return [re.sub(r"\s+#.*", "", line).strip() for line in block.splitlines() if line.strip()]


def run_in_order(commands: Sequence[str], folder: Path) -> list[str]:
    """Run commands in an empty folder, each as it is printed; return their outputs.

    None of them waits for standard input.

    Raises:
        AssertionError: One fails.
    """
    (folder / "bin").mkdir()
    for name, words in (("tailerd", " -m tailerd"), ("python", "")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        program.chmod(0o755)
    (folder / "work").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
    # What each prints follows its mark.
    script = "".join(f"echo {shlex.quote(MARK + each)}\n{each}\n" for each in commands)
    done = subprocess.run(
        ["bash", "-e", "-c", script + "wait\n"],
        cwd=folder / "work",
        env={
            **os.environ,
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TAILERD__HTTP__LISTEN": listen,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout.split(MARK)[1:]
