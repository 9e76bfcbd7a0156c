"""Tables written by others, with the answers of at least two readers.

The rules that decide what is right are those of `score_formats.py` next to the tables; here the
commands run in this process.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.archives import unpack
from tests.cli.commands import Commands
from tests.tables.given import locate_given_tables

pytestmark = pytest.mark.golden

ARCHIVE = "iceberg.tar.gz"
KINDS = ("head", "snapshot", "changes", "single", "types", "refusal")
SUPPORTED = frozenset({"generated/iceberg/spark/version_1"})
"""Tables that the answers expect to be refused, and that are read here: of format version 1."""


def locate_archive() -> Path:
    return locate_given_tables().parent / ARCHIVE


def list_answers() -> list[str]:
    if not locate_archive().exists():
        return []
    with tarfile.open(locate_archive()) as archive:
        paths = [Path(name) for name in archive.getnames()]
    return sorted(p.stem for p in paths if p.parent.name == "expected_formats")


@pytest.fixture(scope="session")
def iceberg_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("iceberg-tables")
    unpack(locate_archive(), folder)
    return folder


@pytest.fixture(scope="session")
def score() -> ModuleType:
    """The rules, as a module."""
    folder = str(locate_archive().parent)
    spec = importlib.util.spec_from_file_location("score_formats", f"{folder}/score_formats.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    try:
        spec.loader.exec_module(found)
    finally:
        sys.path[:] = path
    return found


class InProcess:
    """The `Command` of the rules."""

    def __init__(self, commands: Commands, score: ModuleType) -> None:
        self._commands = commands
        self._score = score

    def run(self, *arguments: object) -> Any:
        ran = self._commands(*arguments)
        return SimpleNamespace(
            returncode=ran.status, stdout=ran.output.encode(), stderr=ran.errors.encode()
        )

    def lines(self, *arguments: object) -> list[Any]:
        ran = self._commands(*arguments)
        if ran.status == 3 and not ran.output.strip():
            raise self._score.Refusal(f"refused: {ran.errors[-300:]}")
        if ran.status:
            raise self._score.Failure(f"exit {ran.status}: {ran.errors[-300:]}")
        # Texts may contain other characters that end lines for `splitlines`.
        return [json.loads(line) for line in ran.output.split("\n") if line.strip()]


@pytest.mark.parametrize("slug", list_answers())
def test_a_table_of_others_gives_the_rows_that_other_readers_give(
    slug: str, iceberg_tables: Path, score: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads((iceberg_tables / "expected_formats" / f"{slug}.json").read_text())
    command = InProcess(Commands(capsys), score)
    if answer["table"] in SUPPORTED:
        table = iceberg_tables / "tables" / answer["table"]
        assert command.lines("tail", table, "--from", "snapshot", "--once", "--format", "jsonl")
        return
    for kind, dataset in score.work_of(None, answer, KINDS):
        try:
            score.check(kind, command, iceberg_tables, answer, dataset)
        except score.Failure as failure:
            is_refused = isinstance(failure, score.Refusal) and answer.get("may_refuse")
            if not is_refused:
                pytest.fail(f"{kind}: {failure}", pytrace=False)
