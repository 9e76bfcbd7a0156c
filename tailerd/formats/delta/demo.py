"""A small hand-written Delta table with a change data feed, and its writer: for `demo` only."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from decimal import Decimal

import pyarrow as pa

from tailerd.formats.delta.protocol.log_path import LOG_FOLDER, commit_name
from tailerd.formats.demo_orders import DemoOrders, Order, encode_parquet, publish_file
from tailerd.formats.parts import Demo

SCHEMA = pa.schema(
    {
        "order_id": pa.int64(),
        "customer": pa.string(),
        "amount": pa.decimal128(10, 2),
        "status": pa.string(),
        "updated_at": pa.timestamp("us", tz="UTC"),
    }
)
_DELTA_TYPES = ("long", "string", "decimal(10,2)", "string", "timestamp")
_KINDS = {
    "insert": ("WRITE", "", "insert"),
    "update": ("UPDATE", "update_preimage", "update_postimage"),
    "delete": ("DELETE", "delete", ""),
}
"""Operation, and the change types of the row before and after, by kind of change."""


class DemoTable(DemoOrders):
    """The table and its writer: every change rewrites its one data file."""

    version = -1
    _file: dict[str, object] | None = None

    def create(self) -> None:
        """Commit version 0: the metadata and the first orders."""
        self.make_first_orders()
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in zip(SCHEMA.names, _DELTA_TYPES, strict=True)
        ]
        metadata = {
            "id": str(uuid.uuid4()),
            "name": "orders",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {"delta.enableChangeDataFeed": "true"},
            "createdTime": time.time_ns() // 1_000_000,
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 4}
        self._commit("CREATE TABLE AS SELECT", {"protocol": protocol}, {"metaData": metadata})

    def change(self) -> str:
        """Commit one more version: an insert, an update or a delete; return which."""
        change = self.change_order()
        operation, before, after = _KINDS[change.kind]
        rows = [row for row in (change.before, change.after) if row is not None]
        changes = pa.array([kind for kind in (before, after) if kind])
        feed = _table(rows).append_column("_change_type", changes)
        self._commit(operation, {"cdc": self._write("_change_data/cdc", feed, False)})
        return operation

    def _commit(self, operation: str, *actions: dict[str, object]) -> None:
        now_ms = time.time_ns() // 1_000_000
        before, stats = self._file, json.dumps({"numRecords": len(self.orders)})
        self._file = {**self._write("part", _table(self.orders.values()), True), "stats": stats}
        info = {"timestamp": now_ms, "operation": operation, "engineInfo": "tailerd demo"}
        body = [{"commitInfo": info}, *actions, {"add": {**self._file, "modificationTime": now_ms}}]
        if before is not None:
            gone = {"deletionTimestamp": now_ms, "extendedFileMetadata": True}
            body.append({"remove": {**before, **gone}})
        self.version += 1
        text = "".join(json.dumps(action) + "\n" for action in body)
        publish_file(self.folder / LOG_FOLDER / commit_name(self.version), text.encode())

    def _write(self, name: str, rows: pa.Table, is_data: bool) -> dict[str, object]:
        path, content = f"{name}-{uuid.uuid4()}.snappy.parquet", encode_parquet(rows)
        publish_file(self.folder / path, content)
        return {
            "path": path,
            "partitionValues": {},
            "size": len(content),
            "dataChange": is_data,
        }


def _table(rows: Iterable[Order]) -> pa.Table:
    amounts = [{**row, "amount": Decimal(f"{row['amount']:.2f}")} for row in rows]
    return pa.Table.from_pylist(amounts, SCHEMA)


DEMO = Demo(table=DemoTable, maintenance={"checkpoint": {"every_commits": 20}})
