"""The contract of a sink: returning from `write` is the acknowledgement."""

from __future__ import annotations

from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset
from tailerd.changefeed.saved_offset import OffsetStore, SavedOffset
from tailerd.records.schema_changes import SchemaChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The rows between two offsets of one table, delivered as a unit.

    Attributes:
        table: Configured name of the table.
        start, end: Offsets before and after the rows; a repeated delivery has the same start.
        saved: The offset to save once this is delivered; for a sink that stores offsets itself.
        batches: The rows in order, read lazily, so that memory stays bounded.
        is_net: The rows are one difference over several commits, all with the last one's version.
        schema_changes: Changes of the columns that readers have to be told before the batch that
            was yielded last; once all are yielded, also those after it. A sink that can tell them
            takes them out, and they count as delivered like the rows.
    """

    table: str
    start: Offset
    end: Offset
    saved: SavedOffset
    batches: AsyncIterator[ChangeBatch]
    is_net: bool = False
    schema_changes: deque[SchemaChange] = field(default_factory=deque)


RowWriter = Callable[[Iterator[ChangeBatch]], object]
"""Writes the rows of a delivery, in order, in a process of an engine. It and its result are
picklable. Blocking; raises `SinkError`."""


@runtime_checkable
class HasDestination(Protocol):
    """A row writer that names its dependencies. Optional."""

    @property
    def destination(self) -> str:
        """The servers that it writes to: if they are slow, all its writers are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteDelivery:
    """A `Delivery` whose rows are read, and may be written, by another process.

    Attributes:
        table, start, end, saved, is_net: As in `Delivery`.
        schema_changes: As in `Delivery`, of all rows.
        run: Reads the rows in another process and passes them to a writer once; returns the
            writer's result or raises its error, or that of reading. A writer that raised may have
            written some rows.
    """

    table: str
    start: Offset
    end: Offset
    saved: SavedOffset
    run: Callable[[RowWriter], Awaitable[object]]
    is_net: bool = False
    schema_changes: deque[SchemaChange] = field(default_factory=deque)


class Sink(Protocol):
    """Accepts deliveries of one table.

    Errors: `SinkError`. A `write` that raised or was cancelled may have delivered some rows; the
    same delivery is then repeated.
    """

    @property
    def max_in_flight(self) -> int:
        """Maximum number of concurrent `write` calls; they may finish in any order."""
        ...

    @property
    def offsets(self) -> OffsetStore | None:
        """The sink's own store of the pipeline's offset; None if the daemon stores it.

        A sink with its own store saves `delivery.saved` in `write`, with the ids of the topics
        written so far: together with the rows, or right after them. It allows one `write` at a
        time. `load` has no side effects: commands call it while a daemon runs. `save` is called for
        the first offset of a pipeline, for the epoch of each start, and when an operator or a
        policy moves the offset.
        """
        ...

    async def healthcheck(self) -> None:
        """Raise `SinkError` or `ConfigError` when deliveries would fail."""
        ...

    async def resume(self, offset: Offset) -> None:
        """Set the offset to resume at, before the first write; discard rows at or after it.

        A sink that can undo writes that no saved offset covers does so here.
        """
        ...

    async def write(self, delivery: Delivery) -> int:
        """Deliver all rows, durably if the sink can; return their number."""
        ...

    async def aclose(self) -> None:
        """Finish and free resources; idempotent."""
        ...


@runtime_checkable
class GapTaker(Protocol):
    """A sink that can record a gap for its readers. Optional: other sinks only resume after it."""

    async def note_gap(self, gap: Gap) -> None:
        """Record a gap; called before `resume(gap.end)`, and by a policy after `resume(gap.start)`.

        May be called again with the same gap after a crash.

        If the gap `is_other_history`, earlier deliveries are of another log: they must not be mixed
        with later ones, and must not be lost.
        """
        ...


@runtime_checkable
class WritesRemotely(Protocol):
    """A sink whose rows an engine's processes may write. Optional; otherwise rows come here."""

    async def write_remotely(self, delivery: RemoteDelivery) -> None:
        """Deliver all rows, as `Sink.write` does."""
        ...


