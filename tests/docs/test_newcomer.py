"""A newcomer: a fresh clone, a fresh environment, README's first block in its order and time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

LIMIT = re.compile(r"within (\d+) minutes")


def installing() -> list[tuple[str, int]]:
    """The first block, and the first two commands of the last one, with their minutes."""
    text = (ROOT / "README.md").read_text()
    first, *_, last = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    install, demo = first.splitlines()
    libraries, tests, *_ = last.splitlines()
    limits = [LIMIT.search(line) for line in (demo, tests)]
    assert all(limits), "README promises how long both take"
    minutes = [int(limit[1]) for limit in limits if limit is not None]
    # Each block is run by a new shell, in which the environment has to be activated.
    scripts = [(install, demo), (". .venv/bin/activate", libraries, tests)]
    commands = ["\n".join(line.partition("    #")[0] for line in lines) for lines in scripts]
    return list(zip(commands, minutes, strict=True))


def test_readme_begins_with_the_demo_and_ends_with_the_tests() -> None:
    demo, tests = (commands for commands, _ in installing())
    assert "tailerd demo" in demo
    assert "pytest" in tests


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
    for command, minutes in installing():
        if "pytest" in command:
            # The newcomer's tests would start a newcomer.
            command += " --ignore tests/docs/test_newcomer.py"
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-e", "-c", command],
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
