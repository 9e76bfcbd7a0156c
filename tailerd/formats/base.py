"""What a table format offers: tables that can be asked for their changes, and readers of those.

A format is one object, `TableFormat`, that `tailerd.registry` names and `formats.detect` loads. All
else outside a format's own folder knows only what is here.
"""

from __future__ import annotations

import enum
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeTask, TaskGroup
from tailerd.changefeed.column_filter import ColumnFilter
from tailerd.changefeed.limits import (
    DEFAULT_BATCH_LIMIT,
    DEFAULT_MEMORY_BYTES,
    BatchLimit,
    ReadLimit,
)
from tailerd.changefeed.offset import Offset, Phase, Version, Versions
from tailerd.clock import Clock
from tailerd.errors import TailerdError
from tailerd.formats.ledger import LedgerPlace
from tailerd.formats.parts import OptionalParts
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores


class Ordering(enum.StrEnum):
    """What the order of versions rests on."""

    TOTAL = "total"
    OBSERVED = "observed"
    CLOCK = "clock"


class History(enum.StrEnum):
    """How long past versions can be read."""

    KEPT = "kept"
    UNTIL_CLEANUP = "until_cleanup"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the changes of a format can say; shown to users.

    Attributes:
        has_deletes: Deleted rows are given.
        has_preimage: Rows are given as they were before an update.
        pairs_updates: An update is given as its two images, not as a delete and an insert.
        has_intermediate_versions: Every commit between two looks is given, not just their sum.
        ordering: What the order of versions rests on.
        history: How long past versions can be read.
    """

    has_deletes: bool = True
    has_preimage: bool = True
    pairs_updates: bool = True
    has_intermediate_versions: bool = True
    ordering: Ordering = Ordering.TOTAL
    history: History = History.UNTIL_CLEANUP


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What lies between an offset and the head of the table, as far as the log was looked at.

    `retention_seconds` is how long after its time a commit and its files are kept at least; None
    where the source does not know.
    """

    head_version: Version
    versions: int
    head_timestamp_ms: int
    oldest_undelivered_timestamp_ms: int | None
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """What tells two tables, or two histories of one table, apart.

    Attributes:
        table_id: Identity the table had in one version; that of the newest where it can no longer
            be told.
        schema_id: Hash of the schema of that version; empty where it can no longer be told.
    """

    table_id: str
    schema_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStep:
    """Where rows of another schema begin.

    Attributes:
        offset: At their first task. A commit that replaces the schema gives its deleted rows with
            the old one and then its inserted rows with the new one, so this may be inside it.
        version: The version whose schema it is.
        schema: Its columns, without change columns.
    """

    offset: Offset
    version: Version
    schema: pa.Schema


