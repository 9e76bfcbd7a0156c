"""Results of benchmarks are printed at once and together at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.benchmarks.measuring import Row, as_table
from tests.benchmarks.results import HISTORY, keep, machine_kind, this_run

Report = Callable[[Sequence[Row]], None]

_ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Note rows of the table of results, and fail where a goal is missed."""

    def note(rows: Sequence[Row]) -> None:
        request.config.stash.setdefault(_ROWS, []).extend(rows)
        missed = [row.work for row in rows if not row.is_met]
        assert not missed, f"goals missed: {missed}\n{as_table(rows)}"

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("benchmarks")
        terminalreporter.write_line(as_table(rows))
        if terminalreporter.config.option.keep_results:
            file = HISTORY / f"{machine_kind()}.jsonl"
            keep(this_run(rows), file)
            terminalreporter.write_line(f"kept in {file}")
