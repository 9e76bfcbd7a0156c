"""At its start a pipeline claims its name in the state: nobody else's offset may be gone on from.

Case table of what the state remembers under the table's name:

    A  nothing                              -> a new pipeline, or a new state
    B  the other engine, with an offset     -> EngineChangedError
    C  the other engine, without an offset  -> as A
    D  this engine, another identity        -> PipelineReboundError; on Spark, whose checkpoints
                                               are here to be looked at, C without an offset
    E  this engine, this identity           -> goes on
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tailerd.changefeed.offset import Offset
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.errors import EngineChangedError, PipelineReboundError
from tailerd.pipeline.pipeline_records import PipelineRecord, PipelineRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOffset:
    """The offset of a pipeline.

    Attributes:
        engine: The engine that has it.
        offset: Where that goes on.
        place: Where it lies, for a person.
    """

    engine: str
    offset: Offset
    place: str


class PipelineClaim:
    """One pipeline's name in a state."""

    def __init__(
        self,
        records: PipelineRecords,
        table: str,
        engine: str,
        held: Callable[[PipelineRecord], Awaitable[HeldOffset | None]],
    ) -> None:
        """Prepare; nothing is read.

        Args:
            records: Of the state, which is held.
            table: Configured name of the table.
            engine: The one that is to run it.
            held: Returns the offset of a remembered pipeline; None where there is none.
        """
        self._records = records
        self._table = table
        self._engine = engine
        self._held = held
        self._known: PipelineRecord | None = None

    async def check(self, identity: PipelineIdentity) -> PipelineRecord | None:
        """Return what the state remembers of this very pipeline; None for a new one.

        Raises:
            EngineChangedError: The other engine has its offset.
            PipelineReboundError: It had another daemon name or sink place.
            OffsetError, StorageError: The state cannot be read.
        """
        known = await self._records.load(self._table)
        if known is not None and known.engine != self._engine:
            held = await self._held(known)
            if held is not None:
                raise self._engine_changed(held)
            known = None
        if known is not None and known.identity != identity:
            if self._engine == "arrow" or await self._held(known) is not None:
                check_same(known.identity, identity)
            known = None
        self._known = known
        return known

    async def note(
        self, identity: PipelineIdentity, topics: Mapping[str, str], *, has_offset: bool = True
    ) -> None:
        """Remember a pipeline.

        Args:
            identity: The one that `check` was asked about.
            topics: Its topics, with their ids.
            has_offset: Whether it is past the place where an operator let it begin.

        Raises:
            StorageError: The state cannot be written.
        """
        start = "" if self._known is None or has_offset else self._known.start
        record = PipelineRecord(
            identity=identity, engine=self._engine, topics=dict(topics), start=start
        )
        if record != self._known:
            await self._records.save(self._table, record)
            self._known = record

    def _engine_changed(self, held: HeldOffset) -> EngineChangedError:
        table = self._table
        return EngineChangedError(
            f"The offset of {table} is kept by the {held.engine} engine in {held.place} (next is"
            f" version {held.offset.version}), and the {self._engine} engine does not know it: it"
            " would begin again and deliver rows twice.",
            remedy=f"Run it with `--engine {held.engine}`; or let the {self._engine} engine begin"
            f" at a place of your choice: `tailerd offsets reset {table} --to snapshot --engine"
            f" {self._engine} --config FILE`.",
        )


def check_same(saved: PipelineIdentity, now: PipelineIdentity) -> None:
    """Make sure that what was saved by one pipeline is gone on from by the same.

    Raises:
        PipelineReboundError: It was saved by another one.
    """
    if saved == now:
        return
    raise PipelineReboundError(
        f"The saved offset belongs to the pipeline {saved}, and the configuration now describes"
        f" {now}: rows before the offset were never delivered there.",
        remedy="Set the configuration back; or accept the new place and keep the offset with"
        f" `tailerd offsets rebind {now.table} --config FILE`; or begin again with `tailerd offsets"
        f" reset {now.table} --to snapshot --config FILE`.",
    )
