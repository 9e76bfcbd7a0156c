"""Writes Iceberg tables with pyiceberg, in this process; the catalog is an SQLite file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
NAMESPACE = "lake"
NAME = f"{NAMESPACE}.orders"
Rows = list[dict[str, Any]]


class IcebergWriter:
    """A table and its writer.

    Args:
        location: Where; there must be no table yet. The catalog is next to it.
        schema: Of the rows.
        properties: Of the table.
    """

    def __init__(
        self,
        location: Path,
        *,
        schema: pa.Schema = SCHEMA,
        properties: dict[str, str] | None = None,
    ) -> None:
        self.location = location
        self.schema = schema
        self._properties = properties or {}
        self._table: Any = None

    @property
    def catalog_file(self) -> Path:
        """The catalog's database."""
        return self.location.parent / f"{self.location.name}-catalog.db"

    @property
    def catalog(self) -> Any:
        """The catalog."""
        from pyiceberg.catalog.sql import SqlCatalog

        uri = f"sqlite:///{self.catalog_file}"
        return SqlCatalog("tests", uri=uri, warehouse=str(self.location.parent))

    @property
    def table(self) -> Any:
        """The table as pyiceberg has it; created on first use."""
        if self._table is None:
            catalog = self.catalog
            catalog.create_namespace_if_not_exists(NAMESPACE)
            self._table = catalog.create_table(
                NAME, self.schema, location=str(self.location), properties=self._properties
            )
        return self._table

    def append(self, rows: Rows) -> int:
        """Append rows; return the version."""
        self.table.append(pa.Table.from_pylist(rows, self.schema))
        return self.version

    def delete(self, where: str) -> int:
        """Delete rows; return the version."""
        self.table.delete(where)
        return self.version

    @property
    def version(self) -> int:
        """The newest version."""
        snapshot = self.table.current_snapshot()
        if self.table.metadata.format_version == 1:
            return int(snapshot.timestamp_ms)
        return int(snapshot.sequence_number)

    def expire_before(self, version: int) -> None:
        """Let the history begin at a version."""
        old = [
            each.snapshot_id
            for each in self.table.metadata.snapshots
            if each.sequence_number < version
        ]
        self.table.maintenance.expire_snapshots().by_ids(old).commit()

    def drop(self) -> None:
        """Drop the table in the catalog; its files stay."""
        self.catalog.drop_table(NAME)
        self._table = None
