"""A table format of the tests: small tables held in memory, saved as one file of lines.

Its versions are 10, 20, 30, ...: whoever adds one to a version asks for one that is not there.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tailerd.plugins import (
    BEFORE_ALL,
    DEFAULT_BATCH_LIMIT,
    RESET_PIPELINE,
    UNKNOWN,
    Backlog,
    BatchLimit,
    BugError,
    Capabilities,
    ChangeBatch,
    ChangeSource,
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
    ColumnFilter,
    CommitNames,
    History,
    Inspector,
    MissingVersionError,
    NotATableError,
    Offset,
    OpenRequest,
    OptionalParts,
    RowPositions,
    StepPlan,
    Stores,
    TableIdentity,
    TableLocation,
    TableLog,
    TableRecreatedError,
    UsageError,
    Version,
    may_pass,
    open_log,
    to_ms,
)

NAME = "memory"
FOLDER = "_memory"
FILE = "table.jsonl"
STEP = 10
TASK_ROWS = 2
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
Row = tuple[int, str]
Change = tuple[str, int, str]
"""`_change_type`, id, name."""


@dataclass
class MemoryTable:
    """The whole table: changes of each commit; the oldest may have been dropped."""

    table_id: str
    commits: dict[int, list[Change]]
    first: int = STEP

    @classmethod
    def load(cls, text: str) -> MemoryTable:
        head, *lines = [json.loads(line) for line in text.splitlines()]
        commits = {line["version"]: [tuple(each) for each in line["changes"]] for line in lines}
        return cls(head["table_id"], commits, head["first"])

    def save(self, position: Path) -> None:
        (position / FOLDER).mkdir(parents=True, exist_ok=True)
        lines: list[object] = [{"table_id": self.table_id, "first": self.first}]
        lines += [{"version": v, "changes": changes} for v, changes in self.commits.items()]
        draft = position / "draft"
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
        draft.replace(position / FOLDER / FILE)

    def commit(self, *changes: Change) -> Version:
        version = self.head + STEP
        self.commits[version] = list(changes)
        return Version(version)

    @property
    def head(self) -> int:
        return max(self.commits, default=0)

    def rows(self, version: int) -> list[Row]:
        found: list[Row] = []
        for _, changes in sorted(item for item in self.commits.items() if item[0] <= version):
            for kind, number, name in changes:
                if kind in (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE):
                    found.remove((number, name))
                else:
                    found.append((number, name))
        return found


@dataclass(frozen=True, slots=True)
class Share:
    """Changes of a task, from its `first` on."""

    changes: tuple[Change, ...]
    first: int = 0


class MemoryReader:
    """Reads tasks, whose payload is their changes."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        return pa.schema([field for field in SCHEMA if columns is None or field.name in columns])

    def read(
        self,
        task: ChangeTask,
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        changes, schema = _changes(task), self.schema(task, columns)
        for first in range(0, len(changes), limit.max_rows):
            some = changes[first : first + limit.max_rows]
            values = {"id": [each[1] for each in some], "name": [each[2] for each in some]}
            yield ChangeBatch(
                rows=pa.RecordBatch.from_pydict({n: values[n] for n in schema.names}, schema),
                change_type=pa.array([str(each[0]) for each in some]),
                version=task.version,
                timestamp_us=task.timestamp_us,
                change_source=task.change_source,
                positions=RowPositions(
                    table_id=task.table_id, files=task.position, rows=_first(task) + first
                ),
            )

    def read_run(
        self,
        tasks: Sequence[ChangeTask],
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        for task in tasks:
            yield from self.read(task, limit, columns)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        if task.size_bytes <= target_bytes:
            return [task]
        return [
            replace(task, payload=Share((each,), position), size_bytes=100)
            for position, each in enumerate(_changes(task))
        ]

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        def passes(change: Change) -> bool:
            values: dict[str, object] = {"id": change[1], "name": change[2]}
            return all(may_pass(values.get(each.column, UNKNOWN), each) for each in filters)

        return not any(passes(change) for change in _changes(task))


def _first(task: ChangeTask) -> int:
    assert isinstance(task.payload, Share)
    return task.payload.first


def _changes(task: ChangeTask) -> tuple[Change, ...]:
    assert isinstance(task.payload, Share)
    return task.payload.changes


@dataclass(kw_only=True)
class MemoryStep(StepPlan):
    """Changes, some of them in each task."""

    changes: Sequence[Change]
    task_rows: int

    async def size_bytes(self) -> int:
        return 100 * len(self.changes)

    async def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[ChangeTask]]:
        for position in range(start, self.max_files if until is None else until):
            first = position * self.task_rows
            some = self.changes[first : first + self.task_rows]
            task = ChangeTask(
                version=self.version,
                timestamp_us=self.timestamp_us,
                position=position,
                change_source=self.kind,
                change_type=None,
                size_bytes=100 * len(some),
                format=NAME,
                payload=Share(tuple(some)),
                num_records=len(some),
                table_id=self.table_id,
            )
            yield [task]

    async def schemas(self, start: int) -> AsyncIterator[tuple[int, Version, pa.Schema]]:
        yield start, self.version, SCHEMA


class MemoryLog(TableLog):
    """The versions of one table; every poll reads the file again."""

    def __init__(self, location: TableLocation, request: OpenRequest) -> None:
        self.location = location
        self._task_rows = int(str(request.options.get("task_rows", TASK_ROWS)))
        self._path = f"{location.root}/{FOLDER}/{FILE}"
        self._table = MemoryTable("", {})

    async def refresh(self) -> Version:
        self._table = MemoryTable.load((await self.location.store.get(self._path)).decode())
        return Version(self._table.head)

    @property
    def table_id(self) -> str:
        return self._table.table_id

    def version_before(self, version: Version) -> Version:
        before = -(-version // STEP) * STEP - STEP
        return Version(before) if before >= STEP else BEFORE_ALL

    def next_version(self, version: Version) -> Version:
        return Version(max(STEP, (version // STEP + 1) * STEP))

    async def locate_version(self, version: Version) -> Version:
        found = self.next_version(self.version_before(version))
        if not self._table.first <= found <= self.next_version(Version(self._table.head)):
            raise MissingVersionError(f"Version {found} is not there.", remedy=RESET_PIPELINE)
        return found

    async def find_first_since(self, time: datetime.datetime) -> Version | None:
        later = [v for v in self._table.commits if v * 1000 >= to_ms(time, round_up=True)]
        if not later:
            return None
        return Version(max(min(later), self._table.first))

    async def find_last_until(self, time: datetime.datetime) -> Version:
        before = [v for v in self._table.commits if v * 1000 <= to_ms(time)]
        if not before:
            raise MissingVersionError(f"There is no commit before {time.isoformat()}.")
        return Version(max(before))

    async def identify(self, offset: Offset, end: Offset | None = None) -> Offset:
        return replace(offset, table_id=self.table_id)

    async def identity(self, version: Version) -> TableIdentity:
        return TableIdentity(table_id=self.table_id, schema_id="" if version < 0 else "one")

    async def check(self, offset: Offset) -> None:
        if offset.table_id != self.table_id:
            raise TableRecreatedError(f"{self.name} is another table than before.")
        if offset.version % STEP or offset.version < STEP:
            raise BugError(f"Somebody counted: there can be no version {offset.version}.")

    async def advance(self, start: Offset, walk: Callable[[], Awaitable[Offset]]) -> Offset:
        await self.refresh()
        await self.check(start)
        return await walk()

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> MemoryStep | None:
        if at.version > self._table.head and end is None:
            return None
        if not self._table.first <= at.version <= self._table.head:
            raise MissingVersionError(f"Version {at.version} is not there.", remedy=RESET_PIPELINE)
        return self._step(at, ChangeSourceKind.CDC, self._table.commits[at.version])

    async def snapshot(self, at: Offset, state: str, end: Offset | None = None) -> MemoryStep:
        rows = [(ChangeType.INSERT.value, *row) for row in self._table.rows(at.version)]
        return self._step(at, ChangeSourceKind.SNAPSHOT, rows)

    def _step(self, at: Offset, kind: ChangeSourceKind, changes: Sequence[Change]) -> MemoryStep:
        return MemoryStep(
            version=at.version,
            timestamp_us=at.version * 1_000_000,
            kind=kind,
            table_id=self.table_id,
            following=self.next_version(at.version),
            max_files=-(-len(changes) // self._task_rows),
            is_whole=False,
            is_alone=kind is ChangeSourceKind.SNAPSHOT,
            changes=changes,
            task_rows=self._task_rows,
        )

    async def schema(self, version: Version | None, columns: Sequence[str] | None) -> pa.Schema:
        if unknown := [name for name in columns or () if name not in SCHEMA.names]:
            raise UsageError(f"There is no column {unknown[0]!r}.")
        if version is not None and version not in self._table.commits:
            raise MissingVersionError(f"Version {version} is not there.", remedy=RESET_PIPELINE)
        return pa.schema([f for f in SCHEMA if columns is None or f.name in columns])

    async def backlog(self, start: Offset) -> Backlog:
        head = await self.refresh()
        waiting = [v for v in self._table.commits if v >= start.version]
        return Backlog(
            head_version=head,
            versions=len(waiting),
            head_timestamp_ms=head * 1000,
            oldest_undelivered_timestamp_ms=min(waiting) * 1000 if waiting else None,
        )


def _version_of(name: str) -> Version | None:
    return Version(0) if name == FILE else None


class MemoryFormat(OptionalParts):
    """What the registry names."""

    name = NAME
    capabilities = Capabilities(history=History.KEPT)
    names = CommitNames(folder=FOLDER, suffix=FILE, version_of=_version_of)
    options = frozenset({"task_rows"})
    reader = MemoryReader()

    @property
    def inspector(self) -> Inspector:
        from tests.doubles.memory_inspector import MemoryInspection

        return MemoryInspection

    async def detect(self, location: TableLocation) -> bool:
        files = location.store.list_from(self.folder(location))
        return [each async for each in files] != []

    def folder(self, location: TableLocation) -> str:
        return f"{location.root}/{FOLDER}"

    def is_at(self, location: TableLocation) -> bool:
        return Path(self.folder(location)).is_dir()

    async def open(self, location: TableLocation, request: OpenRequest) -> ChangeSource:
        if not await self.detect(location):
            raise NotATableError(f"{location.name} holds no table of the tests.")
        log = MemoryLog(location, request)
        await log.refresh()
        return open_log(log, self.reader, request)
