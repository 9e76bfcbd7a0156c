"""A newcomer: a fresh clone, a fresh environment, README's first block in its order and time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

LIMIT = re.compile(r"within (\d+)")


def first_block() -> list[tuple[str, int]]:
    """The commands of the first block, each with the minutes it promises."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)
    assert block is not None
    found = []
    for line in block[1].splitlines():
        command, _, comment = line.partition("    # ")
        limit = LIMIT.search(comment)
        assert limit is not None, line
        found.append((command, int(limit[1])))
    return found


def test_the_first_block_has_two_commands_that_each_promise_a_time() -> None:
    commands = [command for command, _ in first_block()]
    assert len(commands) == 2
    assert "tailerd demo" in commands[0]
    assert "pytest" in commands[1]


@pytest.mark.slow
@pytest.mark.skipif(
    "TAILERD_NEWCOMER" not in os.environ,
    reason="installs everything twice: run it with TAILERD_NEWCOMER=1",
)
def test_a_newcomer_sees_changes_arrive_and_the_tests_pass(tmp_path: Path) -> None:
    clone = tmp_path / "tailerd"
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), clone], check=True)
    # Not this run's own environment, nor what tells it that it is a test.
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYTEST", "TAILERD", "VIRTUAL_ENV", "PYTHON"))
    }
    output = ""
    for command, minutes in first_block():
        if "pytest" in command:
            # The newcomer's tests would start a newcomer.
            command += " --ignore tests/docs/test_newcomer.py"
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=minutes * 60,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert time.monotonic() - began < minutes * 60
        output = done.stdout
    assert "passed" in output
