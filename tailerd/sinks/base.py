"""The contract of a sink: returning from `write` is the acknowledgement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What is delivered in one piece: the rows between two offsets of one table.

    Attributes:
        table: Configured name of the table.
        start, end: Offsets around the rows; a repeated delivery has the same start.
        batches: The rows in order, read as they are consumed, so that memory stays bounded.
    """

    table: str
    start: Offset
    end: Offset
    batches: AsyncIterator[ChangeBatch]


class Sink(Protocol):
    """Takes deliveries of one table.

    Errors: `SinkError`. A `write` that raised or was cancelled may have delivered some rows; the
    same delivery is then written again.
    """

    @property
    def max_in_flight(self) -> int:
        """How many `write` calls may run at once; they may finish in any order."""
        ...

    async def healthcheck(self) -> None:
        """Raise `SinkError` or `ConfigError` when deliveries would fail."""
        ...

    async def resume(self, offset: Offset) -> None:
        """Hear, before the first write, where delivery goes on; forget what lies at or after it.

        A sink that can take back what was never covered by a saved offset does so here.
        """
        ...

    async def write(self, delivery: Delivery) -> int:
        """Deliver all rows, durably as far as the sink can; return their number."""
        ...

    async def aclose(self) -> None:
        """Finish and free resources; idempotent."""
        ...


@runtime_checkable
class GapTaker(Protocol):
    """A sink that can show its readers a gap. Optional: others only go on behind it."""

    async def note_gap(self, gap: Gap) -> None:
        """Hear of a gap between `resume(gap.start)` and `resume(gap.end)`.

        The same gap may be told again after a crash.

        Where the gap `is_other_history`, what was delivered before is of another log: it must not
        mix with what comes, and it must not be lost.
        """
        ...
