"""Bugs put in on purpose, one at a time: the simulation must catch each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from tailerd.changefeed.change_task import TaskGroup
from tailerd.changefeed.delivery import DeliveryTracker
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import MissingVersionError
from tailerd.formats.base import ChangeSource
from tailerd.formats.comparing_source import ComparingSource
from tailerd.formats.delta.changes.log import DeltaLog
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.pipeline.delivery_loop import DeliveryLoop
from tailerd.pipeline.identity import PipelineOffsets


class SavesBeforeDelivery(DeliveryLoop):
    """Saves the offset before the sink has the rows."""

    async def _deliver(self, start: Offset, end: Offset) -> None:
        await self._save(end)
        await super()._deliver(start, end)


class NamesTheStart(PipelineOffsets):
    """Gives a sink that keeps the offset with the rows one that lies before them."""

    async def make_saved(self, offset: Offset, source: ChangeSource) -> SavedOffset:
        saved = await super().make_saved(offset, source)
        return replace(saved, offset=offset.at(0))


class SavesAsTheyFinish:
    """Takes the offset of whatever delivery finishes, though earlier ones are under way."""

    def __init__(self) -> None:
        self._inner = DeliveryTracker()

    def begin(self, end: Offset) -> None:
        self._inner.begin(end)

    def delivered(self, end: Offset) -> Offset | None:
        return end


class BelievesTheHint(ComparingSource):
    """Is told that version N is new, and reads N; whatever came before it went by unheard."""

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        end = await super().latest_offset(start, limit)
        if end == start or start.phase is Phase.SNAPSHOT or start.position:
            return end
        listing = await list_around(self, start.version)
        head = max(end.version - 1, listing.head_version or 0)
        return Offset(table_id=start.table_id, version=Version(head + 1))

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        if start.phase is Phase.FOLLOW and end.position == 0 and not start.position:
            start = replace(start, version=Version(end.version - 1))
        async for group in super().plan(start, end):
            yield group


class SkipsGaps(ComparingSource):
    """Goes on with the next version there is, when the one it wants is not shown."""

    _skipped: Offset | None = None

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        try:
            return await super().latest_offset(start, limit)
        except MissingVersionError:
            listing = await list_around(self, start.version)
            later = [version for version in listing.commits if version > start.version]
            if not later:
                return start
            self._skipped = replace(start, version=Version(min(later)), position=0)
            return self._skipped

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        if end == self._skipped:
            return
        async for group in super().plan(start, end):
            yield group


async def list_around(source: ComparingSource, version: Version) -> LogListing:
    assert isinstance(source.log, DeltaLog)
    return await source.log.guard.list_around(version)
