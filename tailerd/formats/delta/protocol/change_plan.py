"""Plans the tasks that read a commit's row changes. Pure and deterministic.

Case A: the commit has `cdc` actions and the feed may be used: only the change files. Those that
    contradict the file actions were left out before (`changes.feed_check`).
Case B: add: its rows except those in its vector are inserted.
Case C: remove: its rows except those in its vector are deleted.
Case D: remove and add of one path, vectors V1 and V2, one of which may be absent:
    V2 - V1 is deleted, V1 - V2 is inserted, nothing else of the file changed.
Case E: remove and add of one path without any vector: invalid, an error.
Case F: a MERGE that reports no changed row: nothing. Only if raw changes are requested.
Case G: under `auto`, B to D remove rows and add rows: they are compared, and rows on both sides are
    not changes (`rewritten_files`).

B to F use actions with `dataChange`; in D one of the two actions is enough. Actions that change no
file of the table are left out before (`file_effects`).

Within a commit, deletes come before inserts: a writer may list a rewritten file's adds first, and a
consumer that applies rows by key in order must end with the new rows.

Protocol: PROTOCOL.md#reader-requirements-for-addcdcfile, #deletion-vectors
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tailerd.changefeed.change_task import (
    ChangeMode,
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
)
from tailerd.changefeed.offset import Version
from tailerd.errors import ChangeFeedDisabledError, CorruptLogError
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.actions import (
    CommitInfo,
    FileAction,
    Line,
    decode_partition_values,
    read_num_records,
)
from tailerd.formats.delta.protocol.commit_file import Commit, FileTally
from tailerd.formats.delta.protocol.data_file import (
    ALL_ROWS,
    FORMAT,
    DataFile,
    DeletionVector,
    RowFilter,
    RowIds,
    TableSchema,
    data_file,
)
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.file_effects import ALL_EFFECTIVE, NoEffect
from tailerd.formats.delta.protocol.file_key import file_key
from tailerd.formats.delta.protocol.rewritten_files import (
    MAX_BOUNDED_FILES,
    MAX_EXACT_FILES,
    can_compare,
    file_bounds,
    parse_bounds,
)
from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.rows.groups import FileBounds

MAX_PAIRS_PER_PASS = 50_000
"""Maximum number of removes in memory that wait for their adds."""

_WHOLE = (ChangeSourceKind.CDC, ChangeSourceKind.ROWS)
_MERGE_COUNTS = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlan:
    """How the row changes of a commit are read.

    Attributes:
        table_id: Identity of the table with the commit.
        kind: How its rows are found; `none` if it has none.
        is_whole: Whether its tasks must be delivered together.
        max_tasks: Upper bound of the number of tasks.
        size_bytes: Bytes of the tasks' files, according to the log.
        before, after: Schemas of removed and of added rows.
        added, removed: All data files that the commit adds and removes.
        paired: Keys of paths both removed and added, sorted.
        has_both: Whether its files have both deleted and inserted rows.
        is_compared: Whether the rows of both sides are compared (case G).
        row_columns: Columns with row ids that show which rows changed; None if there are none.
        no_effect: Omitted file actions.
        are_updates: Whether all rows of an exact commit are images of updates.
        operation, applications, user_metadata: As in `StepPlan`.
    """

    version: Version
    table_id: str
    timestamp_us: int
    kind: ChangeSourceKind
    is_whole: bool
    max_tasks: int
    size_bytes: int
    before: TableSchema
    after: TableSchema
    added: FileTally
    removed: FileTally
    operation: str = ""
    paired: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    has_both: bool = False
    is_compared: bool = False
    row_columns: RowColumns | None = None
    no_effect: NoEffect = ALL_EFFECTIVE
    are_updates: bool = False
    applications: tuple[str, ...] = ()
    user_metadata: str = ""

    @property
    def pair_passes(self) -> int:
        """Number of passes for all pairs; unpaired files are part of the first."""
        return max(1, -(-len(self.paired) // MAX_PAIRS_PER_PASS))

    @property
    def passes(self) -> int:
        """Number of times the commit's lines must be fed to a `TaskPlanner`."""
        if self.kind is ChangeSourceKind.NONE:
            return 0
        return self.pair_passes * (2 if self.has_both else 1)


def reads_files(commit: Commit, mode: ChangeMode) -> bool:
    """Return whether the changes of a commit are rows of its data files."""
    return _choose_kind(commit, mode) is ChangeSourceKind.FILES


