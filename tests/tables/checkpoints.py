"""Checkpoint files of every kind, and the hint that names one."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.tables.delta_schema import Field, arrow_field, physical_name
from tests.tables.naive_log import Action, NaiveState

Stats = Literal["json", "struct", "both", "none"]
Layout = Literal["v1", "v2-json", "v2-parquet", "v2-classic"]

_TEXT_MAP = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_ADD: dict[str, pa.DataType] = {
    "path": pa.string(),
    "partitionValues": _TEXT_MAP,
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "dataChange": pa.bool_(),
    "tags": _TEXT_MAP,
    "deletionVector": _VECTOR,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
    "clusteringProvider": pa.string(),
}
_OTHERS: dict[str, dict[str, pa.DataType]] = {
    "remove": {
        "path": pa.string(),
        "deletionTimestamp": pa.int64(),
        "dataChange": pa.bool_(),
        "extendedFileMetadata": pa.bool_(),
        "partitionValues": _TEXT_MAP,
        "size": pa.int64(),
        "deletionVector": _VECTOR,
        "baseRowId": pa.int64(),
        "defaultRowCommitVersion": pa.int64(),
    },
    "metaData": {
        "id": pa.string(),
        "name": pa.string(),
        "description": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": _TEXT_MAP}),
        "schemaString": pa.string(),
        "partitionColumns": pa.list_(pa.string()),
        "configuration": _TEXT_MAP,
        "createdTime": pa.int64(),
    },
    "protocol": {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": pa.list_(pa.string()),
        "writerFeatures": pa.list_(pa.string()),
    },
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "domainMetadata": {
        "domain": pa.string(),
        "configuration": pa.string(),
        "removed": pa.bool_(),
    },
}
_V2: dict[str, dict[str, pa.DataType]] = {
    "checkpointMetadata": {"version": pa.int64(), "tags": _TEXT_MAP},
    "sidecar": {
        "path": pa.string(),
        "sizeInBytes": pa.int64(),
        "modificationTime": pa.int64(),
        "tags": _TEXT_MAP,
    },
}


class CheckpointWriter:
    """Writes checkpoints of one state into a `_delta_log` folder.

    Attributes:
        files: What was written, manifest or parts first, then sidecars.
    """

    def __init__(self, log: Path, state: NaiveState, fields: Sequence[Field], stats: Stats) -> None:
        self._log = log
        self._state = state
        self._fields = fields
        self._stats = stats
        self.files: list[Path] = []

    def write(self, layout: Layout, *, parts: int, sidecars: int, identity: uuid.UUID) -> None:
        """Write the checkpoint; `parts` counts for v1, `sidecars` for v2."""
        prefix = f"{self._state.version:020}.checkpoint"
        actions = self._state.actions()
        if layout == "v1":
            for part in range(1, parts + 1):
                middle = f".{part:010}.{parts:010}" if parts > 1 else ""
                self._write_parquet(
                    self._log / f"{prefix}{middle}.parquet", actions[part - 1 :: parts], is_v2=False
                )
            return
        top: list[Action] = [{"checkpointMetadata": {"version": self._state.version}}]
        if sidecars:
            top += [a for a in actions if "add" not in a and "remove" not in a]
            files = [a for a in actions if "add" in a or "remove" in a]
            for number in range(sidecars):
                name = f"{uuid.uuid5(identity, str(number))}.parquet"
                path = self._log / "_sidecars" / name
                path.parent.mkdir(exist_ok=True)
                self._write_parquet(path, files[number::sidecars], is_v2=False, only_files=True)
                size = path.stat().st_size
                top.append({"sidecar": {"path": name, "sizeInBytes": size, "modificationTime": 1}})
        else:
            top += actions
        middle = "" if layout == "v2-classic" else f".{identity}"
        manifest = self._log / f"{prefix}{middle}.{'json' if layout == 'v2-json' else 'parquet'}"
        if layout == "v2-json":
            manifest.write_text("".join(json.dumps(action) + "\n" for action in top))
            self.files.insert(0, manifest)
        else:
            self._write_parquet(manifest, top, is_v2=True)

    def _write_parquet(
        self, path: Path, actions: list[Action], *, is_v2: bool, only_files: bool = False
    ) -> None:
        kinds = {"add": self._add_fields(), **_OTHERS, **(_V2 if is_v2 else {})}
        if only_files:
            kinds = {kind: kinds[kind] for kind in ("add", "remove")}
        columns = []
        for kind, members in kinds.items():
            bodies = [self._row(action[kind]) if kind in action else None for action in actions]
            columns.append(pa.array(bodies, pa.struct(members)))
        pq.write_table(pa.table(columns, names=list(kinds)), path, compression="snappy")
        self.files.append(path)

    def _add_fields(self) -> dict[str, pa.DataType]:
        members = dict(_ADD)
        if self._stats in ("json", "both"):
            members["stats"] = pa.string()
        if self._stats in ("struct", "both"):
            members["stats_parsed"] = self._stats_type()
        return members

    def _stats_type(self) -> pa.DataType:
        plain = [item for item in self._fields if isinstance(item["type"], str)]
        values = pa.struct([arrow_field(item).with_nullable(True) for item in plain])
        counts = pa.struct([pa.field(physical_name(item), pa.int64()) for item in self._fields])
        return pa.struct(
            {
                "numRecords": pa.int64(),
                "minValues": values,
                "maxValues": values,
                "nullCount": counts,
                "tightBounds": pa.bool_(),
            }
        )

    def _row(self, body: Action) -> Action:
        row: Action = {
            key: list(value.items()) if isinstance(value, dict) and key in _MAPS else value
            for key, value in body.items()
        }
        if "format" in row:
            options = list(row["format"].get("options", {}).items())
            row["format"] = {**row["format"], "options": options}
        if row.get("stats") and self._stats in ("struct", "both"):
            stats = json.loads(row["stats"])
            # Texts of dates and times would need parsing; counts are what readers use.
            for bound in ("minValues", "maxValues"):
                stats[bound] = {
                    name: value
                    for name, value in stats.get(bound, {}).items()
                    if not isinstance(value, str)
                }
            row["stats_parsed"] = stats
        return row


_MAPS = {"partitionValues", "tags", "configuration"}


def hint_checksum(hint: Action) -> str:
    """Return the MD5 of the canonical form of `_last_checkpoint`, without its checksum."""
    pairs = sorted(_canonical({k: v for k, v in hint.items() if k != "checksum"}))
    text = ",".join(f"{path}={value}" for path, value in pairs)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _canonical(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        items = [(f'"{quote(str(key), safe="")}"', item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(str(index), item) for index, item in enumerate(value)]
    elif isinstance(value, str):
        return [(path, f'"{quote(value, safe="")}"')]
    else:
        return [(path, json.dumps(value))]
    return [
        pair
        for name, item in items
        for pair in _canonical(item, f"{path}+{name}" if path else name)
    ]
