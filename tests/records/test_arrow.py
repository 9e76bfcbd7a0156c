from __future__ import annotations

import io

import pyarrow as pa
import pytest

from tailerd.errors import SchemaChangedError
from tailerd.records.arrow import ArrowStream
from tests.records.batches import change_batch


def test_the_pieces_are_one_stream_of_rows_with_change_columns() -> None:
    stream = ArrowStream()
    kinds = pa.array(["b", "a"]).dictionary_encode()
    first = change_batch({"id": pa.array([1, 2]), "kind": kinds}, ["insert", "delete"])
    second = change_batch({"id": pa.array([3]), "kind": pa.array(["z"]).dictionary_encode()})

    body = stream.append(first) + stream.append(second) + stream.finish()

    table = pa.ipc.open_stream(body).read_all()
    assert table.column_names == [
        "id",
        "kind",
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
    ]
    assert table.column("id").to_pylist() == [1, 2, 3]
    assert table.column("kind").to_pylist() == ["b", "a", "z"]
    assert table.column("_change_type").to_pylist() == ["insert", "delete", "insert"]


def test_a_piece_can_be_read_before_the_next_comes() -> None:
    stream = ArrowStream()
    body = io.BytesIO(stream.append(change_batch({"id": pa.array([1])})))

    reader = pa.ipc.open_stream(body)

    assert reader.read_next_batch().num_rows == 1
    assert stream.append(change_batch({"id": pa.array([2])}))


def test_a_stream_without_batches_has_no_bytes() -> None:
    assert ArrowStream().finish() == b""


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": pa.array(["1"])}, "id was int64, is string"),
        ({"id": pa.array([1]), "more": pa.array([1])}, "added more"),
        ({"other": pa.array([1])}, "added other, removed id"),
    ],
)
def test_other_columns_end_the_stream_and_say_where_to_go_on(
    columns: dict[str, pa.Array], words: str
) -> None:
    stream = ArrowStream()
    stream.append(change_batch({"id": pa.array([1])}, version=3))

    with pytest.raises(SchemaChangedError, match=rf"Version 4 .*{words}.*--from 4"):
        stream.append(change_batch(columns, version=4))