def plan_commit(
    commit: Commit, before: TableState, after: TableState, timestamp_ms: int, mode: ChangeMode
) -> CommitPlan:
    """Decide how the rows of a commit are read.

    Args:
        commit: Without the actions that have no effect.
        before, after: The table's state before and after the commit; for version 0, both its own.
        timestamp_ms: The commit's timestamp.

    Raises:
        ChangeFeedDisabledError: `mode` is `cdf` and the feed is disabled at this version.
    """
    if mode is ChangeMode.CDF and not after.has_change_data_feed:
        raise ChangeFeedDisabledError(
            f"Version {commit.version} has no change data feed: delta.enableChangeDataFeed is not"
            " set there, so Delta recorded no row changes.",
            remedy="Use --changes auto or files, or start after the version that enabled it.",
        )
    kind = _choose_kind(commit, mode)
    paired = np.empty(0, np.uint64)
    tasks = size_bytes = 0
    match kind:
        case ChangeSourceKind.CDC:  # Case A
            tasks, size_bytes = commit.change_files.files, commit.change_files.size_bytes
        case ChangeSourceKind.FILES:
            paired = _paired_paths(commit)
            tasks = commit.data_added.files + commit.data_removed.files + 2 * len(paired)
            size_bytes = commit.data_added.size_bytes + commit.data_removed.size_bytes
            if mode is ChangeMode.AUTO:
                kind = _refine_kind(commit, before.schema, after.schema, len(paired), tasks)
    operation = commit.info.operation if commit.info else ""
    return CommitPlan(
        version=Version(commit.version),
        table_id=after.metadata.id,
        timestamp_us=timestamp_ms * 1000,
        kind=kind,
        is_whole=kind in _WHOLE or commit.has_vectors or len(paired) > 0,
        max_tasks=tasks,
        size_bytes=size_bytes,
        before=before.schema,
        after=after.schema,
        added=commit.added,
        removed=commit.removed,
        operation=operation,
        paired=paired,
        has_both=_has_both(commit, kind, len(paired)),
        is_compared=tasks <= MAX_EXACT_FILES and _must_compare(kind, operation),
        row_columns=row_columns(before, after, commit.info),
    )


def _must_compare(kind: ChangeSourceKind, operation: str) -> bool:
    """Return whether rows may be on both sides.

    A DELETE restores no row: its vectors only grow, and each file can be read alone. If a writer
    uses the name for another operation, the result is not minimal but still correct.
    """
    return kind is ChangeSourceKind.ROWS or (
        kind is ChangeSourceKind.VECTORS and operation != "DELETE"
    )


def _has_both(commit: Commit, kind: ChangeSourceKind, pairs: int) -> bool:
    if kind in (ChangeSourceKind.CDC, ChangeSourceKind.NONE):
        return False
    return pairs > 0 or (commit.data_added.files > 0 and commit.data_removed.files > 0)


def _choose_kind(commit: Commit, mode: ChangeMode) -> ChangeSourceKind:
    if commit.change_files.files and mode is not ChangeMode.FILES:
        return ChangeSourceKind.CDC
    if not commit.data_added.files and not commit.data_removed.files:
        return ChangeSourceKind.NONE
    is_raw = mode is not ChangeMode.AUTO
    if is_raw and commit.info is not None and is_no_op_merge(commit.info):  # Case F
        return ChangeSourceKind.NONE
    return ChangeSourceKind.FILES


def _refine_kind(
    commit: Commit, before: TableSchema, after: TableSchema, pairs: int, tasks: int
) -> ChangeSourceKind:
    """Return how the rows of a commit without change files are found under `auto`."""
    added, removed = commit.data_added.files, commit.data_removed.files
    if not can_compare(before, after):
        return ChangeSourceKind.FILES
    if pairs and max(added, removed) <= pairs:
        return ChangeSourceKind.VECTORS
    if (not pairs and (not added or not removed)) or tasks > MAX_EXACT_FILES:
        return ChangeSourceKind.FILES
    return ChangeSourceKind.ROWS


def is_no_op_merge(info: CommitInfo) -> bool:
    """Return whether a MERGE reports, in all three counts, that it changed no row.

    Such a commit may rewrite files with `dataChange`; Delta Spark emits no rows for it.
    """
    metrics = info.operation_metrics
    return info.operation == "MERGE" and all(metrics.get(name) == "0" for name in _MERGE_COUNTS)


def _paired_paths(commit: Commit) -> npt.NDArray[np.uint64]:
    if not commit.added_paths or not commit.removed_paths:
        return np.empty(0, np.uint64)
    added = np.array(commit.added_paths, np.uint64)
    return np.intersect1d(added, np.array(commit.removed_paths, np.uint64))


