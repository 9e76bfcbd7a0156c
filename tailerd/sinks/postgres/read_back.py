"""Read the target's rows back, as the values of the format `json` have them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import LiteralString

from psycopg import sql

from tailerd.changefeed.change_batch import CHANGE_TYPE, COMMIT_VERSION
from tailerd.changefeed.offset import Version
from tailerd.sinks.postgres.columns import BYTEA, DATE, TIMESTAMP, TIMESTAMPTZ
from tailerd.sinks.postgres.config import DELETED_AT, PostgresSinkConfig
from tailerd.sinks.postgres.table import Connection, Table
from tailerd.sinks.postgres.writers import EVENT_ID

_GROUP = 1000
# ISO has a year 0, which is 1 BC; years outside 0 to 9999 have a sign.
_YEAR: LiteralString = """
(SELECT CASE WHEN y BETWEEN 0 AND 9999 THEN '' WHEN y < 0 THEN '-' ELSE '+' END
    || lpad(abs(y)::text, greatest(4, length(abs(y)::text)), '0')
FROM (SELECT extract(year FROM {at})::int + (extract(year FROM {at}) < 0)::int AS y) AS year)
"""
_TEXTS: dict[str, LiteralString] = {
    BYTEA: "replace(encode({column}, 'base64'), chr(10), '')",
    DATE: "YEAR || to_char({at}, '-MM-DD')",
    TIMESTAMP: "YEAR || to_char({at}, '-MM-DD\"T\"HH24:MI:SS.US')",
    TIMESTAMPTZ: 'YEAR || to_char({at}, \'-MM-DD"T"HH24:MI:SS.US"Z"\')',
    "time without time zone": "to_char({column}, 'HH24:MI:SS.US')",
}
"""PostgreSQL type -> SQL for the text of its values; JSON has the values of all others."""


async def read_rows(
    connection: Connection, target: Table, config: PostgresSinkConfig, version: Version
) -> AsyncGenerator[Sequence[bytes]]:
    """Yield each row of the target as JSON, in any order, without rows that are deleted.

    Args:
        connection: In a transaction.
        target: The loaded target.
        config: The sink's section.
        version: The `_commit_version` of the rows of a mirror.
    """
    own = {DELETED_AT} if config.is_soft else set() if config.is_mirror else {EVENT_ID}
    fields = [
        sql.SQL("{} AS {}").format(_write_text(name, column.kind), sql.Identifier(name))
        for name, column in target.columns.items()
        if name not in own
    ]
    if config.is_mirror:
        for name, value in ((CHANGE_TYPE, "insert"), (COMMIT_VERSION, version)):
            literal = sql.SQL("{} AS {}").format(sql.Literal(value), sql.Identifier(name))
            fields.append(literal)
    where: sql.Composable = sql.SQL("")
    if config.is_soft:
        where = sql.SQL(" WHERE {} IS NULL").format(sql.Identifier(DELETED_AT))
    statement = sql.SQL(
        "COPY (SELECT row_to_json(r)::text FROM (SELECT {} FROM {}{}) AS r) TO STDOUT"
    )
    rows: list[bytes] = []
    query = statement.format(sql.SQL(", ").join(fields), target.identifier, where)
    async with connection.cursor().copy(query) as copy:
        async for (text,) in copy.rows():
            rows.append(text.encode())
            if len(rows) == _GROUP:
                yield rows
                rows = []
    yield rows


def _write_text(name: str, kind: str) -> sql.Composable:
    column = sql.Identifier(name)
    text = _TEXTS.get(kind)
    if text is None:
        return column
    at = sql.SQL("({} AT TIME ZONE 'UTC')").format(column) if kind == TIMESTAMPTZ else column
    return sql.SQL(text.replace("YEAR", _YEAR)).format(column=column, at=at)
