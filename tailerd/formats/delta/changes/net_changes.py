"""The net change between two versions: the exact difference of their snapshots, in one step.

Files that both have are not read, and versions between them are ignored. Rows are compared in the
columns of the end version, matched by physical name: a renamed column is the same column, an added
column is null before, a dropped column is left out.

Protocol: PROTOCOL.md#change-data-files, #column-mapping
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, ChangeType, TaskGroup
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Version
from tailerd.errors import SchemaChangedError, TableRecreatedError, TooLargeError
from tailerd.formats.delta.changes.net_plan import NetPlan, NetPlanFile
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.data_file import (
    FORMAT,
    VERSIONS,
    DataFile,
    DeletionVector,
    RowFilter,
    TableSchema,
    data_file,
)
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.file_key import KeyArray, file_key
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.rewritten_files import (
    MAX_EXACT_FILES,
    can_compare_net,
    exact_task,
    file_bounds,
    rewritten_files,
)
from tailerd.formats.delta.protocol.snapshot import Snapshot, TableState

_COMMIT_BY_COMMIT = "Read commit by commit, with `changes: auto`, or begin with a snapshot."


@dataclass(frozen=True, slots=True)
class _Share:
    """Rows of one file that only one of the two snapshots has."""

    change: ChangeType
    file: LiveFile
    rows: RowFilter


class NetChanges:
    """Plans net changes of one table.

    Args:
        reader: The table's log.
        paths: Resolves the files it names.
        key: Key columns by which deletes and inserts are paired to updates; empty: no pairing.
        kept: Keeps the plan of the current step across restarts.
    """

    def __init__(
        self, reader: LogReader, paths: DataPaths, key: Sequence[str], kept: NetPlanFile
    ) -> None:
        self._reader = reader
        self._paths = paths
        self._key = tuple(key)
        self._stored_plans = kept
        self._opened: tuple[Version, Snapshot | None, Snapshot] | None = None

    async def schema(self, start: Offset, end: Offset) -> TableSchema:
        """Return the schema of the rows of a step.

        Raises:
            MissingVersionError: The log no longer has the version.
        """
        stored = await self._stored_plans.find(start, end)
        if stored is not None:
            return stored.schema
        version = VERSIONS.version_before(end.version)
        return (await self._reader.open(version, with_files=False)).state.schema

    async def check(self, start: Offset, end: Offset) -> None:
        """Make sure that [start, end), both at the start of a commit, has a difference.

        Raises:
            MissingVersionError, TableRecreatedError, SchemaChangedError, TooLargeError: As `group`.
        """
        before, after = await self._both(start, end)
        if before is not None:
            _check_comparable(before, after)
        _differing(before, after)

    async def _both(self, start: Offset, end: Offset) -> tuple[Snapshot | None, Snapshot]:
        """Return the snapshots before and after a step; the last ones are cached."""
        first, last = (VERSIONS.version_before(each.version) for each in (start, end))
        if self._opened is None or (self._opened[0], self._opened[2].version) != (first, last):
            after = await self._reader.open(last)
            before = None if first == BEFORE_ALL else await self._reader.open(first)
            self._opened = first, before, after
        return self._opened[1:]

    async def group(
        self, start: Offset, end: Offset, time_ms: Callable[[TableState], Awaitable[int]]
    ) -> TaskGroup:
        """Return the one task of [start, end), both at the start of a commit; none without rows.

        A step that was planned before is returned unchanged, even if the log changed.

        Args:
            time_ms: Returns the time of the last version before `end`, given its state.

        Raises:
            MissingVersionError: The log can no longer rebuild one of the versions.
            TableRecreatedError: The table was replaced between them.
            SchemaChangedError: A column changed to a type in which old values cannot be compared.
            TooLargeError: More files differ than can be compared.
            StorageError: The plan cannot be saved.
        """
        plan = await self._stored_plans.find(start, end)
        if plan is None:
            plan = await self._make_plan(start, end, time_ms)
            await self._stored_plans.keep(plan)
        return self._apply_key(plan.group)

    async def _make_plan(
        self, start: Offset, end: Offset, time_ms: Callable[[TableState], Awaitable[int]]
    ) -> NetPlan:
        first = VERSIONS.version_before(start.version)
        before, after = await self._both(start, end)
        self._opened = None
        if before is not None:
            _check_comparable(before, after)
        timestamp_ms = await time_ms(after.state)
        shares = [share async for share in self._shares(before, after)]
        shares.sort(key=lambda each: (each.change is not ChangeType.DELETE, each.file.path))
        tasks = list(self._tasks(shares, before or after, after, timestamp_ms))
        group = TaskGroup(
            start=start,
            end=end,
            version=Version(after.version),
            timestamp_us=timestamp_ms * 1000,
            change_source=ChangeSourceKind.NET,
            tasks=tuple(self._compare_tasks(tasks, before or after, after, first)),
        )
        return NetPlan(group=group, schema=after.state.schema)

    def _apply_key(self, group: TaskGroup) -> TaskGroup:
        """Return a group whose rows are paired by the currently configured key."""
        tasks = (
            replace(t, payload=replace(rewritten_files(t), key=self._key)) for t in group.tasks
        )
        return replace(group, tasks=tuple(tasks))

    async def _shares(self, before: Snapshot | None, after: Snapshot) -> AsyncIterator[_Share]:
        """Yield the rows that only one of the snapshots has, by the keys of their files."""
        removed, added = _differing(before, after)
        old = {} if before is None else await self._files(before, removed)
        new = await self._files(after, added)
        for change, own, others in (
            (ChangeType.DELETE, old, new),
            (ChangeType.INSERT, new, old),
        ):
            for key, file in own.items():
                rows = self._rows(file, others.get(key))
                if rows is not None:
                    yield _Share(change, file, rows)

    async def _files(self, snapshot: Snapshot, keys: KeyArray) -> dict[int, LiveFile]:
        """Return the live files of the given keys, by their paths alone."""
        if not len(keys):
            return {}
        found: dict[int, LiveFile] = {}
        requested = set(keys.tolist())
        async for files in read_live_files(
            self._reader, snapshot, first_key=int(keys[0]), until_key=int(keys[-1]) + 1
        ):
            for file in files:
                if file.key in requested:
                    found[file_key(file.path, None, self._paths.root)] = file
        return found

    def _rows(self, file: LiveFile, other: LiveFile | None) -> RowFilter | None:
        """Return the rows of a file that the other snapshot lacks; None if there are none."""
        own = self._vector(file)
        if other is None:
            return RowFilter(exclude=own)
        # One file with two vectors: the rows that only the other vector deletes.
        left_out = self._vector(other)
        return None if left_out is None else RowFilter(include=left_out, exclude=own)

    def _vector(self, file: LiveFile) -> DeletionVector | None:
        return None if file.deletion_vector is None else self._paths.vector(file.deletion_vector)

    def _tasks(
        self, shares: Sequence[_Share], before: Snapshot, after: Snapshot, timestamp_ms: int
    ) -> Iterator[ChangeTask]:
        for position, share in enumerate(shares):
            is_old = share.change is ChangeType.DELETE
            yield ChangeTask(
                version=Version(after.version),
                timestamp_us=timestamp_ms * 1000,
                position=position,
                change_source=ChangeSourceKind.NET,
                change_type=share.change,
                size_bytes=share.file.size_bytes,
                format=FORMAT,
                payload=DataFile(
                    url=self._paths.resolve(share.file.path),
                    schema=(before if is_old else after).state.schema,
                    partition_values=share.file.partition_values,
                    rows=share.rows,
                ),
                num_records=share.file.num_records,
                table_id=after.state.metadata.id,
            )

    def _compare_tasks(
        self, tasks: Sequence[ChangeTask], before: Snapshot, after: Snapshot, first: Version
    ) -> Iterator[ChangeTask]:
        """Yield the task that compares the rows of all; nothing without files."""
        if not tasks:
            return
        old, new = before.state.schema, after.state.schema
        bounds = [
            file_bounds(data_file(task), None, with_statistics=False)
            for task in tasks
            if old == new
        ]
        known = [each for each in bounds if each is not None]
        whole = known if len(known) == len(tasks) else []
        found = exact_task(tasks, whole, before=old, after=new, key=())
        payload = rewritten_files(found)
        yield replace(found, payload=replace(payload, prefix=f"net-{first}."))


def _differing(before: Snapshot | None, after: Snapshot) -> tuple[KeyArray, KeyArray]:
    """Return the keys of files that only the first has, and of files that only the second has."""
    new_keys, _ = after.files.sorted_files()
    old_keys = new_keys[:0] if before is None else before.files.sorted_files()[0]
    removed, added = (
        np.setdiff1d(one, other, assume_unique=True)
        for one, other in ((old_keys, new_keys), (new_keys, old_keys))
    )
    if len(removed) + len(added) > MAX_EXACT_FILES:
        raise TooLargeError(
            f"{len(removed) + len(added)} files differ between the versions, and {MAX_EXACT_FILES}"
            " are compared at most.",
            remedy=_COMMIT_BY_COMMIT,
        )
    return removed, added


def _check_comparable(before: Snapshot, after: Snapshot) -> None:
    old, new = before.state.metadata.id, after.state.metadata.id
    if old != new:
        raise TableRecreatedError(
            f"The table was replaced between versions {before.version} and {after.version}: its id"
            f" was {old} and is {new}, so they have no difference.",
            remedy=_COMMIT_BY_COMMIT,
        )
    if not can_compare_net(before.state.schema, after.state.schema):
        raise SchemaChangedError(
            f"A column of version {before.version} has another type in version {after.version}, in"
            " which its values cannot be compared.",
            remedy=_COMMIT_BY_COMMIT,
        )
