"""Turns an exception that nothing expected into an error of one table."""

from __future__ import annotations

from tailerd.errors import BugError


def as_bug(error: Exception) -> BugError:
    """Return the error that reports an unexpected exception."""
    bug = BugError(
        f"An unexpected error occurred: {type(error).__name__}: {error}.",
        remedy="Please report it; `tailerd --debug run` shows where.",
    )
    bug.__cause__ = error
    return bug
