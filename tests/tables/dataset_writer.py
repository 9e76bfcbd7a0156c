"""Writes Kartothek datasets as their specification says; shares nothing with the reader."""

from __future__ import annotations

import io
import json
import os
import struct
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Rows = list[dict[str, object]]
Fate = Callable[[str], bool]

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


class DatasetWriter:
    """One dataset. Data files come first, then the schema, then the metadata, by rename.

    Args:
        store: The folder that holds it.
        uuid: Its name.
        schema: Of the table.
        partition_on: Columns whose values are said by paths.
        suffix: Of the metadata file: `json` or `msgpack.zstd`.
    """

    def __init__(
        self,
        store: Path,
        uuid: str = "ds",
        *,
        schema: pa.Schema = SCHEMA,
        partition_on: Sequence[str] = (),
        table: str = "table",
        suffix: str = "json",
    ) -> None:
        self.store, self.uuid, self.schema, self.table = store, uuid, schema, table
        self.partition_on = tuple(partition_on)
        self.suffix = suffix
        self.partitions: dict[str, dict[str, str]] = {}
        self.creation_time = _now()
        self.user_metadata: dict[str, object] = {}
        self.indices: dict[str, str] = {}

    @property
    def location(self) -> Path:
        return self.store / self.uuid

    @property
    def metadata_path(self) -> Path:
        return self.store / f"{self.uuid}.by-dataset-metadata.{self.suffix}"

    def path(self, key: str) -> Path:
        return self.store / key

    def write(self, rows: Rows, label: str | None = None) -> list[str]:
        """Write data files, one for each partition; return their labels. No metadata yet."""
        whole = pa.Table.from_pylist(rows, self.schema)
        name = label or uuids.uuid4().hex
        labels = []
        for folder, part in self._split(whole):
            found = f"{folder}{name}"
            key = f"{self.uuid}/{self.table}/{found}.parquet"
            _replace(self.path(key), _parquet(part))
            self.partitions.setdefault(found, {})[self.table] = key
            labels.append(found)
        return labels

    def _split(self, whole: pa.Table) -> Iterable[tuple[str, pa.Table]]:
        if not self.partition_on:
            yield "", whole
            return
        values = whole.select(self.partition_on).group_by(list(self.partition_on)).aggregate([])
        for row in values.to_pylist():
            mask = None
            for column, value in row.items():
                equal = pc.equal(whole[column], pa.scalar(value, whole[column].type))
                mask = equal if mask is None else pc.and_(mask, equal)
            pieces = (
                f"{quote(c)}={quote(v if isinstance(v, bytes) else str(v))}/"
                for c, v in row.items()
            )
            yield "".join(pieces), whole.filter(mask).drop_columns(list(self.partition_on))

    def commit(self, rows: Rows | None = None, *, without: Fate | None = None) -> list[str]:
        """Write rows, drop the partitions whose label `without` says, and store the metadata."""
        old = dict(self.partitions)
        labels = self.write(rows) if rows else []
        if without is not None:
            for label in [each for each in old if without(each)]:
                del self.partitions[label]
        self.store_metadata()
        return labels

    def overwrite(self, rows: Rows, schema: pa.Schema | None = None) -> None:
        """Store the dataset again, as another one of its name."""
        self.schema = schema or self.schema
        self.partitions = {}
        self.creation_time = _now()
        self.commit(rows)

    def store_metadata(self) -> None:
        common = self.path(f"{self.uuid}/{self.table}/_common_metadata")
        sink = io.BytesIO()
        pq.write_metadata(self.schema, sink)
        _replace(common, sink.getvalue())
        _replace(self.metadata_path, self.encoded(self.content()))

    def content(self) -> dict[str, object]:
        content: dict[str, object] = {
            "dataset_metadata_version": 4,
            "dataset_uuid": self.uuid,
            "metadata": {"creation_time": self.creation_time, **self.user_metadata},
            "partitions": {label: {"files": files} for label, files in self.partitions.items()},
            "partition_keys": list(self.partition_on),
        }
        if self.indices:
            content["indices"] = self.indices
        return content

    def encoded(self, content: Mapping[str, object]) -> bytes:
        if self.suffix == "json":
            return json.dumps(content).encode()
        return bytes(pa.Codec("zstd").compress(_msgpack(content), asbytes=True))

    def collect_garbage(self) -> list[Path]:
        """Delete data files that the metadata does not name."""
        named = {self.path(key) for files in self.partitions.values() for key in files.values()}
        gone = [path for path in self.location.rglob("*.parquet") if path not in named]
        for path in gone:
            path.unlink()
        return gone

    def drop(self) -> None:
        """Delete the dataset, its metadata first."""
        self.metadata_path.unlink()
        for path in self.location.rglob("*"):
            if path.is_file():
                path.unlink()
        self.partitions = {}
        self.creation_time = _now()


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).replace(tzinfo=None).isoformat()


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, version="2.6")
    return sink.getvalue()


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)


def _msgpack(value: object) -> bytes:
    """Encode maps, lists, texts and numbers, as the msgpack specification says."""
    if isinstance(value, Mapping):
        body = b"".join(_msgpack(k) + _msgpack(v) for k, v in value.items())
        return b"\xdf" + struct.pack(">I", len(value)) + body
    if isinstance(value, str):
        text = value.encode()
        return b"\xdb" + struct.pack(">I", len(text)) + text
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(_msgpack, value))
    assert isinstance(value, int)
    return b"\xd3" + struct.pack(">q", value)
