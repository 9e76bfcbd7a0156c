"""What is registered, and under which subject: decided before anything is written."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tailerd.errors import ConfigError, IncompatibleSchemaError, SchemaNotRegisteredError
from tailerd.records.base import RecordSchema
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.destinations import TableSchemas
from tailerd.sinks.kafka.routing import plain_topic
from tailerd.sinks.kafka.schema_registry.subjects import TopicSubjects

VALUE = RecordSchema(part="value", kind="AVRO", name="lake.orders.Value", text="v")
KEY = RecordSchema(part="key", kind="AVRO", name="lake.orders.Key", text="k")
SECTION = {"kind": "kafka", "bootstrap_servers": ["127.0.0.1:9092"], "topic": "changes"}
REGISTRY = {"urls": ["http://127.0.0.1:8081"]}


@dataclass
class MemoryRegistry:
    """A registry whose rules forbid what `forbidden` names; subjects have texts in order."""

    forbidden: set[tuple[str, str]] = field(default_factory=set)
    subjects: dict[str, list[str]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)

    def registered_id(self, subject: str, schema: RecordSchema) -> int | None:
        texts = self.subjects.get(subject, [])
        return len(schema.text) if schema.text in texts else None

    def is_compatible(self, subject: str, schema: RecordSchema) -> bool:
        return (subject, schema.text) not in self.forbidden

    def register(self, subject: str, schema: RecordSchema) -> int:
        self.subjects.setdefault(subject, []).append(schema.text)
        return len(schema.text)

    def latest_text(self, subject: str) -> str:
        texts = self.subjects.get(subject, [])
        return texts[-1] if texts else ""

    def allow_every_schema(self, subject: str) -> None:
        self.open.add(subject)


def subjects(registry: MemoryRegistry, **fields: Any) -> TopicSubjects:
    made = TopicSubjects(registry=registry, topic="t", strategy="topic", may_register=True)
    return replace(made, **fields)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("topic", ["t-key", "t-value"]),
        ("record", ["lake.orders.Key", "lake.orders.Value"]),
        ("topic_record", ["t-lake.orders.Key", "t-lake.orders.Value"]),
    ],
)
def test_subjects_are_named_by_the_strategy(strategy: str, expected: list[str]) -> None:
    registry = MemoryRegistry()
    assert subjects(registry, strategy=strategy).ids([VALUE, KEY]) == [1, 1]
    assert sorted(registry.subjects) == expected


def test_where_one_schema_is_forbidden_none_is_registered() -> None:
    for forbidden in (("t-value", "v"), ("t-key", "k")):
        registry = MemoryRegistry({forbidden})
        with pytest.raises(IncompatibleSchemaError, match=forbidden[0]):
            subjects(registry).ids([VALUE, KEY])
        assert registry.subjects == {}


def test_what_is_registered_already_is_not_checked_again() -> None:
    registry = MemoryRegistry({("t-value", "v")}, {"t-value": ["v", "newer"]})
    assert subjects(registry).ids([VALUE]) == [1]
    assert registry.subjects == {"t-value": ["v", "newer"]}


def test_without_leave_to_register_a_schema_that_is_missing_is_shown() -> None:
    with pytest.raises(SchemaNotRegisteredError, match="t-value") as raised:
        subjects(MemoryRegistry(), may_register=False).ids([VALUE])
    assert raised.value.remedy == "Register it: v"


def test_subjects_of_dead_letters_take_every_schema() -> None:
    registry = MemoryRegistry({("t-value", "v")})
    unchecked = subjects(registry, is_checked=False)
    unchecked.ids([VALUE])
    # The first schema of a subject needs no leave, and some registries could give none.
    assert registry.open == set()
    unchecked.ids([replace(VALUE, text="other")])
    assert registry.open == {"t-value"}


def test_only_topics_that_may_be_new_ones_are_taken_for_them() -> None:
    new = {**REGISTRY, "on_incompatible_schema": "new_topic"}
    config = KafkaSinkConfig.model_validate({**SECTION, "format": "avro", "schema_registry": new})
    names = {name: plain_topic(config, name) for name in ("t", "t.v2", "t.v10", "t.v1", "t.v02")}
    assert names == {"t": "t", "t.v2": "t", "t.v10": "t", "t.v1": "t.v1", "t.v02": "t.v02"}
    plain = KafkaSinkConfig.model_validate(SECTION)
    assert plain_topic(plain, "t.v2") == "t.v2"


def test_without_the_client_a_registry_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "tailerd.sinks.kafka.schema_registry.client", raising=False)
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    section = {**SECTION, "format": "avro", "schema_registry": REGISTRY}
    schemas = TableSchemas(KafkaSinkConfig.model_validate(section), "orders")
    with pytest.raises(ConfigError) as raised:
        schemas.check()
    assert raised.value.remedy == "Install tailerd[registry]."


def test_formats_without_schemas_need_no_client_though_a_registry_is_configured() -> None:
    section = {**SECTION, "format": "debezium", "schema_registry": REGISTRY}
    TableSchemas(KafkaSinkConfig.model_validate(section), "orders").check()
