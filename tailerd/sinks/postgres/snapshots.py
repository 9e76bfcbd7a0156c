"""Snapshots of a mirror: another table is filled, and takes the target's place in one transaction.

The other table, the shadow, is like the target, and gets the target's indexes, privileges and
comments once it has all rows. PostgreSQL ties views, triggers, policies and foreign keys to a
table, not to its name: `snapshot: truncate` copies the shadow's rows into the target instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.errors import SinkRefusedError
from tailerd.remedies import RESET_PIPELINE
from tailerd.sinks.postgres.config import DELETED_AT, PostgresSinkConfig
from tailerd.sinks.postgres.rows import SHOWN_KEYS, show_keys
from tailerd.sinks.postgres.table import Connection, Table, join_names, raw

_OBSTACLES: LiteralString = """
SELECT 'the trigger ' || tgname FROM pg_trigger WHERE tgrelid = {oid} AND NOT tgisinternal
UNION ALL SELECT 'the policy ' || polname FROM pg_policy WHERE polrelid = {oid}
UNION ALL SELECT 'the constraint ' || conname FROM pg_constraint
    WHERE {oid} IN (conrelid, confrelid) AND (contype IN ('f', 'x') OR condeferrable)
UNION ALL SELECT 'the view ' || c.relname FROM pg_depend d
    JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
    JOIN pg_class c ON c.oid = r.ev_class
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = {oid} AND c.oid <> {oid}
UNION ALL SELECT 'the publication ' || p.pubname FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = {oid}
UNION ALL SELECT 'its partitions or its parent' FROM pg_class c WHERE c.oid = {oid}
    AND (c.relkind = 'p' OR EXISTS (SELECT FROM pg_inherits WHERE {oid} IN (inhrelid, inhparent)))
