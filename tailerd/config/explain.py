"""Describe validation errors in one paragraph: the field, its value, the allowed form."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from tailerd.errors import ConfigError
from tailerd.registry import suggest_name

_SECRET = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(://)[^@\s]+@")


def prefix_with(where: str) -> Callable[[str], str]:
    """Return a function that puts `where` before a field's path."""
    return lambda path: f"{where}.{path}" if path else where


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake of a configuration.

    Attributes:
        path: Dotted path of the field; empty if it concerns no single field.
        text: Sentences that name the field, its value and the allowed form.
    """

    path: str
    text: str


def list_mistakes(
    error: ValidationError, model: type[BaseModel], location: Callable[[str], str] = str
) -> list[Mistake]:
    """Return the mistakes that `error` reports for a section, one per field.

    Args:
        error: The error from validating `model`.
        model: The section's class, for the names of its fields.
        location: Maps a path in the section to its path in the whole configuration.
    """
    return [
        Mistake(path=_path(problem["loc"], location), text=_problem(dict(problem), model, location))
        for problem in error.errors(include_url=False)
    ]


def explain(
    error: ValidationError, model: type[BaseModel], location: Callable[[str], str] = str
) -> str:
    """Return the mistakes of a section as one paragraph; arguments as `list_mistakes`."""
    return " ".join(mistake.text for mistake in list_mistakes(error, model, location))


def describe_error(
    error: ValidationError, model: type[BaseModel], location: Callable[[str], str], where: str
) -> ConfigError:
    """Return the error for an invalid section, with all its mistakes.

    Args:
        where: The section's own path.
    """
    found = list_mistakes(error, model, location)
    made = ConfigError(" ".join(mistake.text for mistake in found), where=where)
    made.mistakes = tuple((mistake.path, mistake.text) for mistake in found)
    return made


def _path(loc: Sequence[int | str], location: Callable[[str], str]) -> str:
    # pydantic adds the union's discriminator or `[key]` to the path; only fields are shown.
    return location(".".join(str(part) for part in loc if part != "[key]"))


def _problem(
    problem: dict[str, Any], model: type[BaseModel], location: Callable[[str], str]
) -> str:
    loc = [part for part in problem["loc"] if part != "[key]"]
    path = _path(loc, location)
    section = _section_at(model, loc[:-1])
    match problem["type"]:
        case "extra_forbidden":
            names = [] if section is None else [_spelling(n, f) for n, f in _fields(section)]
            return f"{path} is not a known field. {suggest_name(str(loc[-1]), names)}".strip()
        case "missing":
            about = _description(section, loc[-1])
            return f"{path} is missing. {about}".strip()
        case "value_error":
            reason = str(problem["ctx"]["error"])
        case "too_short":
            reason = f"it needs at least {problem['ctx']['min_length']} entry"
        case "model_type" | "dict_type":
            reason = "it should be a mapping of fields"
        case _:
            reason = problem["msg"].replace("Input should", "it should")
    value = problem["input"]
    if _is_secret(section, loc):
        return _sentence(f"{path} has a value that does not fit (not shown): {reason}")
    if _may_hold_secrets(value, problem["type"], section):
        return _sentence(f"{path}: {reason}" if path else reason)
    return _sentence(f"{path} is {_short(value)}, but {reason}")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _may_hold_secrets(value: object, kind: str, section: type[BaseModel] | None) -> bool:
    """Return whether a value may be or contain a secret, and so must not be in a message.

    Any field of a section or list may be a secret, and so may a text instead of a section, and
    any value in a mapping of third-party options.
    """
    if value is None or isinstance(value, bool | int | float):
        return False
    if isinstance(value, list):
        return any(_may_hold_secrets(item, kind, None) for item in value)
    return (
        section is None
        or not isinstance(value, str)
        or kind in ("model_type", "dict_type", "list_type")
        or _SECRET.search(value) is not None
    )


def _short(value: object) -> str:
    text = _CREDENTIALS.sub(r"\1***@", repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return list(model.model_fields.items())


def _spelling(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _field(section: type[BaseModel] | None, name: int | str) -> FieldInfo | None:
    if section is None:
        return None
    for field_name, field in _fields(section):
        if _spelling(field_name, field) == name:
            return field
    return None


def _description(section: type[BaseModel] | None, name: int | str) -> str:
    field = _field(section, name)
    if field is None or not field.description:
        return ""
    example = f" Example: {field.examples[0]}." if field.examples else ""
    return f"It says: {field.description}{example}"


def _is_secret(section: type[BaseModel] | None, loc: Sequence[int | str]) -> bool:
    field = _field(section, loc[-1]) if loc else None
    typed = field is not None and SecretStr in (field.annotation, *get_args(field.annotation))
    return typed or any(_SECRET.search(str(part)) for part in loc)


def _section_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model at a path; None if the path is in a plain mapping."""
    here: object = model
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = _field(here, part)
            here = None if field is None else _sub_model(field.annotation)
            # A dict of sections: the next part of the path is a key of the dict.
            if field is not None and here is None:
                here = _parse_dict_values(field.annotation)
        elif isinstance(here, _Values):
            here = here.model
        else:
            return None
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


class _Values:
    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model


def _sub_model(annotation: object) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            is_dict = getattr(annotation, "__origin__", None) is dict
            return None if is_dict else candidate
    return None


def _parse_dict_values(annotation: object) -> _Values | None:
    for candidate in get_args(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return _Values(candidate)
    return None
