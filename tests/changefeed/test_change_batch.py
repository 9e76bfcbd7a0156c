from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch, with_change_columns
from tailerd.changefeed.change_task import (
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
    TaskGroup,
)
from tailerd.changefeed.offset import ConsecutiveVersions, Offset, Version
from tailerd.formats.delta.protocol.data_file import (
    DataFile,
    DeletionVector,
    RowFilter,
    TableSchema,
)

TYPES = ["insert", "delete", "insert"]


@pytest.mark.parametrize(
    ("given", "reported", "counts"),
    [
        (ChangeType.DELETE, ["delete"] * 3, {"delete": 3}),
        (pa.array(TYPES), TYPES, {"insert": 2, "delete": 1}),
        (pa.array(TYPES).dictionary_encode(), TYPES, {"insert": 2, "delete": 1}),
    ],
    ids=["one for all", "text", "dictionary"],
)
def test_change_types_are_text_however_they_are_held(
    given: ChangeType | pa.Array, reported: list[str], counts: dict[str, int]
) -> None:
    batch = ChangeBatch(
        rows=pa.record_batch({"id": [1, 2, 3]}),
        change_type=given,
        version=Version(5),
        timestamp_us=1_000_001,
        change_source=ChangeSourceKind.FILES,
    )
    assert batch.change_types().to_pylist() == reported
    assert batch.change_types().type == pa.string()
    assert batch.count_changes() == counts
    assert batch.num_rows == 3
    whole = batch.to_arrow()
    assert whole.schema == with_change_columns(batch.rows.schema)
    assert whole.schema.names == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
    assert whole.column("_commit_version").to_pylist() == [5, 5, 5]
    assert whole.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [1_000_001] * 3


def vector(offset: int | None) -> DeletionVector:
    return DeletionVector(
        storage_type="u", path_or_inline="ab^-", offset=offset, size_bytes=4, cardinality=1
    )


def test_a_vector_without_offset_is_another_than_one_at_0() -> None:
    assert vector(None).unique_id == "uab^-"
    assert vector(0).unique_id == "uab^-@0"


def test_a_task_crosses_processes_and_a_group_knows_its_size() -> None:
    task = ChangeTask(
        version=Version(1),
        timestamp_us=2,
        position=0,
        change_source=ChangeSourceKind.FILES,
        change_type=ChangeType.INSERT,
        size_bytes=7,
        format="delta",
        payload=DataFile(
            url="/t/a.parquet",
            partition_values=(("p", None),),
            schema=TableSchema("{}", ("p",)),
            rows=RowFilter(include=vector(0)),
        ),
    )
    assert pickle.loads(pickle.dumps(task)) == task
    start = Offset(table_id="t", version=Version(1))
    group = TaskGroup(
        start=start,
        end=start.after_version(ConsecutiveVersions()),
        version=Version(1),
        timestamp_us=2,
        change_source=ChangeSourceKind.FILES,
        tasks=(task, task),
    )
    assert group.size_bytes == 14
