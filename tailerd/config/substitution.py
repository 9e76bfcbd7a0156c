"""Replace `${VAR}` and `${file:/run/secret}` in the values of a configuration file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailerd.errors import ConfigError

_REFERENCE = re.compile(r"\$(\$)?\{([^{}]*)\}")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_FILE = "file:"
_LARGEST_FILE_BYTES = 1 << 20


class Substitution:
    """Replaces references in texts, and remembers the values, so that no message shows them.

    `${VAR}` is an environment variable, `${VAR:-text}` has a default if the variable is unset or
    empty, `${file:PATH}` is the content of a file without its last line break, `$${` is `${`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._known: dict[str, str] = {}

    def fill(self, value: Any, where: str = "") -> Any:
        """Return a value with its references replaced, recursively; keys are not changed.

        Args:
            where: Path of the field, for errors.

        Raises:
            ConfigError: Some references cannot be resolved; `mistakes` has one entry for each.
        """
        mistakes: list[tuple[str, str]] = []
        made = self._fill(value, where, mistakes)
        if mistakes:
            error = ConfigError(" ".join(text for _, text in mistakes))
            error.mistakes = tuple(mistakes)
            raise error
        return made

    def hide_values(self, text: str) -> str:
        """Return a message with the values of references replaced by the references."""
        for value, reference in self._known.items():
            text = text.replace(value, reference)
        return text

    def _fill(self, value: Any, where: str, mistakes: list[tuple[str, str]]) -> Any:
        if isinstance(value, str):
            return self._text(value, where, mistakes)
        if isinstance(value, dict):
            return {
                key: self._fill(below, f"{where}.{key}".removeprefix("."), mistakes)
                for key, below in value.items()
            }
        if isinstance(value, list):
            return [
                self._fill(below, f"{where}.{number}", mistakes)
                for number, below in enumerate(value)
            ]
        return value

    def _text(self, text: str, where: str, mistakes: list[tuple[str, str]]) -> str:
        def replace(match: re.Match[str]) -> str:
            if match[1]:
                return match[0][1:]
            try:
                value = self._value(match[2])
            except ConfigError as error:
                mistakes.append((where, f"{where}: {error}"))
                return match[0]
            if len(value) > 3:
                self._known[value] = match[0]
            return value

        return _REFERENCE.sub(replace, text)

    def _value(self, reference: str) -> str:
        if reference.startswith(_FILE):
            return _content(reference.removeprefix(_FILE))
        match = _NAME.fullmatch(reference)
        if match is None:
            raise ConfigError(
                f"${{{reference}}} is not a valid reference.",
                remedy="Write ${NAME}, ${NAME:-default} or ${file:/path}; `$${` stands for `${`.",
            )
        value = self._environment.get(match[1], "")
        if value:
            return value
        if match[2] is not None:
            return match[2]
        raise ConfigError(
            f"The environment variable {match[1]} is not set.",
            remedy=f"Set it, or give a default: ${{{match[1]}:-default}}.",
        )


def _content(path: str) -> str:
    try:
        file = Path(path)
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(f"The file {path} is larger than 1 MiB, too large for a value.")
        return file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ConfigError(f"The file {path} is not UTF-8 text.") from error
    except OSError as error:
        raise ConfigError(
            f"The file {path} cannot be read: {error.strerror}.",
            remedy="Check its path and rights.",
        ) from error
