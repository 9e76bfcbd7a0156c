"""The format `states`: a table is a folder, `_states/N.json` all of it after commit N."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import tailerd.plugins as api

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
Rows = list[dict[str, Any]]


class StatesReader(api.TaskReader):
    """Reads tasks, whose payload is their rows. Another format reads a file that it names."""

    def schema(self, task: api.ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        return pa.schema([each for each in SCHEMA if columns is None or each.name in columns])

    def read(
        self,
        task: api.ChangeTask,
        limit: api.BatchLimit = api.DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: api.Stores | None = None,
    ) -> Iterator[api.ChangeBatch]:
        rows = json.loads(str(task.payload))
        for first in range(0, len(rows), limit.max_rows):
            some = rows[first : first + limit.max_rows]
            yield api.ChangeBatch(
                rows=pa.RecordBatch.from_pylist(some, self.schema(task, columns)),
                change_type=task.change_type or api.ChangeType.INSERT,
                version=task.version,
                timestamp_us=task.timestamp_us,
                change_source=task.change_source,
                positions=api.RowPositions(table_id=task.table_id, files=task.position, rows=first),
            )

    def split(self, task: api.ChangeTask, target_bytes: int) -> Sequence[api.ChangeTask]:
        return [task]


@dataclass(kw_only=True)
class Step(api.StepPlan):
    """A commit or a snapshot: a task for the deleted rows, and one for the inserted ones."""

    rows: Sequence[tuple[api.ChangeType, Rows]]

    async def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[api.ChangeTask]]:
        for position, (kind, rows) in list(enumerate(self.rows))[start:until]:
            payload = json.dumps(rows)
            yield [
                api.ChangeTask(
                    version=self.version,
                    timestamp_us=self.timestamp_us,
                    position=position,
                    change_source=self.kind,
                    change_type=kind,
                    size_bytes=len(payload),
                    format="states",
                    payload=payload,
                    table_id=self.table_id,
                )
            ]

    async def schemas(self, start: int) -> AsyncIterator[tuple[int, api.Version, pa.Schema]]:
        yield start, self.version, SCHEMA


class StatesLog(api.ConsecutiveVersions, api.TableLog):
    """The versions of one table; a poll reads all files, which a real format does not."""

    def __init__(self, location: api.TableLocation) -> None:
        self.location = location
        self._states: dict[int, Rows] = {}

    @property
    def table_id(self) -> str:
        return self._table_id

    async def refresh(self) -> api.Version:
        store, states = self.location.store, {}
        async for file in store.list_from(f"{self.location.root}/_states"):
            states[int(file.name[:8])] = json.loads(await store.get(file.path))
        if not states:
            raise api.NotATableError(f"{self.name} has no states.")
        self._table_id = str(states[max(states)]["table_id"])
        self._states = {version: state["rows"] for version, state in states.items()}
        self._head = api.Version(max(states))
        return self._head

    def _rows(self, version: int) -> Rows:
        if version not in self._states:
            raise api.MissingVersionError(f"Version {version} is not there.")
        return self._states[version]

    async def locate_version(self, version: api.Version) -> api.Version:
        if version != self._head + 1:
            self._rows(version)
        return version

    async def find_first_since(self, time: datetime) -> api.Version | None:
        later = [v for v in self._states if v * 1000 >= api.to_ms(time, round_up=True)]
        return api.Version(min(later)) if later else None

    async def find_last_until(self, time: datetime) -> api.Version:
        before = [v for v in self._states if v * 1000 <= api.to_ms(time)]
        if not before:
            raise api.MissingVersionError(f"There is no commit before {time}.")
        return api.Version(max(before))

    async def identify(self, offset: api.Offset, end: api.Offset | None = None) -> api.Offset:
        return replace(offset, table_id=self.table_id)

    async def identity(self, version: api.Version) -> api.TableIdentity:
        return api.TableIdentity(table_id=self.table_id, schema_id="" if version < 0 else "1")

    async def check(self, offset: api.Offset) -> None:
        if offset.table_id != self.table_id:
            raise api.TableRecreatedError(f"{self.name} is another table than before.")

    async def advance(
        self, start: api.Offset, walk: Callable[[], Awaitable[api.Offset]]
    ) -> api.Offset:
        await self.refresh()
        await self.check(start)
        return await walk()

    async def commit(
        self, at: api.Offset, state: str, end: api.Offset | None = None
    ) -> Step | None:
        if at.version > self._head and end is None:
            return None
        after = Counter(map(json.dumps, self._rows(at.version)))
        before = Counter(map(json.dumps, self._rows(at.version - 1) if at.version else ()))
        sides = ((api.ChangeType.DELETE, before - after), (api.ChangeType.INSERT, after - before))
        rows = [(kind, [*map(json.loads, side.elements())]) for kind, side in sides if side]
        return self._step(at, api.ChangeSourceKind.ROWS, rows)

    async def snapshot(self, at: api.Offset, state: str, end: api.Offset | None = None) -> Step:
        rows = [(api.ChangeType.INSERT, self._rows(at.version))]
        return self._step(at, api.ChangeSourceKind.SNAPSHOT, rows)

    def _step(self, at: api.Offset, kind: api.ChangeSourceKind, rows: Any) -> Step:
        return Step(
            version=at.version,
            timestamp_us=at.version * 1_000_000,
            kind=kind,
            table_id=self.table_id,
            following=self.next_version(at.version),
            rows=rows,
        )

    async def schema(self, version: api.Version | None, columns: Sequence[str] | None) -> pa.Schema:
        if unknown := set(columns or ()) - set(SCHEMA.names):
            raise api.UsageError(f"There is no column {min(unknown)}.")
        self._rows(self._head if version is None else version)
        return pa.schema([each for each in SCHEMA if columns is None or each.name in columns])

    async def backlog(self, start: api.Offset) -> api.Backlog:
        head = await self.refresh()
        waiting = [version for version in self._states if version >= start.version]
        return api.Backlog(
            head_version=head,
            versions=len(waiting),
            head_timestamp_ms=head * 1000,
            oldest_undelivered_timestamp_ms=min(waiting) * 1000 if waiting else None,
        )


def _version_of(name: str) -> api.Version | None:
    return api.Version(int(name[:8])) if name[:8].isdigit() and name.endswith(".json") else None


class StatesFormat(api.OptionalParts):
    """What the entry point names."""

    name = "states"
    capabilities = api.Capabilities(pairs_updates=False)
    names = api.CommitNames(folder="_states", suffix=".json", version_of=_version_of)
    options: frozenset[str] = frozenset()
    reader = StatesReader()

    async def detect(self, location: api.TableLocation) -> bool:
        return [each async for each in location.store.list_from(self.folder(location))] != []

    def folder(self, location: api.TableLocation) -> str:
        return f"{location.root}/_states"

    def is_at(self, location: api.TableLocation) -> bool:
        return Path(self.folder(location)).is_dir()

    async def open(self, location: api.TableLocation, request: api.OpenRequest) -> api.ChangeSource:
        log = StatesLog(location)
        await log.refresh()
        return api.open_log(log, self.reader, request)
