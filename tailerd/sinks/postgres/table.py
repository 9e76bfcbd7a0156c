"""A table on the server: its columns, changes of them, and rows that are copied into it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from tailerd.errors import IncompatibleSchemaError, SinkRefusedError
from tailerd.remedies import RESTART
from tailerd.sinks.postgres.columns import Column, compare_columns
from tailerd.sinks.postgres.copy_encoding import COPY_HEADER, COPY_TRAILER, encode_rows
from tailerd.threads import discard, in_thread

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Values = tuple[pa.Array, pa.Field, str]
"""Values of a column, its field, and the PostgreSQL type that they are sent as."""

_FIND = """
SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod),
    coalesce(col_description(attrelid, attnum), ''),
    NOT attnotnull OR atthasdef OR attidentity <> '',
    attgenerated <> '' OR attidentity = 'a'
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_HAS_UNIQUE_KEY = """
SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid
    AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = %s
    AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    ) = %s)
"""


def raw(text: str) -> sql.SQL:
    """Return SQL that is not written in the source: the name of a type from the catalog."""
    return sql.SQL(text)


def join_names(names: Sequence[str], before: str = "", after: str = "") -> sql.Composed:
    """Return quoted names with commas between them, each between two pieces of SQL."""
    pieces = [raw(before) + sql.Identifier(name) + raw(after) for name in names]
    return sql.SQL(", ").join(pieces)


class Table:
    """A table on the server.

    Attributes:
        schema, name: Its names.
        identifier: The names, quoted.
        oid: Its number; 0 if it does not exist, or before `load`.
        columns: Its columns by name, in their order.
    """

    def __init__(self, connection: Connection, schema: str, name: str) -> None:
        self.schema, self.name = schema, name
        self.identifier = sql.Identifier(schema, name)
        self.oid = 0
        self.columns: dict[str, Column] = {}
        self._connection = connection

    async def load(self) -> bool:
        """Read the columns; return whether the table exists.

        Raises:
            SinkRefusedError: The name is that of a view or the like.
        """
        found = await self._connection.execute(_FIND, (self.schema, self.name))
        row = await found.fetchone()
        self.oid, self.columns = 0, {}
        if row is None:
            return False
        oid, kind = row
        if kind not in ("r", "p"):
            raise SinkRefusedError(
                f"{self.schema}.{self.name} is not a table.", remedy="Choose another `table`."
            )
        for name, *rest in await (await self._connection.execute(_COLUMNS, (oid,))).fetchall():
            type_, comment, is_filled, is_generated = rest
            self.columns[name] = Column(
                name=name,
                kind=type_,
                comment=comment,
                is_filled=is_filled,
                is_generated=is_generated,
            )
        self.oid = oid
        return True

    async def create(self, columns: Sequence[Column], key: Sequence[str] = ()) -> None:
        """Create the table, with a primary key if `key` has columns."""
        parts = [_define(column) for column in columns]
        if key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(join_names(key)))
        body = sql.SQL(", ").join(parts)
        await self._run(sql.SQL("CREATE TABLE {} ({})").format(self.identifier, body))
        await self._comment([column for column in columns if column.comment])
        await self.load()

    async def adapt(self, needed: Sequence[Column], *, replaces_types: bool = False) -> None:
        """Add and widen columns so that the table holds the needed ones.

        Args:
            needed: Columns of the rows.
            replaces_types: The table is empty: a column of another type is made again.

        Raises:
            IncompatibleSchemaError: The table cannot be adapted.
        """
        plan = compare_columns(needed, self.columns)
        if plan.problems and replaces_types:
            for column in needed:
                wrong = compare_columns(
                    [column], {column.name: self.columns.get(column.name, column)}
                )
                if wrong.problems and not self.columns[column.name].is_generated:
                    name = sql.Identifier(column.name)
                    await self._alter(sql.SQL("DROP COLUMN {} CASCADE").format(name))
                    await self._alter(sql.SQL("ADD COLUMN {}").format(_define(column)))
            await self.load()
            plan = compare_columns(needed, self.columns)
        if plan.problems:
            raise IncompatibleSchemaError(
                f"The table {self.schema}.{self.name} does not fit the rows:"
                f" {'; '.join(plan.problems)}.",
                remedy="Alter the table in PostgreSQL. Or drop it, so that it is made again, and"
                f" {RESTART}.",
            )
        for column in plan.added:
            await self._alter(sql.SQL("ADD COLUMN {}").format(_define(column)))
        for column in plan.widened:
            change = sql.SQL("ALTER COLUMN {} TYPE {}").format(
                sql.Identifier(column.name), raw(column.kind)
            )
            await self._alter(change)
        await self._comment(plan.commented + tuple(each for each in plan.added if each.comment))
        if plan.added or plan.widened or plan.commented:
            await self.load()

    async def has_unique_key(self, key: Sequence[str]) -> bool:
        """Return whether an index keeps the key unique."""
        found = await self._connection.execute(_HAS_UNIQUE_KEY, (self.oid, len(key), sorted(key)))
        row = await found.fetchone()
        return row is not None and bool(row[0])

    async def _alter(self, change: sql.Composed) -> None:
        await self._run(sql.SQL("ALTER TABLE {} {}").format(self.identifier, change))

    async def _comment(self, columns: Sequence[Column]) -> None:
        for column in columns:
            statement = sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(
                self.identifier, sql.Identifier(column.name), sql.Literal(column.comment)
            )
            await self._run(statement)

    async def _run(self, statement: sql.Composed) -> None:
        await self._connection.execute(statement)


