"""Topics of a real broker: made, deleted, measured."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    TopicMetadata,
)
from confluent_kafka.cimpl import NewTopic

ANSWER_SECONDS = 60
_ATTEMPTS = 4
_NOT_YET = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


class Topics:
    """Makes topics with names of their own, and deletes them at the end of a `with`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._made: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.delete(*self._made)

    def create(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replicas: Sequence[int] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic and return its name once every partition has a leader.

        Args:
            name: A new one by default.
            partitions: How many.
            replicas: Node ids of the brokers that have each partition, its first leader first; one
                that Kafka chooses by default.
            config: Its settings.
        """
        name = name or self.new_name()
        where: dict[str, Any] = {}
        if replicas:
            where["replica_assignment"] = [list(replicas)] * partitions
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}), **where)
        self._admin.create_topics([topic], operation_timeout=ANSWER_SECONDS)[name].result(
            ANSWER_SECONDS
        )
        self._made.append(name)
        self._wait_for_leaders(name, partitions)
        return name

    def new_name(self, prefix: str = "t") -> str:
        """Return a name nobody has; a topic of that name is deleted at the end as well."""
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        self._made.append(name)
        return name

    def delete_later(self, name: str) -> None:
        """Delete a topic that others create, too, at the end."""
        self._made.append(name)

    def delete(self, *names: str) -> None:
        """Delete topics; those that do not exist are no error."""
        for future in self._admin.delete_topics(sorted(set(names))).values() if names else ():
            try:
                future.result(ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Set some of a topic's settings; the others stay."""
        changes = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        topic = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        self._admin.incremental_alter_configs([topic])[topic].result(ANSWER_SECONDS)

    def names(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._admin.list_topics(timeout=ANSWER_SECONDS).topics)

    def leaders(self, name: str) -> dict[int, int]:
        """Return partition → node id of its leader; -1 while there is none."""
        return {number: each.leader for number, each in self._about(name).partitions.items()}

    def in_sync(self, name: str) -> dict[int, set[int]]:
        """Return partition → node ids of its in-sync replicas."""
        return {number: set(each.isrs) for number, each in self._about(name).partitions.items()}

    def _about(self, name: str) -> TopicMetadata:
        """Ask for a topic; again where the broker that was asked ended meanwhile."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._admin.list_topics(name, timeout=ANSWER_SECONDS / _ATTEMPTS).topics[
                    name
                ]
            except KafkaException as error:
                is_late = error.args[0].code() == KafkaError._TIMED_OUT
                if not is_late or attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError(name)

    def end_offsets(self, name: str) -> dict[int, int]:
        """Return partition → offset behind the last record, markers of transactions included."""
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "tests", "log_level": 0}
        )
        try:
            return {
                number: consumer.get_watermark_offsets(
                    TopicPartition(name, number), timeout=ANSWER_SECONDS
                )[1]
                for number in self.leaders(name)
            }
        finally:
            consumer.close()

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                # The metadata name a leader a moment before it knows that it is one.
                if len(self.end_offsets(name)) == partitions:
                    return
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET:
                    raise
            assert time.monotonic() < deadline, f"{name} has no leaders: {self.leaders(name)}"
            time.sleep(0.02)
