"""Requirements of a full-screen view."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from tailerd.errors import UsageError


def require_screen(command: str, instead: str) -> None:
    """Check that there is a terminal, and that Textual is installed.

    Args:
        command: The command that needs it, such as `tail -i`.
        instead: A sentence that names what works without a terminal.

    Raises:
        UsageError: One is missing.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"`tailerd {command}` needs a terminal.", remedy=instead)
    if find_spec("textual") is None:
        raise UsageError(
            f"`tailerd {command}` needs Textual, which is not installed.",
            remedy="Install it: python -m pip install 'tailerd[terminal]'.",
        )
