"""A small Delta table made by hand, and a writer that keeps committing to it: for `demo` only.

It inserts, updates and deletes orders with the change data feed on, as any writer would: Parquet
files first, then one log entry put in place atomically.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import CHANGE_TYPE
from tailerd.changefeed.change_task import ChangeType
from tailerd.formats.delta.protocol.log_path import LOG_FOLDER, commit_name

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("status", pa.string()),
        pa.field("updated_at", pa.timestamp("us", tz="UTC")),
    ]
)
_DELTA_TYPES = ("long", "string", "decimal(10,2)", "string", "timestamp")
_CUSTOMERS = ("Ada", "Bola", "Chiara", "Dmitri", "Emre", "Fatima", "Gyeong", "Hinemoa")
_STEPS = {"placed": "paid", "paid": "shipped", "shipped": "delivered"}
_FIRST_ROWS = 8

Row = dict[str, object]


@dataclass(slots=True)
class _LiveFile:
    """The one data file of the table; every change rewrites it, which is fine for a few rows."""

    path: str
    size_bytes: int


class DemoTable:
    """The table and its writer.

    Args:
        folder: Where the table is made; must not hold one yet.
        seed: Makes the same changes again.
    """

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self._folder = folder
        self.version = -1
        self._random = random.Random(seed)
        self._rows: dict[int, Row] = {}
        self._next_id = 1001
        self._file: _LiveFile | None = None
        self._file_rows = 0

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    def create(self) -> None:
        """Commit version 0: the metadata and the first orders."""
        (self._folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
        for _ in range(_FIRST_ROWS):
            self._insert()
        self._commit("CREATE TABLE AS SELECT", [_protocol(), _metadata()], changes=[])

    def change(self) -> str:
        """Commit one more version: an insert, an update or a delete; return which."""
        draw = self._random.random()
        if draw < 0.45 or len(self._rows) < 3:
            operation, changes = "WRITE", [(ChangeType.INSERT, self._insert())]
        elif draw < 0.85:
            operation, changes = "UPDATE", self._update()
        else:
            operation, changes = "DELETE", self._delete()
        self._commit(operation, [], changes)
        return operation

    def _insert(self) -> Row:
        row: Row = {
            "order_id": self._next_id,
            "customer": self._random.choice(_CUSTOMERS),
            "amount": f"{self._random.randrange(500, 50_000) / 100:.2f}",
            "status": "placed",
            "updated_at": datetime.now(UTC),
        }
        self._rows[self._next_id] = row
        self._next_id += 1
        return row

    def _update(self) -> list[tuple[ChangeType, Row]]:
        key = self._random.choice(list(self._rows))
        before = self._rows[key]
        status = _STEPS.get(str(before["status"]), "placed")
        after = {**before, "status": status, "updated_at": datetime.now(UTC)}
        self._rows[key] = after
        return [(ChangeType.UPDATE_PREIMAGE, before), (ChangeType.UPDATE_POSTIMAGE, after)]

    def _delete(self) -> list[tuple[ChangeType, Row]]:
        key = self._random.choice(list(self._rows))
        return [(ChangeType.DELETE, self._rows.pop(key))]

    def _commit(
        self,
        operation: str,
        head: list[dict[str, object]],
        changes: list[tuple[ChangeType, Row]],
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        info = {"timestamp": now_ms, "operation": operation, "engineInfo": "tailerd demo"}
        actions: list[dict[str, object]] = [{"commitInfo": info}, *head]
        if self._file is not None:
            actions.append(_remove(self._file, now_ms, self._file_rows))
        self._file = self._write(list(self._rows.values()), None)
        self._file_rows = len(self._rows)
        actions.append(_add(self._file, now_ms, self._file_rows))
        if changes:
            actions.append(self._write_changes(changes))
        self.version += 1
        self._put(commit_name(self.version), actions)

    def _write(self, rows: list[Row], change_types: list[str] | None) -> _LiveFile:
        table = _table(rows)
        name = f"part-{uuid.uuid4()}.snappy.parquet"
        if change_types is not None:
            table = table.append_column(CHANGE_TYPE, pa.array(change_types))
            name = f"_change_data/cdc-{uuid.uuid4()}.snappy.parquet"
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
        return _LiveFile(name, path.stat().st_size)

    def _write_changes(self, changes: list[tuple[ChangeType, Row]]) -> dict[str, object]:
        file = self._write([row for _, row in changes], [change.value for change, _ in changes])
        body = {
            "path": file.path,
            "partitionValues": {},
            "size": file.size_bytes,
            "dataChange": False,
        }
        return {"cdc": body}

    def _put(self, name: str, actions: list[dict[str, object]]) -> None:
        """Write the log entry aside and move it in place: readers see all of it or nothing."""
        entry = self._folder / LOG_FOLDER / name
        aside = entry.with_name(f".{name}.tmp")
        aside.write_text("".join(json.dumps(action) + "\n" for action in actions))
        aside.rename(entry)


class DeltaDemo:
    """What Delta offers to show how tailerd works; `formats.parts.Demo`."""

    maintenance: dict[str, object] | None = {"checkpoint": {"every_commits": 20}}  # noqa: RUF012

    def table(self, folder: Path, seed: int = 7) -> DemoTable:
        """Return a table that is still to be made."""
        return DemoTable(folder, seed)


def _table(rows: list[Row]) -> pa.Table:
    columns = {}
    for field in SCHEMA:
        values = [row[field.name] for row in rows]
        if pa.types.is_decimal(field.type):
            columns[field.name] = pa.array(values, pa.string()).cast(field.type)
        else:
            columns[field.name] = pa.array(values, field.type)
    return pa.table(columns, schema=SCHEMA)


def _protocol() -> dict[str, object]:
    return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}


def _metadata() -> dict[str, object]:
    fields = [
        {"name": field.name, "type": kind, "nullable": True, "metadata": {}}
        for field, kind in zip(SCHEMA, _DELTA_TYPES, strict=True)
    ]
    body = {
        "id": str(uuid.uuid4()),
        "name": "orders",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"delta.enableChangeDataFeed": "true"},
        "createdTime": time.time_ns() // 1_000_000,
    }
    return {"metaData": body}


def _add(file: _LiveFile, now_ms: int, rows: int) -> dict[str, object]:
    body = {
        "path": file.path,
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows}),
    }
    return {"add": body}


def _remove(file: _LiveFile, now_ms: int, rows: int) -> dict[str, object]:
    body = {
        "path": file.path,
        "deletionTimestamp": now_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size_bytes,
        "stats": json.dumps({"numRecords": rows}),
    }
    return {"remove": body}
