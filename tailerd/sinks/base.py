"""The contract of a sink: returning from `write` is the acknowledgement."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset
from tailerd.changefeed.saved_offset import OffsetStore, SavedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What is delivered in one piece: the rows between two offsets of one table.

    Attributes:
        table: Configured name of the table.
        start, end: Offsets around the rows; a repeated delivery has the same start.
        saved: What to keep of the pipeline once this is delivered; for a sink that keeps offsets.
        batches: The rows in order, read as they are consumed, so that memory stays bounded.
    """

    table: str
    start: Offset
    end: Offset
    saved: SavedOffset
    batches: AsyncIterator[ChangeBatch]


RowWriter = Callable[[Iterator[ChangeBatch]], object]
"""What a sink has done with the rows of a delivery, in order, by a process of an engine. Picklable;
what it returns too. Blocking; `SinkError` comes through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteDelivery:
    """A `Delivery` whose rows are read, and may be written, by another process.

    Attributes:
        table, start, end, saved: As of a `Delivery`.
        run: Has the rows read elsewhere and given to a writer once; returns what the writer does,
            or raises what it, or reading, did. A writer that raised may have written some rows.
    """

    table: str
    start: Offset
    end: Offset
    saved: SavedOffset
    run: Callable[[RowWriter], Awaitable[object]]


class Sink(Protocol):
    """Takes deliveries of one table.

    Errors: `SinkError`. A `write` that raised or was cancelled may have delivered some rows; the
    same delivery is then written again.
    """

    @property
    def max_in_flight(self) -> int:
        """How many `write` calls may run at once; they may finish in any order."""
        ...

    @property
    def offsets(self) -> OffsetStore | None:
        """Where this sink keeps the pipeline's offset itself; None: the daemon keeps it.

        A sink that does keeps `delivery.saved` in `write`, with the ids of topics that it wrote by
        then: together with the rows, or right after them. It admits one `write` at a time. `load`
        only looks and disturbs nobody: commands call it beside a running daemon. `save` is called
        for the first offset of a pipeline, for the epoch of each start, and where an operator or a
        policy moves it.
        """
        ...

    async def healthcheck(self) -> None:
        """Raise `SinkError` or `ConfigError` when deliveries would fail."""
        ...

    async def resume(self, offset: Offset) -> None:
        """Note, before the first write, where delivery goes on; forget what lies at or after it.

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
        """Note a gap between `resume(gap.start)` and `resume(gap.end)`.

        The same gap may be told again after a crash.

        Where the gap `is_other_history`, what was delivered before is of another log: it must not
        mix with what comes, and it must not be lost.
        """
        ...


@runtime_checkable
class WritesRemotely(Protocol):
    """A sink whose rows may be written by processes of an engine. Optional: others' come here."""

    async def write_remotely(self, delivery: RemoteDelivery) -> None:
        """Deliver all rows, as `Sink.write` does."""
        ...


@runtime_checkable
class Fencer(Protocol):
    """A sink that can shut out other processes that write for the same pipeline. Optional."""

    async def fence(self) -> None:
        """Make sure that nobody else's write succeeds any more, nor one that was left half done.

        Called at the start of every delivery loop, before the offset is loaded: what is loaded then
        cannot be moved by a predecessor who is still dying.
        """
        ...


@runtime_checkable
class RecordsDeliveries(Protocol):
    """A sink whose place records what was delivered, so that a wrong state is noticed. Optional.

    Its first `resume` refuses (`OffsetError`) an offset that cannot follow the last delivery.
    """

    async def check_first_start(self) -> None:
        """Make sure that nothing was delivered yet; called where no offset is saved.

        Errors: `OffsetError`; something was.
        """
        ...

    async def accept(self, offset: Offset) -> None:
        """Let the next start go on at `offset`, wherever that lies: an operator moved it there."""
        ...


@runtime_checkable
class HasTopics(Protocol):
    """A sink into topics, which have ids: one that was made again is not the same. Optional."""

    async def cluster_id(self) -> str:
        """Return the id of the cluster; `SinkError` where it cannot be reached."""
        ...

    def expect(self, topics: Mapping[str, str]) -> None:
        """Expect topics to have these ids from now on, as all that were used since.

        A topic that is gone or has another id is a `TopicRecreatedError` for whoever uses it, and
        is not made.
        """
        ...

    @property
    def topics(self) -> Mapping[str, str]:
        """The ids of the topics that are expected: those used before, and since."""
        ...

    async def watch(self) -> None:
        """Raise `TopicRecreatedError` soon after a topic is gone, until cancelled."""
        ...


@runtime_checkable
class Keyed(Protocol):
    """A sink whose readers may go by the last record of each key. Optional."""

    @property
    def key(self) -> Sequence[str]:
        """Columns that identify a row; empty where nobody goes by keys.

        With some, a delivery has, of each commit, what only removes rows before the rest; an
        update's images that come in one batch and agree in these columns stay together.
        """
        ...


@runtime_checkable
class Readable(Protocol):
    """A sink whose records can be read again, to compare them with the table. Optional."""

    @property
    def value_format(self) -> str:
        """How the values that `read_back` gives are encoded, such as `json` or `debezium`."""
        ...

    @property
    def has_decimal_numbers(self) -> bool:
        """Whether decimals are written as numbers, not as texts."""
        ...

    @property
    def empty_is_null(self) -> bool:
        """Whether a list or map that is null is written like one without items."""
        ...

    def read_back(self) -> AsyncGenerator[Sequence[bytes]]:
        """Give the values of all records that readers may see now, from the first, in any order.

        Only this pipeline's; tombstones are left out. What is written meanwhile need not come.

        Errors: `SinkError`; something that a reader may see cannot be read.
        """
        ...
