"""Claims the name in the state for a query with one of Spark's own sinks, before it starts.

Its offset is in its checkpoint, which the state does not record.
"""

from __future__ import annotations

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.config import TableConfig
from tailerd.pipeline.claim import PipelineClaim
from tailerd.state.pipeline_records import PipelineRecord


class SparkClaim:
    """One table's claim."""

    def __init__(self, claim: PipelineClaim, identity: PipelineIdentity) -> None:
        """Initialize; nothing is read.

        Args:
            claim: The name in the state.
            identity: The pipeline's.
        """
        self._claim = claim
        self._identity = identity

    async def enter(self, *, has_offset: bool) -> PipelineRecord | None:
        """Claim the name; return the state's record of this pipeline.

        Args:
            has_offset: Whether its checkpoint says where it resumes.

        Raises:
            PipelineReboundError: It must not resume.
            TailerdError: The state cannot be read or written.
        """
        known = await self._claim.check(self._identity)
        await self._claim.note(self._identity, {}, has_offset=has_offset)
        return known


def beginning(table: TableConfig, known: PipelineRecord | None) -> TableConfig:
    """Return a table's section with the `from` that an operator chose for a new checkpoint."""
    start = "" if known is None else known.start
    return table.model_copy(update={"start": start}) if start else table
