"""Registry, commands and documents say the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tailerd import registry, remedies

ROOT = Path(__file__).resolve().parents[2]

COMMANDS_IN_TEXT = re.compile(r"\btailerd ([a-z]+)\b")


def commands() -> set[str]:
    """Return the subcommands as `--help` lists them."""
    done = subprocess.run(
        [sys.executable, "-m", "tailerd", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    listing = done.stdout.partition("Commands:")[2]
    return set(re.findall(r"^  ([a-z]+)\b", listing, re.MULTILINE))


@pytest.mark.parametrize("kind", sorted(registry.SINKS))
def test_every_registered_sink_loads(kind: str) -> None:
    assert isinstance(registry.sink_config_class(kind), type)


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    found = commands()
    assert {"tail", "inspect", "run"} <= found
    assert sorted(name for name in found if f"tailerd {name}" not in text) == []


def test_shell_lines_of_the_readme_name_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    shell = "\n".join(re.findall(r"```(?:bash|console|sh)\n(.*?)```", text, re.DOTALL))
    assert set(COMMANDS_IN_TEXT.findall(shell)) <= commands()


def test_every_marker_of_pytest_is_explained_once() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    names = [marker.partition(":")[0].partition("(")[0] for marker in options["markers"]]
    assert len(names) == len(set(names))
    used = set()
    for path in (ROOT / "tests").rglob("*.py"):
        used |= set(re.findall(r"pytest\.mark\.([a-z_]+)", path.read_text()))
    of_others = {"parametrize", "skip", "skipif", "asyncio", "usefixtures", "xfail", "xdist_group"}
    assert used - of_others <= set(names)


def test_the_ci_program_can_be_run() -> None:
    program = ROOT / ".ci/run"
    assert program.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", program], check=False).returncode == 0


def test_advice_to_leave_columns_out_is_given_once_for_all_readers() -> None:
    assert all(
        "column" in reader[remedies.LEAVE_OUT]
        for reader in (remedies.PYTHON, remedies.TAIL, remedies.SPARK)
    )
    naming = {
        str(path.relative_to(ROOT / "tailerd"))
        for path in (ROOT / "tailerd").rglob("*.py")
        if "--columns" in path.read_text()
    }
    assert naming == {"remedies.py", "cli/tail.py"}