def _define(column: Column) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(column.name), raw(column.kind))


class TableCopy:
    """Copies rows into a table: each COPY statement has all rows with the same columns.

    One part of the rows is encoded in a thread and sent while the caller prepares the next.
    """

    def __init__(self, connection: Connection, into: sql.Composable) -> None:
        self._connection = connection
        self._into = into
        self._names: tuple[str, ...] = ()
        self._context: Any = None
        self._copy: psycopg.AsyncCopy | None = None
        self._sending: asyncio.Task[None] | None = None

    async def send(self, columns: Mapping[str, Values], count: int) -> None:
        """Send rows, in order, after those that were sent before.

        An error of rows is raised by the next call, or by `finish`.
        """
        if self._copy is not None and tuple(columns) != self._names:
            await self.finish()
        encoding = asyncio.create_task(in_thread(encode_rows, list(columns.values()), count))
        try:
            await self._flush()
            copy = self._copy or await self._begin(tuple(columns))
        except BaseException:
            await discard(encoding)
            raise
        self._sending = asyncio.create_task(_write(copy, encoding))

    async def finish(self) -> None:
        """Wait until the server has all rows."""
        await self._flush()
        context, copy = self._context, self._copy
        if copy is not None:
            await copy.write(COPY_TRAILER)
            self._context = self._copy = None
            await context.__aexit__(None, None, None)

    async def abandon(self) -> None:
        """End after an error; the connection is closed already."""
        if self._sending is not None:
            await discard(self._sending)
        if self._context is not None:
            # Without the error, which the driver would log.
            with suppress(psycopg.Error):
                await self._context.__aexit__(None, None, None)

    async def _begin(self, names: tuple[str, ...]) -> psycopg.AsyncCopy:
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
            self._into, join_names(names)
        )
        context = self._connection.cursor().copy(statement)
        copy: psycopg.AsyncCopy = await context.__aenter__()
        self._context, self._copy, self._names = context, copy, names
        await copy.write(COPY_HEADER)
        return copy

    async def _flush(self) -> None:
        """Wait until the rows of the last `send` are sent."""
        if self._sending is not None:
            await self._sending
            self._sending = None


async def _write(copy: psycopg.AsyncCopy, encoding: asyncio.Task[pa.Buffer]) -> None:
    try:
        await copy.write(memoryview(await encoding))
    except BaseException:
        await discard(encoding)
        raise
