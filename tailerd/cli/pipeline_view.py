"""The output of `tailerd status NAME`: one pipeline in detail, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from tailerd.changefeed.points import show_ms
from tailerd.cli.change_table import printable
from tailerd.cli.quantities import duration_text, size_text

_LABEL_WIDTH = 12
_LEAST_WIDTH = 40

Status = Mapping[str, object]


def view_lines(table: Status, now: float, width: int | None) -> Iterator[str]:
    """Yield the lines of a pipeline's view.

    Args:
        table: Its entry in `/status`.
        now: Seconds since the epoch.
        width: Cells of a line; None: texts are not wrapped.
    """
    for label, text in _fields(table, now):
        if not text:
            continue
        lines = [printable(text)]
        if width is not None:
            room = max(_LEAST_WIDTH, width) - _LABEL_WIDTH
            lines = textwrap.wrap(lines[0], room, break_on_hyphens=False)
        for number, line in enumerate(lines):
            yield f"{'' if number else label:<{_LABEL_WIDTH}}{line}"


def _fields(table: Status, now: float) -> Iterator[tuple[str, str]]:
    yield "table", _text(table.get("table"))
    yield "state", _text(table.get("state"))
    yield "source", _text(table.get("source"))
    yield "sink", _joined(table.get("sink"), table.get("guarantee"))
    yield "engine", _text(table.get("engine"))
    yield "delivered", _version(table)
    yield "lag", _lag(table)
    yield "rate", _number(table.get("rows_per_second"), "rows/s in the last minute")
    yield "rows", _rows(table.get("rows_delivered"))
    yield "snapshot", _share(table.get("snapshot_progress"))
    yield from _error(table, now)
    yield "gaps", _text(table.get("last_gap"))
    if table.get("skipped_commits"):
        yield "skipped", f"{table['skipped_commits']} damaged commits since the start"
    headroom = table.get("retention_headroom_seconds")
    if isinstance(headroom, int | float):
        yield "headroom", f"{duration_text(headroom)} until the next version may be cleaned up"


def _version(table: Status) -> str:
    delivered, head = table.get("delivered_version"), table.get("head_version")
    if delivered is None and head is None:
        return "not known yet"
    return f"through version {_or_none(delivered)}; the table is at version {_or_none(head)}"


def _lag(table: Status) -> str:
    versions, seconds, size = (
        table.get(name) for name in ("lag_versions", "lag_seconds", "lag_bytes")
    )
    if versions == 0:
        return "none"
    parts = [] if versions is None else [f"{versions} version{'' if versions == 1 else 's'}"]
    if isinstance(size, int):
        parts.append(size_text(size))
    if isinstance(seconds, int | float):
        parts.append(f"oldest committed {duration_text(seconds)} ago")
    return ", ".join(parts)


def _rows(rows: object) -> str:
    if not isinstance(rows, dict) or not rows:
        return ""
    return ", ".join(f"{count:,} {kind}" for kind, count in rows.items()) + " since the start"


def _error(table: Status, now: float) -> Iterator[tuple[str, str]]:
    error = table.get("last_error")
    if not isinstance(error, dict):
        return
    at = error.get("at_ms")
    when = ""
    if isinstance(at, int | float):
        when = f" ({duration_text(now - at / 1000)} ago, {show_ms(int(at))})"
    label = "error" if error.get("is_current") else "last error"
    passed = "" if error.get("is_current") else " It has passed."
    yield label, f"{error.get('code')}{when}: {error.get('message')}{passed}"
    attempt, retry_ms = table.get("attempt"), table.get("next_retry_ms")
    if error.get("is_current") and isinstance(retry_ms, int | float):
        seconds = retry_ms / 1000 - now
        wait = f"in {duration_text(seconds)}" if seconds >= 0.1 else "now"
        yield "next retry", f"{wait}, after {attempt} failed attempts"
    elif table.get("state") == "failed":
        name = table.get("table")
        yield "resume", f"fix the cause, then: tailerd resume {name}"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _joined(first: object, second: object) -> str:
    return ", ".join(text for text in (_text(first), _text(second)) if text)


def _number(value: object, unit: str) -> str:
    return f"{value:,.1f} {unit}" if isinstance(value, int | float) else ""


def _share(value: object) -> str:
    return f"{value:.0%} delivered" if isinstance(value, int | float) else ""


def _or_none(version: object) -> str:
    return "none" if version is None else str(version)
