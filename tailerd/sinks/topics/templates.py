"""Texts with placeholders: names of topics, and headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tailerd.pipeline_names import table_of
from tailerd.registry import suggest_name

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_COLUMN = "column:"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ALLOWED = "it has 1 to 249 letters, digits, `.`, `_`, `-`"
TABLE_NAMES = ("table", "name")
HEADER_PLACEHOLDERS = (*TABLE_NAMES, "commit_version", "commit_timestamp", "change_source")


def table_texts(pipeline: str) -> dict[str, str]:
    """Return the values of the placeholders for a pipeline's table."""
    return dict.fromkeys(TABLE_NAMES, table_of(pipeline))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTemplate:
    """The name of a topic, fixed or chosen by the value of one column.

    Attributes:
        text: The template, as configured.
        column: The column whose value chooses the topic; None if only the table does.
    """

    text: str
    column: str | None = None

    @classmethod
    def parse(cls, text: str) -> TopicTemplate:
        """Read a template.

        Raises:
            ValueError: A placeholder is unknown, or the name is not valid for a topic.
        """
        column: str | None = None
        for placeholder in _PLACEHOLDER.findall(text):
            if placeholder.startswith(_COLUMN):
                name = placeholder.removeprefix(_COLUMN)
                if not name or column not in (None, name):
                    raise ValueError("one column chooses the topic: write {column:NAME}")
                column = name
            elif placeholder not in TABLE_NAMES:
                remedy = suggest_name(placeholder, (*TABLE_NAMES, f"{_COLUMN}NAME"))
                raise ValueError(f"{{{placeholder}}} is not a placeholder of a topic. {remedy}")
        check_topic_name(_PLACEHOLDER.sub("x", text))
        return cls(text=text, column=column)

    def topic(self, table: str, value: str | None = None) -> str:
        """Return the name for a table and a value of the column.

        Raises:
            ValueError: The result is not a valid topic name.
        """
        filled = filled_text(self.text, table_texts(table))
        if self.column is not None and value is not None:
            filled = filled.replace(f"{{{_COLUMN}{self.column}}}", value)
            if not is_topic_name(filled):
                # Without the value: errors are shown where rows must not be.
                raise ValueError(f"with it {self.text!r} is not a valid topic name: {_ALLOWED}")
        check_topic_name(filled)
        return filled

    def can_produce(self, table: str, topic: str) -> bool:
        """Return whether this template can produce `topic` for a table."""
        filled = re.escape(filled_text(self.text, table_texts(table)))
        if self.column is not None:
            filled = filled.replace(re.escape(f"{{{_COLUMN}{self.column}}}"), ".+")
        return re.fullmatch(filled, topic) is not None


def is_topic_name(name: str) -> bool:
    """Return whether Kafka allows topics of this name."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def check_topic_name(name: str) -> None:
    """Raise `ValueError` if Kafka does not allow topics of this name."""
    if not is_topic_name(name):
        raise ValueError(f"{name[:80]!r} is not a valid topic name: {_ALLOWED}")


def check_placeholders(text: str, names: tuple[str, ...]) -> None:
    """Raise `ValueError` if a text has a placeholder that is not in `names`."""
    for placeholder in _PLACEHOLDER.findall(text):
        if placeholder not in names:
            raise ValueError(
                f"{{{placeholder}}} is not a placeholder here. {suggest_name(placeholder, names)}"
            )


def filled_text(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders replaced; those without a value stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
