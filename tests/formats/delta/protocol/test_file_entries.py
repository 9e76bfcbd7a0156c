"""Live files as columns: what checkpoints and commits say of them, and the objects they become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import DeletionVectorDescriptor
from tailerd.formats.delta.protocol.file_entries import (
    ENTRIES,
    count_live_rows,
    entries_of_checkpoint,
    entries_of_files,
    files_of_entries,
)
from tailerd.formats.delta.protocol.live_file import LiveFile

VECTOR = DeletionVectorDescriptor(
    storage_type="u", path_or_inline_dv="ab^-aqEH", size_in_bytes=34, cardinality=2, offset=1
)
INLINE = DeletionVectorDescriptor(
    storage_type="i", path_or_inline_dv="wi5b", size_in_bytes=3, cardinality=1
)


def make_file(key: int, **changes: Any) -> LiveFile:
    given: dict[str, Any] = {
        "path": f"d=ö/{key}.parquet",
        "size_bytes": 7,
        "partition_values": (("d", "ö"), ("n", None)),
        "modification_time_ms": 9,
        "num_records": 5,
        "deletion_vector": None,
    }
    return LiveFile(key=key, **{**given, **changes})


FILES = [
    make_file(2**64 - 1),
    make_file(0, partition_values=(), num_records=None),
    make_file(5, deletion_vector=VECTOR),
    make_file(4, deletion_vector=INLINE, size_bytes=0),
]


def as_added(file: LiveFile) -> dict[str, Any]:
    vector = file.deletion_vector
    return {
        "path": file.path,
        "size": file.size_bytes,
        "partitionValues": list(file.partition_values),
        "modificationTime": file.modification_time_ms,
        "stats": None if file.num_records is None else f'{{"numRecords":{file.num_records}}}',
        "deletionVector": vector
        and {
            "storageType": vector.storage_type,
            "pathOrInlineDv": vector.path_or_inline_dv,
            "offset": vector.offset,
            "sizeInBytes": vector.size_in_bytes,
            "cardinality": vector.cardinality,
        },
    }


def added(rows: list[dict[str, Any]], text: pa.DataType, number: pa.DataType) -> pa.StructArray:
    vector = {"storageType": text, "pathOrInlineDv": text, "offset": pa.int32()}
    fields = {
        "path": text,
        "size": number,
        "partitionValues": pa.map_(text, text),
        "modificationTime": number,
        "stats": text,
        "deletionVector": pa.struct({**vector, "sizeInBytes": pa.int32(), "cardinality": number}),
    }
    return pa.array(rows, pa.struct(fields))


def read(add: pa.StructArray) -> list[LiveFile]:
    keys = np.array([file.key for file in FILES[: len(add)]], np.uint64)
    return files_of_entries(entries_of_checkpoint(add, keys, "1.checkpoint.parquet"))


def test_files_become_columns_and_files_again() -> None:
    for files in ([], FILES):
        entries = entries_of_files(files)
        assert entries.schema.equals(ENTRIES)
        assert files_of_entries(entries) == files


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("number", [pa.int64(), pa.int32()], ids=str)
def test_a_checkpoint_gives_the_same_files_whatever_its_types(
    text: pa.DataType, number: pa.DataType
) -> None:
    add = added([as_added(file) for file in FILES], text, number)
    assert read(add) == FILES
    # A part of a larger array, as batches are.
    assert read(pa.concat_arrays([add, add]).slice(len(FILES))) == FILES


def test_fields_that_a_checkpoint_leaves_out_are_empty() -> None:
    fields = ("path", "size")
    rows = [{name: as_added(file)[name] for name in fields} for file in FILES]
    add = pa.array(rows, pa.struct({"path": pa.string(), "size": pa.int64()}))
    bare: dict[str, Any] = {"partition_values": (), "modification_time_ms": 0, "num_records": None}
    expected = [
        make_file(file.key, path=file.path, size_bytes=file.size_bytes, **bare) for file in FILES
    ]
    assert read(add) == expected


def test_counts_of_parsed_statistics_come_before_those_of_text() -> None:
    parsed = pa.struct({"numRecords": pa.int64()})
    kind = pa.struct({"path": pa.string(), "size": pa.int64(), "stats": pa.string(),
                      "stats_parsed": parsed})  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"stats": '{"numRecords":1}', "stats_parsed": {"numRecords": 2}},
        {"stats": '{"numRecords":3}', "stats_parsed": None},
        {"stats": "{", "stats_parsed": None},
    ]
    add = pa.array([{"path": "a", "size": 1, **row} for row in rows], kind)
    assert [file.num_records for file in read(add)] == [2, 3, None]


@pytest.mark.parametrize("name", ["pathOrInlineDv", "sizeInBytes", "cardinality"])
def test_a_vector_that_is_incomplete_is_a_damaged_checkpoint(name: str) -> None:
    rows = [as_added(file) for file in FILES]
    rows[2]["deletionVector"][name] = None
    with pytest.raises(CorruptLogError, match=rf"1\.checkpoint\.parquet .* lacks {name}"):
        read(added(rows, pa.string(), pa.int64()))


def test_a_field_of_another_type_is_a_damaged_checkpoint() -> None:
    add = pa.array(
        [{"path": "a", "size": "large"}], pa.struct({"path": pa.string(), "size": pa.string()})
    )
    with pytest.raises(CorruptLogError, match="describes files incompletely"):
        read(add)


def test_live_rows_are_those_without_deleted_ones() -> None:
    assert count_live_rows(entries_of_files([])) == 0
    assert count_live_rows(entries_of_files([FILES[0], FILES[2], FILES[3]])) == 15 - 3
    assert count_live_rows(entries_of_files(FILES)) is None
