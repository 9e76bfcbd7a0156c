"""README: short, and every command in it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailerd.formats.detect import find_demo
from tailerd.formats.parts import make_demo_table
from tailerd.java import java_home_or_version
from tests.conftest import ROOT
from tests.docs.shell import blocks, run_in_order, without_comments

TEXT = (ROOT / "README.md").read_text()
MAX_LINES = 130

ELSEWHERE = {
    "python3 -m venv .venv": "tests/docs/test_newcomer.py runs the first block as it is",
    "python -m tests.kafka --port 9092 &": "tests/integration/kafka/test_readme.py runs the block",
    "tailerd run --config config/kafka.yaml --once": "tests/integration/kafka/test_readme.py",
    "tailerd verify orders --config config/kafka.yaml": "tests/integration/kafka/test_readme.py",
    "python -m pip install '.[test]'": "tests/docs/test_newcomer.py",
    "python -m pip install -q '.[test]'": "tests/docs/test_newcomer.py",
    "python -m pytest": "this run",
    "bash .ci/run": "cannot run itself",
}
"""Lines that another test runs, or that are the tests themselves: how they begin -> where."""


def shell_lines() -> list[str]:
    return without_comments("".join(blocks(TEXT, "bash")))


def is_elsewhere(line: str) -> bool:
    return any(line.startswith(start) for start in ELSEWHERE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which README's programs run: it has `lake/orders`."""
    folder = tmp_path_factory.mktemp("readme")
    make_demo_table(find_demo(), folder / "lake/orders")
    return folder


def test_it_has_at_most_130_lines() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES


def test_every_command_that_is_not_run_here_is_run_elsewhere() -> None:
    unused = [start for start in ELSEWHERE if not any(x.startswith(start) for x in shell_lines())]
    assert unused == []
    for where in ELSEWHERE.values():
        if where.startswith("tests/"):
            assert (ROOT / where.split()[0]).exists()


def test_the_commands_run_in_their_order_as_printed(tmp_path: Path) -> None:
    """One shell runs them, from the demo on, in a folder that is empty at first."""
    lines = [line for line in shell_lines() if not is_elsewhere(line)]
    assert len(lines) >= 15
    assert lines[0].startswith("tailerd demo --keep ./lake")
    shown = run_in_order(lines, tmp_path)
    silent = [each for each in shown if "\n" not in each.strip() and "> tail" not in each]
    assert [each.split()[0] for each in silent] in ([], ["kill"]), silent


def python_blocks() -> list[str]:
    return [block for block in blocks(TEXT, "python") if "pyspark" not in block]


def test_the_python_of_readme_runs(folder: Path) -> None:
    for block in python_blocks():
        done = subprocess.run(
            [sys.executable, "-c", block],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "order_id" in done.stdout


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.skipif(not java_home_or_version().is_usable, reason="Spark needs Java 17 or newer")
def test_the_spark_of_readme_runs(folder: Path) -> None:
    [block] = [block for block in blocks(TEXT, "python") if "pyspark" in block]
    program = block + "\nprint(changes.count(), stream.isStreaming)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ True", done.stdout)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", TEXT))))
def test_every_link_leads_to_a_file(target: str) -> None:
    assert (ROOT / target).exists()


def test_every_command_is_named() -> None:
    from tailerd.cli import COMMANDS

    assert [name for name in COMMANDS if f"tailerd {name}" not in TEXT] == []
