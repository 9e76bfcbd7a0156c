"""The program that scores `tailerd` against the tables written by others and their answers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tables.given import locate_given_tables


def failures(
    monkeypatch: pytest.MonkeyPatch,
    tables: Path,
    report: Path,
    *,
    only: str = "",
    remote: str = "",
    least_passed: int,
) -> dict[tuple[str, str], str]:
    """Return (kind of check, table) -> why, of the checks that failed.

    Args:
        tables: The folder with `tables/`, their manifest and answers.
        report: Where every result is written.
        only: Part of the names of the tables that are checked.
        remote: Where the same tables are asked for; else in `tables`.
        least_passed: How many checks must pass.
    """
    score = _load(tables)
    plain_run = score.Command.run

    local = str(tables / "tables")

    def run(command: Any, *words: object) -> Any:
        return plain_run(command, *(str(word).replace(local, remote or local) for word in words))

    monkeypatch.setattr(score.Command, "run", run)
    options = {"--tables": tables, "--command": f"{sys.executable} -m tailerd", "--only": only}
    words = [str(word) for option in options.items() for word in option]
    monkeypatch.setattr(sys, "argv", ["score.py", *words, "--report", str(report)])
    with contextlib.suppress(SystemExit):
        score.main()
    results = [json.loads(line) for line in report.read_text().splitlines()]
    assert sum(result["outcome"] == "passed" for result in results) > least_passed
    return {(r["kind"], r["table"]): r["why"] for r in results if r["outcome"] == "failed"}


def _load(tables: Path) -> Any:
    program = tables / "score.py"
    if not program.exists():
        # Beside the archive.
        program = locate_given_tables().parent / "score.py"
    if not program.exists():
        message = f"score.py is not at {program}."
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    spec = importlib.util.spec_from_file_location("score", program)
    assert spec is not None
    assert spec.loader is not None
    score = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(score)
    return score
