"""A small hand-written dataset, and a writer that keeps changing it: for `demo` only.

Orders, partitioned by customer. Each change rewrites the partition of one customer, as Kartothek
does: data file first, then the schema, then the metadata by rename.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from tailerd.formats.demo_orders import CUSTOMERS, DemoOrders, encode_parquet, publish_file
from tailerd.formats.kartothek.metadata import CREATION_TIME, SUPPORTED_VERSION, metadata_name
from tailerd.formats.kartothek.table_schema import COMMON_METADATA
from tailerd.formats.parts import Demo

SCHEMA = pa.schema(
    [
        pa.field("amount", pa.float64()),
        pa.field("customer", pa.string()),
        pa.field("order_id", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("updated_at", pa.timestamp("us")),
    ]
)
_TABLE = "table"
_PARTITION = "customer"


class DemoDataset(DemoOrders):
    """The dataset and its writer.

    Args:
        folder: `STORE/UUID`; there must be no such dataset yet.
        seed: The same seed yields the same changes.
    """

    def __init__(self, folder: Path, seed: int = 7) -> None:
        super().__init__(folder, seed)
        self._keys: dict[str, str] = {}
        self._created = datetime.now(UTC).replace(tzinfo=None).isoformat()

    def create(self) -> None:
        """Store the first orders."""
        self.make_first_orders()
        self._store(*CUSTOMERS)

    def change(self) -> str:
        """Store one more state: location, update or delete an order; return which."""
        change = self.change_order()
        order = change.after or change.before or {}
        self._store(str(order[_PARTITION]))
        return change.kind

    def _store(self, *customers: str) -> None:
        """Rewrite the partitions of customers, then the metadata."""
        store, name = self.folder.parent, self.folder.name
        for customer in customers:
            rows = [row for row in self.orders.values() if row[_PARTITION] == customer]
            self._keys.pop(customer, None)
            if rows:
                folder = f"{name}/{_TABLE}/{_PARTITION}={quote(customer)}"
                key = f"{folder}/{uuid.uuid4().hex}.parquet"
                table = pa.Table.from_pylist(rows, SCHEMA).drop_columns([_PARTITION])
                publish_file(store / key, encode_parquet(table))
                self._keys[customer] = key
        publish_file(store / name / _TABLE / COMMON_METADATA, encode_parquet(SCHEMA.empty_table()))
        publish_file(store / metadata_name(name, "json"), json.dumps(self._metadata(name)).encode())

    def _metadata(self, name: str) -> dict[str, object]:
        start = len(f"{name}/{_TABLE}/")
        partitions = {
            key[start : -len(".parquet")]: {"files": {_TABLE: key}} for key in self._keys.values()
        }
        return {
            "dataset_metadata_version": SUPPORTED_VERSION,
            "dataset_uuid": name,
            "metadata": {CREATION_TIME: self._created},
            "partitions": partitions,
            "partition_keys": [_PARTITION],
        }


DEMO = Demo(table=DemoDataset)
