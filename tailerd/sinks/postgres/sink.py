"""The PostgreSQL sink: rows, deletes and the offset of a delivery commit in one transaction.

Only transactions hold locks, so a pooler may give each transaction another session. After any error
the connection is closed, and the next delivery loop opens another and reads the offset again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Self

import psycopg

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Offset, Phase
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import OffsetError, SinkError, SinkRefusedError
from tailerd.remedies import reset_command
from tailerd.sinks.base import Delivery
from tailerd.sinks.postgres.config import OFFSETS_TABLE, PostgresSinkConfig
from tailerd.sinks.postgres.errors import map_error
from tailerd.sinks.postgres.offsets import OffsetsTable
from tailerd.sinks.postgres.read_back import read_rows
from tailerd.sinks.postgres.snapshots import Snapshot
from tailerd.sinks.postgres.table import Connection, Table
from tailerd.sinks.postgres.writers import LogWriter, MirrorWriter, SnapshotWriter, Writer
from tailerd.sinks.resources import DAEMON_NAME, SinkResources, pipeline_identity

MIN_SERVER = 150_000
"""PostgreSQL 15 is the first with MERGE."""
_CONNECT_SECONDS = 10
# The lock of an offset has to see the newest epoch, whatever the database's default is.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '30s'"
_RIGHTS = """
SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
    coalesce(has_schema_privilege(n.oid, 'CREATE'), false),
    has_database_privilege(current_database(), 'TEMPORARY'),
    t.oid IS NULL OR pg_has_role(t.relowner, 'USAGE'),
    o.oid IS NULL OR has_table_privilege(o.oid, 'SELECT') AND has_table_privilege(o.oid, 'INSERT')
        AND has_table_privilege(o.oid, 'UPDATE'), current_user
FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname = %(schema)s
LEFT JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = %(table)s
LEFT JOIN pg_class o ON o.relnamespace = n.oid AND o.relname = %(offsets)s
"""


class PostgresSink:
    """Writes the changes of one table to one table of PostgreSQL, exactly once."""

    def __init__(
        self, config: PostgresSinkConfig, *, table: str, daemon: str = DAEMON_NAME
    ) -> None:
        """Initialize; connects to no server before first use."""
        self._config = config
        self._table = table
        self._identity = pipeline_identity(config, table, daemon=daemon)
        self._schema, self._name = config.schema_and_table
        self._busy = asyncio.Lock()
        self._connection: Connection | None = None
        self._epoch: int | None = None

    @classmethod
    def from_config(cls, config: PostgresSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        return cls(config, table=resources.table, daemon=resources.daemon)

    @property
    def max_in_flight(self) -> int:
        """One: deliveries of one key must not overtake each other."""
        return 1

    @property
    def offsets(self) -> PostgresOffsets:
        """The table `tailerd_offsets` in the target's schema."""
        return PostgresOffsets(self)

    @property
    def key(self) -> Sequence[str]:
        """The columns that identify a row of a mirror; empty for a log."""
        return self._config.key_columns

    async def healthcheck(self) -> None:
        """Check whether deliveries would succeed; change nothing.

        Raises:
            SinkError: The server cannot be reached.
            SinkRefusedError: The server is too old, or a right is missing.
        """
        async with self._use() as connection:
            names = {"schema": self._schema, "table": self._name, "offsets": OFFSETS_TABLE}
            row = await (await connection.execute(_RIGHTS, names)).fetchone()
            assert row is not None
            self._check_rights(*row)
            await Table(connection, self._schema, self._name).load()

    async def fence(self) -> None:
        """Fence off other processes: their deliveries fail from now on.

        Raises:
            SinkFencedError: Another process has done so since this one did.
            SinkError: The server cannot be reached, or refuses.
        """
        async with self._use(is_kept=True) as connection:
            await self._claim(connection)

    async def resume(self, offset: Offset) -> None:
        """Check that deliveries may go on at an offset; remove an unfinished snapshot before it.

        Raises:
            OffsetError: Nothing was delivered yet, and the target has rows.
            SinkFencedError: Another process has taken over.
            SinkError: The server cannot be reached, or refuses.
        """
        async with self._use(is_kept=True) as connection:
            # Before the transaction, because it may make the table of offsets.
            epoch = await self._claim(connection)
            await connection.execute(_BEGIN)
            await self._offsets(connection).lock(epoch)
            target = await self._load_target(connection)
            if await self._offsets(connection).load() is None and target.oid:
                await self._check_empty(connection, target)
            if not _is_inside_snapshot(offset):
                await self._snapshot(connection, target).drop()
            await connection.execute("COMMIT")

    async def write(self, delivery: Delivery) -> int:
        """Deliver all rows and the offset in one transaction; return the number of rows.

        Raises:
            SinkFencedError: Another process has taken over.
            TailerdError: Nothing was delivered; it is repeated after `resume`.
        """
        async with self._busy:
            connection = self._connection
            if connection is None or self._epoch is None:
                # The outcome of the last commit is unknown until the offset is loaded again.
                raise SinkError(f"The connection to PostgreSQL at {self._address} was lost.")
            try:
                return await self._deliver(connection, delivery, self._epoch)
            except BaseException as error:
                await self._drop()
                if isinstance(error, psycopg.Error):
                    raise map_error(error, self._address) from error
                raise

    @property
    def is_mirror(self) -> bool:
        """Whether the target has one row for each key."""
        return self._config.is_mirror

    @property
    def value_format(self) -> str:
        """`json`: rows are read back as that format has them."""
        return "json"

    @property
    def has_decimal_numbers(self) -> bool:
        """True: decimals are numbers in the database."""
        return True

    @property
    def empty_is_null(self) -> bool:
        """False: the database distinguishes them."""
        return False

    async def read_back(self) -> AsyncGenerator[Sequence[bytes]]:
        """Yield the target's rows as JSON, all as of one moment.

        Raises:
            SinkError: The server cannot be reached, or refuses.
        """
        connection = await self._connect()
        try:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            saved = await self._offsets(connection).load()
            target = await self._load_target(connection)
            if saved is not None and target.oid:
                version = saved.offset.version
                rows = read_rows(connection, target, self._config, version)
                async with aclosing(rows):
                    async for group in rows:
                        yield group
        except psycopg.Error as error:
            raise map_error(error, self._address) from error
        finally:
            await connection.close()

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        async with self._busy:
            await self._drop()

    async def load_offset(self) -> SavedOffset | None:
        """Return the saved offset; changes nothing."""
        async with self._use() as connection:
            return await self._offsets(connection).load()

    async def save_offset(self, saved: SavedOffset) -> None:
        """Save an offset outside a delivery; fences off other processes."""
        async with self._use() as connection:
            epoch = await self._claim(connection)
            await connection.execute(_BEGIN)
            offsets = self._offsets(connection)
            await offsets.lock(epoch)
            await offsets.save(saved)
            await connection.execute("COMMIT")

    async def _deliver(self, connection: Connection, delivery: Delivery, epoch: int) -> int:
        await connection.execute(_BEGIN)
        target = await self._load_target(connection)
        writer = await self._open_writer(connection, target, delivery.start)
        rows, timestamp_us = 0, None
        try:
            async for batch in delivery.batches:
                if isinstance(writer, SnapshotWriter):
                    if batch.change_source is not ChangeSourceKind.SNAPSHOT:
                        await self._end_snapshot(connection, writer, epoch, timestamp_us)
                        writer = MirrorWriter(connection, target, self._config, self._table)
                    timestamp_us = batch.timestamp_us
                await _adapt(writer, delivery)
                rows += await _add(writer, batch)
            await _adapt(writer, delivery)
            if isinstance(writer, SnapshotWriter) and delivery.end.phase is Phase.FOLLOW:
                await self._end_snapshot(connection, writer, epoch, timestamp_us)
            await writer.finish()
            offsets = self._offsets(connection)
            await offsets.lock(epoch)
            await offsets.save(delivery.saved)
            await connection.execute("COMMIT")
        except BaseException:
            # First, so that nothing waits for the server.
            await connection.close()
            await writer.abandon()
            raise
        return rows

    async def _open_writer(self, connection: Connection, target: Table, start: Offset) -> Writer:
        config, table = self._config, self._table
        if not config.is_mirror:
            return LogWriter(connection, target, config, table)
        if start.phase is not Phase.SNAPSHOT:
            return MirrorWriter(connection, target, config, table)
        snapshot = self._snapshot(connection, target)
        is_begun = _is_inside_snapshot(start)
        if is_begun:
            await snapshot.resume()
        else:
            await snapshot.begin()
        return SnapshotWriter(connection, snapshot, config, table, is_begun=is_begun)

    async def _end_snapshot(
        self, connection: Connection, writer: SnapshotWriter, epoch: int, timestamp_us: int | None
    ) -> None:
        await writer.finish()
        # Before the target is locked: readers must not wait because this process has been fenced.
        await self._offsets(connection).lock(epoch)
        await writer.end(timestamp_us)

    async def _claim(self, connection: Connection) -> int:
        self._epoch = await self._offsets(connection).claim(self._epoch)
        return self._epoch

    async def _load_target(self, connection: Connection) -> Table:
        target = Table(connection, self._schema, self._name)
        await target.load()
        return target

    async def _check_empty(self, connection: Connection, target: Table) -> None:
        found = await connection.execute(
            psycopg.sql.SQL("SELECT FROM {} LIMIT 1").format(target.identifier)
        )
        if await found.fetchone() is not None:
            raise OffsetError(
                f"The table {self._config.table} has rows, and no offset of {self._table} is saved"
                f" in {self._schema}.{OFFSETS_TABLE}: the rows may be of another pipeline.",
                remedy="Choose another `table`, or empty it. If the rows are of this table,"
                f" {reset_command(self._table, 'VERSION')}.",
            )

    def _offsets(self, connection: Connection) -> OffsetsTable:
        return OffsetsTable(connection, self._schema, self._identity)

    def _snapshot(self, connection: Connection, target: Table) -> Snapshot:
        return Snapshot(connection, target, self._config, self._identity)

    def _check_rights(
        self,
        has_schema: bool,
        has_usage: bool,
        can_create: bool,
        can_stage: bool,
        is_owner: bool,
        has_offsets: bool,
        user: str,
    ) -> None:
        is_mirror = self._config.is_mirror
        missing = [
            text
            for is_there, text in (
                (has_usage, f"USAGE on the schema {self._schema}"),
                (can_create, f"CREATE on the schema {self._schema}"),
                (can_stage or not is_mirror, f"TEMPORARY on the database {self._config.database}"),
                (is_owner, f"ownership of the table {self._config.table}"),
                (has_offsets, f"SELECT, INSERT and UPDATE on {self._schema}.{OFFSETS_TABLE}"),
            )
            if not is_there
        ]
        if not has_schema:
            raise SinkRefusedError(
                f"The schema {self._schema} does not exist in {self._config.database}.",
                remedy="Create it, or correct `table`.",
            )
        if missing:
            raise SinkRefusedError(
                f"The user {user} lacks {'; '.join(missing)}.", remedy="Grant it in PostgreSQL."
            )

    @property
    def _address(self) -> str:
        return self._config.location()

    @asynccontextmanager
    async def _use(self, *, is_kept: bool = False) -> AsyncIterator[Connection]:
        """Yield a connection, with errors mapped; close it after an error.

        Args:
            is_kept: It stays open for deliveries; else one that was opened is closed.
        """
        async with self._busy:
            was_open = self._connection is not None
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                yield self._connection
            except BaseException as error:
                await self._drop()
                if isinstance(error, psycopg.Error):
                    raise map_error(error, self._address) from error
                raise
            if not (is_kept or was_open):
                await self._drop()

    async def _connect(self) -> Connection:
        password = self._config.password
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._config.dsn,
                autocommit=True,
                # Prepared statements belong to a session, and a pooler changes sessions.
                prepare_threshold=None,
                connect_timeout=_CONNECT_SECONDS,
                application_name="tailerd",
                client_encoding="utf8",
                # None leaves it to libpq.
                password=None if password is None else password.get_secret_value(),
            )
        except psycopg.Error as error:
            raise map_error(error, self._address) from error
        version = connection.info.server_version
        if version < MIN_SERVER:
            await connection.close()
            raise SinkRefusedError(
                f"PostgreSQL at {self._address} is version {version // 10_000}, and 15 or newer is"
                " needed.",
                remedy="Upgrade the server.",
            )
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class PostgresOffsets:
    """The `OffsetStore` of a PostgreSQL sink."""

    def __init__(self, sink: PostgresSink) -> None:
        self._sink = sink

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return the saved offset; does not disturb a running daemon."""
        return await self._sink.load_offset()

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Save an offset durably."""
        await self._sink.save_offset(saved)


async def _adapt(writer: Writer, delivery: Delivery) -> None:
    while delivery.schema_changes:
        change = delivery.schema_changes.popleft()
        await writer.adapt(change.schema, change.changes)


async def _add(writer: Writer, batch: ChangeBatch) -> int:
    if batch.num_rows:
        await writer.add(batch)
    return batch.num_rows


def _is_inside_snapshot(offset: Offset) -> bool:
    return offset.phase is Phase.SNAPSHOT and offset.position > 0
