"""Packing of change tasks into what Spark's tasks read."""

from __future__ import annotations

import dataclasses
import pickle
from itertools import chain

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.formats.delta.protocol.data_file import DataFile, TableSchema, data_file
from tailerd.spark.partitions import (
    OPEN_COST_BYTES,
    SPLIT_BYTES,
    ChangePartition,
    pack,
)
from tests.benchmarks.measuring import run_process

_MIB = 1024 * 1024
_SCHEMA = TableSchema('{"type":"struct","fields":[]}')


def _task(position: int, size_bytes: int, schema: TableSchema = _SCHEMA) -> ChangeTask:
    return ChangeTask(
        version=Version(1),
        timestamp_us=0,
        position=position,
        change_source=ChangeSourceKind.FILES,
        change_type=ChangeType.INSERT,
        size_bytes=size_bytes,
        format="delta",
        payload=DataFile(url=f"/t/{position}", schema=schema),
    )


def _positions(partitions: list[ChangePartition]) -> list[list[int]]:
    return [[each.position for each in partition.tasks] for partition in partitions]


def test_no_tasks_are_no_partitions() -> None:
    assert pack([]) == []


def test_small_files_are_read_together_in_their_order() -> None:
    partitions = pack([_task(n, 1000) for n in range(20)])
    assert _positions(partitions) == [list(range(20))]


def test_partitions_are_balanced_by_bytes() -> None:
    tasks = [_task(n, _MIB) for n in range(100)]
    partitions = pack(tasks, target_bytes=10 * (_MIB + OPEN_COST_BYTES))
    assert [len(partition.tasks) for partition in partitions] == [10] * 10
    assert list(chain(*_positions(partitions))) == list(range(100))


def test_many_tiny_files_are_spread_although_they_have_few_bytes() -> None:
    assert len(pack([_task(n, 1) for n in range(1000)])) > 10


def test_a_large_file_is_read_in_shares_of_about_one_size() -> None:
    partitions = pack([_task(0, 1000), _task(1, 4 * SPLIT_BYTES), _task(2, 1000)])
    large = [each for part in partitions for each in part.tasks if each.position == 1]
    files = [data_file(each) for each in large]
    assert [(file.share_index, file.share_count) for file in files] == [(n, 4) for n in range(4)]
    assert all(len(partition.tasks) <= 2 for partition in partitions)


def test_a_large_change_file_is_not_divided_between_the_images_of_an_update() -> None:
    task = dataclasses.replace(_task(0, 4 * SPLIT_BYTES), change_type=None)
    assert _positions(pack([task])) == [[0]]


def test_a_file_of_middling_size_is_a_partition_of_its_own() -> None:
    partitions = pack([_task(0, 16 * _MIB), _task(1, 60 * _MIB), _task(2, 16 * _MIB)])
    assert [1] in _positions(partitions)
    assert list(chain(*_positions(partitions))) == [0, 1, 2]


def test_what_is_loaded_is_left_out_of_the_collection_after_each_task() -> None:
    program = """
        import gc
        import pyarrow as pa
        from tailerd.spark.partitions import read_partition
        from tailerd.storage.stores import Stores
        list(read_partition(None, pa.schema([]), Stores(), may_drop=False))
        frozen = gc.get_freeze_count()
        list(read_partition(None, pa.schema([]), Stores(), may_drop=False))
        result = [frozen, gc.get_freeze_count()]
    """
    first, second = run_process(program).result
    assert first > 10_000
    assert second == first


def test_a_partition_shares_one_schema_when_pickled() -> None:
    schema = TableSchema("x" * 100_000)
    tasks = tuple(_task(n, 1, schema) for n in range(50))
    data = pickle.dumps(ChangePartition(tasks))
    assert len(data) < 120_000
    assert pickle.loads(data).tasks == tasks