@runtime_checkable
class Fencer(Protocol):
    """A sink that can fence off other processes that write for the same pipeline. Optional."""

    async def fence(self) -> None:
        """Fence off other processes: their writes fail from now on, also those in progress.

        Called at the start of every delivery loop, before the offset is loaded, so that a previous
        process that is still shutting down cannot change it afterwards.
        """
        ...


@runtime_checkable
class PinsEnds(Protocol):
    """A sink in which a delivery that was begun must be repeated to the same end. Optional."""

    async def pinned_end(self, start: Offset) -> Offset | None:
        """Return the end of the delivery that was begun at `start`; None if none was.

        Called before each delivery, while none is in progress.
        """
        ...


@runtime_checkable
class RecordsDeliveries(Protocol):
    """A sink whose destination records deliveries, so that a wrong state is detected. Optional.

    Its first `resume` rejects (`OffsetError`) an offset that cannot follow the last delivery.
    """

    async def check_first_start(self) -> None:
        """Check that nothing was delivered yet; called if no offset is saved.

        Errors: `OffsetError`; something was delivered.
        """
        ...

    async def find_delivered(self, saved: Offset | None) -> Offset | None:
        """Return the offset after the last recorded delivery, or `saved` if it is as far."""
        ...

    async def accept(self, offset: Offset) -> None:
        """Allow the next start to resume at any `offset`, because an operator moved it there."""
        ...


@runtime_checkable
class HasTopics(Protocol):
    """A sink that writes topics, whose ids show that one was recreated. Optional."""

    async def cluster_id(self) -> str:
        """Return the id of the cluster; `SinkError` if it cannot be reached."""
        ...

    def expect(self, topics: Mapping[str, str]) -> None:
        """Expect topics to have these ids from now on, in addition to those used since.

        A missing topic, or one with another id, is not created; using it raises
        `TopicRecreatedError`.
        """
        ...

    @property
    def topics(self) -> Mapping[str, str]:
        """The expected topic ids: those passed to `expect`, and those used since."""
        ...

    async def watch(self) -> None:
        """Run until cancelled; raise `TopicRecreatedError` soon after a topic is deleted."""
        ...


@runtime_checkable
class HasSchemas(Protocol):
    """A sink whose records have schemas in a registry. Optional."""

    def learn_schemas(self, schemas: Mapping[str, str]) -> None:
        """Use these schemas, which an earlier process knew, while the registry fails."""
        ...

    @property
    def schemas(self) -> Mapping[str, str]:
        """The known schemas by subject, as opaque text."""
        ...


@runtime_checkable
class Keyed(Protocol):
    """A sink whose readers may keep only the last record of each key. Optional."""

    @property
    def key(self) -> Sequence[str]:
        """Columns that identify a row; empty if records have no keys.

        If not empty, a delivery has a commit's pure deletes before its other changes; the images of
        an update that are in one batch and agree in these columns stay together.
        """
        ...


@runtime_checkable
class Readable(Protocol):
    """A sink whose records can be read back, to compare them with the table. Optional."""

    @property
    def value_format(self) -> str:
        """Encoding of the values that `read_back` yields, such as `json` or `debezium`."""
        ...

    @property
    def has_decimal_numbers(self) -> bool:
        """Whether decimals are written as numbers, not as strings."""
        ...

    @property
    def empty_is_null(self) -> bool:
        """Whether a null list or map is written like an empty one."""
        ...

    def read_back(self) -> AsyncGenerator[Sequence[bytes]]:
        """Yield the values of all records that are visible to readers now, in any order.

        Only this pipeline's records, without tombstones. Later records may be missing.

        Errors: `SinkError`; a visible record cannot be read.
        """
        ...


@runtime_checkable
class HoldsRows(Protocol):
    """A readable sink that may hold the table's rows instead of its changes. Optional."""

    @property
    def is_mirror(self) -> bool:
        """Whether it does: all rows are as of the saved offset.

        `read_back` then yields each row as an insert, whose version is that of the saved offset.
        """
        ...
