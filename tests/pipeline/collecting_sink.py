"""A sink in memory that at `resume` forgets what lies at or after the offset, as files do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset
from tailerd.sinks.base import Delivery
from tests.doubles.fake_source import never_fails


class CollectingSink:
    """Keeps row ids by the start of their delivery.

    Attributes:
        kept: start of a delivery -> its row ids; what a reader would find.
        gate: Deliveries wait here when it is cleared.
        pauses: How many turns of the loop each delivery takes, so that they finish in any order.
    """

    def __init__(
        self, fails: Callable[[str], None] = never_fails, *, max_in_flight: int = 1
    ) -> None:
        self.kept: dict[Offset, list[int]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.resumed: list[Offset] = []
        self.gaps: list[Gap] = []
        self.is_closed = False
        self.in_flight = 0
        self.most_in_flight = 0
        self.pauses: Iterator[int] = itertools.repeat(0)
        self._fails = fails
        self._max_in_flight = max_in_flight

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    @property
    def ids(self) -> list[int]:
        """Row ids in the order of their offsets."""
        starts = sorted(self.kept, key=lambda start: start.order)
        return [i for start in starts for i in self.kept[start]]

    @property
    def offsets(self) -> None:
        return None

    async def healthcheck(self) -> None:
        self._fails("healthcheck")

    async def resume(self, offset: Offset) -> None:
        self._fails("resume")
        self.resumed.append(offset)
        self.kept = {
            start: ids
            for start, ids in self.kept.items()
            if start.table_id != offset.table_id or start.is_before(offset)
        }

    async def note_gap(self, gap: Gap) -> None:
        self._fails("note_gap")
        self.gaps.append(gap)

    async def write(self, delivery: Delivery) -> int:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            self._fails("before write")
            ids: list[int] = []
            async for batch in delivery.batches:
                ids += batch.rows.column("id").to_pylist()
            await self.gate.wait()
            for _ in range(next(self.pauses)):
                await asyncio.sleep(0)
            self._fails("in write")
            if ids:
                self.kept[delivery.start] = ids
            # The rows are there, but the acknowledgement may still get lost.
            self._fails("after write")
            return len(ids)
        finally:
            self.in_flight -= 1

    async def aclose(self) -> None:
        self.is_closed = True
