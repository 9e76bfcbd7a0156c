"""Claims a pipeline's name in the state at its start: it must not resume from another's offset.

Case table of the state's record under the table's name:

    A  nothing                              -> a new pipeline, or a new state
    B  another identity                     -> PipelineReboundError; but as A if that pipeline is
                                               known to have no offset
    C  this identity                        -> resumes, on either engine
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tailerd.changefeed.offset import Offset
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import Beginning
from tailerd.errors import PipelineReboundError
from tailerd.remedies import CONFIG_FILE, reset_command
from tailerd.state.pipeline_records import PipelineRecord, PipelineRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOffset:
    """The offset of a pipeline.

    Attributes:
        offset: Where the pipeline resumes.
        location: Where the offset is kept, for messages.
        beginning: Where its delivered rows begin; None if Spark keeps the offset.
    """

    offset: Offset
    location: str
    beginning: Beginning | None = None


class PipelineClaim:
    """One pipeline's name in a state."""

    def __init__(
        self,
        records: PipelineRecords,
        table: str,
        has_offset: Callable[[PipelineRecord], Awaitable[bool]],
    ) -> None:
        """Initialize; nothing is read.

        Args:
            records: Of the state, which is held.
            table: Configured name of the table.
            has_offset: Returns whether a recorded pipeline may have an offset.
        """
        self._records = records
        self._table = table
        self._has_offset = has_offset
        self._known: PipelineRecord | None = None

    async def check(self, identity: PipelineIdentity) -> PipelineRecord | None:
        """Return the state's record of this pipeline; None for a new one.

        Raises:
            PipelineReboundError: It had another daemon name or sink location.
            OffsetError, StorageError: The state cannot be read.
        """
        known = await self._records.load(self._table)
        if known is not None and known.identity != identity:
            if await self._has_offset(known):
                check_same(known.identity, identity)
            known = None
        self._known = known
        return known

    async def note(
        self,
        identity: PipelineIdentity,
        topics: Mapping[str, str],
        schemas: Mapping[str, str] | None = None,
        *,
        has_offset: bool = True,
    ) -> None:
        """Record a pipeline.

        Args:
            identity: The one passed to `check`.
            topics: Its topics, with their ids.
            schemas: Its registered schemas.
            has_offset: Whether it has an offset, so that its recorded start no longer applies.

        Raises:
            StorageError: The state cannot be written.
        """
        start = "" if self._known is None or has_offset else self._known.start
        record = PipelineRecord(
            identity=identity, topics=dict(topics), start=start, schemas=dict(schemas or {})
        )
        if record != self._known:
            await self._records.save(self._table, record)
            self._known = record


def check_same(saved: PipelineIdentity, now: PipelineIdentity) -> None:
    """Check that the pipeline that resumes is the one that saved the offset.

    Raises:
        PipelineReboundError: Another one saved it.
    """
    if saved == now:
        return
    raise PipelineReboundError(
        f"The saved offset belongs to the pipeline {saved}, and the configuration now describes"
        f" {now}: rows before the offset were never delivered there.",
        remedy="Set the configuration back; or accept the new location and keep the offset with"
        f" `tailerd offsets rebind {now.table} --config {CONFIG_FILE}`; or"
        f" {reset_command(now.table)}.",
    )
