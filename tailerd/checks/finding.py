"""The result of one check."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from tailerd.error_catalogue import REMEDIES
from tailerd.errors import BugError, StorageError, TailerdError


class Outcome(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found.

    Attributes:
        check: Name of the check, such as `port` or `table orders`.
        outcome: A problem would make `run` fail; a warning would not.
        message: A sentence.
        remedy: What to do; empty if there is nothing to do.
        code: The error's code; empty if there is no error.
        exit_status: The exit status of a command for it; 0 except for a problem.
    """

    check: str
    outcome: Outcome
    message: str
    remedy: str = ""
    code: str = ""
    exit_status: int = 0

    @classmethod
    def ok(cls, check: str, message: str) -> Self:
        """Return the finding of a check that passed."""
        return cls(check=check, outcome=Outcome.OK, message=message)

    @classmethod
    def warning(cls, check: str, message: str, remedy: str) -> Self:
        """Return a finding that does not prevent `run` from working."""
        return cls(check=check, outcome=Outcome.WARNING, message=message, remedy=remedy)

    @classmethod
    def skip(cls, check: str, message: str) -> Self:
        """Return the finding of a check that was not made, and why."""
        return cls(check=check, outcome=Outcome.SKIPPED, message=message)

    @classmethod
    def problem(cls, check: str, error: Exception) -> Self:
        """Return the finding of an error that `run` would end with."""
        error = as_tailerd_error(error)
        return cls(
            check=check,
            outcome=Outcome.PROBLEM,
            message=error.message,
            remedy=error.remedy or REMEDIES.get(error.code, ""),
            code=error.code,
            exit_status=error.exit_status,
        )


def as_tailerd_error(error: Exception) -> TailerdError:
    """Return an error of a check, also one that nobody expected."""
    if isinstance(error, TailerdError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"The system refused: {error}.")
    return BugError(f"The check itself failed: {type(error).__name__}: {error}.")


def run_check(check: str, find: Callable[[], Finding | Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a check found; an error ends this check, and not the others."""
    try:
        found = find()
        yield from [found] if isinstance(found, Finding) else found
    except Exception as error:  # noqa: BLE001 - the other checks still run
        yield Finding.problem(check, error)
