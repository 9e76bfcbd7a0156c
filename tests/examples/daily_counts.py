"""Count the changes of each day and kind, in DuckDB: `python daily_counts.py TABLE`."""

from __future__ import annotations

import sys

import duckdb

import tailerd

QUERY = """
    SELECT _commit_timestamp::DATE AS day, _change_type AS change, count(*) AS rows
    FROM changes GROUP BY ALL ORDER BY ALL
"""


def daily_counts(location: str) -> list[tuple[object, ...]]:
    """Return (day, change, rows), ordered."""
    with duckdb.connect() as connection:
        changes = tailerd.changes(location, since=0).to_duckdb(connection)
        return list(changes.query("changes", QUERY).fetchall())


if __name__ == "__main__":
    for day, change, rows in daily_counts(sys.argv[1]):
        print(day, change, rows)
