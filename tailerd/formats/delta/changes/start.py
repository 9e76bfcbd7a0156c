"""The commit that a time means."""

from __future__ import annotations

import datetime

from tailerd.changefeed.points import show_ms, to_ms
from tailerd.errors import UsageError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.time_travel import TimeAxis


async def first_from(reader: LogReader, time: datetime.datetime) -> int:
    """Return the version of a log's first commit at or after a time.

    Raises:
        UsageError: There is none.
    """
    axis = await TimeAxis.of(reader)
    found = await axis.first_from(to_ms(time, round_up=True))
    if found is None:
        newest = max(axis.commits)
        raise UsageError(
            f"There is no commit at or after {time.isoformat()}: the newest, version {newest},"
            f" is of {show_ms(await axis.time_ms(newest))}.",
            remedy="Use --from latest to wait for the next one.",
        )
    return found
