"""Decodes a checkpoint's Parquet rows: file entries as arrays, everything else as actions.

Protocol: PROTOCOL.md#checkpoints, #checkpoint-schema
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import (
    CheckpointMetadata,
    DomainMetadata,
    Line,
    Metadata,
    Protocol,
    Sidecar,
    Transaction,
    num_records_in,
)
from tailerd.formats.delta.protocol.file_index import CheckpointFiles
from tailerd.formats.delta.protocol.file_key import SEPARATOR, KeyArray, hash_names, normal_path
from tailerd.formats.delta.protocol.file_tally import cardinality
from tailerd.remedies import KEEP_CHECKPOINT

IDENTITY_COLUMNS = (
    "add.path",
    "add.deletionVector.storageType",
    "add.deletionVector.pathOrInlineDv",
    "add.deletionVector.offset",
)
"""Leaf columns from which the keys of live files are computed."""

KEY_COLUMNS = (*IDENTITY_COLUMNS, "add.size", "add.deletionVector.cardinality")
"""These, and those that a snapshot counts; statistics, most of the bytes, are not read."""

FILE_COLUMNS = (
    *KEY_COLUMNS,
    "add.deletionVector.sizeInBytes",
    "add.partitionValues",
    "add.modificationTime",
)
"""Columns that describe live files, without statistics."""

STATS_COLUMNS = ("add.stats", "add.stats_parsed.numRecords")
"""Columns that may have a file's number of rows."""

COUNT_COLUMNS = ("add.path", "add.deletionVector.cardinality", *STATS_COLUMNS)
"""Leaf columns from which the rows of live files are counted."""

OTHER_ACTIONS = (
    "metaData",
    "protocol",
    "txn",
    "domainMetadata",
    "sidecar",
    "checkpointMetadata",
)
"""Top-level columns of the non-file actions."""

PROBES = {
    "metaData": "metaData.id",
    "protocol": "protocol.minReaderVersion",
    "txn": "txn.appId",
    "domainMetadata": "domainMetadata.domain",
    "sidecar": "sidecar.path",
    "checkpointMetadata": "checkpointMetadata.version",
}
"""For each, a required leaf whose null count shows whether a row group has any."""

_TYPES: dict[str, Any] = {
    "metaData": Metadata,
    "protocol": Protocol,
    "txn": Transaction,
    "domainMetadata": DomainMetadata,
    "sidecar": Sidecar,
    "checkpointMetadata": CheckpointMetadata,
}
_FIELDS = {
    "metaData": "meta_data",
    "domainMetadata": "domain_metadata",
    "checkpointMetadata": "checkpoint_metadata",
}


