"""A small hand-written Delta table, and a writer that keeps committing to it: for `demo` only.

It inserts, updates and deletes orders with the change data feed enabled: Parquet files first, then
one log entry published atomically.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import CHANGE_TYPE
from tailerd.changefeed.change_task import ChangeType
from tailerd.formats.delta.protocol.log_path import LOG_FOLDER, commit_name
from tailerd.formats.demo_orders import DemoOrders, Order
from tailerd.formats.parts import Demo

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("status", pa.string()),
        pa.field("updated_at", pa.timestamp("us", tz="UTC")),
    ]
)
_KINDS = {
    "insert": ("WRITE", ChangeType.DELETE, ChangeType.INSERT),
    "update": ("UPDATE", ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE),
    "delete": ("DELETE", ChangeType.DELETE, ChangeType.INSERT),
}
"""Operation, and the change types of the row before and after, by kind of change."""
_DELTA_TYPES = ("long", "string", "decimal(10,2)", "string", "timestamp")


@dataclass(slots=True)
class _LiveFile:
    """The one data file of the table; every change rewrites it, which is cheap for a few rows."""

    path: str
    size_bytes: int


class DemoTable(DemoOrders):
    """The table and its writer."""

    def __init__(self, folder: Path, seed: int = 7) -> None:
        super().__init__(folder, seed)
        self.version = -1
        self._file: _LiveFile | None = None
        self._file_rows = 0

    def create(self) -> None:
        """Commit version 0: the metadata and the first orders."""
        (self.folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
        self.place_first()
        self._commit("CREATE TABLE AS SELECT", [_protocol(), _metadata()], changes=[])

    def change(self) -> str:
        """Commit one more version: an insert, an update or a delete; return which."""
        change = self.change_order()
        operation, before, after = _KINDS[change.kind]
        images = ((before, change.before), (after, change.after))
        self._commit(operation, [], [(kind, row) for kind, row in images if row is not None])
        return operation

    def _commit(
        self,
        operation: str,
        head: list[dict[str, object]],
        changes: list[tuple[ChangeType, Order]],
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        info = {"timestamp": now_ms, "operation": operation, "engineInfo": "tailerd demo"}
        actions: list[dict[str, object]] = [{"commitInfo": info}, *head]
        if self._file is not None:
            actions.append(_remove(self._file, now_ms, self._file_rows))
        self._file = self._write(list(self.orders.values()), None)
        self._file_rows = len(self.orders)
        actions.append(_add(self._file, now_ms, self._file_rows))
        if changes:
            actions.append(self._write_changes(changes))
        self.version += 1
        self._put(commit_name(self.version), actions)

    def _write(self, rows: list[Order], change_types: list[str] | None) -> _LiveFile:
        table = _table(rows)
        name = f"part-{uuid.uuid4()}.snappy.parquet"
        if change_types is not None:
            table = table.append_column(CHANGE_TYPE, pa.array(change_types))
            name = f"_change_data/cdc-{uuid.uuid4()}.snappy.parquet"
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
        return _LiveFile(name, path.stat().st_size)

    def _write_changes(self, changes: list[tuple[ChangeType, Order]]) -> dict[str, object]:
        file = self._write([row for _, row in changes], [change.value for change, _ in changes])
        body = {
            "path": file.path,
            "partitionValues": {},
            "size": file.size_bytes,
            "dataChange": False,
        }
        return {"cdc": body}

    def _put(self, name: str, actions: list[dict[str, object]]) -> None:
        """Write the log entry to a temporary file and rename it: readers see all or nothing."""
        entry = self.folder / LOG_FOLDER / name
        aside = entry.with_name(f".{name}.tmp")
        aside.write_text("".join(json.dumps(action) + "\n" for action in actions))
        aside.rename(entry)


def _table(rows: list[Order]) -> pa.Table:
    columns = {}
    for field in SCHEMA:
        values = [row[field.name] for row in rows]
        if pa.types.is_decimal(field.type):
            columns[field.name] = pa.array([f"{amount:.2f}" for amount in values]).cast(field.type)
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


DEMO = Demo(table=DemoTable, maintenance={"checkpoint": {"every_commits": 20}})
