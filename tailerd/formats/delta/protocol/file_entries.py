"""Live files as columns: from checkpoints and commits, into stored lists, and back into objects.

Protocol: PROTOCOL.md#add-file-and-remove-file, #checkpoint-schema
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import DeletionVectorDescriptor
from tailerd.formats.delta.protocol.checkpoint import record_counts, subtract_deleted
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.remedies import KEEP_CHECKPOINT

_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "sizeInBytes": pa.int64(),
        "cardinality": pa.int64(),
        "offset": pa.int64(),
    }
)
_REQUIRED = ("pathOrInlineDv", "sizeInBytes", "cardinality")
_VALUES = pa.map_(pa.string(), pa.string())

ENTRIES = pa.schema(
    {
        "key": pa.uint64(),
        "path": pa.string(),
        "size": pa.int64(),
        "partitionValues": _VALUES,
        "modificationTime": pa.int64(),
        "numRecords": pa.int64(),
        "deletionVector": _VECTOR,
    }
)
"""The columns of `LiveFile`, named as in the log."""


def entries_of_checkpoint(add: pa.StructArray, keys: KeyArray, name: str) -> pa.RecordBatch:
    """Return the `add` entries of a checkpoint as `ENTRIES`.

    Args:
        add: Entries with `FILE_COLUMNS` and optionally `STATS_COLUMNS`, without nulls.
        keys: Their keys, shape (n,).
        name: Of the checkpoint file.

    Raises:
        CorruptLogError: An entry lacks a required field, or one has another type.
    """
    try:
        columns = [
            pa.array(keys),
            _child(add, "path", pa.string()),
            pc.fill_null(_child(add, "size", pa.int64()), 0),
            _child(add, "partitionValues", _VALUES),
            pc.fill_null(_child(add, "modificationTime", pa.int64()), 0),
            record_counts(add),
            _vectors(add),
        ]
    except (pa.ArrowException, ValueError) as error:
        raise CorruptLogError(
            f"The checkpoint {name} describes files incompletely: {error}.",
            remedy=KEEP_CHECKPOINT,
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=ENTRIES)


def entries_of_files(files: Sequence[LiveFile]) -> pa.RecordBatch:
    """Return files as `ENTRIES`."""
    vectors = [file.deletion_vector for file in files]
    columns = [
        pa.array(np.array([file.key for file in files], np.uint64)),
        pa.array([file.path for file in files], pa.string()),
        pa.array([file.size_bytes for file in files], pa.int64()),
        pa.array([file.partition_values for file in files], _VALUES),
        pa.array([file.modification_time_ms for file in files], pa.int64()),
        pa.array([file.num_records for file in files], pa.int64()),
        pa.array([_as_row(vector) for vector in vectors], _VECTOR),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRIES)


def files_of_entries(entries: pa.RecordBatch) -> list[LiveFile]:
    """Return `ENTRIES` as objects, in their order."""
    return [
        LiveFile(
            key=key,
            path=path,
            size_bytes=size,
            partition_values=tuple(values or ()),
            modification_time_ms=time,
            num_records=records,
            deletion_vector=vector and _as_vector(vector),
        )
        for key, path, size, values, time, records, vector in zip(
            *(column.to_pylist() for column in entries.columns), strict=True
        )
    ]


def count_live_rows(entries: pa.RecordBatch) -> int | None:
    """Return the rows of `ENTRIES` without deleted ones; None if one lacks statistics."""
    deleted = pc.struct_field(entries.column("deletionVector"), "cardinality")
    return subtract_deleted(entries.column("numRecords"), deleted)


def _child(add: pa.StructArray, name: str, kind: pa.DataType) -> pa.Array:
    if add.type.get_field_index(name) < 0:
        return pa.nulls(len(add), kind)
    return pc.struct_field(add, name).cast(kind)


def _vectors(add: pa.StructArray) -> pa.StructArray:
    if add.type.get_field_index("deletionVector") < 0:
        return pa.nulls(len(add), _VECTOR)
    given = pc.struct_field(add, "deletionVector")
    children = {field.name: _child(given, field.name, field.type) for field in _VECTOR}
    is_present = pc.is_valid(children["storageType"])
    for name in _REQUIRED:
        if pc.any(pc.and_(is_present, pc.is_null(children[name]))).as_py():
            raise ValueError(f"a deletion vector lacks {name}")
    return pa.StructArray.from_arrays(
        list(children.values()), fields=list(_VECTOR), mask=pc.invert(is_present)
    )


def _as_row(vector: DeletionVectorDescriptor | None) -> tuple[object, ...] | None:
    if vector is None:
        return None
    return (
        vector.storage_type,
        vector.path_or_inline_dv,
        vector.size_in_bytes,
        vector.cardinality,
        vector.offset,
    )


def _as_vector(row: dict[str, object]) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor(*row.values())  # type: ignore[arg-type]
