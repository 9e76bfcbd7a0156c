"""The contract of a table format: sources that plan a table's changes, and readers of the tasks.

A format is one object, `TableFormat`, that `tailerd.registry` names and `formats.detect` loads.
Code outside a format's package depends only on this module's definitions.
"""

from __future__ import annotations

import enum
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeTask, TaskGroup
from tailerd.changefeed.column_filter import ColumnFilter
from tailerd.changefeed.commit_filter import CommitFilter
from tailerd.changefeed.limits import (
    DEFAULT_BATCH_LIMIT,
    DEFAULT_MEMORY_BYTES,
    BatchLimit,
    ReadLimit,
)
from tailerd.changefeed.offset import Offset, Phase, Version, Versions
from tailerd.clock import Clock
from tailerd.errors import TailerdError
from tailerd.formats.parts import OptionalParts
from tailerd.state.base import ScratchLocation
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation
from tailerd.transforms.view import View


class Ordering(enum.StrEnum):
    """How the order of versions is determined."""

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
    """Abilities of a format's changes; shown to users.

    Attributes:
        has_deletes: Deleted rows are emitted.
        has_preimage: The row before an update is emitted.
        pairs_updates: An update is emitted as its two images, not as a delete and an insert.
        has_intermediate_versions: Every commit between two polls is emitted, not only the net
            change.
        ordering: How the order of versions is determined.
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
    """The commits between an offset and the head of the table, if the log was read.

    `retention_seconds` is the minimum time for which a commit and its files are kept after its
    timestamp; None if the source does not know.
    """

    head_version: Version
    versions: int
    head_timestamp_ms: int
    oldest_undelivered_timestamp_ms: int | None
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """Distinguishes two tables, or two histories of one table.

    Attributes:
        table_id: Identity of the table in one version; that of the newest version if it can no
            longer be determined.
        schema_id: Hash of the schema of that version; empty if it can no longer be determined.
    """

    table_id: str
    schema_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStep:
    """Where rows of another schema begin.

    Attributes:
        offset: At their first task. A commit that replaces the schema yields its deleted rows with
            the old one and then its inserted rows with the new one, so this may be inside it.
        version: The version whose schema it is.
        schema: Its columns, without change columns.
    """

    offset: Offset
    version: Version
    schema: pa.Schema


class ChangeSource(Versions, Protocol):
    """The changes of one table.

    An offset of another log raises `TableRecreatedError`. A table that is replaced within its log
    gets another id there; offsets after the replacement have the new id.
    Planning is deterministic: the same start and end yield the same tasks in the same order, in
    another process too.
    """

    @property
    def name(self) -> str:
        """The table's location, as the user gave it."""
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
            UsageError: The text is none of these, or the time is in the future.
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
        """Return the table's identity in `version`; below 0: the first id and no schema."""
        ...

    def notify(self, version: int | None) -> None:
        """Note that the table may have changed since the last poll, or that a version exists.

        The event may be wrong. A poll without an event makes as few requests as possible.
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
        """Yield a step for the first rows of [start, end), and for each schema change after that.

        Commits without rows yield none. Ends early at a version that does not exist.
        """
        ...

    def read(self, task: ChangeTask, limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read one task's rows; blocking, for worker threads and executors."""
        ...

    @property
    def run_bytes(self) -> int:
        """Bytes of small files that one `read_run` should cover; 0 if that makes no difference."""
        ...

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read the rows of tasks in order, each as `read` does; may prefetch the next task."""
        ...

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the head is from `start`, with at most one listing of the log."""
        ...

    async def commit(self, end: Offset) -> None:
        """Drop cached state before `end`: it is delivered."""
        ...

    async def arrow_schema(self) -> pa.Schema:
        """Return the head version's columns, without change columns."""
        ...

    async def schema_at(
        self, version: Version | None, columns: Sequence[str] | None = None
    ) -> pa.Schema:
        """Return the columns of a version, without change columns.

        Args:
            version: None for the newest that is known without a request.
            columns: Names to have; None for all.

        Raises:
            TableError: The version no longer exists.
            UsageError: It has no such column.
        """
        ...


