"""A sink whose memory outlives the process, and one process's unreliable way to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset
from tailerd.errors import SinkError
from tailerd.sinks.base import Delivery
from tests.simulation.chaos import Chaos, Life
from tests.simulation.sim_offsets import OffsetLink
from tests.simulation.sim_table import Change


@dataclass(slots=True)
class Written:
    """What one call of `write` left behind."""

    epoch: int
    start: Offset
    end: Offset
    rows: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class SinkDisk:
    """What lasts.

    Attributes:
        is_transactional: Whether `resume` takes back what no saved offset covers.
        written: Every write, in order; a transactional sink's forgotten ones are gone.
        resumes: The offsets of all calls of `resume`; the location of one is its epoch.
        gaps: What `note_gap` was told.
    """

    is_transactional: bool
    written: list[Written] = field(default_factory=list)
    resumes: list[Offset] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def resume(self, offset: Offset) -> None:
        self.resumes.append(offset)
        if self.is_transactional:
            self.written = [each for each in self.written if each.start.is_before(offset)]

    def rows(self) -> list[Change]:
        """Return what a reader finds, repeats included."""
        return [row for each in self.written for row in each.rows]

    def rows_once(self) -> list[Change]:
        """Return what a reader finds who knows where each `resume` went back to."""
        return [
            row
            for each in self.written
            if all(each.start.is_before(offset) for offset in self.resumes[each.epoch + 1 :])
            for row in each.rows
        ]

    def most_repeated(self) -> int:
        """Return the most deliveries with rows that one interruption made to be repeated."""
        counts = [0]
        for epoch, offset in enumerate(self.resumes[1:]):
            again = [w for w in self.written if w.epoch == epoch and not w.start.is_before(offset)]
            counts.append(sum(1 for each in again if each.rows))
        return max(counts)


def _failed() -> SinkError:
    return SinkError("The sink failed for a moment.")


class SimSink:
    """What one process has of the sink.

    Args:
        is_piecemeal: Whether rows are published batch by batch, or all at the end.
        hangs: Whether no write ever returns.
        ledger: Where a sink keeps the offset together with the rows; None where it does not.
    """

    def __init__(
        self,
        disk: SinkDisk,
        chaos: Chaos,
        life: Life,
        *,
        max_in_flight: int,
        is_piecemeal: bool,
        hangs: bool,
        ledger: OffsetLink | None = None,
    ) -> None:
        self._disk = disk
        self._chaos = chaos
        self._life = life
        self._max_in_flight = max_in_flight
        self._is_piecemeal = is_piecemeal
        self._hangs = hangs
        self._ledger = ledger

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    @property
    def offsets(self) -> OffsetLink | None:
        return self._ledger

    async def healthcheck(self) -> None:
        await self._request()

    async def resume(self, offset: Offset) -> None:
        await self._request()
        self._disk.resume(offset)

    async def note_gap(self, gap: Gap) -> None:
        await self._request()
        self._disk.gaps.append(gap)
        await self._request()

    async def write(self, delivery: Delivery) -> int:
        await self._request()
        if self._hangs:
            await asyncio.Event().wait()
        here = Written(len(self._disk.resumes) - 1, delivery.start, delivery.end)
        if self._is_piecemeal:
            self._disk.written.append(here)
        rows: list[Change] = []
        async for batch in delivery.batches:
            await self._request()
            rows += _rows_of(batch)
            if self._is_piecemeal:
                here.rows = rows
        await self._request()
        if not self._is_piecemeal:
            here.rows = rows
            self._disk.written.append(here)
            if self._ledger is not None:
                # One transaction: between these two lines nothing can come.
                self._ledger.keep(delivery.saved)
        # The rows are there; the answer may still get lost.
        await self._request()
        return len(rows)

    async def aclose(self) -> None:
        return

    async def _request(self) -> None:
        await self._chaos.pause(self._life)
        self._chaos.may_fail(_failed)


def _rows_of(batch: ChangeBatch) -> list[Change]:
    kinds = batch.change_types().to_pylist()
    ids, values = (batch.rows.column(name).to_pylist() for name in ("id", "value"))
    return [
        (batch.version, kind, key, value)
        for kind, key, value in zip(kinds, ids, values, strict=True)
    ]
