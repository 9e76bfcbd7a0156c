"""What is known of the topics of a group; where it is not known, brokers are asked. Blocking."""

from __future__ import annotations

from collections.abc import Mapping

from tailerd.errors import TailerdError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.routing import TopicShape
from tailerd.sinks.kafka.session import new_topic, wanted_topics
from tailerd.sinks.kafka.topics import Topics


class TopicShapes:
    """The shapes of topics; those a column chooses are found, and made, when they are met."""

    def __init__(
        self,
        sinks: Mapping[str, KafkaSinkConfig],
        topics: Topics,
        faults: Mapping[str, TailerdError],
    ) -> None:
        self._sinks = sinks
        self._topics = topics
        self._faults = faults

    def renew(self) -> bool:
        """Ask brokers again about all topics; return whether one is different now.

        Raises:
            SinkError: The brokers cannot be reached, or refuse.
        """
        return self._topics.renew()

    def shape_of(self, table: str, topic: str) -> TopicShape:
        """Return the shape of a topic that records of a table go to.

        Raises:
            TailerdError: Records of this table cannot be written at all.
            SinkRefusedError: It is not there and shall not be made, or may not be written.
            SinkError: The brokers cannot be reached.
        """
        if table in self._faults:
            raise self._faults[table]
        config = self._sinks[table]
        wanted = wanted_topics(config, table)
        facts = self._topics.ensure({topic: wanted.get(topic, new_topic(config))})[topic]
        return TopicShape(
            partitions=facts.partitions,
            max_bytes=self._topics.max_batch_bytes(facts),
            retention_ms=facts.retention_ms,
            ahead_ms=facts.ahead_ms,
        )
