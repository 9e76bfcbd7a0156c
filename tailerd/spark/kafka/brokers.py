"""One cluster as the pipelines of a daemon ask for it: many at once, answered with few requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from tailerd.errors import TopicRecreatedError
from tailerd.pipeline.pipeline_records import PipelineRecord
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.topics import Topics

_FRESH_SECONDS = 1.0


class SharedBrokers:
    """The cluster of all sinks with one `sharing_key`."""

    def __init__(self, config: KafkaSinkConfig) -> None:
        """Take the section of one of the sinks; nothing is asked."""
        self._topics = Topics(Connection(config))
        self._lock = asyncio.Lock()
        self._looked = -_FRESH_SECONDS
        self._seen: Mapping[str, str] = {}
        self._changed: Mapping[str, TopicRecreatedError] = {}

    async def cluster_id(self) -> str:
        """Return the id of the cluster; asks once.

        Raises:
            SinkError: It cannot be reached.
        """
        async with self._lock:
            return await asyncio.to_thread(self._topics.cluster_id)

    async def check(self, record: PipelineRecord | None) -> None:
        """Make sure that the topics of a pipeline are those that its record knows.

        Raises:
            TopicRecreatedError: One is gone, or was made again.
            SinkError: The cluster cannot be reached.
        """
        if record is None or not record.topics:
            return
        # Whoever comes while others are answered is part of the next look.
        self._topics.expect(record.topics)
        async with self._lock:
            is_fresh = time.monotonic() - self._looked < _FRESH_SECONDS
            if not is_fresh or not record.topics.items() <= self._seen.items():
                self._seen = dict(self._topics.expected)
                self._changed = await asyncio.to_thread(self._topics.changed)
                self._looked = time.monotonic()
            for topic in record.topics:
                if topic in self._changed:
                    raise self._changed[topic]
