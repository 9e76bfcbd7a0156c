"""What brokers answer about topics, and what is taken from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
from kafka.errors import (
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)

from tailerd.errors import SinkError, SinkRefusedError
from tailerd.sinks.kafka.topics import Topics

PARTITION = {"partition_index": 0, "replica_nodes": [1], "isr_nodes": [1], "leader_id": 1}


class Answers:
    """A connection to brokers that answer each question about topics with the next code.

    None is a topic that is there without partitions.
    """

    address = "broker:9092"

    def __init__(self, *codes: int | None) -> None:
        self._codes = list(codes)

    def number(self, _: str, default: int) -> int:
        return default

    @contextmanager
    def admin(self) -> Iterator[Answers]:
        yield self

    def calls(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        code = self._codes.pop(0)
        partitions = [PARTITION] if code == 0 else []
        return [{"error_code": code or 0, "name": name, "partitions": partitions} for name in names]

    def describe_configs(self, *_: object, **__: object) -> dict[str, Any]:
        return {}


def topics(*codes: int | None) -> Topics:
    return Topics(Answers(*codes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [LeaderNotAvailableError, InvalidReplicationFactorError, UnknownError]
)
def test_a_topic_that_brokers_cannot_tell_of_now_is_asked_for_again(error: Any) -> None:
    requested = topics(error.errno, error.errno, 0)
    for ask in (lambda: requested.ensure({"orders": None}), lambda: requested.describe(["orders"])):
        with pytest.raises(SinkError, match=rf"topic orders .*{error.__name__}") as raised:
            ask()
        assert raised.value.retryable
    assert requested.ensure({"orders": None})["orders"].partitions == 1


def test_a_topic_without_partitions_is_asked_for_again_and_said_to_have_none() -> None:
    requested = topics(None, 0)
    with pytest.raises(SinkError, match="topic orders now: it has no partitions yet") as raised:
        requested.describe(["orders"])
    assert raised.value.retryable
    assert requested.ensure({"orders": None})["orders"].partitions == 1


def test_only_a_topic_that_brokers_do_not_know_is_not_there() -> None:
    code = UnknownTopicOrPartitionError.errno
    assert topics(code).describe(["orders"]) == {"orders": None}
    with pytest.raises(SinkRefusedError, match="orders does not exist"):
        topics(code).ensure({"orders": None})
    with pytest.raises(SinkRefusedError, match="Authorization"):
        topics(TopicAuthorizationFailedError.errno).describe(["orders"])
