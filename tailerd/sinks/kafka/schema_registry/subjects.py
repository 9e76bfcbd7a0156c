"""Look up and register the schemas of one topic's records under their subjects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailerd.errors import IncompatibleSchemaError, SchemaNotRegisteredError
from tailerd.records.base import RecordPart, RecordSchema
from tailerd.sinks.kafka.schema_registry.config import SubjectStrategy

INCOMPATIBLE_HINT = (
    "Change the table back, lower the compatibility of the subject in the registry, or set"
    " schema_registry.on_incompatible_schema to new_topic or dead_letter."
)


class Registry(Protocol):
    """The requests to a schema registry. Blocking.

    Errors: `SinkError` if it cannot be reached; deliveries then wait.
    """

    def registered_id(self, subject: str, schema: RecordSchema) -> int | None:
        """Return the id of a schema under a subject; None if it is not registered there."""
        ...

    def is_compatible(self, subject: str, schema: RecordSchema) -> bool:
        """Return whether a subject's compatibility rule allows a schema as its next version."""
        ...

    def register(self, subject: str, schema: RecordSchema) -> int:
        """Register a schema under a subject; return its id."""
        ...

    def latest_text(self, subject: str) -> str:
        """Return the text of the latest schema of a subject; empty if there is none."""
        ...

    def allow_every_schema(self, subject: str) -> None:
        """Disable the compatibility rule of a subject."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSubjects:
    """The schemas of one topic's records, as a `SchemaRegistry`.

    Attributes:
        registry: The registry to query.
        topic: Name of the topic.
        strategy: How subjects are named.
        may_register: Whether missing schemas are registered.
        is_checked: Whether the subject's compatibility rule applies; else it is disabled.
    """

    registry: Registry
    topic: str
    strategy: SubjectStrategy
    may_register: bool
    is_checked: bool = True

    def earlier(self, part: RecordPart, name: str) -> str:
        """Return the text of the latest schema; see `SchemaRegistry`."""
        return self.registry.latest_text(self.subject(part, name))

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        """Return the ids of schemas; if one is forbidden, none is registered.

        Raises:
            IncompatibleSchemaError: The compatibility rule forbids one.
            SchemaNotRegisteredError: One is missing, and `may_register` is false.
            TailerdError: The registry cannot be reached, or refuses.
        """
        subjects = [self.subject(each.part, each.name) for each in schemas]
        requested = list(zip(subjects, schemas, strict=True))
        found = [self.registry.registered_id(*each) for each in requested]
        for index, (subject, schema) in enumerate(requested):
            if found[index] is None:
                self._check(subject, schema)
        return [
            self.registry.register(*each) if number is None else number
            for each, number in zip(requested, found, strict=True)
        ]

    def subject(self, part: RecordPart, name: str) -> str:
        """Return the subject of keys or values.

        Args:
            part: Keys or values.
            name: Full name of the record.
        """
        match self.strategy:
            case "topic":
                return f"{self.topic}-{part}"
            case "record":
                return name
            case "topic_record":
                return f"{self.topic}-{name}"

    def _check(self, subject: str, schema: RecordSchema) -> None:
        """Check that a schema may be registered."""
        if not self.may_register:
            raise SchemaNotRegisteredError(
                f"The {schema.kind} schema that {schema.name} has now is not registered under the"
                f" subject {subject}, and auto_register is false.",
                remedy=f"Register it: {schema.text}",
            )
        if not self.is_checked:
            # Not every registry supports settings for a subject without schemas.
            if self.registry.latest_text(subject):
                self.registry.allow_every_schema(subject)
        elif not self.registry.is_compatible(subject, schema):
            raise IncompatibleSchemaError(
                f"The {schema.kind} schema that {schema.name} has now is not compatible with the"
                f" latest one of the subject {subject}, by the registry's rule.",
                remedy=INCOMPATIBLE_HINT,
            )
