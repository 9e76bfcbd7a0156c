"""Follow a table and go on where the last run ended: `python keep_an_offset.py TABLE OFFSET_FILE`.

Ends when nothing came for ten seconds, so that it can be run from cron; with `idle_seconds=None`
it follows for ever.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import tailerd


async def follow(
    location: str, offset: str | None, keep: Callable[[str], object], idle_seconds: float | None
) -> int:
    """Print changes and keep the offset; return the number of rows."""
    batches = aiter(tailerd.follow(location, since="snapshot", offset=offset))
    rows = 0
    while True:
        try:
            found = await asyncio.wait_for(anext(batches), idle_seconds)
        except TimeoutError:
            return rows
        for row in found.rows.to_pylist():
            print(row["_change_type"], row["_commit_version"], row)
        rows += found.rows.num_rows
        # After the rows are handled: a crash before this line repeats them, and loses none.
        keep(found.offset)


if __name__ == "__main__":
    table, file = sys.argv[1], Path(sys.argv[2])
    offset = file.read_text() if file.exists() else None
    print(asyncio.run(follow(table, offset, file.write_text, idle_seconds=10.0)), "rows")
