from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailerd import __version__, cli
from tailerd.cli import COMMANDS
from tailerd.errors import TailerdError, UsageError
from tests.cli.commands import ROOT, Commands
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_shows_an_example(name: str, command: Commands) -> None:
    ran = command(name, "--help")
    assert (ran.status, ran.errors) == (0, "")
    assert re.search(rf"^ +tailerd {name}\b", ran.output, re.MULTILINE)
    assert "Examples:" in ran.output
    short = command(name, "-h")
    assert (short.status, short.output) == (0, ran.output)


def test_the_help_names_every_command_with_a_sentence(command: Commands) -> None:
    ran = command("--help")
    assert ran.status == 0
    for name, sentence in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(sentence[:30])}", ran.output, re.MULTILINE)
    assert "Examples:" in ran.output


def test_a_command_that_is_spelt_wrong_is_met_with_the_right_one(command: Commands) -> None:
    ran = command("statis", "--json")
    assert ran.errors == "error[usage]: There is no command 'statis'. Did you mean `status`?\n"


def test_the_version_is_told(command: Commands) -> None:
    ran = command("--version")
    assert (ran.status, ran.output) == (0, f"tailerd, version {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["tail"],
        ["tail", "x", "--nonsense"],
        ["tail", "x", "--changes", "all"],
        ["tail", "x", "--format", "xml"],
        ["inspect", "x", "--version", "-1"],
        ["inspect", "x", "--version", "1", "--timestamp", "2024-01-01"],
        ["history", "x", "--limit", "0"],
        ["demo", "--seconds", "0"],
        ["demo", "--engine", "steam"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_why(arguments: list[str], command: Commands) -> None:
    ran = command(*arguments)
    assert (ran.status, ran.output) == (2, "")
    assert re.fullmatch(r"error\[usage\]: [^\n]+\n", ran.errors)


def test_without_a_command_the_help_is_shown(command: Commands) -> None:
    ran = command()
    assert (ran.status, ran.output) == (2, "")
    assert "Examples:" in ran.errors


@pytest.mark.parametrize("name", ["tail", "inspect", "history"])
def test_an_error_is_one_paragraph_with_its_code(
    name: str, tmp_path: Path, command: Commands
) -> None:
    ran = command(name, tmp_path / "nothing")
    assert (ran.status, ran.output) == (3, "")
    assert re.fullmatch(r"error\[not_a_table\]: .+\.\n", ran.errors)


def test_debug_adds_the_traceback_and_keeps_the_status(tmp_path: Path, command: Commands) -> None:
    ran = command("--debug", "tail", tmp_path / "nothing")
    assert ran.status == 3
    assert "Traceback (most recent call last)" in ran.errors
    assert "error[not_a_table]: " in ran.errors.splitlines()[-1]


@pytest.mark.parametrize("name", ["tail", "inspect", "history"])
@pytest.mark.parametrize("location", ["", "ftp://host/x", "s3:///orders"])
def test_an_unsupported_url_is_a_configuration_error(
    name: str, location: str, command: Commands
) -> None:
    ran = command(name, location)
    assert ran.status == 2
    assert ran.errors.startswith("error[config]: ")


def raising(error: BaseException) -> object:
    def main(*arguments: object, **options: object) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (TailerdError("It broke.", remedy="Mend it."), 1, "error[error]: It broke. Mend it.\n"),
        (
            ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [UsageError("Wrong.")])]),
            2,
            "error[usage]: Wrong.\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), 130, ""),
        (SystemExit(4), 4, ""),
    ],
)
def test_whatever_a_command_raises_becomes_a_status_and_a_line(
    error: BaseException,
    status: int,
    shown: str,
    command: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli.cli, "main", raising(error))
    ran = command("tail", "x")
    assert (ran.status, ran.output, ran.errors) == (status, "", shown)


def test_an_error_of_ours_asks_to_be_reported(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.cli, "main", raising(ZeroDivisionError("oh")))
    ran = command("tail", "x")
    assert ran.status == 1
    assert ran.errors.startswith("error[bug]: ZeroDivisionError: oh. This should not happen")


def test_tail_loads_no_library_it_does_not_use(tmp_path: Path) -> None:
    TableBuilder(tmp_path).append([{"id": 1, "name": "a"}])
    heavy = ["pyspark", "aiohttp", "prometheus_client", "kafka", "aiobotocore", "pydantic", "rich"]
    program = (
        "import sys; from tailerd.cli import run;"
        f"status = run(['tail', {str(tmp_path)!r}, '--from', '0', '--once', '--format', 'jsonl']);"
        f"print(status, [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_a_finished_command_ends_the_process_without_taking_the_interpreter_down() -> None:
    # While the interpreter is taken down, a thread of a native library would abort the process.
    program = """
import atexit, sys
class Teardown:
    def __del__(self):
        print("taken down", flush=True)
kept = Teardown()
from tailerd import cli
real = cli.run
def run(*arguments, **options):
    atexit.register(print, "cleaned up")
    return real(*arguments, **options)
cli.run = run
sys.argv = ["tailerd", "help", "nothing-of-this-name"]
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "cleaned up\n"
    assert done.stderr.startswith("error[")
