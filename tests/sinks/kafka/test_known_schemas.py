"""Which schemas need no registry, and when the registry is asked all the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tailerd.errors import SinkError, SinkRefusedError
from tailerd.records.base import RecordSchema
from tailerd.sinks.kafka.schema_registry.known_schemas import KnowingRegistry, KnownSchemas

SCHEMA = RecordSchema(part="value", kind="AVRO", name="orders.Value", text='"string"')
OTHER = RecordSchema(part="value", kind="AVRO", name="orders.Value", text='"long"')


@dataclass
class FailingRegistry:
    """Answers with one id, or fails; counts its requests."""

    number: int | None = 7
    error: SinkError | None = None
    requests: list[str] = field(default_factory=list)

    def _request(self, name: str) -> None:
        self.requests.append(name)
        if self.error is not None:
            raise self.error

    def registered_id(self, subject: str, schema: RecordSchema) -> int | None:
        self._request("registered_id")
        return self.number

    def is_compatible(self, subject: str, schema: RecordSchema) -> bool:
        self._request("is_compatible")
        return True

    def register(self, subject: str, schema: RecordSchema) -> int:
        self._request("register")
        return 9

    def latest_text(self, subject: str) -> str:
        self._request("latest_text")
        return ""

    def allow_every_schema(self, subject: str) -> None:
        self._request("allow_every_schema")


@pytest.mark.attack
@pytest.mark.parametrize("error", [SinkError("It is down."), SinkRefusedError("401")])
def test_a_confirmed_schema_needs_no_request_and_a_saved_one_only_if_the_registry_fails(
    error: SinkError,
) -> None:
    registry, known = FailingRegistry(), KnownSchemas()
    first = KnowingRegistry(registry, known)
    assert [first.registered_id("s", SCHEMA) for _ in range(2)] == [7, 7]
    assert registry.requests == ["registered_id"]
    saved = KnownSchemas()
    saved.learn(known.to_texts(), is_confirmed=False)
    restarted = KnowingRegistry(registry, saved)
    registry.error = error
    assert [restarted.registered_id("s", SCHEMA) for _ in range(3)] == [7, 7, 7]
    assert restarted.latest_text("s") == SCHEMA.text
    assert registry.requests.count("registered_id") == 2
    with pytest.raises(type(error)):
        restarted.registered_id("s", OTHER)
    with pytest.raises(type(error)):
        restarted.latest_text("t")


@pytest.mark.attack
def test_an_executor_uses_the_ids_of_its_delivery_and_returns_new_ones() -> None:
    daemon, executor = KnownSchemas(), KnownSchemas()
    daemon.confirm("s", "AVRO", SCHEMA.text, 7)
    executor.learn(daemon.to_texts(), is_confirmed=True)
    registry = FailingRegistry()
    writing = KnowingRegistry(registry, executor)
    assert writing.registered_id("s", SCHEMA) == 7
    assert not registry.requests
    assert writing.register("s", OTHER) == 9
    daemon.learn(executor.to_texts(), is_confirmed=True)
    assert daemon.confirmed_id("s", OTHER) == 9


def test_a_registry_that_was_replaced_is_believed_over_what_was_saved() -> None:
    saved = KnownSchemas()
    saved.learn({"s": '["AVRO", "\\"string\\"", 7]'}, is_confirmed=False)
    registry = FailingRegistry(number=None)
    assert KnowingRegistry(registry, saved).registered_id("s", SCHEMA) is None
    registry.number = 3
    assert KnowingRegistry(registry, saved).registered_id("s", SCHEMA) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '["AVRO"]', '["AVRO", "x", "y"]', "[" * 100_000])
def test_damaged_entries_of_the_state_are_left_out(text: str) -> None:
    known = KnownSchemas()
    known.learn({"s": text}, is_confirmed=False)
    assert known.is_empty


def test_only_the_newest_subjects_are_kept() -> None:
    known = KnownSchemas()
    for number in range(500):
        known.confirm(f"s{number}", "AVRO", "x", number)
    assert list(known.to_texts()) == [f"s{number}" for number in range(436, 500)]
