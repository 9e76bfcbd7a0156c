from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Commands
from tests.tables.builder import CDF, TableBuilder


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    """Runs `tailerd` in this process: `command("tail", folder, "--once")`."""
    return Commands(capfd)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with the tables orders and sales/payments, of three commits each."""
    folder = tmp_path / "lake"
    for name in ("orders", "sales/payments"):
        table = TableBuilder(folder / name, properties=CDF)
        table.create()
        table.append([{"id": 1, "name": "a"}])
        table.append([{"id": 2, "name": "b"}])
    return folder
