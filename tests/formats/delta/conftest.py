from __future__ import annotations

import pytest

from tests.cli.commands import Commands


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    """Runs `tailerd` in this process: `command("tail", folder, "--once")`."""
    return Commands(capfd)
