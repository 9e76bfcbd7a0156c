"""Runs: consecutive change tasks that are read together, in the order that readers need."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, TaskGroup
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.formats.base import ChangeSource
from tailerd.records.key_order import KeyPass, commits_in_key_order, select_pass

RUN_BYTES = 2 * 1024 * 1024
RUN_FILES = 16
"""Small files are read together: a switch between threads costs as much as a tiny file."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tasks.

    Attributes:
        key_pass: Which rows of each batch are wanted.
        limits: For a commit that is read twice: the limits of the first pass, reused by the second,
            which is cut at the same rows. Batches must be the same in both passes, even if
            less memory is admitted by then; the excess is counted as for any large batch.
    """

    tasks: list[ChangeTask]
    key_pass: KeyPass = KeyPass.WHOLE
    limits: deque[int] = field(default_factory=deque)

    def limit_bytes(self, admitted: int) -> int:
        """Return the size of a batch for the `admitted` memory; called once for each run."""
        if self.key_pass is KeyPass.UPSERTS:
            return self.limits.popleft()
        if self.key_pass is KeyPass.DELETES:
            self.limits.append(admitted)
        return admitted


class RunPlanner:
    """Cuts the tasks between two offsets into runs.

    A commit's change files are in one run if they are few and small. Otherwise they are all read
    twice, in runs of the usual size: first for rows that only remove, then for the rest. A single
    file without a key is read once: its images are together.

    Args:
        source: Plans the tasks.
        is_keyed: Whether there is a key.
        on_group: Called once with every group of tasks.
    """

    def __init__(
        self, source: ChangeSource, *, is_keyed: bool, on_group: Callable[[TaskGroup], None]
    ) -> None:
        self._source = source
        self._is_keyed = is_keyed
        self._on_group = on_group
        self._most_bytes = max(RUN_BYTES, source.run_bytes)
        self._run = Run([])
        self._size = 0

    async def between(self, start: Offset, end: Offset) -> AsyncIterator[Run]:
        """Yield the runs of [start, end) in order.

        Raises:
            TableError: As the source's `plan`.
        """
        is_large = False
        async for group in self._source.plan(start, end):
            self._on_group(group)
            # A commit with change files stays whole: groups before its last end where they start.
            is_last = group.end != group.start
            if not is_large and not self._is_ordered(group, is_last=is_last):
                runs = self._add_tasks(group.tasks)
            elif is_last and not is_large and self._is_small(group.tasks):
                runs = self._added_whole(group.tasks)
            else:
                if not is_large:
                    is_large = True
                    for run in self._begin_run(KeyPass.DELETES):
                        yield run
                runs = self._add_tasks(group.tasks)
            for run in runs:
                yield run
            if is_large and is_last:
                is_large = False
                async for run in self._second_pass(group):
                    yield run
        for run in self._begin_run(KeyPass.WHOLE):
            yield run

    async def _second_pass(self, last: TaskGroup) -> AsyncIterator[Run]:
        for run in self._begin_run(KeyPass.UPSERTS):
            yield run
        async for group in self._source.plan(last.start, last.end):
            for run in self._add_tasks(group.tasks):
                yield run
        for run in self._begin_run(KeyPass.WHOLE):
            yield run

    def _is_ordered(self, group: TaskGroup, *, is_last: bool) -> bool:
        """Return whether rows of the group's commit may have to change their order."""
        is_single = is_last and len(group.tasks) < 2
        return group.change_source is ChangeSourceKind.CDC and (self._is_keyed or not is_single)

    def _is_small(self, tasks: Sequence[ChangeTask]) -> bool:
        """Return whether the tasks fit one run; a single one always does."""
        size = sum(task.size_bytes for task in tasks)
        return len(tasks) == 1 or (len(tasks) <= RUN_FILES and size <= self._most_bytes)

    def _added_whole(self, tasks: Sequence[ChangeTask]) -> Iterator[Run]:
        if not self._has_room(tasks):
            yield from self._begin_run(KeyPass.WHOLE)
        self._take(tasks)

    def _add_tasks(self, tasks: Sequence[ChangeTask]) -> Iterator[Run]:
        for task in tasks:
            if not self._has_room((task,)):
                yield from self._begin_run(self._run.key_pass)
            self._take((task,))

    def _has_room(self, tasks: Sequence[ChangeTask]) -> bool:
        size = self._size + sum(task.size_bytes for task in tasks)
        files = len(self._run.tasks)
        return not files or (files + len(tasks) <= RUN_FILES and size <= self._most_bytes)

    def _take(self, tasks: Iterable[ChangeTask]) -> None:
        for task in tasks:
            self._run.tasks.append(task)
            self._size += task.size_bytes

    def _begin_run(self, key_pass: KeyPass) -> Iterator[Run]:
        """Begin another run; yield the previous one unless it is empty."""
        before = self._run
        is_same_commit = key_pass is not KeyPass.WHOLE and before.key_pass is not KeyPass.WHOLE
        limits = before.limits if is_same_commit else deque[int]()
        self._run, self._size = Run([], key_pass, limits), 0
        if before.tasks:
            yield before


ReadTasks = Callable[[Sequence[ChangeTask], BatchLimit], Iterator[ChangeBatch]]


class RunReader:
    """Reads runs; blocking, for worker threads.

    Args:
        read_tasks: Reads the tasks of a run, as `ChangeSource.read_run`.
        key: Columns that identify a row; without a key, the rows of a single change file keep
            their order.
    """

    def __init__(self, read_tasks: ReadTasks, key: Sequence[str]) -> None:
        self._read_tasks = read_tasks
        self._key = tuple(key)

    def read(self, run: Run, limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Yield the rows of a run.

        Holds up to half of `limit.max_bytes`, or two batches, while it reorders a commit.

        Raises:
            TableError: A file cannot be read.
            ConfigError: A key column is not in the table.
        """
        # What is read again was counted the first time.
        again = replace(limit, on_unchanged=None)
        is_again = run.key_pass is KeyPass.UPSERTS
        batches = self._read_tasks(run.tasks, again if is_again else limit)
        if run.key_pass is KeyPass.WHOLE:
            versions = self._to_order(run.tasks)
            if not versions:
                return batches

            def reread(version: Version) -> Iterator[ChangeBatch]:
                tasks = [task for task in run.tasks if task.version == version]
                return self._read_tasks(tasks, again)

            half = limit.max_bytes // 2
            return commits_in_key_order(batches, versions, reread, self._key, half)
        parts = (select_pass(batch, self._key, run.key_pass) for batch in batches)
        return (part for part in parts if part is not None)

    def _to_order(self, tasks: Sequence[ChangeTask]) -> frozenset[Version]:
        """Return the versions of commits whose change files are read in order of their rows."""
        files = Counter(t.version for t in tasks if t.change_source is ChangeSourceKind.CDC)
        return frozenset(version for version, count in files.items() if count > 1 or self._key)
