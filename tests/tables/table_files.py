"""The files of a test table: data, changes and deletion vectors, with the actions naming them."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.tables import delta_schema, vectors
from tests.tables.delta_schema import Field, partition_text, physical_name
from tests.tables.naive_log import Action

Row = Mapping[str, Any]

START_MS = 1_704_067_200_000
"""2024-01-01T00:00:00Z: version N is committed N seconds later unless the test says otherwise."""


class TableFiles:
    """Writes files below `folder` and returns their actions; commits nothing.

    Attributes:
        folder: The table.
        version: The newest version committed, -1 before the first.
        fields: The current schema's fields as `schemaString` has them.
        partition_by: Logical names of the partition columns.
        contents: The rows of every data file by its unencoded path.
        deleted: The positions of every deletion vector by its unique id.
    """

    def __init__(
        self,
        folder: Path,
        fields: list[Field],
        partition_by: Sequence[str],
        table_id: str,
        start_ms: int | None,
    ) -> None:
        self.folder = folder
        self.version = -1
        self.fields = fields
        self.partition_by = list(partition_by)
        self.table_id = table_id
        self.contents: dict[str, list[dict[str, Any]]] = {}
        self.deleted: dict[str, frozenset[int]] = {}
        self._start_ms = start_ms
        self._next_file = itertools.count(0)
        self._next_uuid = itertools.count(0)

    def time_of(self, version: int) -> int:
        """Return the time a version has unless the test says otherwise, in milliseconds."""
        if self._start_ms is None:
            return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
        return self._start_ms + version * 1000

    def data_files(self, rows: Iterable[Row], **options: Any) -> list[Action]:
        """Write one file for each combination of partition values; return the `add` actions."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            key = json.dumps([partition_text(row.get(name)) for name in self.partition_by])
            groups.setdefault(key, []).append(row)
        return [self.data_file(group, **options) for group in groups.values()]

    def data_file(
        self,
        rows: Sequence[Row] | pa.Table,
        *,
        path: str | None = None,
        partition: Mapping[str, str | None] | None = None,
        data_change: bool = True,
        stats: bool = True,
        row_group_size: int | None = None,
        **extra: Any,
    ) -> Action:
        """Write one Parquet file and return its `add` action.

        Args:
            rows: Rows by logical names, of one partition; or an Arrow table that is written as it
                is (then `partition` says the values, and `contents` is not kept).
            path: Where, relative to the table and unencoded.
            partition: Partition values by physical name, as the log has them.
            extra: Further fields of the action (`deletionVector`, `baseRowId`, `tags`, ...).
        """
        values = dict(partition or {})
        if not isinstance(rows, pa.Table) and partition is None:
            values = {
                physical_name(item): partition_text(rows[0].get(item["name"]))
                for item in self._partition_fields()
            }
        relative = path or self._new_path("part", values)
        table = rows if isinstance(rows, pa.Table) else self.to_arrow(rows)
        size = self._write_parquet(relative, table, row_group_size)
        body: Action = {
            "path": quote(relative, safe="/=:@!$&'()*+,;~"),
            "partitionValues": values,
            "size": size,
            "modificationTime": self.time_of(self.version + 1),
            "dataChange": data_change,
        }
        if stats:
            body["stats"] = json.dumps(_stats_of(table))
        if not isinstance(rows, pa.Table):
            self.contents[relative] = [dict(row) for row in rows]
        return {"add": {**body, **extra}}

    def cdc_file(
        self, rows: Sequence[Row] | pa.Table, *, partition: Mapping[str, str | None] | None = None
    ) -> Action:
        """Write one change file, rows with `_change_type`; return its `cdc` action."""
        values = dict(partition or {})
        if not isinstance(rows, pa.Table) and partition is None:
            values = {
                physical_name(item): partition_text(rows[0].get(item["name"]))
                for item in self._partition_fields()
            }
        table = rows
        if not isinstance(rows, pa.Table):
            kinds = pa.array([row["_change_type"] for row in rows], pa.string())
            table = self.to_arrow(rows).append_column("_change_type", kinds)
        relative = self._new_path("_change_data/cdc", values)
        size = self._write_parquet(relative, table, None)
        path = quote(relative, safe="/=:@!$&'()*+,;~")
        body = {"path": path, "partitionValues": values, "size": size, "dataChange": False}
        return {"cdc": body}

    def with_vector(
        self, add: Action, positions: Iterable[int], *, storage: str = "u", data_change: bool = True
    ) -> Action:
        """Write a deletion vector of *all* deleted positions; return the `add` that has it."""
        expected = frozenset(positions)
        if storage == "i":
            descriptor = vectors.inline(expected)
        else:
            descriptor = self.vector_file().add(expected, storage_type=storage)
        self.deleted[vectors.unique_id(descriptor)] = expected
        return {"add": {**add["add"], "deletionVector": descriptor, "dataChange": data_change}}

    def vector_file(self, *, prefix: str = "") -> vectors.VectorFile:
        """Return a new, empty deletion-vector file; `add` to it as many vectors as wanted."""
        return vectors.VectorFile(self.folder, self.new_uuid(), prefix=prefix)

    def to_arrow(self, rows: Sequence[Row]) -> pa.Table:
        """Return rows as their data file has them: physical names, no partition columns."""
        columns, names = [], []
        for item in self.fields:
            if item["name"] in self.partition_by:
                continue
            values = [
                delta_schema.physical_value(row.get(item["name"]), item["type"]) for row in rows
            ]
            parquet = delta_schema.arrow_field(item)
            columns.append(pa.array(values, parquet.type))
            names.append(parquet)
        return pa.Table.from_arrays(columns, schema=pa.schema(names))

    def _write_parquet(self, relative: str, table: pa.Table, row_group_size: int | None) -> int:
        target = self.folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, target, row_group_size=row_group_size)
        set_mtime(target, self.time_of(self.version + 1))
        return target.stat().st_size

    def _new_path(self, kind: str, values: Mapping[str, str | None]) -> str:
        folders = "".join(
            f"{name}={quote(value, safe=' ') if value else '__HIVE_DEFAULT_PARTITION__'}/"
            for name, value in values.items()
        )
        folder, _, stem = kind.rpartition("/")
        inside = f"{folder}/" if folder else ""
        return f"{inside}{folders}{stem}-{next(self._next_file):05}.parquet"

    def new_uuid(self) -> uuid.UUID:
        return uuid.uuid5(uuid.UUID(self.table_id), str(next(self._next_uuid)))

    def _partition_fields(self) -> list[Field]:
        by_name = {item["name"]: item for item in self.fields}
        return [by_name[name] for name in self.partition_by]


def set_mtime(path: Path, mtime_ms: int) -> None:
    """Date a file, in milliseconds since the epoch."""
    os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))


def _stats_of(table: pa.Table) -> Action:
    """Return the statistics of a file's plain columns."""
    stats: Action = {"numRecords": table.num_rows, "minValues": {}, "maxValues": {}}
    stats["nullCount"] = {name: table.column(name).null_count for name in table.column_names}
    for name in table.column_names:
        kind = table.schema.field(name).type
        is_plain = pa.types.is_integer(kind) or pa.types.is_string(kind)
        present = [value for value in table.column(name).to_pylist() if value is not None]
        if is_plain and present:
            stats["minValues"][name] = min(present)
            stats["maxValues"][name] = max(present)
    return stats