class TaskPlanner:
    """Creates change tasks from a commit's lines, with memory bounded by pairs per pass.

    For each of `plan.passes`: `begin_pass`, then `feed` every line in order, then `end_pass`.
    Positions count tasks over all passes, so they depend only on the commit.

    Args:
        plan: From `plan_commit`.
        paths: Resolves the files' positions.
        conditioned: Columns whose bounds are noted for each file.

    Attributes:
        position: Number of tasks so far.
        bounds: Known bounds of each task's file, for a commit whose rows are compared.
    """

    def __init__(
        self, plan: CommitPlan, paths: DataPaths, conditioned: Collection[str] = ()
    ) -> None:
        self._plan = plan
        self._conditioned = conditioned
        self._paths = paths
        self._paired = set(plan.paired.tolist()) if len(plan.paired) <= MAX_PAIRS_PER_PASS else None
        self._is_first_of_phase = True
        self._gives_deletes = self._gives_inserts = True
        self._waiting: dict[int, tuple[FileAction | None, FileAction | None]] = {}
        self._chosen: set[int] = set()
        self._has_bounds = plan.is_compared and plan.before == plan.after
        self.position = 0
        self.bounds: list[FileBounds | None] = []

    def begin_pass(self, number: int, position: int) -> None:
        """Start pass `number`, counted from 0.

        Args:
            position: Number of earlier tasks, also those of this pass if it resumes in its middle.
        """
        self.position = position
        phase, part = divmod(number, self._plan.pair_passes)
        self._is_first_of_phase = part == 0
        self._gives_deletes = not self._plan.has_both or phase == 0
        self._gives_inserts = not self._plan.has_both or phase == 1
        start = part * MAX_PAIRS_PER_PASS
        self._chosen = set(self._plan.paired[start : start + MAX_PAIRS_PER_PASS].tolist())

    def feed(self, lines: list[Line]) -> list[ChangeTask]:
        """Return the tasks that these lines complete.

        Raises:
            PathOutsideTableError, CorruptLogError: An action is not valid.
        """
        tasks: list[ChangeTask] = []
        is_cdc = self._plan.kind is ChangeSourceKind.CDC
        if self._plan.no_effect:
            lines = self._plan.no_effect.without(lines, self._paths.root)
        for line in lines:
            if is_cdc:
                if line.cdc is not None:
                    tasks.append(self._task(line.cdc, None, ALL_ROWS))
                continue
            action = line.add or line.remove
            if action is None:
                continue
            if len(self._plan.paired) and (key := self._pair_key(action)) is not None:
                if key in self._chosen:
                    tasks.extend(self._take_pair(key, line))
            elif self._is_first_of_phase and action.data_change:
                is_added = line.add is not None
                if self._gives_inserts if is_added else self._gives_deletes:
                    tasks.append(self._whole_file(action, is_added=is_added))
        return tasks

    def end_pass(self) -> None:
        """Finish a pass.

        Raises:
            CorruptLogError: The commit changed while it was read.
        """
        if self._waiting:
            raise CorruptLogError(
                f"The commit of version {self._plan.version} changed while it was read.",
                remedy="A committed log entry must not be edited: restore it from a backup.",
            )

    def _pair_key(self, action: FileAction) -> int | None:
        key = file_key(action.path, None, self._paths.root)
        if self._paired is not None:
            return key if key in self._paired else None
        at = int(np.searchsorted(self._plan.paired, np.uint64(key)))
        is_paired = at < len(self._plan.paired) and int(self._plan.paired[at]) == key
        return key if is_paired else None

    def _whole_file(self, action: FileAction, *, is_added: bool) -> ChangeTask:
        # Cases B and C.
        rows = ALL_ROWS
        if action.deletion_vector is not None:
            rows = RowFilter(exclude=self._paths.vector(action.deletion_vector))
        change = ChangeType.INSERT if is_added else ChangeType.DELETE
        return self._task(action, change, rows)

    def _take_pair(self, key: int, line: Line) -> Iterator[ChangeTask]:
        removed, added = self._waiting.pop(key, (None, None))
        if line.remove is not None:
            removed = line.remove
        else:
            added = line.add
        if removed is None or added is None:
            self._waiting[key] = (removed, added)
            return
        if not (removed.data_change or added.data_change):
            return
        old, new = self._read_vector(removed), self._read_vector(added)
        if old is None and new is None:  # Case E
            raise CorruptLogError(
                f"Version {self._plan.version} both removes and adds {added.path!r} without a"
                " deletion vector, so its change is ambiguous.",
                remedy="The writer is broken: data files may not be overwritten.",
            )
        # Case D. Both describe the same file; the `add` has more fields.
        if new is not None and self._gives_deletes:
            yield self._task(added, ChangeType.DELETE, RowFilter(include=new, exclude=old))
        if old is not None and self._gives_inserts:
            yield self._task(added, ChangeType.INSERT, RowFilter(include=old, exclude=new))

    def _read_vector(self, action: FileAction) -> DeletionVector | None:
        if action.deletion_vector is None:
            return None
        return self._paths.vector(action.deletion_vector)

    def _task(self, action: FileAction, change: ChangeType | None, rows: RowFilter) -> ChangeTask:
        plan = self._plan
        schema = plan.before if change is ChangeType.DELETE else plan.after
        # Bounds of a file with a new vector may be without the rows that it deletes.
        is_bounded = self._conditioned and change is not None and rows.include is None
        task = ChangeTask(
            version=plan.version,
            timestamp_us=plan.timestamp_us,
            position=self.position,
            change_source=plan.kind,
            change_type=change,
            size_bytes=action.size or 0,
            format=FORMAT,
            payload=DataFile(
                url=self._paths.resolve(action.path),
                schema=schema,
                partition_values=decode_partition_values(action) or _all_null(action, schema),
                rows=rows,
                row_ids=plan.row_columns.read_row_ids(action) if plan.row_columns else None,
                bounds=tuple(parse_bounds(action.stats, schema, self._conditioned).items())
                if is_bounded
                else (),
            ),
            num_records=read_num_records(action),
            table_id=plan.table_id,
        )
        self.position += 1
        if self._has_bounds:
            is_few = plan.max_tasks <= MAX_BOUNDED_FILES
            self.bounds.append(file_bounds(data_file(task), action.stats, with_statistics=is_few))
        return task


