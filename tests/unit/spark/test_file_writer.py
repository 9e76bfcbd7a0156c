"""The file sink's two sides, called as Spark calls them, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tailerd.changefeed.change_batch import with_change_columns
from tailerd.errors import SinkError
from tailerd.spark.file_writer import TailerdFileWriter, WrittenFiles
from tailerd.spark.options import WriteOptions


def _writer(folder: Path, **options: str) -> TailerdFileWriter:
    return TailerdFileWriter(WriteOptions.parse({"path": str(folder), **options}), StructType())


def _batch(*ids: int) -> pa.RecordBatch:
    schema = with_change_columns(pa.schema([("id", pa.int64())]))
    rows = [
        {"id": n, "_change_type": "insert", "_commit_version": 1, "_commit_timestamp": 0}
        for n in ids
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def _write(writer: TailerdFileWriter, partition: int, *batches: pa.RecordBatch) -> WrittenFiles:
    message = writer.write(iter(batches))
    assert isinstance(message, WrittenFiles)
    return WrittenFiles(partition=partition, names=message.names)


def _ids(folder: Path) -> dict[str, list[int]]:
    return {
        file.name: [json.loads(line)["id"] for line in file.open()]
        for file in sorted(folder.iterdir())
    }


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    message = _write(_writer(tmp_path), 0, _batch(1))
    assert not list(tmp_path.glob("batch-*"))
    _writer(tmp_path).commit([message], 7)
    assert _ids(tmp_path) == {"batch-0000000007-00000.jsonl": [1]}


def test_files_are_numbered_in_the_order_of_the_rows(tmp_path: Path) -> None:
    writer = _writer(tmp_path, maxBytesPerFile="10b")
    second = _write(writer, 1, _batch(3))
    first = _write(writer, 0, _batch(1), _batch(2))
    writer.commit([second, None, first], 0)
    assert list(_ids(tmp_path).values()) == [[1], [2], [3]]


def test_a_repeated_batch_with_fewer_files_leaves_none_of_the_old(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.commit([_write(writer, 0, _batch(1)), _write(writer, 1, _batch(2))], 3)
    writer.commit([_write(writer, 0, _batch(9))], 4)
    writer.commit([_write(writer, 0, _batch(1, 2))], 3)
    assert list(_ids(tmp_path).values()) == [[1, 2], [9]]


def test_a_task_that_failed_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield _batch(1)
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        _writer(tmp_path).write(rows())
    assert list(tmp_path.iterdir()) == []


def test_an_aborted_batch_leaves_nothing(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.abort([_write(writer, 0, _batch(1)), None], 0)
    assert list(tmp_path.iterdir()) == []


def test_a_task_without_rows_makes_no_file(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.commit([_write(writer, 0), _write(writer, 1, _batch())], 0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = _writer(tmp_path / "file" / "out")
    with pytest.raises(SinkError, match="file/out cannot be written"):
        writer.write(iter([_batch(1)]))
