"""Writes real Delta tables for tests: any log state, feature and layout, a few words each.

`tests/README.md` has the catalogue. Everything is deterministic: names, identifiers and times
depend only on the calls made, so that a failure can be read.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.tables import delta_schema, naive_log
from tests.tables.checkpoints import CheckpointWriter, Layout, Stats, hint_checksum
from tests.tables.delta_schema import Field, field
from tests.tables.naive_log import Action
from tests.tables.table_files import START_MS as START_MS
from tests.tables.table_files import Row, TableFiles, set_mtime

Mapping_ = Literal["none", "name", "id"]

TABLE_ID = "5f1d0f6e-7a11-4e2b-9c1d-000000000001"

DEFAULT_FIELDS = (("id", "long"), ("name", "string"))

CDF = {"delta.enableChangeDataFeed": "true"}
IN_COMMIT_TIMESTAMPS = {"delta.enableInCommitTimestamps": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one commit wrote."""

    version: int
    path: Path
    mtime_ms: int
    actions: tuple[Action, ...]

    @property
    def adds(self) -> list[Action]:
        """The commit's `add` actions, as `remove` and `with_vector` take them."""
        return [action for action in self.actions if "add" in action]


class TableBuilder(TableFiles):
    """One table in `folder`; nothing is written before `create` or `commit`.

    Attributes:
        log: The table's `_delta_log`.
        partition_by, properties, mapping: What the next `metadata()` says.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fields: Sequence[Field | tuple[str, delta_schema.DeltaType]] = DEFAULT_FIELDS,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        mapping: Mapping_ = "none",
        reader_features: Sequence[str] | None = None,
        writer_features: Sequence[str] | None = None,
        table_id: str = TABLE_ID,
        start_ms: int | None = START_MS,
    ) -> None:
        """Describe a table.

        Args:
            fields: (name, Delta type) pairs, or fields of `delta_schema.field`.
            mapping: Column mapping; physical names become `col-0001`, ...
            reader_features: None for a protocol without features (1, 2), or (2, 5) with mapping;
                a list makes it (3, 7). Reader features are writer features too.
            start_ms: Time of version 0; None dates files by the real clock.
        """
        parsed = [_as_field(item) for item in fields]
        super().__init__(folder, parsed, partition_by, table_id, start_ms)
        self.log = folder / "_delta_log"
        self.properties = dict(properties or {})
        self.mapping: Mapping_ = mapping
        self._reader_features = reader_features
        self._writer_features = writer_features
        self._next_column_id = itertools.count(1)
        if mapping != "none":
            self.properties["delta.columnMapping.mode"] = mapping
            self._assign_mapping()

    # ------------------------------------------------------------------ commits

    def create(self, *actions: Action, **options: Any) -> Commit:
        """Commit the next version with protocol and metadata, and further `actions`."""
        options.setdefault("operation", "CREATE TABLE")
        return self.commit(self.protocol(), self.metadata(), *actions, **options)

    def append(self, rows: Iterable[Row], **options: Any) -> Commit:
        """Commit the rows in one new file for each partition; creates the table if needed."""
        files = self.data_files(rows)
        write = self.commit if self.version >= 0 else self.create
        return write(*files, **options)

    def commit(
        self,
        *actions: Action,
        version: int | None = None,
        mtime_ms: int | None = None,
        operation: str = "WRITE",
        metrics: Mapping[str, str] | None = None,
        in_commit_ms: int | None = None,
        commit_info: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> Commit:
        """Write the actions as the next (or that) version, atomically; an older one is replaced.

        Args:
            mtime_ms: Modification time of the commit file.
            metrics, tags: `operationMetrics` and `tags`.
            in_commit_ms: In-commit timestamp; by default half a second after the file's own time
                where the property is set, else none.
        """
        number = self.version + 1 if version is None else version
        time_ms = self.time_of(number) if mtime_ms is None else mtime_ms
        if in_commit_ms is None and self.properties.get("delta.enableInCommitTimestamps") == "true":
            in_commit_ms = time_ms + 500
        written = list(actions)
        if commit_info:
            info: Action = {"timestamp": time_ms, "operation": operation, "engineInfo": "tests"}
            info["operationParameters"] = {}
            if in_commit_ms is not None:
                info = {"inCommitTimestamp": in_commit_ms, **info}
            if metrics is not None:
                info["operationMetrics"] = dict(metrics)
            if tags is not None:
                info["tags"] = dict(tags)
            written.insert(0, {"commitInfo": info})
        body = "".join(json.dumps(action) + "\n" for action in written).encode()
        path = self.raw_commit(body, version=number, mtime_ms=time_ms)
        return Commit(version=number, path=path, mtime_ms=time_ms, actions=tuple(written))

    def raw_commit(
        self, body: bytes, *, version: int | None = None, mtime_ms: int | None = None
    ) -> Path:
        """Write any bytes as the next (or that) commit; for damaged logs."""
        number = self.version + 1 if version is None else version
        path = self.log / f"{number:020}.json"
        self.log.mkdir(parents=True, exist_ok=True)
        temporary = self.log / f".{number}.tmp"
        temporary.write_bytes(body)
        set_mtime(temporary, self.time_of(number) if mtime_ms is None else mtime_ms)
        temporary.replace(path)
        self.version = max(self.version, number)
        return path

    def commit_path(self, version: int) -> Path:
        return self.log / f"{version:020}.json"

    # ------------------------------------------------------------------ actions

    def protocol(self, **overrides: Any) -> Action:
        """Return the `protocol` action that fits the table's features."""
        has_features = self._reader_features is not None or self._writer_features is not None
        body: Action = {"minReaderVersion": 1, "minWriterVersion": 2}
        if self.mapping != "none":
            body = {"minReaderVersion": 2, "minWriterVersion": 5}
        if has_features:
            readers = list(self._reader_features or ())
            if self.mapping != "none" and "columnMapping" not in readers:
                readers.append("columnMapping")
            writers = [*readers, *(self._writer_features or ())]
            body = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
            if readers:
                body["readerFeatures"] = readers
            body["writerFeatures"] = writers
        return {"protocol": {**body, **overrides}}

    def metadata(self, **overrides: Any) -> Action:
        """Return the `metaData` action of the current schema and properties."""
        properties = dict(self.properties)
        if self.mapping != "none":
            properties["delta.columnMapping.maxColumnId"] = str(
                delta_schema.max_mapping_id(self.fields)
            )
        body = {
            "id": self.table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema_string,
            "partitionColumns": self.partition_by,
            "configuration": properties,
            "createdTime": self._start_ms or 0,
        }
        return {"metaData": {**body, **overrides}}

    @property
    def schema_string(self) -> str:
        """The schema as `schemaString` has it."""
        return json.dumps({"type": "struct", "fields": self.fields})

    def remove(self, add: Action, *, data_change: bool = True, **overrides: Any) -> Action:
        """Return the `remove` action that ends an `add`, its deletion vector included."""
        body = add["add"]
        removed: Action = {
            "path": body["path"],
            "deletionTimestamp": self.time_of(self.version + 1),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": body["partitionValues"],
            "size": body["size"],
        }
        for name in ("deletionVector", "baseRowId", "defaultRowCommitVersion"):
            if name in body:
                removed[name] = body[name]
        return {"remove": {**removed, **overrides}}

    # ------------------------------------------------------------------ whole operations

    def delete_rows(self, add: Action, positions: Iterable[int], **options: Any) -> Commit:
        """Commit a deletion vector over `add`: the remove of the old and the add of the new."""
        marked = self.with_vector(add, positions, storage=options.pop("storage", "u"))
        return self.commit(marked, self.remove(add), **{"operation": "DELETE", **options})

    def change_metadata(
        self,
        *,
        fields: Sequence[Field | tuple[str, delta_schema.DeltaType]] | None = None,
        properties: Mapping[str, str | None] | None = None,
        **options: Any,
    ) -> Commit:
        """Commit a new schema and/or properties (None unsets one) and keep them."""
        if fields is not None:
            self.fields = [_as_field(item) for item in fields]
            if self.mapping != "none":
                self._assign_mapping()
        for name, value in (properties or {}).items():
            if value is None:
                self.properties.pop(name, None)
            else:
                self.properties[name] = value
        return self.commit(self.metadata(), **{"operation": "SET TBLPROPERTIES", **options})

    def rename_column(self, old: str, new: str) -> Commit:
        """Commit a rename; needs column mapping."""
        item = self.field_named(old)
        item["name"] = new
        return self.commit(self.metadata(), operation="RENAME COLUMN")

    def field_named(self, name: str) -> Field:
        """Return the current field of that logical name, to change it."""
        return next(item for item in self.fields if item["name"] == name)

    # ------------------------------------------------------------------ log maintenance

    def checkpoint(
        self,
        version: int | None = None,
        *,
        layout: Layout = "v1",
        parts: int = 1,
        sidecars: int = 0,
        stats: Stats = "json",
        hint: bool = True,
    ) -> list[Path]:
        """Write a checkpoint of that (default: the newest) version; return its files.

        `layout` `v1` may have several `parts`, the v2 layouts (`v2-json`, `v2-parquet`,
        `v2-classic` for the classic name) several `sidecars`. `hint` writes `_last_checkpoint`.
        """
        state = self.state(version)
        writer = CheckpointWriter(self.log, state, self.fields, stats)
        writer.write(layout, parts=parts, sidecars=sidecars, identity=self.new_uuid())
        if hint:
            more: Action = {"parts": parts} if parts > 1 else {}
            if layout.startswith("v2"):
                more["v2Checkpoint"] = {"path": writer.files[0].name}
            self.last_checkpoint(state.version, size=len(state.actions()), **more)
        return writer.files

    def last_checkpoint(self, version: int, *, checksum: bool = True, **more: Any) -> Path:
        """Write the hint `_last_checkpoint`, right or wrong; return its path."""
        hint: Action = {"version": version, "size": 1, **more}
        if checksum:
            hint["checksum"] = hint_checksum(hint)
        path = self.log / "_last_checkpoint"
        path.write_text(json.dumps(hint))
        return path

    def compact(self, first: int, last: int) -> Path:
        """Write the compaction of the commits `first`..`last`; return its path."""
        state = naive_log.replay(self.log, last, first=first)
        path = self.log / f"{first:020}.{last:020}.compacted.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in state.actions()))
        return path

    def checksum(self, version: int | None = None, **overrides: Any) -> Path:
        """Write the version checksum; `overrides` make it wrong. Return its path."""
        state = self.state(version)
        body: Action = {
            "tableSizeBytes": sum(add["size"] for add in state.adds.values()),
            "numFiles": len(state.adds),
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": state.metadata,
            "protocol": state.protocol,
            "setTransactions": list(state.transactions.values()),
            "domainMetadata": list(state.domains.values()),
        }
        path = self.log / f"{state.version:020}.crc"
        path.write_text(json.dumps({**body, **overrides}))
        return path

    # ------------------------------------------------------------------ answers

    def state(self, version: int | None = None) -> naive_log.NaiveState:
        """Return what a naive replay of the JSON commits gives."""
        return naive_log.replay(self.log, version)

    def rows(self, version: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a version, in no order, as they were given to `data_file`."""
        found = []
        for (path, vector_id), _ in self.state(version).adds.items():
            deleted = self.deleted.get(vector_id, frozenset())
            found += [row for i, row in enumerate(self.contents[path]) if i not in deleted]
        return found

    def _assign_mapping(self) -> None:
        delta_schema.assign_mapping(self.fields, self._next_column_id, keep_names=False)


def _as_field(item: Field | tuple[str, delta_schema.DeltaType]) -> Field:
    # A copy: names and ids change, and two fields may have been given one type.
    return copy.deepcopy(item if isinstance(item, dict) else field(*item))
