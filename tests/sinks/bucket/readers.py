"""Readers of a sink's files: by its manifest, and by listing all files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.errors import FileMissingError
from tailerd.storage.base import ListsFolders, ObjectStore
from tailerd.storage.io_thread import io_thread
from tests.clouds.buckets import BucketServer

Row = tuple[int, str, int]


def manifest_rows(server: BucketServer, url: str) -> list[Row]:
    """Return the rows of all deliveries, in order: id, `_change_type`, `_commit_version`."""
    store, root = server.stores().locate(url)
    rows: list[Row] = []
    for entry in manifest_entries(store, root):
        for file in entry["files"]:
            found = read_rows(file["path"], get(store, f"{root}/{file['path']}"))
            assert len(found) == file["rows"]
            rows += found
    return rows


def manifest_entries(store: ObjectStore, root: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a manifest."""
    number = 1
    while True:
        try:
            yield json.loads(get(store, f"{root}/_tailerd/{number:020d}.json"))
        except FileMissingError:
            return
        number += 1


def download(server: BucketServer, url: str, target: Path) -> Path:
    """Copy the whole folder of a sink to a local one, for readers that list files."""
    store, root = server.stores().locate(url)
    for path in io_thread().call(_list(store, root)):
        local = target / path.removeprefix(f"{root}/")
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(get(store, path))
    return target


def get(store: ObjectStore, path: str) -> bytes:
    """Return a file."""
    return io_thread().call(store.get(path))


def read_rows(name: str, data: bytes) -> list[Row]:
    """Return the rows of one file."""
    columns = ("id", "_change_type", "_commit_version")
    if name.endswith(".parquet"):
        table = pq.read_table(io.BytesIO(data))
        return list(zip(*(table.column(each).to_pylist() for each in columns), strict=True))
    compression = {"gz": "gzip", "zst": "zstd"}[name.rpartition(".")[2]]
    with pa.CompressedInputStream(io.BytesIO(data), compression) as stream:
        lines = [json.loads(line) for line in stream.read().splitlines()]
    return [(line["id"], line["_change_type"], line["_commit_version"]) for line in lines]


async def _list(store: ObjectStore, folder: str) -> list[str]:
    paths = [meta.path async for meta in store.list_from(folder)]
    assert isinstance(store, ListsFolders)
    for name in [each async for each in store.list_folders(folder)]:
        paths += await _list(store, f"{folder}/{name}")
    return paths