class ChangeSource(Versions, Protocol):
    """A table that can be asked for its changes.

    An offset that is not of its log raises `TableRecreatedError`. A table that is replaced within
    its log gets another id there, and offsets behind that have it.
    Planning is deterministic: the same start and end give the same tasks in the same order, in
    another process too.
    """

    @property
    def name(self) -> str:
        """The table's place, as the user gave it."""
        ...

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        ...

    async def initial_offset(self, start: str) -> Offset:
        """Return where to begin: `snapshot`, `latest`, a version, or a timestamp.

        `snapshot` is the head version's snapshot, then what follows; `latest` is after the head;
        a version is inclusive; a timestamp means the first commit at or after it.

        Raises:
            MissingVersionError: The version is not there, or more than one ahead of the head.
            UsageError: The text says nothing of that kind, or the time is in the future.
        """
        ...

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        """Return the start of a version's commit, or of its snapshot."""
        ...

    async def end_version(self, end: str) -> Version:
        """Return the last version to read up to `end`: a version, or a timestamp (inclusive).

        Raises:
            UsageError: The text is neither.
            MissingVersionError: The timestamp is before the first commit.
        """
        ...

    async def identity(self, version: Version) -> TableIdentity:
        """Return who the table was in `version`; below 0 it has the first id and no schema."""
        ...

    def hear(self, version: int | None) -> None:
        """Note that something may have happened since the last look, or that a version is there.

        The event may be wrong. Asked for news without one, a source looks no further than it must.
        """
        ...

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` when nothing is new.

        Never in the middle of a commit that must stay whole; never past a version that is missing
        (`MissingVersionError`).
        """
        ...

    def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        """Yield the tasks of [start, end) in order, in groups of bounded size."""
        ...

    def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        """Yield a step for the first rows of [start, end), and for each change of schema after.

        Commits without rows give none. Ends early at a version that is not there.
        """
        ...

    def read(self, task: ChangeTask, limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read one task's rows; blocking, for worker threads and executors."""
        ...

    @property
    def run_bytes(self) -> int:
        """How much of small files is best read in a row; 0 where it makes no difference."""
        ...

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read the rows of tasks in order, as `read` does each, the next under way meanwhile."""
        ...

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the head is from `start`, with at most one look at the log."""
        ...

    async def commit(self, end: Offset) -> None:
        """Let caches forget what lies before `end`: it is delivered."""
        ...

    async def arrow_schema(self) -> pa.Schema:
        """Return the head version's columns, without change columns."""
        ...

    async def schema_at(self, version: Version, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns of a version, without change columns.

        Args:
            columns: Names to have; None for all.

        Raises:
            TableError: There is no such version any more.
            UsageError: It has no such column.
        """
        ...

    async def widened_floats(self) -> frozenset[str]:
        """Return the columns in which floats became doubles, as of the head version."""
        ...


class TaskReader(Protocol):
    """Reads the tasks that a format planned; in the daemon and on executors alike.

    Blocking and safe to use from several threads. A task has all it needs. Each batch says where
    its rows stand (`ChangeBatch.places`), the same however they are read and a task is split: their
    ids are made of it.
    """

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns.

        Args:
            columns: Names to read, as far as the task's version has them; None for all.
        """
        ...

    def read(
        self,
        task: ChangeTask,
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield a task's rows.

        Args:
            stores: How files are reached; by default as the environment says.

        Raises:
            TableError, StorageError: They cannot be read.
        """
        ...

    def read_run(
        self,
        tasks: Sequence[ChangeTask],
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield the rows of several tasks in order.

        Here one task after the other; a reader may have the next under way meanwhile.
        """
        for task in tasks:
            yield from self.read(task, limit, columns, stores=stores)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Cut a task into some of about `target_bytes`, which have each of its rows once, in order.

        The parts keep the task's position; their sizes add up to about the task's. What cannot be
        cut comes back alone.
        """
        ...

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        """Return whether certainly no row of a task passes all filters, without reading it.

        Filters on change columns are not asked here. A filter on anything that is not known of a
        task excludes nothing, and here nothing is known.
        """
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNames:
    """How files show that a commit happened: for watchers and bucket notifications.

    Attributes:
        folder: The folder they lie in, below the table's own; empty for that itself.
        suffix: How their names end; empty where they end in several ways.
        version_of: The version a name says it is a commit of; None where it is no commit's name.
        table_of: Where commits lie beside the table's folder: the name of the table that a file
            shows, None for other files. None where they lie in it.
    """

    folder: str
    suffix: str
    version_of: Callable[[str], Version | None]
    table_of: Callable[[str], str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchPlace:
    """Where a source keeps a pipeline's own files over a restart, such as a snapshot's file list.

    Attributes:
        folder: Of this machine. With a `store` it is a copy that may be gone any time.
        store, prefix: The lasting place, where it is not this machine.
        check_held: Raises when another process took the place over; before writing to the store.
    """

    folder: Path
    store: ObjectStore | None = None
    prefix: str = ""
    check_held: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """How a table is opened.

    Attributes:
        stores: How files are reached; by default as the environment says.
        changes: Which changes are asked for.
        allowed_paths: Places outside the table that its log may name, as tables' places are given.
        columns: Names of the columns to read; None for all.
        identity: Columns that tell rows apart, so that a format that finds a deleted and an
            inserted row of one commit with the same values there gives an update; empty: none.
        wrap_store: Puts a wrapper (metering, retries) around the store of the log.
        on_warning: Called with what is wrong and can be read all the same; without it, a damaged
            checksum or checkpoint is an error.
        scratch: For files that a snapshot under way needs after a restart; without it, the
            snapshot goes on only as long as the table has its version.
        options: The format's own options, by name; None is one that is not given.
        ledger: Where a format whose tables have no history keeps the states it observed; without
            it they are known as long as the source is.
        memory_bytes: The configured `memory`, which readers of the log keep within.
        on_format: Called with the format once the table is open.
        clock: By default the system's.
        net_above: With more new versions than that, they are given as one difference, by a source
            that is `NetSteps`; None: never.
    """

    stores: Stores = field(default_factory=Stores)
    changes: ChangeMode = ChangeMode.AUTO
    allowed_paths: Sequence[str] = ()
    columns: Sequence[str] | None = None
    identity: Sequence[str] = ()
    wrap_store: Callable[[ObjectStore], ObjectStore] | None = None
    on_warning: Callable[[TailerdError], None] | None = None
    scratch: ScratchPlace | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    ledger: LedgerPlace | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    on_format: Callable[[TableFormat], None] | None = None
    clock: Clock | None = None
    net_above: int | None = None


@runtime_checkable
class NetSteps(Protocol):
    """A source that can give several commits as one difference. Optional.

    Its end must be the same after a restart, when the table has gone on: rows of another
    difference may have been delivered already. So it is saved with the start, as the mark.
    """

    def pinned(self, start: Offset, end: Offset) -> Offset:
        """Return `start` with the mark of the step to `end`, if that is one difference."""
        ...

    async def over_gap(self, start: Offset) -> Offset:
        """Return `start` with the mark of one difference to the newest version.

        Raises:
            TableError: One of the two versions cannot be read any more, or they have none.
        """
        ...


class TableFormat(OptionalParts, Protocol):
    """A kind of table: how to recognise one, open it, and read what it plans.

    Attributes:
        name: As configuration, commands and `ChangeTask.format` have it.
        capabilities: What its changes can say.
        names: How files show that a commit happened.
        options: Names of its own options.
    """

    name: str
    capabilities: Capabilities
    names: CommitNames
    options: frozenset[str]

    @property
    def reader(self) -> TaskReader:
        """Reads its tasks."""
        ...

    async def detect(self, store: ObjectStore, root: str) -> bool:
        """Return whether a table of this format lies at `root`, with a request or two.

        Raises:
            StorageError: The place cannot be read.
        """
        ...

    def folder(self, place: str) -> str:
        """Return the folder of a table's commits, as its store names it; watchers use it.

        It may be outside of the table's own folder.
        """
        ...

    def is_at(self, place: str) -> bool:
        """Return whether a table of this format seems to lie at a local place; blocking."""
        ...

    async def open(self, place: str, request: OpenRequest) -> ChangeSource:
        """Open a table at its newest version.

        Args:
            place: A path or URL, as the user gave it.

        Raises:
            NotATableError, TableError: The table cannot be served.
            ConfigError: No store serves this place, or an option is wrong.
        """
        ...
