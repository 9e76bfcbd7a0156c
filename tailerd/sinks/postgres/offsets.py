"""The table `tailerd_offsets`: the offset of each pipeline, and the epoch that fences off others.

Every delivery locks its pipeline's row before it commits. A process that starts increases the
epoch, and deliveries of an earlier one then fail.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import OffsetError, SinkFencedError
from tailerd.remedies import RESET_PIPELINE
from tailerd.sinks.postgres.config import OFFSETS_TABLE
from tailerd.sinks.postgres.table import Connection

_CREATE: LiteralString = """
CREATE TABLE {table} (pipeline text PRIMARY KEY, epoch bigint NOT NULL, "offset" jsonb,
    saved_at timestamptz)
"""
_CLAIM: LiteralString = """
INSERT INTO {table} AS o (pipeline, epoch) VALUES ({pipeline}, 1)
ON CONFLICT (pipeline) DO UPDATE SET epoch = o.epoch + 1 RETURNING epoch
"""
_LOCK: LiteralString = "SELECT epoch FROM {table} WHERE pipeline = {pipeline} FOR UPDATE"
_LOAD: LiteralString = 'SELECT "offset"::text FROM {table} WHERE pipeline = {pipeline}'
_SAVE: LiteralString = (
    'UPDATE {table} SET "offset" = {offset}, saved_at = now() WHERE pipeline = {pipeline}'
)


class OffsetsTable:
    """The offset of one pipeline, on one connection."""

    def __init__(self, connection: Connection, schema: str, identity: PipelineIdentity) -> None:
        self._connection = connection
        self._schema = schema
        self._table = sql.Identifier(schema, OFFSETS_TABLE)
        self._identity = identity

    async def claim(self, epoch: int | None) -> int:
        """Fence off other processes; return the epoch. Waits until their last commit has ended.

        Call it outside a transaction.

        Args:
            epoch: That of an earlier claim of this process, which must still hold.

        Raises:
            SinkFencedError: Another process has claimed the pipeline since.
        """
        if epoch is not None:
            await self.lock(epoch)
            return epoch
        if not await self._exists():
            # Another pipeline may make it in the same moment; IF NOT EXISTS does not help then.
            with suppress(
                psycopg.errors.DuplicateTable,
                psycopg.errors.DuplicateObject,
                psycopg.errors.UniqueViolation,
            ):
                await self._execute(_CREATE)
        row = await self._fetch(_CLAIM)
        assert row is not None
        return int(row[0])

    async def lock(self, epoch: int) -> None:
        """Lock the pipeline until the transaction ends.

        Raises:
            SinkFencedError: Another process has claimed the pipeline.
        """
        row = await self._fetch(_LOCK)
        if row is None or row[0] != epoch:
            raise SinkFencedError(
                f"Another process has taken over {self._identity}: its epoch is"
                f" {'gone' if row is None else row[0]}, and this process has {epoch}.",
                remedy="Run each pipeline in one process only.",
            )

    async def load(self) -> SavedOffset | None:
        """Return the saved offset; None if there is none.

        Raises:
            OffsetError: It is damaged.
        """
        if not await self._exists():
            return None
        row = await self._fetch(_LOAD)
        if row is None or row[0] is None:
            return None
        location = f"The offset of {self._identity} in {self._schema}.{OFFSETS_TABLE}"
        try:
            return SavedOffset.from_json(row[0], location=location, fix=RESET_PIPELINE)
        except OffsetError as error:
            error.table = self._identity.table
            raise

    async def save(self, saved: SavedOffset) -> None:
        """Save an offset, in the transaction that has locked the pipeline."""
        await self._execute(_SAVE, saved.to_json())

    async def _exists(self) -> bool:
        found = await self._connection.execute(
            "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = %s",
            (self._schema, OFFSETS_TABLE),
        )
        return await found.fetchone() is not None

    async def _fetch(self, statement: LiteralString) -> tuple[Any, ...] | None:
        return await (await self._execute(statement)).fetchone()

    async def _execute(
        self, statement: LiteralString, offset: str = ""
    ) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        # Values are in the text: a name with a percent sign would be taken for a placeholder.
        text = sql.SQL(statement).format(
            table=self._table,
            pipeline=sql.Literal(self._identity.key),
            offset=sql.Literal(offset),
        )
        return await self._connection.execute(text)
