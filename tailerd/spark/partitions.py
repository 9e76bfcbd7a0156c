"""Change tasks packed into Spark's input partitions, and read on executors."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.changefeed.offset import Version
from tailerd.errors import SchemaChangedError
from tailerd.formats.detect import find_reader, read_tasks
from tailerd.pipeline.change_runs import Run, RunReader
from tailerd.records.key_order import KeyPass
from tailerd.spark.arrow_schema import conform
from tailerd.storage.stores import Stores

TARGET_BYTES = 32 * 1024 * 1024
"""Bytes of data files one partition should have: ten times the work that a task costs Spark."""

OPEN_COST_BYTES = 512 * 1024
"""Cost of opening one more file, in bytes that could be read in the same time."""


SPLIT_BYTES = 64 * 1024 * 1024
"""Size of the parts in which a larger file is read, each of whole row groups."""


class ChangePartition(InputPartition):
    """The consecutive change tasks, or parts of some, that one Spark task reads. Picklable."""

    def __init__(self, tasks: tuple[ChangeTask, ...], key_pass: KeyPass = KeyPass.WHOLE) -> None:
        super().__init__(None)
        self.tasks = tasks
        self.key_pass = key_pass


def pack(tasks: Sequence[ChangeTask], target_bytes: int = TARGET_BYTES) -> list[ChangePartition]:
    """Cut `tasks` into runs of about equal cost, none much above `target_bytes`; keep the order.

    A larger file is its own partition, or several. Several change files of a commit are in one
    partition; if they are too large for that, they are read twice, first for rows that only remove.
    No tasks make no partitions.
    """
    partitions: list[ChangePartition] = []
    units: list[list[ChangeTask]] = []
    for (_, kind), found in groupby(tasks, lambda task: (task.version, task.change_source)):
        commit = list(found)
        shares = [each for task in commit for each in find_reader(task).split(task, SPLIT_BYTES)]
        if kind is not ChangeSourceKind.CDC or len(commit) < 2:
            units += [[each] for each in shares]
        elif _cost(commit) <= target_bytes:
            units.append(commit)
        else:
            partitions += _pack_units(units, target_bytes, KeyPass.WHOLE)
            units = []
            for key_pass in (KeyPass.DELETES, KeyPass.UPSERTS):
                partitions += _pack_units([[each] for each in shares], target_bytes, key_pass)
    return partitions + _pack_units(units, target_bytes, KeyPass.WHOLE)


def _cost(tasks: Sequence[ChangeTask]) -> int:
    return sum(each.size_bytes + OPEN_COST_BYTES for each in tasks)


def _pack_units(
    units: Sequence[Sequence[ChangeTask]], target_bytes: int, key_pass: KeyPass
) -> list[ChangePartition]:
    costs = [_cost(unit) for unit in units]
    total = sum(costs)
    if not total:
        return []
    requested = -(-total // target_bytes)
    share = total / requested
    partitions: list[ChangePartition] = []
    run: list[ChangeTask] = []
    run_cost = 0
    for unit, cost in zip(units, costs, strict=True):
        # A task belongs to the run that contains its middle, so that no run is more than half a
        # file off.
        if run and run_cost + cost / 2 > share:
            partitions.append(ChangePartition(tuple(run), key_pass))
            run, run_cost = [], 0
        run += unit
        run_cost += cost
    partitions.append(ChangePartition(tuple(run), key_pass))
    return partitions


def read_partition(
    partition: InputPartition, target: pa.Schema, stores: Stores, *, may_drop: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the partition's change rows under the declared schema; runs on an executor.

    Raises:
        SchemaChangedError: Rows do not fit the declared schema without losing something.
        TableError, StorageError: As a `TaskReader` raises them.
    """
    freeze_gc()
    # Spark requests one empty partition if planning returned none.
    run = Run([])
    if isinstance(partition, ChangePartition):
        run = Run(list(partition.tasks), partition.key_pass)
    columns = target.names if may_drop else None
    reader = RunReader(partial(read_tasks, columns=columns, stores=stores), ())
    for batch in reader.read(run, DEFAULT_BATCH_LIMIT):
        if batch.num_rows == 0:
            continue
        try:
            yield conform(batch.to_arrow(), target, may_drop=may_drop)
        except SchemaChangedError as error:
            raise _locate_error(error, batch.version) from error


@functools.cache
def freeze_gc() -> None:
    """Exclude loaded modules from garbage collections, once a process.

    Spark's Python workers collect after every task, and walking the modules takes 25 ms each time.
    """
    gc.freeze()


def _locate_error(error: SchemaChangedError, version: Version) -> SchemaChangedError:
    return SchemaChangedError(
        f"Version {version} has another schema than this query. {error.message}",
        version=version,
        remedy=(
            f"Read the rows before version {version} with endingVersion and the rest with"
            f" startingVersion={version}, or name the columns you want with .schema(...)."
        ),
    )
