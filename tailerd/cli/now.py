"""Points in time as commands take them: also relative to now."""

from __future__ import annotations

import datetime as dt

from tailerd.changefeed.points import resolved_point


def point_of(text: str) -> str:
    """Return a version, word or time with `-2h`, `yesterday` and `today` made absolute.

    Raises:
        UsageError: It is too long ago for a time.
    """
    return resolved_point(text, dt.datetime.now(dt.UTC))
