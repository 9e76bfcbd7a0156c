"""How rows get into the target within one transaction: as a log, as changes of keys, as a snapshot.

A writer is used for one delivery. `adapt` makes the table fit the columns of the next rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from psycopg import sql

from tailerd.changefeed.change_batch import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeBatch,
)
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import BugError, IncompatibleSchemaError, SinkRefusedError
from tailerd.records.schema_changes import FieldChange
from tailerd.sinks.postgres.columns import BIGINT, TEXT, TIMESTAMPTZ, Column, plan_columns
from tailerd.sinks.postgres.config import DELETED_AT, PostgresSinkConfig
from tailerd.sinks.postgres.rows import RowRules, check_rows, order_changes, split_rows
from tailerd.sinks.postgres.snapshots import Snapshot
from tailerd.sinks.postgres.table import Connection, Table, TableCopy, Values, join_names, raw
from tailerd.threads import in_thread

EVENT_ID = "_event_id"
LOG_COLUMNS = (
    Column(name=CHANGE_TYPE, kind=TEXT),
    Column(name=COMMIT_VERSION, kind=BIGINT),
    Column(name=COMMIT_TIMESTAMP, kind=TIMESTAMPTZ),
    Column(name=EVENT_ID, kind=TEXT),
)
_STAGING = sql.Identifier("pg_temp", "tailerd_changes")
_NUMBER, _IS_REMOVAL, _AT = "tailerd.number", "tailerd.is_removal", "tailerd.at"
"""Columns of the staging table; a column of the rows cannot be mistaken for one."""


class Writer(Protocol):
    """Writes the rows of a delivery."""

    async def adapt(self, schema: pa.Schema, changes: Sequence[FieldChange] = ()) -> None:
        """Make the table fit rows with a schema.

        Args:
            schema: The delivered columns.
            changes: How they differ from the columns before.

        Raises:
            ConfigError, UnsupportedFeatureError: PostgreSQL cannot store a column.
            IncompatibleSchemaError: The table cannot be adapted.
        """
        ...

    async def add(self, batch: ChangeBatch) -> None:
        """Write rows; they count once `finish` has returned.

        Raises:
            ValueNotRepresentableError, SinkRefusedError: A row cannot be written.
        """
        ...

    async def finish(self) -> None:
        """Bring all rows to where readers find them."""
        ...

    async def abandon(self) -> None:
        """End after an error, once the connection is closed."""
        ...


class LogWriter:
    """Appends every change to the target."""

    def __init__(
        self, connection: Connection, target: Table, config: PostgresSinkConfig, table: str
    ) -> None:
        self._target = target
        self._config = config
        self._rules = make_rules(config, table)
        self._copy = TableCopy(connection, target.identifier)
        self._schema: pa.Schema | None = None

    async def adapt(self, schema: pa.Schema, changes: Sequence[FieldChange] = ()) -> None:
        """As `Writer.adapt`."""
        needed = plan_columns(self._rules.table, schema, LOG_COLUMNS)
        self._schema = schema
        await self._copy.finish()
        if not self._target.oid:
            await self._target.create(needed)
            return
        check_changes(self._target, changes, self._config)
        await self._target.adapt(needed)

    async def add(self, batch: ChangeBatch) -> None:
        """As `Writer.add`."""
        if self._schema is None or not self._schema.equals(batch.rows.schema, check_metadata=True):
            await self.adapt(batch.rows.schema)
        values = await in_thread(check_rows, batch, self._target.columns, self._rules)
        ids = batch.ids()
        if ids is None:
            raise BugError("These rows have no ids, because their reader gives no row positions.")
        count = batch.num_rows
        kind = batch.change_type
        own = (
            pa.array([kind.value]) if isinstance(kind, ChangeType) else batch.change_types(),
            pa.array([batch.version], pa.int64()),
            pa.array([batch.timestamp_us], pa.timestamp("us", "UTC")),
            ids,
        )
        for column, array in zip(LOG_COLUMNS, own, strict=True):
            values[column.name] = _own_values(array, self._target.columns[column.name])
        for part, length in split_rows(values, count):
            await self._copy.send(part, length)

    async def finish(self) -> None:
        """As `Writer.finish`."""
        await self._copy.finish()

    async def abandon(self) -> None:
        """As `Writer.abandon`."""
        await self._copy.abandon()


class MirrorWriter:
    """Applies changes to the target: a staging table, reduced to the last change of each key."""

    def __init__(
        self, connection: Connection, target: Table, config: PostgresSinkConfig, table: str
    ) -> None:
        self._connection = connection
        self._target = target
        self._config = config
        self._rules = make_rules(config, table)
        self._copy = TableCopy(connection, _STAGING)
        self._schema: pa.Schema | None = None
        self._staged: tuple[str, ...] = ()
        self._number = 0

    async def adapt(self, schema: pa.Schema, changes: Sequence[FieldChange] = ()) -> None:
        """As `Writer.adapt`."""
        needed = plan_columns(self._rules.table, schema, own_columns(self._config))
        await self.finish()
        self._schema = schema
        if not self._target.oid:
            check_key(self._rules, needed)
            await self._target.create(needed, self._config.key)
            return
        check_changes(self._target, changes, self._config)
        await self._target.adapt(needed)
        await check_unique_key(self._target, self._config)

    async def add(self, batch: ChangeBatch) -> None:
        """As `Writer.add`."""
        if self._schema is None or not self._schema.equals(batch.rows.schema, check_metadata=True):
            await self.adapt(batch.rows.schema)
        values, count = await in_thread(self._order, batch)
        if not self._staged:
            await self._stage(values)
        for part, length in split_rows(values, count):
            await self._copy.send(part, length)

    async def finish(self) -> None:
        """Apply the staged changes to the target."""
        if not self._staged:
            return
        await self._copy.finish()
        await self._connection.execute(self._merge(self._staged))
        await self._connection.execute(sql.SQL("DROP TABLE {}").format(_STAGING))
        self._staged = ()

    async def abandon(self) -> None:
        """As `Writer.abandon`."""
        await self._copy.abandon()

    def _order(self, batch: ChangeBatch) -> tuple[dict[str, Values], int]:
        ordered, is_removal = order_changes(batch, self._config.key)
        count = ordered.num_rows
        numbers = pa.array(np.arange(self._number, self._number + count))
        self._number += count
        removals = is_removal if is_removal.any() else is_removal[:1]
        values: dict[str, Values] = {
            _NUMBER: _own_values(numbers, _STAGED[_NUMBER]),
            _IS_REMOVAL: _own_values(pa.array(removals), _STAGED[_IS_REMOVAL]),
        }
        if self._config.is_soft:
            at = pa.array([batch.timestamp_us], pa.timestamp("us", "UTC"))
            values[_AT] = _own_values(at, _STAGED[_AT])
        return values | check_rows(ordered, self._target.columns, self._rules), count

    async def _stage(self, values: Mapping[str, Values]) -> None:
        parts = [
            sql.SQL("{} {}").format(sql.Identifier(name), raw(kind))
            for name, (_, _, kind) in values.items()
        ]
        statement = sql.SQL("CREATE TEMPORARY TABLE tailerd_changes ({}) ON COMMIT DROP")
        await self._connection.execute(statement.format(sql.SQL(", ").join(parts)))
        self._staged = tuple(name for name in values if name not in _STAGED)

    def _merge(self, names: Sequence[str]) -> sql.Composed:
        key = self._config.key
        others = [name for name in names if name not in key]
        sets = [sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in others]
        removal: sql.Composable = sql.SQL("DELETE")
        if self._config.is_soft:
            deleted_at = sql.Identifier(DELETED_AT)
            removal = sql.SQL("UPDATE SET {} = s.{}").format(deleted_at, sql.Identifier(_AT))
            sets.append(sql.SQL("{} = NULL").format(deleted_at))
        update = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(sets))
        return sql.SQL(
            "MERGE INTO {target} AS t USING (SELECT DISTINCT ON ({key}) * FROM {staging}"
            " ORDER BY {key}, {number} DESC) AS s ON {same_key}"
            " WHEN MATCHED AND s.{is_removal} THEN {removal}"
            " WHEN MATCHED THEN {update}"
            " WHEN NOT MATCHED AND NOT s.{is_removal} THEN INSERT ({names}) VALUES ({values})"
        ).format(
            target=self._target.identifier,
            key=join_names(key),
            staging=_STAGING,
            number=sql.Identifier(_NUMBER),
            same_key=sql.SQL(" AND ").join(
                sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in key
            ),
            is_removal=sql.Identifier(_IS_REMOVAL),
            removal=removal,
            update=update if sets else sql.SQL("DO NOTHING"),
            names=join_names(names),
            values=join_names(names, before="s."),
        )


class SnapshotWriter:
    """Copies a snapshot's rows into its own table, which `end` puts in the target's place."""

    def __init__(
        self,
        connection: Connection,
        snapshot: Snapshot,
        config: PostgresSinkConfig,
        table: str,
        *,
        is_begun: bool,
    ) -> None:
        self._snapshot = snapshot
        self._config = config
        self._rules = make_rules(config, table)
        self._copy = TableCopy(connection, snapshot.shadow.identifier)
        self._schema: pa.Schema | None = None
        self._has_rows = is_begun

    async def adapt(self, schema: pa.Schema, changes: Sequence[FieldChange] = ()) -> None:
        """As `Writer.adapt`."""
        needed = plan_columns(self._rules.table, schema, own_columns(self._config))
        check_key(self._rules, needed)
        await self._copy.finish()
        self._schema = schema
        shadow = self._snapshot.shadow
        if shadow.oid:
            replaces = not self._has_rows and self._config.snapshot == "swap"
            await shadow.adapt(needed, replaces_types=replaces)
        else:
            await shadow.create(needed)

    async def add(self, batch: ChangeBatch) -> None:
        """As `Writer.add`."""
        if self._schema is None or not self._schema.equals(batch.rows.schema, check_metadata=True):
            await self.adapt(batch.rows.schema)
        columns = self._snapshot.shadow.columns
        values = await in_thread(check_rows, batch, columns, self._rules)
        self._has_rows = True
        for part, length in split_rows(values, batch.num_rows):
            await self._copy.send(part, length)

    async def finish(self) -> None:
        """As `Writer.finish`; readers see the rows once the snapshot has ended."""
        await self._copy.finish()

    async def end(self, timestamp_us: int | None) -> None:
        """Put the snapshot's rows in the target's place, after `finish`, in this transaction.

        Args:
            timestamp_us: When rows that are gone were deleted, for soft deletes; None: now.

        Raises:
            SinkRefusedError: Two rows have one key.
        """
        await self._snapshot.end(timestamp_us)

    async def abandon(self) -> None:
        """As `Writer.abandon`."""
        await self._copy.abandon()


_STAGED = {
    _NUMBER: Column(name=_NUMBER, kind=BIGINT),
    _IS_REMOVAL: Column(name=_IS_REMOVAL, kind="boolean"),
    _AT: Column(name=_AT, kind=TIMESTAMPTZ),
}


def _own_values(array: pa.Array, column: Column) -> Values:
    return array, pa.field(column.name, array.type), column.kind


def own_columns(config: PostgresSinkConfig) -> tuple[Column, ...]:
    """Return the columns that the sink adds to a mirror."""
    return (Column(name=DELETED_AT, kind=TIMESTAMPTZ),) if config.is_soft else ()


def make_rules(config: PostgresSinkConfig, table: str) -> RowRules:
    """Return the rules for rows."""
    is_null = config.on_unrepresentable == "null"
    return RowRules(table=table, key=config.key, nulls_unrepresentable=is_null)


def check_key(rules: RowRules, columns: Sequence[Column]) -> None:
    """Check that the delivered columns have the key.

    Raises:
        SinkRefusedError: One is missing.
    """
    missing = {*rules.key} - {column.name for column in columns}
    if missing:
        raise SinkRefusedError(
            f"{rules.table} delivers no column {min(missing)!r}, which `key` names.",
            remedy="Correct `key`, or deliver the column with `columns`.",
        )


async def check_unique_key(target: Table, config: PostgresSinkConfig) -> None:
    """Check that the target has one row for each key.

    Raises:
        SinkRefusedError: No index of the target ensures it.
    """
    if not await target.has_unique_key(config.key):
        key = ", ".join(config.key)
        raise SinkRefusedError(
            f"The table {target.schema}.{target.name} has no primary key or unique index on"
            f" ({key}), so a key could have several rows.",
            remedy=f"Run `ALTER TABLE ... ADD PRIMARY KEY ({key})` in PostgreSQL.",
        )


def check_changes(
    target: Table, changes: Sequence[FieldChange], config: PostgresSinkConfig
) -> None:
    """Check that the target has no column that the table lost, if that has to stop.

    Raises:
        IncompatibleSchemaError: The table dropped or renamed a column that the target still has.
    """
    if config.on_incompatible_schema == "ignore":
        return
    for change in changes:
        is_left = change.kind in ("dropped", "renamed") and len(change.path) == 1
        if is_left and change.field is not None and change.field.name in target.columns:
            raise IncompatibleSchemaError(
                f"The table {change}, and {target.schema}.{target.name} still has the column"
                f" {change.field.name!r}.",
                remedy="Drop or rename the column in PostgreSQL too. Or set"
                " `on_incompatible_schema: ignore`, which keeps it without new values.",
            )
