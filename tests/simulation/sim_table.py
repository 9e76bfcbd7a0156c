"""A Delta table that is written while it is read, and that knows the right answer."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import random
import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.offset import Offset, Phase
from tests.simulation.chaos import Chaos
from tests.simulation.sim_store import SimStore
from tests.tables import vectors

Cell = tuple[int, str]
"""A row of the table: id and value."""
Change = tuple[int, str, int, str]
"""A change row: version, change, id and value. No two of one table are equal."""
Action = dict[str, Any]

_FEATURES = ["deletionVectors", "v2Checkpoint"]
PROTOCOL: Action = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": _FEATURES,
        "writerFeatures": _FEATURES,
    }
}


@dataclass(slots=True)
class _File:
    add: Action
    rows: list[Cell]
    deleted: set[int] = field(default_factory=set)

    @property
    def live(self) -> list[Cell]:
        return [row for position, row in enumerate(self.rows) if position not in self.deleted]


class SimTable:
    """One table.

    Attributes:
        version: The newest version, -1 before the first.
        log: The table's `_delta_log` folder.
        changes: The change rows of each version.
        snapshots: The rows of each version.
    """

    def __init__(self, store: SimStore, name: str, source: random.Random, chaos: Chaos) -> None:
        self.name = name
        self.location = f"memory://{store.name}/{name}"
        self.log = f"/{name}/_delta_log"
        self.version = -1
        self.changes: list[list[Change]] = []
        self.snapshots: list[list[Cell]] = []
        self._store = store
        self._random = source
        self._chaos = chaos
        self._files: list[_File] = []
        self._numbers = iter(range(1, 1_000_000))
        self._extra_columns = 0
        self._replacements = 0

    @property
    def end(self) -> tuple[int, int, int]:
        """The order of the offset behind the newest version."""
        return (self.version + 1, 1, 0)

    def expected_from(self, start: Offset, end: Offset | None = None) -> list[Change]:
        """Return all that there is to deliver from `start` on, or between two whole commits."""
        found: list[Change] = []
        if start.phase is Phase.SNAPSHOT:
            found = [(start.version, "insert", *cell) for cell in self.snapshots[start.version]]
        first = start.version + (start.phase is Phase.SNAPSHOT)
        until = self.version + 1 if end is None else end.version
        return found + [change for changes in self.changes[first:until] for change in changes]

    async def create(self) -> None:
        """Commit version 0."""
        await self._commit([PROTOCOL, self._metadata(), *await self._append(1)])

    async def change(self) -> None:
        """Commit the next version, of some kind."""
        kinds = {
            self._many: 40,
            self._very_many: 8,
            self._update_with_change_file: 12,
            self._rewrite: 8,
            self._delete_by_vector: 14,
            self._remove_file: 5,
            self._compact: 5,
            self._nothing: 4,
            self._alter: 4,
            self._replace: 3,
        }
        [kind] = self._random.choices(list(kinds), list(kinds.values()))
        await self._commit(await kind())

    async def clean_up(self) -> None:
        """Write a checkpoint of the newest version and remove the commits before it."""
        head: list[Action] = [{"checkpointMetadata": {"version": self.version}}, PROTOCOL]
        adds = [{"add": {**file.add, "dataChange": False}} for file in self._files]
        actions = [*head, self._metadata(), *adds]
        body = "".join(json.dumps(action) + "\n" for action in actions).encode()
        identity = uuid.UUID(int=self.version)
        prefix = f"{self.log}/{self.version:020}.checkpoint"
        await self._store.put(f"{prefix}.{identity}.json", body)
        for version in range(self.version):
            await self._store.delete(f"{self.log}/{version:020}.json")

    # ------------------------------------------------------------------ kinds of commits

    async def _many(self) -> list[Action]:
        return await self._append(self._random.randint(1, 3))

    async def _very_many(self) -> list[Action]:
        return await self._append(self._random.randint(5, 12))

    async def _append(self, files: int) -> list[Action]:
        actions = []
        for _ in range(files):
            rows = [self._new_row() for _ in range(self._random.randint(1, 4))]
            actions.append(await self._add(rows))
            self._tell("insert", rows)
        return actions

    async def _update_with_change_file(self) -> list[Action]:
        file = self._pick()
        if file is None:
            return await self._many()
        old = self._random.choice(file.live)
        new = (old[0], self._value())
        # Of a commit with change files nothing else counts.
        rows = [new if row == old else row for row in file.live]
        changed = [old, new]
        kinds = ["update_preimage", "update_postimage"]
        self._tell("update_preimage", [old])
        self._tell("update_postimage", [new])
        path = f"_change_data/cdc-{next(self._numbers):05}.parquet"
        size = await self._put_rows(path, changed, kinds)
        cdc = {"path": path, "partitionValues": {}, "size": size, "dataChange": False}
        return [self._drop(file), await self._add(rows), {"cdc": cdc}]

    async def _rewrite(self) -> list[Action]:
        file = self._pick()
        if file is None:
            return await self._many()
        rows = [(key, self._value()) for key, _ in file.live]
        self._tell("delete", file.live)
        self._tell("insert", rows)
        return [self._drop(file), await self._add(rows)]

    async def _delete_by_vector(self) -> list[Action]:
        file = self._pick()
        if file is None or len(file.live) < 2:
            return await self._many()
        positions = [position for position in range(len(file.rows)) if position not in file.deleted]
        gone = set(self._random.sample(positions, self._random.randint(1, len(positions) - 1)))
        self._tell("delete", [file.rows[position] for position in sorted(gone)])
        remove = self._drop(file)
        deleted = file.deleted | gone
        add = {**file.add, "deletionVector": vectors.inline(deleted)}
        self._files.append(_File(add, file.rows, deleted))
        return [{"add": add}, remove]

    async def _remove_file(self) -> list[Action]:
        file = self._pick()
        if file is None:
            return await self._nothing()
        self._tell("delete", file.live)
        return [self._drop(file)]

    async def _compact(self) -> list[Action]:
        old = self._files[:3]
        rows = [row for file in old for row in file.live]
        if not rows:
            return await self._nothing()
        removes = [self._drop(file, data_change=False) for file in old]
        return [*removes, await self._add(rows, data_change=False)]

    async def _nothing(self) -> list[Action]:
        return []

    async def _alter(self) -> list[Action]:
        self._extra_columns += 1
        return [self._metadata()]

    async def _replace(self) -> list[Action]:
        """As `CREATE OR REPLACE TABLE ... AS SELECT`: other rows, and another id in one log."""
        self._replacements += 1
        removes = []
        for file in list(self._files):
            self._tell("delete", file.live)
            removes.append(self._drop(file))
        return [self._metadata(), *removes, *await self._append(self._random.randint(0, 2))]

    # ------------------------------------------------------------------ parts of commits

    async def _commit(self, actions: list[Action]) -> None:
        self.version += 1
        self.snapshots.append([row for file in self._files for row in file.live])
        if len(self.changes) == self.version:
            self.changes.append([])
        info = {"commitInfo": {"timestamp": 0, "operation": "WRITE"}}
        body = "".join(json.dumps(action) + "\n" for action in [info, *actions]).encode()
        await self._publish(f"{self.log}/{self.version:020}.json", body)

    async def _publish(self, path: str, body: bytes) -> None:
        """Make a commit visible; by chance half of it first, as writers without rename do."""
        if self.version and self._chaos.hits(self._chaos.stale_rate / 3):
            self._store.show_late(path, self._random.uniform(0, self._chaos.stale_seconds))
        if self.version and self._chaos.hits(self._chaos.torn_rate):
            cut = self._random.randint(0, len(body) - 2)
            # A piece that ends with a line would be a commit of its own.
            while b"\n" in body[max(0, cut - 1) : cut + 1]:
                cut -= 1
            await self._store.put(path, body[:cut])
            await asyncio.sleep(self._random.uniform(0.01, 3))
        await self._store.put(path, body)

    def _metadata(self) -> Action:
        kinds = {"id": "long", "value": "string"}
        kinds |= {f"extra{number}": "string" for number in range(self._extra_columns)}
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in kinds.items()
        ]
        body = {
            "id": f"id-of-{self.name}-{self._replacements}",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {"delta.enableChangeDataFeed": "true"},
            "createdTime": 0,
        }
        return {"metaData": body}

    def _pick(self) -> _File | None:
        files = [file for file in self._files if file.live]
        return self._random.choice(files) if files else None

    def _drop(self, file: _File, *, data_change: bool = True) -> Action:
        self._files.remove(file)
        body = {key: file.add[key] for key in ("path", "partitionValues", "size")}
        if "deletionVector" in file.add:
            body["deletionVector"] = file.add["deletionVector"]
        return {"remove": {**body, "deletionTimestamp": 0, "dataChange": data_change}}

    async def _add(self, rows: list[Cell], *, data_change: bool = True) -> Action:
        path = f"part-{next(self._numbers):05}.parquet"
        size = await self._put_rows(path, rows, None)
        add = {
            "path": path,
            "partitionValues": {},
            "size": size,
            "modificationTime": 0,
            "dataChange": data_change,
        }
        self._files.append(_File({**add, "dataChange": True}, rows))
        return {"add": add}

    async def _put_rows(self, path: str, rows: list[Cell], kinds: list[str] | None) -> int:
        body = _parquet(tuple(rows), None if kinds is None else tuple(kinds))
        await self._store.put(f"/{self.name}/{path}", body)
        return len(body)

    def _new_row(self) -> Cell:
        return next(self._numbers), self._value()

    def _value(self) -> str:
        return f"v{next(self._numbers)}"

    def _tell(self, change: str, rows: list[Cell]) -> None:
        if len(self.changes) == self.version + 1:
            self.changes.append([])
        self.changes[-1] += [(self.version + 1, change, *row) for row in rows]


@functools.lru_cache(maxsize=4096)
def _parquet(rows: tuple[Cell, ...], kinds: tuple[str, ...] | None) -> bytes:
    columns = {
        "id": pa.array([key for key, _ in rows], pa.int64()),
        "value": pa.array([value for _, value in rows], pa.string()),
    }
    if kinds is not None:
        columns["_change_type"] = pa.array(kinds, pa.string())
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target, compression="none", write_statistics=False)
    return target.getvalue()