def _all_null(action: FileAction, schema: TableSchema) -> tuple[tuple[str, str | None], ...]:
    """Return the partition values of an action that has an empty map of them.

    Delta Spark omits nulls from the map of a `remove`; a missing map means that the writer did not
    record the values.
    """
    if not schema.partition_columns or bytes(action.partition_values) in (b"", b"null"):
        return ()
    fields = parse_schema(schema.text)
    named = [fields.find_field(name) for name in schema.partition_columns]
    return tuple((item.physical_name(schema.column_mapping), None) for item in named if item)


# Every row of a table with row tracking has a stable id and the version of the commit that last
# changed it. A file has both in two hidden columns for rows that were moved there; for other rows
# they follow from its `add`: `baseRowId` and the row's position, and `defaultRowCommitVersion`.
#
# Protocol: PROTOCOL.md#row-tracking

FEATURE = "rowTracking"
PRESERVED = "delta.rowTracking.preserved"
"""The tag of a commit whose writer preserved the ids of moved rows."""


_SENSIBLE = range(2**62)
"""No table has more rows or commits, and the sum of two such numbers fits 64 bits."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Names of the row-tracking columns in data files."""

    row_id: str
    commit_version: str

    def read_row_ids(self, action: FileAction) -> RowIds | None:
        """Return the row ids of a file; None if its action lacks the fields."""
        first, version = action.base_row_id, action.default_row_commit_version
        if first is None or version is None or first not in _SENSIBLE or version not in _SENSIBLE:
            return None
        return RowIds(
            id_column=self.row_id,
            version_column=self.commit_version,
            first_id=first,
            commit_version=version,
        )


def row_columns(
    before: TableState, after: TableState, info: CommitInfo | None
) -> RowColumns | None:
    """Return the columns with the row ids of a commit; None if ids do not show its changes.

    Args:
        before, after: The table's state before and after the commit.
    """
    if info is None or info.tags.get(PRESERVED) != "true":
        return None
    old, new = _columns(before), _columns(after)
    return new if old == new else None


def _columns(state: TableState) -> RowColumns | None:
    configuration = state.metadata.configuration
    is_tracked = (
        FEATURE in (state.protocol.writer_features or ())
        and properties.is_enabled(configuration, properties.ROW_TRACKING)
        and not properties.is_enabled(configuration, properties.ROW_TRACKING_SUSPENDED)
    )
    names = [
        configuration.get(each, "")
        for each in (properties.ROW_ID_COLUMN, properties.ROW_COMMIT_VERSION_COLUMN)
    ]
    return RowColumns(*names) if is_tracked and all(names) else None
