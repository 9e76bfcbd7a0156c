"""Says with every failing seed how to run it again."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        seed = item.callspec.params.get("seed")
        if isinstance(seed, int):
            location = item.nodeid.partition("[")[0]
            command = f"python -m pytest {location} --seeds {seed}:{seed + 1}"
            report.sections.append(("run this seed again with", command))
    return report