class TaskReader(Protocol):
    """Reads the tasks that a format planned, both in the daemon and on executors.

    Blocking and thread-safe. A task is self-contained. Each batch carries the positions of its rows
    (`ChangeBatch.positions`), which do not depend on how the rows are read or a task is split: row
    ids are derived from them.
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
            stores: How files are accessed; by default configured by the environment.

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

        This default reads one task after the other; a reader may prefetch the next.
        """
        for task in tasks:
            yield from self.read(task, limit, columns, stores=stores)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split a task into parts of about `target_bytes` that have each row once, in order.

        The parts keep the task's position; their sizes add up to about the task's. A task that
        cannot be split is returned alone.
        """
        ...

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        """Return whether it is certain that no row of a task passes all filters, without reading.

        Filters on change columns are not passed here. A filter on a value that is not known for a
        task excludes nothing. This default has no values.
        """
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNames:
    """How files show that a commit happened: for watchers and bucket notifications.

    Attributes:
        folder: The folder that holds them, relative to the table's own; empty for that itself.
        suffix: The suffix of their names; empty if there are several.
        version_of: Returns the version that a commit's name encodes; None for other names.
        table_of: For formats that keep commits next to the table's folder: returns the name of the
            table that a file belongs to, None for other files. None if commits are inside it.
    """

    folder: str
    suffix: str
    version_of: Callable[[str], Version | None]
    table_of: Callable[[str], str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """How a table is opened.

    Attributes:
        changes: Which changes are requested.
        view: Which columns, rows and values are delivered; None: all, unchanged.
        is_resumed: Whether commits are pending that the view may fit although it does not fit the
            newest version: it is then checked when they are read, and not when the table is opened.
        skips: Commits that are not delivered; None: all are.
        identity: Key columns: a format emits an update if one commit deletes and inserts rows with
            the same values in them; empty: none.
        wrap_store: Wraps the store of the log (metering, retries).
        on_warning: Called with problems that do not prevent reading; without it, a damaged checksum
            or checkpoint is an error.
        scratch: For files that an unfinished snapshot needs after a restart; without it, the
            snapshot resumes only while the table still has its version.
        options: The format's own options, by name; None: not set.
        ledger: Where a format whose tables have no history keeps the states it observed; without
            it they are lost with the source.
        memory_bytes: The configured `memory`, which log readers must not exceed.
        on_format: Called with the format once the table is open.
        clock: By default the system's.
        net_above: A source that implements `NetSteps` emits more new versions than this as one
            difference; None: never.
    """

    changes: ChangeMode = ChangeMode.AUTO
    view: View | None = None
    is_resumed: bool = False
    skips: CommitFilter | None = None
    identity: Sequence[str] = ()
    wrap_store: Callable[[ObjectStore], ObjectStore] | None = None
    on_warning: Callable[[TailerdError], None] | None = None
    scratch: ScratchLocation | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    ledger: LedgerLocation | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    on_format: Callable[[TableFormat], None] | None = None
    clock: Clock | None = None
    net_above: int | None = None

    def columns(self, names: Iterable[str]) -> Sequence[str] | None:
        """Return the columns to read of a table with these names; None: all."""
        return None if self.view is None else self.view.source_columns(names)


@runtime_checkable
class NetSteps(Protocol):
    """A source that can emit several commits as one difference. Optional.

    The end of the difference must be the same after a restart, even if the table has new commits:
    rows of it may have been delivered already. So it is saved in the start offset, as the mark.
    """

    def pin_end(self, start: Offset, end: Offset) -> Offset:
        """Return `start` with the mark of the step to `end`, if that is one difference."""
        ...

    def is_net(self, start: Offset) -> bool:
        """Return whether the step that begins at `start`, as pinned, is one difference."""
        ...

    async def over_gap(self, start: Offset) -> Offset:
        """Return `start` with the mark of one difference to the newest version.

        Raises:
            TableError: One of the two versions can no longer be read, or they have no difference.
        """
        ...


@runtime_checkable
class SupportsFileLookup(Protocol):
    """A source whose log may name files that were deleted since. Optional."""

    async def has_live_file(self, url: str) -> bool:
        """Return whether the newest version has a data or deletion-vector file.

        Raises:
            TableError: The newest version cannot be read.
        """
        ...


@runtime_checkable
class SupportsColumnNames(Protocol):
    """A task reader that names columns whose types it does not support. Optional."""

    def column_names(self, task: ChangeTask) -> Sequence[str]:
        """Return the names of all columns that a task's rows have in the table."""
        ...


@runtime_checkable
class SupportsSkippedCommits(Protocol):
    """A source that may leave commits out. Optional."""

    async def count_skipped(self, start: Offset, end: Offset) -> int | None:
        """Return the number of commits with row changes that are not delivered in [start, end).

        None if the log no longer has all of them.

        Raises:
            TableError: A commit cannot be read.
        """
        ...


@runtime_checkable
class SupportsWidenedFloats(Protocol):
    """A source whose columns may have changed from floats to doubles. Optional."""

    async def widened_floats(self) -> frozenset[str]:
        """Return the columns in which floats became doubles, as of the head version."""
        ...


class TableFormat(OptionalParts, Protocol):
    """A kind of table: how to detect one, open it, and read the tasks it plans.

    Attributes:
        name: As used in the configuration, commands and `ChangeTask.format`.
        capabilities: What its changes can express.
        names: How files show that a commit happened.
        options: Names of its own options.
    """

    name: str
    capabilities: Capabilities
    names: CommitNames
    options: frozenset[str]

    @property
    def reader(self) -> TaskReader:
        """The reader of its tasks."""
        ...

    async def detect(self, location: TableLocation) -> bool:
        """Return whether there is a table of this format, with one or two requests.

        Raises:
            StorageError: The location cannot be read.
        """
        ...

    def folder(self, location: TableLocation) -> str:
        """Return the folder of a table's commits, as its store names it; watchers use it.

        It may be outside of the table's own folder.
        """
        ...

    def is_at(self, location: TableLocation) -> bool:
        """Return whether a local location looks like a table of this format; blocking."""
        ...

    async def open(self, location: TableLocation, request: OpenRequest) -> ChangeSource:
        """Open a table at its newest version.

        Raises:
            NotATableError, TableError: The table cannot be read.
            ConfigError: An option is wrong.
        """
        ...


def split_file(task: ChangeTask, payload: Any, target_bytes: int) -> Sequence[ChangeTask]:
    """Split the task of one file into shares of its row groups of about `target_bytes`.

    Args:
        payload: Decoded, with `share_index` and `share_count`; a share is not split again.
    """
    count = -(-task.size_bytes // target_bytes)
    if count < 2 or payload.share_count > 1:
        return [task]
    return [
        replace(
            task,
            size_bytes=task.size_bytes // count,
            payload=replace(payload, share_index=index, share_count=count),
        )
        for index in range(count)
    ]