def other_actions(batch: pa.RecordBatch, name: str) -> Iterator[Line]:
    """Yield the non-file actions of a batch of rows.

    Raises:
        CorruptLogError: A row does not have the shape of its action.
    """
    for action in OTHER_ACTIONS:
        column = _column(batch, action)
        if column is None or column.null_count == len(column):
            continue
        for row in column.drop_null().to_pylist():
            try:
                value = msgspec.convert(plain_row(row), _TYPES[action])
            except msgspec.ValidationError as error:
                raise CorruptLogError(
                    f"The checkpoint {name} has an invalid {action} row: {error}.",
                    remedy=KEEP_CHECKPOINT,
                ) from error
            yield Line(**{_FIELDS.get(action, action): value})


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a struct row in JSON form: maps as objects, without nulls."""
    plain: dict[str, Any] = {}
    for key, value in row.items():
        if value is None:
            continue
        if isinstance(value, dict):
            plain[key] = plain_row(value)
        elif isinstance(value, list) and value and isinstance(value[0], tuple):
            plain[key] = {name: item for name, item in value if item is not None}
        else:
            plain[key] = value
    for key in ("configuration", "options"):
        # An empty Arrow map is an empty list.
        if plain.get(key) == []:
            plain[key] = {}
    return plain


def checkpoint_files(batch: pa.RecordBatch, first_row: int, root_url: str = "") -> CheckpointFiles:
    """Return keys, sizes and row numbers of the `add` entries in a batch of rows.

    Args:
        batch: At least the `KEY_COLUMNS` that the file has.
        first_row: Row number of the batch's first row within the whole checkpoint.
        root_url: The table's location, to recognise absolute paths below it.

    Raises:
        CorruptLogError: The entries do not have the shape of `add`.
    """
    add = _column(batch, "add")
    if add is None or add.null_count == len(add):
        return CheckpointFiles(
            keys=np.empty(0, np.uint64), sizes=np.empty(0, np.int64), rows=np.empty(0, np.uint32)
        )
    _check_shape(add.type)
    paths = pc.struct_field(add, "path")
    present = pc.is_valid(paths)
    rows = np.flatnonzero(present.to_numpy(zero_copy_only=False)).astype(np.uint32)
    if len(rows) < len(add):
        add = add.filter(present)
        paths = pc.struct_field(add, "path")
    sizes = pc.fill_null(pc.struct_field(add, "size"), 0).to_numpy(zero_copy_only=False)
    vectors = list(list_vectors(add))
    keys = logical_keys(paths, vectors, root_url)
    marked = paths.take(pa.array([vector.row for vector in vectors], pa.int64()))
    return CheckpointFiles(
        keys=keys,
        sizes=sizes.astype(np.int64),
        rows=rows + np.uint32(first_row),
        vector_keys=tuple(int(keys[vector.row]) for vector in vectors),
        vector_rows=tuple(vector.deleted_rows for vector in vectors),
        vector_paths=tuple(logical_keys(marked, (), root_url).tolist()),
    )


class FileVector(NamedTuple):
    """The deletion vector of one row: its identity, and how many rows it deletes."""

    row: int
    unique_id: str
    deleted_rows: int


def _check_shape(add: pa.DataType) -> None:
    types = {item.name: item.type for item in add} if pa.types.is_struct(add) else {}
    path, size = types.get("path"), types.get("size")
    is_text = path is not None and (pa.types.is_string(path) or pa.types.is_large_string(path))
    if not is_text or size is None or not pa.types.is_integer(size):
        raise CorruptLogError(
            f"The checkpoint's files have the shape {add}, which lacks a path or size.",
            remedy=KEEP_CHECKPOINT,
        )


NAMES_AT_ONCE = 4096
"""Paths converted to objects at a time: so few that the interpreter reuses their memory, which
halves the cost of hashing them."""


def logical_keys(paths: pa.Array, vectors: Iterable[FileVector], root_url: str) -> KeyArray:
    """Return the key of each file entry; shape (n,).

    Args:
        vectors: Of the entries, in their order.
    """
    keys = np.empty(len(paths), np.uint64)
    is_plain = not _may_need_decoding(paths)
    following = iter(vectors)
    vector = next(following, None)
    for start in range(0, len(paths), NAMES_AT_ONCE):
        part = paths.slice(start, NAMES_AT_ONCE)
        names: list[bytes] = part.cast(pa.binary()).to_pylist()
        if not is_plain:
            for row in _positions(pc.match_substring_regex(part, "%|:|^/")):
                names[row] = normal_path(part[row].as_py(), root_url)
        while vector is not None and vector.row < start + len(part):
            names[vector.row - start] += SEPARATOR + vector.unique_id.encode()
            vector = next(following, None)
        keys[start : start + len(part)] = hash_names(names)
    return keys


def _may_need_decoding(paths: pa.StringArray) -> bool:
    """Return whether any path may have an escape or be absolute; checks all texts at once."""
    data = paths.buffers()[2]
    text = data.to_pybytes() if data is not None else b""
    return b"%" in text or b":" in text or pc.any(pc.starts_with(paths, "/")).as_py() is True


def _positions(mask: pa.Array) -> Sequence[int]:
    found: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return found


def list_vectors(add: pa.StructArray) -> Iterator[FileVector]:
    """Yield the deletion vectors of file entries, in the order of the entries."""
    names = [field.name for field in add.type]
    if "deletionVector" not in names:
        return
    vector = pc.struct_field(add, "deletionVector")
    kind = pc.struct_field(vector, "storageType")
    if kind.null_count == len(kind):
        return
    positions = _positions(pc.is_valid(kind))
    chosen = vector.take(pa.array(positions, pa.int64()))
    for row, entry in zip(positions, chosen.to_pylist(), strict=True):
        offset = entry.get("offset")
        suffix = "" if offset is None else f"@{offset}"
        unique_id = f"{entry['storageType']}{entry['pathOrInlineDv']}{suffix}"
        yield FileVector(row, unique_id, cardinality(entry.get("cardinality") or 0))


def live_rows(add: pa.StructArray) -> int | None:
    """Return the rows of file entries without deleted ones; None if one lacks statistics.

    Args:
        add: Entries with `COUNT_COLUMNS`, without nulls.
    """
    deleted = pa.nulls(len(add), pa.int64())
    if add.type.get_field_index("deletionVector") >= 0:
        deleted = pc.struct_field(add, ["deletionVector", "cardinality"])
    return subtract_deleted(record_counts(add), deleted)


def subtract_deleted(records: pa.Int64Array, deleted: pa.Array) -> int | None:
    """Return the sum of `records` without that of `deleted`; None if a file has no record count."""
    if records.null_count:
        return None
    return (pc.sum(records).as_py() or 0) - (pc.sum(deleted).as_py() or 0)


def record_counts(add: pa.StructArray) -> pa.Int64Array:
    """Return the rows of each file entry by its statistics; null where it has none.

    Args:
        add: Entries with those of `STATS_COLUMNS` that the checkpoint has.
    """
    counts = pa.nulls(len(add), pa.int64())
    if add.type.get_field_index("stats_parsed") >= 0:
        counts = pc.struct_field(add, ["stats_parsed", "numRecords"]).cast(pa.int64())
    if counts.null_count and add.type.get_field_index("stats") >= 0:
        # Views of text, which some checkpoints have, cannot be filtered.
        texts = pc.struct_field(add, "stats").cast(pa.string()).filter(pc.is_null(counts))
        parsed = pa.array(map(num_records_in, texts.to_pylist()), pa.int64())
        counts = pc.replace_with_mask(counts, pc.is_null(counts), parsed)
    return counts
