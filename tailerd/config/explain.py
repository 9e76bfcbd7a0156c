"""Describe validation errors in one paragraph: the field, its value, the allowed form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from tailerd.errors import ConfigError
from tailerd.registry import suggest_name

_SECRET = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_REASONS: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "enum": "{expected}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list, such as [a, b]",
    "literal_error": "{expected}",
    "model_type": "a mapping of fields",
    "dict_type": "a mapping of fields",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "string_type": "text",
    "tuple_type": "a list, such as [a, b]",
}
"""Type of a validation error -> what the value should be."""

ELSEWHERE: Mapping[str, str] = {
    "snapshot.mode": "from",
    "message.key.columns": "sink.key",
    "table.include.list": "tables",
    "tombstones.on.delete": "sink.tombstones",
    "topic.prefix": "sink.topic_prefix",
    "topic.transaction": "sink.transaction_topic",
    "provide.transaction.metadata": "sink.transaction_topic",
    "heartbeat.interval.ms": "sink.heartbeat_interval",
    "topic.heartbeat.prefix": "sink.heartbeat_topic",
    "decimal.handling.mode": "sink.decimals",
    "value.converter": "sink.format",
    "value.converter.schema.registry.url": "sink.schema_registry",
    "bootstrap.servers": "sink.bootstrap_servers",
    "errors.max.retries": "max_attempts",
    "poll.interval.ms": "poll_interval",
    "max.batch.size": "max_bytes_per_batch",
    "offset.storage": "state",
    "offset.storage.file.filename": "state",
    "offset.storage.topic": "sink.offsets_topic",
}
"""Debezium's name of a field -> ours, those of a table from the table on."""

_CREDENTIALS = re.compile(r"(://)[^@\s]+@")
_PARAMETERS = re.compile(r"(://[^\s?#]*[?#])[^'\"]+")


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
            name = _elsewhere(str(loc[-1]), problem["input"])
            if name in ELSEWHERE:
                return f"{path} is Debezium's name. Here it is called `{ELSEWHERE[name]}`."
            names = [] if section is None else [_spelling(n, f) for n, f in _fields(section)]
            return f"{path} is not a known field. {suggest_name(str(loc[-1]), names)}".strip()
        case "missing":
            about = _description(section, loc[-1])
            return f"{path} is required{about}."
        case "value_error":
            reason = str(problem["ctx"]["error"])
        case "too_short":
            reason = f"it needs at least {problem['ctx']['min_length']} entry"
        case known if known in _REASONS:
            reason = f"it should be {_REASONS[known].format(**problem.get('ctx', {}))}"
        case _:
            field = _field(section, loc[-1]) if loc else None
            examples = field.examples if field is not None else None
            reason = f"it should look like {examples[0]}" if examples else "it does not fit"
    value = problem["input"]
    if _is_secret(section, loc):
        return _sentence(f"{path} has a value that does not fit (not shown): {reason}")
    if _may_hold_secrets(value, problem["type"], section):
        return _sentence(f"{path}: {reason}" if path else reason)
    return _sentence(f"{path} is {_short(value)}, but {reason}")


def _elsewhere(name: str, value: object) -> str:
    """Return a field's name as Debezium writes it, also of one that is nested."""
    if isinstance(value, dict) and len(value) == 1:
        name = f"{name}.{next(iter(value))}"
    return name.lower().replace("_", ".").replace("-", ".")


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
    if value is None:
        return "empty"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    text = _PARAMETERS.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))
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
    example = f", for example {field.examples[0]}" if field.examples else ""
    about = field.description.partition(". ")[0].rstrip(".")
    start = about[:2].capitalize()
    return f": {about[0].lower() if about.startswith(start) else about[0]}{about[1:]}{example}"


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
