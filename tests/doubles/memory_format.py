"""A table format of the tests: small tables held in memory, saved as one file of lines.

Its versions are 10, 20, 30, ...: whoever adds one to a version asks for one that is not there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tailerd.plugins import (
    BEFORE_ALL,
    DEFAULT_BATCH_LIMIT,
    UNKNOWN,
    Backlog,
    BatchLimit,
    BugError,
    Capabilities,
    ChangeBatch,
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
    ColumnFilter,
    CommitNames,
    History,
    Inspector,
    MissingVersionError,
    NotATableError,
    ObjectStore,
    Offset,
    OpenRequest,
    OptionalParts,
    Phase,
    ReadLimit,
    RowPlaces,
    SchemaStep,
    StartWord,
    Stores,
    TableIdentity,
    TableRecreatedError,
    TaskGroup,
    UsageError,
    Version,
    may_pass,
    parse_point,
    parse_start,
    path_of,
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

    def save(self, place: Path) -> None:
        (place / FOLDER).mkdir(parents=True, exist_ok=True)
        lines: list[object] = [{"table_id": self.table_id, "first": self.first}]
        lines += [{"version": v, "changes": changes} for v, changes in self.commits.items()]
        draft = place / "draft"
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
        draft.replace(place / FOLDER / FILE)

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
                places=RowPlaces(
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
            replace(task, payload=Share((each,), place), size_bytes=100)
            for place, each in enumerate(_changes(task))
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


class MemorySource:
    """Changes of one table; every look reads the file again."""

    def __init__(self, place: str, request: OpenRequest, store: ObjectStore, root: str) -> None:
        self._place, self._request = place, request
        self._store, self._path = store, f"{root}/{FOLDER}/{FILE}"
        self._table = MemoryTable("", {})

    async def look(self) -> MemoryTable:
        self._table = MemoryTable.load((await self._store.get(self._path)).decode())
        return self._table

    @property
    def name(self) -> str:
        return self._place

    @property
    def table_id(self) -> str:
        return self._table.table_id

    def version_before(self, version: Version) -> Version:
        before = -(-version // STEP) * STEP - STEP
        return Version(before) if before >= STEP else BEFORE_ALL

    def next_version(self, version: Version) -> Version:
        return Version(max(STEP, (version // STEP + 1) * STEP))

    async def initial_offset(self, start: str) -> Offset:
        table = await self.look()
        behind = self.next_version(Version(table.head))
        match parse_start(start):
            case StartWord.SNAPSHOT:
                return await self.offset_at(Version(table.head), Phase.SNAPSHOT)
            case StartWord.LATEST:
                return await self.offset_at(behind)
            case int(number):
                version = self.next_version(self.version_before(Version(number)))
                if not table.first <= version <= behind:
                    raise MissingVersionError(f"Version {version} is not there.")
                return await self.offset_at(version)
            case time:
                later = [v for v in table.commits if v * 1000 >= to_ms(time, round_up=True)]
                if not later:
                    raise UsageError(f"There is no commit at or after {time.isoformat()}.")
                return await self.offset_at(Version(max(min(later), table.first)))

    async def offset_at(self, version: Version, phase: Phase = Phase.FOLLOW) -> Offset:
        return Offset(table_id=self.table_id, version=version, phase=phase)

    async def end_version(self, end: str) -> Version:
        match parse_point(end):
            case int(version):
                return Version(version)
            case time:
                before = [v for v in self._table.commits if v * 1000 <= to_ms(time)]
                if not before:
                    raise MissingVersionError(f"There is no commit before {time.isoformat()}.")
                return Version(max(before))

    async def identity(self, version: Version) -> TableIdentity:
        return TableIdentity(table_id=self.table_id, schema_id="" if version < 0 else "one")

    def hear(self, version: int | None) -> None:
        pass

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        await self.look()
        at, files = start, limit.max_files
        while (tasks := self._tasks(at)) is not None:
            left = tasks[at.position :]
            if len(left) > files:
                return at.at(at.position + files) if files else at
            files -= len(left)
            at = at.after_version(self)
        return at

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        await self.look()
        at = start
        while at.is_before(end):
            tasks = self._tasks(at)
            if tasks is None:
                raise MissingVersionError(f"Version {at.version} is not there yet.")
            is_last = (at.version, at.phase) == (end.version, end.phase)
            reached = end if is_last else at.after_version(self)
            wanted = tasks[at.position : end.position if is_last else None]
            yield TaskGroup(
                start=at,
                end=reached,
                version=at.version,
                timestamp_us=at.version * 1_000_000,
                change_source=_kind(at),
                tasks=tuple(wanted),
            )
            at = reached

    def _tasks(self, at: Offset) -> list[ChangeTask] | None:
        """Return all tasks of a version; None where it is not there yet."""
        table = self._table
        if at.table_id != table.table_id:
            raise TableRecreatedError(f"{self.name} is another table than before.")
        if at.version % STEP or at.version < STEP:
            raise BugError(f"Somebody counted: there can be no version {at.version}.")
        if at.phase is Phase.FOLLOW and at.version < table.first:
            raise MissingVersionError(f"Version {at.version} was dropped.")
        if at.version > table.head:
            return None
        changes = table.commits[at.version]
        if at.phase is Phase.SNAPSHOT:
            changes = [(ChangeType.INSERT.value, *row) for row in table.rows(at.version)]
        size = int(str(self._request.options.get("task_rows", TASK_ROWS)))
        return [
            ChangeTask(
                version=at.version,
                timestamp_us=at.version * 1_000_000,
                position=position,
                change_source=_kind(at),
                change_type=None,
                size_bytes=100 * len(some),
                format=NAME,
                payload=Share(tuple(some)),
                num_records=len(some),
                table_id=table.table_id,
            )
            for position, some in enumerate(
                changes[first : first + size] for first in range(0, len(changes), size)
            )
        ]

    async def schema_steps(self, start: Offset, end: Offset) -> AsyncIterator[SchemaStep]:
        if start.is_before(end):
            yield SchemaStep(offset=start, version=start.version, schema=SCHEMA)

    def read(self, task: ChangeTask, limit: BatchLimit) -> Iterator[ChangeBatch]:
        return MemoryReader().read(task, limit, self._request.columns)

    @property
    def run_bytes(self) -> int:
        return 0

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        return MemoryReader().read_run(tasks, limit, self._request.columns)

    async def backlog(self, start: Offset) -> Backlog:
        table = await self.look()
        waiting = [v for v in table.commits if v >= start.version]
        return Backlog(
            head_version=Version(table.head),
            versions=len(waiting),
            head_timestamp_ms=table.head * 1000,
            oldest_undelivered_timestamp_ms=min(waiting) * 1000 if waiting else None,
        )

    async def commit(self, end: Offset) -> None:
        pass

    async def arrow_schema(self) -> pa.Schema:
        return await self.schema_at(Version(self._table.head), self._request.columns)

    async def schema_at(self, version: Version, columns: Sequence[str] | None = None) -> pa.Schema:
        if unknown := [name for name in columns or () if name not in SCHEMA.names]:
            raise UsageError(f"There is no column {unknown[0]!r}.")
        if version not in self._table.commits:
            raise MissingVersionError(f"Version {version} is not there.")
        return pa.schema([f for f in SCHEMA if columns is None or f.name in columns])


def _kind(at: Offset) -> ChangeSourceKind:
    is_snapshot = at.phase is Phase.SNAPSHOT
    return ChangeSourceKind.SNAPSHOT if is_snapshot else ChangeSourceKind.CDC


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

    async def detect(self, store: ObjectStore, root: str) -> bool:
        return [each async for each in store.list_from(f"{root}/{FOLDER}")] != []

    def folder(self, place: str) -> str:
        return f"{path_of(place)}/{FOLDER}"

    def is_at(self, place: str) -> bool:
        return Path(self.folder(place)).is_dir()

    async def open(self, place: str, request: OpenRequest) -> MemorySource:
        store, root = request.stores.locate(place)
        if not await self.detect(store, root):
            raise NotATableError(f"{place} holds no table of the tests.")
        wrapped = request.wrap_store(store) if request.wrap_store else store
        source = MemorySource(place, request, wrapped, root)
        await source.look()
        return source
