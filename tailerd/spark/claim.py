"""What a pipeline on Spark claims before its query may have it: its name in the state, its topics.

Offsets are in checkpoints, so the ids of topics are kept by the state alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.config import TableConfig
from tailerd.pipeline.claim import PipelineClaim
from tailerd.pipeline.pipeline_records import PipelineRecord


class Brokers(Protocol):
    """The cluster that a table's sink writes to."""

    async def cluster_id(self) -> str:
        """Return its id; `SinkError` where it cannot be reached."""
        ...

    async def check(self, record: PipelineRecord | None) -> None:
        """Raise `TopicRecreatedError` where a topic that the record knows is gone or another."""
        ...


class SparkClaim:
    """One table's claim."""

    def __init__(self, claim: PipelineClaim, identity: PipelineIdentity) -> None:
        """Prepare; nothing is read.

        Args:
            claim: The name in the state.
            identity: The pipeline's, without the cluster.
        """
        self._claim = claim
        self._identity = identity

    async def enter(
        self, brokers: Brokers | None = None, *, has_offset: bool = True
    ) -> PipelineRecord | None:
        """Claim the name; return what the state remembers of this pipeline.

        Args:
            brokers: Of a sink into Kafka.
            has_offset: Whether its checkpoint says where it goes on.

        Raises:
            EngineChangedError, PipelineReboundError, TopicRecreatedError: It must not go on.
            TailerdError: The state cannot be read or written, or the brokers cannot be reached.
        """
        if brokers is not None:
            cluster = await brokers.cluster_id()
            self._identity = replace(self._identity, cluster=cluster)
        known = await self._claim.check(self._identity)
        if brokers is not None:
            await brokers.check(known)
        topics = {} if known is None else known.topics
        await self._claim.note(self._identity, topics, has_offset=has_offset)
        return known


def beginning(table: TableConfig, known: PipelineRecord | None) -> TableConfig:
    """Return a table's section with the place that an operator chose for a new checkpoint."""
    start = "" if known is None else known.start
    return table.model_copy(update={"start": start}) if start else table
