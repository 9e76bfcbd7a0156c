"""The rows of several tables packed into Spark's input partitions, and made records on executors.

A table's rows of a batch are in one partition, in the order of the commits, unless they are many;
then its partitions are in that order. Small tables share partitions. Where records have keys, what
only removes comes first of each commit (`encoding.key_order`), over all its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pyspark.sql.datasource import InputPartition

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.changefeed.offset import Version
from tailerd.errors import TailerdError
from tailerd.records.key_order import Part, commits_in_key_order, part_of
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.attribution import attribute_to_table
from tailerd.spark.encoded_records import RecordEncoder, RecordPiece
from tailerd.spark.given_formats import GivenFormats
from tailerd.spark.partitions import (
    OPEN_COST_BYTES,
    TARGET_BYTES,
    TaskShare,
    freeze_gc,
    in_key_order,
    pack,
    pack_shares,
    read_tasks,
)
from tailerd.storage.stores import Stores

TABLE_BYTES = 512 * 1024 * 1024
"""A table's rows of a batch with a larger cost are divided. What is not, need not be brought into
order between tasks, which takes as much as reading and writing."""
SHARE_ORDERS = 1 << 32
"""Records one share may have. Orders in a part begin at this times the number of its first share,
behind those of the parts before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """All rows of one table in one batch.

    Attributes:
        name: The configured name.
        table_id: `metaData.id` at the batch's end, for tasks that say none.
        kafka: How records are made; None gives JSON lines.
        tasks: What to read, in order.
        formats: What makes the records, where their schemas are registered.
        error: Why that cannot even be planned; the batch was logged before.
    """

    name: str
    table_id: str
    kafka: KafkaSinkConfig | None
    tasks: Sequence[ChangeTask] = ()
    formats: GivenFormats | None = None
    error: TailerdError | None = None

    @property
    def key(self) -> Sequence[str]:
        """Columns by which readers tell rows apart; empty where records have no key."""
        return () if self.kafka is None else self.kafka.ordering_key


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """Consecutive shares of one table's tasks; `first` is the number of the first of them."""

    rows: TableRows
    first: int
    shares: tuple[TaskShare, ...]


class RecordPartition(InputPartition):
    """What one Spark task reads. Picklable."""

    def __init__(self, parts: tuple[TablePart, ...]) -> None:
        super().__init__(None)
        self.parts = parts


def pack_tables(tables: Sequence[TableRows]) -> list[RecordPartition]:
    """Return the partitions of a batch."""
    partitions: list[RecordPartition] = []
    shared: list[TablePart] = []
    shared_cost = 0
    for table in tables:
        runs = _runs(table)
        bare = replace(table, tasks=())
        first = 0
        parts = []
        for shares in runs or ([()] if table.error else []):
            parts.append(TablePart(rows=bare, first=first, shares=shares))
            first += len(shares)
        if len(parts) > 1:
            partitions += [RecordPartition((part,)) for part in parts]
            continue
        cost = sum(task.size_bytes + OPEN_COST_BYTES for task in table.tasks)
        if shared and shared_cost + cost > TARGET_BYTES:
            partitions.append(RecordPartition(tuple(shared)))
            shared, shared_cost = [], 0
        shared += parts
        shared_cost += cost
    if shared:
        partitions.append(RecordPartition(tuple(shared)))
    return partitions


def _runs(table: TableRows) -> list[tuple[TaskShare, ...]]:
    """Return what each of a table's partitions reads."""
    partitions = pack(table.tasks, TABLE_BYTES)
    if len(partitions) > 1 and table.key:
        partitions = pack_shares(list(in_key_order(table.tasks)), TABLE_BYTES)
    return [partition.shares for partition in partitions]


def read_records(partition: InputPartition, stores: Stores) -> Iterator[RecordPiece]:
    """Yield the partition's records; runs on an executor.

    Raises:
        TailerdError: Rows of a table cannot be read; the error says of which.
    """
    # Spark asks to read one empty partition where planning gave none.
    if not isinstance(partition, RecordPartition):
        return
    freeze_gc()
    for part in partition.parts:
        try:
            yield from _part(part, stores)
        except Exception as error:
            raise attribute_to_table(error, part.rows.name) from error


def _part(part: TablePart, stores: Stores) -> Iterator[RecordPiece]:
    table = part.rows
    if table.error is not None:
        raise table.error
    # A table that was replaced has another identity from there on, wherever batches are cut.
    ids = {each.task.version: each.task.table_id or table.table_id for each in part.shares}
    encoders = {
        each: RecordEncoder(table.name, each, table.kafka, table.formats)
        for each in set(ids.values())
    }
    order = part.first * SHARE_ORDERS
    for batch in _ordered(part.shares, table.key, stores):
        for piece in encoders[ids[batch.version]].encoded(batch, order):
            order += piece.records.num_rows
            yield piece


def _ordered(
    shares: Sequence[TaskShare], key: Sequence[str], stores: Stores
) -> Iterator[ChangeBatch]:
    """Yield the rows of consecutive shares in the order that records with this key have."""
    if not key:
        yield from _batches(shares, stores)
        return

    def again(version: Version) -> Iterator[ChangeBatch]:
        return _batches([each for each in shares if each.task.version == version], stores)

    held_bytes = DEFAULT_BATCH_LIMIT.max_bytes // 2
    for part, found in groupby(shares, lambda each: each.part):
        batches = _batches(list(found), stores)
        if part is Part.WHOLE:
            # A commit of several change files is whole only where all of them are here.
            yield from commits_in_key_order(batches, again, key, held_bytes)
            continue
        for batch in batches:
            if (rows := part_of(batch, key, part)) is not None:
                yield rows


def _batches(shares: Sequence[TaskShare], stores: Stores) -> Iterator[ChangeBatch]:
    return read_tasks([each.task for each in shares], stores)
