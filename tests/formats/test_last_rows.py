"""`tail -n` gives the end of what `tail --from` gives, on a table of every format."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_task import TaskGroup
from tailerd.changefeed.offset import Offset, Version
from tailerd.formats.versioned_source import VersionedSource
from tailerd.pipeline import last_rows
from tests.cli.commands import Commands
from tests.formats.conftest import Table

NUMBERS = itertools.count()


@pytest.fixture
def commits(table: Table) -> list[Version]:
    """Four commits of 2, 3, 2 and 1 rows; the third deletes the first's rows."""
    first = table.append([1, 2])
    return [first, table.append([3, 4, 5]), table.remove(first), table.append([6])]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def tailed(table: Table, command: Commands, *arguments: object) -> list[dict[str, Any]]:
    ledger: tuple[object, ...] = ()
    if table.ledger is not None:
        # A ledger forgets what was read.
        copied = table.location.with_name(f"ledger-{next(NUMBERS)}")
        if Path(table.ledger.location).exists():
            shutil.copytree(table.ledger.location, copied)
        ledger = ("--ledger", copied)
    ran = command.tail(table.location, *ledger, *arguments)
    assert (ran.status, ran.errors) == (0, "")
    return ran.rows


@pytest.mark.parametrize("held_bytes", [last_rows.HELD_BYTES, 0], ids=["held", "read_again"])
def test_the_last_rows_are_the_end_of_all_rows(
    table: Table,
    commits: list[Version],
    command: Commands,
    monkeypatch: pytest.MonkeyPatch,
    held_bytes: int,
) -> None:
    monkeypatch.setattr(last_rows, "HELD_BYTES", held_bytes)
    every = tailed(table, command, "--from", commits[0])
    assert len(every) == 8
    for count in range(10):
        assert tailed(table, command, "-n", count) == every[max(0, 8 - count) :]
    until = tailed(table, command, "--from", commits[0], "--to", commits[2])
    for count in (1, 4, 9):
        shown = tailed(table, command, "-n", count, "--to", commits[2])
        assert shown == until[max(0, 7 - count) :]


def test_only_commits_that_are_needed_are_read(
    table: Table, commits: list[Version], command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Version] = []
    plan = VersionedSource.plan

    def noted(source: VersionedSource, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        read.append(start.version)
        return plan(source, start, end)

    monkeypatch.setattr(VersionedSource, "plan", noted)
    for count, expected in ((0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (9, 4)):
        read.clear()
        tailed(table, command, "-n", count)
        assert read == list(reversed(commits))[:expected]


def test_the_rows_begin_where_the_history_begins(
    table: Table, commits: list[Version], command: Commands
) -> None:
    if table.format == "tiledb":
        pytest.skip("merging its fragments hides the times of their cells")
    table.drop_before(commits[2])
    shown = tailed(table, command, "-n", 100)
    assert shown == tailed(table, command, "--from", shown[0]["_commit_version"])
    assert len(shown) >= 1