UNION ALL SELECT 'row security' FROM pg_class WHERE oid = {oid} AND relrowsecurity
"""
_INDEXES: LiteralString = """
SELECT c.relname::text, i.indisunique, con.contype::text, obj_description(c.oid, 'pg_class'),
    substr(pg_get_indexdef(c.oid), 1 + length('CREATE ' ||
        CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END || 'INDEX ' || quote_ident(c.relname)
        || ' ON ' || quote_ident(n.nspname) || '.' || quote_ident(t.relname)))
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
LEFT JOIN pg_constraint con ON con.conindid = c.oid AND con.contype IN ('p', 'u')
WHERE i.indrelid = {oid} AND i.indisvalid ORDER BY c.oid
"""
_GRANTS: LiteralString = """
SELECT '', privilege_type, grantee, grantee::regrole::text, is_grantable
FROM pg_class c, aclexplode(c.relacl) WHERE c.oid = {oid} AND grantee <> c.relowner
UNION ALL
SELECT a.attname::text, privilege_type, grantee, grantee::regrole::text, is_grantable
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid, aclexplode(a.attacl)
WHERE a.attrelid = {oid} AND NOT a.attisdropped AND grantee <> c.relowner
"""
_OWNER: LiteralString = """
SELECT t.relowner::regrole::text, obj_description(t.oid, 'pg_class'), t.relowner = s.relowner
FROM pg_class t, pg_class s WHERE t.oid = {oid} AND s.oid = {other}
"""
_EVERYONE = 0
"""The grantee that means all users."""


class Snapshot:
    """The shadow of a target.

    Attributes:
        shadow: The table that is filled.
    """

    def __init__(
        self,
        connection: Connection,
        target: Table,
        config: PostgresSinkConfig,
        identity: PipelineIdentity,
    ) -> None:
        digest = hashlib.sha256(identity.key.encode()).hexdigest()[:16]
        self._prefix = f"tailerd_{digest}"
        self.shadow = Table(connection, target.schema, f"{self._prefix}_snapshot")
        self._connection = connection
        self._target = target
        self._config = config
        self._identity = identity

    async def begin(self) -> None:
        """Make an empty shadow, if there is a target that it is made after.

        Raises:
            SinkRefusedError: The target cannot be replaced.
        """
        await self.drop()
        if not self._target.oid:
            return
        if self._config.snapshot == "swap":
            await self._check_obstacles()
        await self._run("CREATE TABLE {shadow} (LIKE {target} INCLUDING ALL EXCLUDING INDEXES)")
        await self.shadow.load()

    async def resume(self) -> None:
        """Find the shadow that earlier deliveries have filled.

        Raises:
            SinkRefusedError: It does not exist any more.
        """
        if not await self.shadow.load():
            raise SinkRefusedError(
                f"The table {self.shadow.schema}.{self.shadow.name}, with the first part of the"
                f" snapshot of {self._identity.table}, does not exist any more.",
                remedy=RESET_PIPELINE,
            )

    async def drop(self) -> None:
        """Remove the shadow, if it exists."""
        await self._run("DROP TABLE IF EXISTS {shadow}")
        self.shadow.oid, self.shadow.columns = 0, {}

    async def end(self, timestamp_us: int | None) -> None:
        """Replace the target's rows.

        Raises:
            SinkRefusedError: Two rows of the snapshot have one key.
        """
        if not self.shadow.oid:
            # The table has no row, and its columns are not known.
            return
        await self._connection.execute("SAVEPOINT tailerd_snapshot")
        try:
            await self._replace(timestamp_us)
        except psycopg.errors.UniqueViolation:
            await self._connection.execute("ROLLBACK TO SAVEPOINT tailerd_snapshot")
            await self._refuse_duplicates()
            raise
        await self._connection.execute("RELEASE SAVEPOINT tailerd_snapshot")
        await self._target.load()
        await self._run("ANALYZE {target}")
        self.shadow.oid, self.shadow.columns = 0, {}

    async def _replace(self, timestamp_us: int | None) -> None:
        key = join_names(self._config.key)
        if not self._target.oid:
            await self._run("ALTER TABLE {shadow} RENAME TO {name}")
            await self._run("ALTER TABLE {target} ADD PRIMARY KEY ({key})", key=key)
            return
        if self._config.snapshot == "truncate":
            await self._run("LOCK TABLE {target} IN ACCESS EXCLUSIVE MODE")
            await self._keep_deleted(timestamp_us)
            names = [each.name for each in self.shadow.columns.values() if not each.is_generated]
            await self._target.adapt(list(self.shadow.columns.values()))
            await self._run("TRUNCATE {target}")
            await self._run(
                "INSERT INTO {target} ({names}) SELECT {names} FROM {shadow}",
                names=join_names(names),
            )
            await self._run("DROP TABLE {shadow}")
            return
        indexes = await self._copy_indexes()
        await self._copy_rights()
        await self._run("LOCK TABLE {target} IN ACCESS EXCLUSIVE MODE")
        await self._keep_deleted(timestamp_us)
        await self._run("DROP TABLE {target}")
        await self._run("ALTER TABLE {shadow} RENAME TO {name}")
        for own, name, comment in indexes:
            index = sql.Identifier(self._target.schema, own)
            new = sql.Identifier(name)
            await self._run("ALTER INDEX {index} RENAME TO {new}", index=index, new=new)
            if comment:
                index = sql.Identifier(self._target.schema, name)
                text = sql.Literal(comment)
                await self._run("COMMENT ON INDEX {index} IS {text}", index=index, text=text)

    async def _copy_indexes(self) -> list[tuple[str, str, str | None]]:
        """Make the target's indexes for the shadow; return (their names, those of the target's)."""
        made = []
        for number, row in enumerate(await self._fetch(_INDEXES)):
            name, is_unique, constraint, comment, definition = row
            own = f"{self._prefix}_{number}"
            await self._run(
                "CREATE {unique} INDEX {own} ON {shadow} {definition}",
                unique=raw("UNIQUE" if is_unique else ""),
                own=sql.Identifier(own),
                definition=raw(definition),
            )
            if constraint:
                await self._run(
                    "ALTER TABLE {shadow} ADD CONSTRAINT {own} {kind} USING INDEX {own}",
                    own=sql.Identifier(own),
                    kind=raw("PRIMARY KEY" if constraint == "p" else "UNIQUE"),
                )
            made.append((own, name, comment))
        return made

    async def _copy_rights(self) -> None:
        """Give the shadow the target's privileges, owner and comment, and no other privileges."""
        for row in await self._fetch(_GRANTS, of=self.shadow.oid):
            right, user = _describe_grant(row)
            statement = "REVOKE {right} ON {shadow} FROM {user}"
            await self._run(statement, right=right, user=user)
        for row in await self._fetch(_GRANTS):
            right, user = _describe_grant(row)
            option = raw(" WITH GRANT OPTION" if row[4] else "")
            statement = "GRANT {right} ON {shadow} TO {user}{option}"
            await self._run(statement, right=right, user=user, option=option)
        [(owner, comment, is_same)] = await self._fetch(_OWNER)
        if comment:
            await self._run("COMMENT ON TABLE {shadow} IS {text}", text=sql.Literal(comment))
        if not is_same:
            await self._run("ALTER TABLE {shadow} OWNER TO {owner}", owner=raw(owner))

    async def _keep_deleted(self, timestamp_us: int | None) -> None:
        """Keep rows that are gone, if deletes are soft."""
        if not self._config.is_soft or DELETED_AT not in self._target.columns:
            return
        shared = [
            name
            for name, column in self._target.columns.items()
            if name != DELETED_AT
            and not column.is_generated
            and name in self.shadow.columns
            and self.shadow.columns[name].kind == column.kind
        ]
        same = [sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self._config.key]
        await self._run(
            "INSERT INTO {shadow} ({names}, {deleted_at}) SELECT {values}, coalesce(t.{deleted_at},"
            " timestamptz 'epoch' + {us} * interval '1 microsecond', now()) FROM {target} AS t"
            " WHERE NOT EXISTS (SELECT FROM {shadow} AS s WHERE {same})",
            names=join_names(shared),
            values=join_names(shared, before="t."),
            deleted_at=sql.Identifier(DELETED_AT),
            us=sql.SQL("{}::bigint").format(timestamp_us),
            same=sql.SQL(" AND ").join(same),
        )

    async def _check_obstacles(self) -> None:
        obstacles = [row[0] for row in await self._fetch(_OBSTACLES)]
        if obstacles:
            raise SinkRefusedError(
                f"A snapshot cannot replace the table {self._target.schema}.{self._target.name},"
                f" because {', '.join(obstacles[:3])} would be lost.",
                remedy="Set `snapshot: truncate`, which keeps the table.",
            )

    async def _refuse_duplicates(self) -> None:
        """Raise an error with keys that several rows have; return if there are none."""
        key = join_names(self._config.key)
        found = await self._fetch(
            "SELECT {key} FROM {shadow} GROUP BY {key} HAVING count(*) > 1 LIMIT {most}",
            key=key,
            most=sql.Literal(SHOWN_KEYS),
        )
        if found:
            raise SinkRefusedError(
                f"Several rows of the snapshot of {self._identity.table} have the same key"
                f" ({', '.join(self._config.key)}): {show_keys(found)}.",
                remedy="Choose columns for `key` that identify a row, or deliver with `mode:"
                " append`.",
            )

    async def _fetch(
        self, statement: LiteralString, *, of: int | None = None, **parts: sql.Composable
    ) -> list[tuple[Any, ...]]:
        return await (await self._run(statement, of=of, **parts)).fetchall()

    async def _run(
        self, statement: LiteralString, *, of: int | None = None, **parts: sql.Composable
    ) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        text = sql.SQL(statement).format(
            target=self._target.identifier,
            shadow=self.shadow.identifier,
            name=sql.Identifier(self._target.name),
            oid=sql.Literal(self._target.oid if of is None else of),
            other=sql.Literal(self.shadow.oid),
            **parts,
        )
        return await self._connection.execute(text)


def _describe_grant(row: Sequence[Any]) -> tuple[sql.Composable, sql.Composable]:
    """Return the privilege, with its column if it is for one, and who has it."""
    column, right, grantee, user, _ = row
    on = sql.SQL(" ({})").format(sql.Identifier(column)) if column else sql.SQL("")
    return raw(right) + on, sql.SQL("PUBLIC") if grantee == _EVERYONE else raw(user)
