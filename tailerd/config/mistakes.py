"""Report all mistakes of a configuration at once, each with its position.

Validation stops at the first invalid layer: a sink before its table, a table before the rules
between tables. So invalid fields are recorded and removed, and the rest is validated again, until
it is valid or nothing more can be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tailerd.config.explain import Mistake, list_mistakes
from tailerd.config.models import ENV_PREFIX, Config
from tailerd.config.positions import (
    FieldPath,
    Position,
    nearest_position,
    parse_field_path,
    without,
)
from tailerd.errors import ConfigError

MAX_MISTAKES = 50
_MAX_ROUNDS = 200
_ANY_SINK = {"kind": "console"}
_SECTIONS_BY_NAME = ("tables", "discover")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a configuration.

    Attributes:
        where: Name of the file.
        positions: Positions of the file's fields.
        environment: Fields that are set by environment variables.
    """

    where: str
    positions: Mapping[FieldPath, Position]
    environment: Mapping[str, Any]

    def format_position(self, path: FieldPath) -> str:
        """Return `file:line:column` of a field, or of the nearest section that is in the file."""
        if path and _has(self.environment, path) and path not in self.positions:
            return ENV_PREFIX + "__".join(part.upper() for part in path)
        at = nearest_position(path, self.positions)
        return self.where if at is None else f"{self.where}:{at.line}:{at.column}"


def _has(content: Mapping[str, Any], path: FieldPath) -> bool:
    here: Any = content
    for part in path:
        if not isinstance(here, Mapping) or part not in here:
            return False
        here = here[part]
    return True


def all_mistakes(
    content: dict[str, Any],
    first: ValidationError | ConfigError,
    validate: Callable[[dict[str, Any]], object],
) -> list[Mistake]:
    """Return all mistakes of a configuration, in the order in which they were found.

    Args:
        content: The configuration.
        first: The error from validating it.
        validate: Validates a configuration, raising the same kinds of errors.
    """
    found: dict[str, Mistake] = {}
    removed: set[FieldPath] = set()
    error: ValidationError | ConfigError | None = first
    for _ in range(_MAX_ROUNDS):
        assert error is not None
        before = content
        for mistake in _mistakes(error):
            path = parse_field_path(mistake.path, content)
            if not _is_consequence(path, removed):
                found.setdefault(f"{mistake.path} {mistake.text}", mistake)
            content = _without_field(content, path, removed)
        if content is before:
            break
        try:
            validate(content)
        except (ValidationError, ConfigError) as again:
            error = again
        else:
            break
    return list(found.values())


def _mistakes(error: ValidationError | ConfigError) -> Sequence[Mistake]:
    if isinstance(error, ValidationError):
        return list_mistakes(error, Config)
    if error.mistakes:
        return [Mistake(path=path, text=text) for path, text in error.mistakes]
    return [Mistake(path=error.where, text=str(error))]


def _is_consequence(path: FieldPath, removed: set[FieldPath]) -> bool:
    """Return whether a mistake only results from a removal at or below its path."""
    return any(gone[: len(path)] == path for gone in removed)


def _without_field(
    content: dict[str, Any], path: FieldPath, removed: set[FieldPath]
) -> dict[str, Any]:
    """Return the content without a field; if it is removed already, without its section.

    An invalid sink is replaced by a valid one, so that the table's other fields are validated.
    """
    is_in_sink = path[:1] == ("tables",) and path[2:3] == ("sink",)
    if is_in_sink and path[3:] and path[:3] in removed:
        # Another mistake of a sink that is replaced already.
        return content
    if is_in_sink and path[:3] not in removed:
        removed.add(path[:3])
        tables = dict(content["tables"])
        tables[path[1]] = {**tables[path[1]], "sink": dict(_ANY_SINK)}
        return {**content, "tables": tables}
    while path:
        less = without(content, path)
        removed.add(path)
        if less is not None:
            return less
        path = path[:-1]
        if len(path) == 1 and path[0] in _SECTIONS_BY_NAME:
            break
    return content


def mistakes_message(
    mistakes: Sequence[Mistake], origin: Origin, content: Mapping[str, Any]
) -> str:
    """Return the message for all mistakes: one line each, with its position."""
    lines = sorted(
        ((origin.format_position(parse_field_path(m.path, content)), m.text) for m in mistakes),
        key=_by_line,
    )
    shown = [f"{index}: {text}" for index, text in lines[:MAX_MISTAKES]]
    if len(shown) == 1:
        return shown[0]
    rest = [f"and {len(lines) - MAX_MISTAKES} more"] if len(lines) > MAX_MISTAKES else []
    return f"{origin.where} has {len(lines)} mistakes:\n  " + "\n  ".join([*shown, *rest])


def _by_line(line: tuple[str, str]) -> tuple[int, int]:
    parts = line[0].rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        return int(parts[1]), int(parts[2])
    return (1 << 30, 0)
