"""Deliveries that a test makes up, and a sink that they go to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.records.schema_changes import SchemaChange, compare_schemas
from tailerd.sinks.base import Delivery
from tailerd.sinks.postgres.config import PostgresSinkConfig
from tailerd.sinks.postgres.sink import PostgresSink
from tests.postgres.server import Database

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TIME_US = 1_700_000_000_000_000
INSERT, DELETE = ChangeType.INSERT, ChangeType.DELETE
BEFORE, AFTER = ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE

Change = tuple[ChangeType, Sequence[object]]


def make_sink(database: Database, **fields: object) -> PostgresSink:
    """Return a sink for a test's database."""
    config = PostgresSinkConfig.model_validate(database.section(**fields))
    return PostgresSink(config, table="orders")


def at(version: int, position: int = 0, phase: Phase = Phase.FOLLOW) -> Offset:
    """Return an offset."""
    return Offset(table_id="t", version=Version(version), position=position, phase=phase)


def changes(
    version: int,
    *rows: Change,
    schema: pa.Schema = SCHEMA,
    source: ChangeSourceKind = ChangeSourceKind.CDC,
) -> ChangeBatch:
    """Return a batch of changes: each with the values of its row."""
    columns = [
        pa.array([values[index] for _, values in rows], field.type)
        for index, field in enumerate(schema)
    ]
    return ChangeBatch(
        rows=pa.RecordBatch.from_arrays(columns, schema=schema),
        change_type=pa.array([kind.value for kind, _ in rows], pa.string()),
        version=Version(version),
        timestamp_us=TIME_US + version * 1_000_000,
        change_source=source,
        positions=RowPositions(table_id="t", files=0, rows=0),
    )


def snapshot(version: int, *rows: Sequence[object], schema: pa.Schema = SCHEMA) -> ChangeBatch:
    """Return a batch of a snapshot."""
    found = [(INSERT, row) for row in rows]
    return changes(version, *found, schema=schema, source=ChangeSourceKind.SNAPSHOT)


def deliver(
    start: Offset, end: Offset, *batches: ChangeBatch, schemas: Sequence[SchemaChange] = ()
) -> Delivery:
    """Return a delivery; changes of the schema are pending before the first batch."""

    async def give() -> AsyncIterator[ChangeBatch]:
        for batch in batches:
            yield batch

    made = Delivery(
        table="orders",
        start=start,
        end=end,
        saved=SavedOffset(offset=end, changes=ChangeMode.AUTO),
        batches=give(),
    )
    made.schema_changes.extend(schemas)
    return made


def commit(version: int, *batches: ChangeBatch, schemas: Sequence[SchemaChange] = ()) -> Delivery:
    """Return the delivery of one commit."""
    return deliver(at(version), at(version + 1), *batches, schemas=schemas)


def whole_snapshot(version: int, *batches: ChangeBatch) -> Delivery:
    """Return the delivery of a whole snapshot."""
    return deliver(at(version, phase=Phase.SNAPSHOT), at(version + 1), *batches)


def schema_change(version: int, old: pa.Schema, new: pa.Schema) -> SchemaChange:
    """Return the change from one schema to another, as the pipeline finds it."""
    found = compare_schemas(old, new)
    return SchemaChange(Version(version), TIME_US, new, found)
