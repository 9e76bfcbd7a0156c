"""`tailerd status`: the status of the running daemon's pipelines."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from tailerd.changefeed.points import show_ms
from tailerd.cli.change_table import printable
from tailerd.cli.completion import table_names
from tailerd.cli.daemon_client import DaemonClient, client_config_option, http_option, token_option
from tailerd.cli.output import json_line, print_records, write_bytes
from tailerd.cli.paragraphs import say
from tailerd.cli.quantities import duration_text, size_text
from tailerd.cli.record_table import Layout, line_width, style_word
from tailerd.errors import DaemonRefusedError, DaemonUnreachableError, UsageError
from tailerd.pipeline_names import is_named
from tailerd.registry import suggest_name

_EXAMPLES = """\b
Examples:
  tailerd status
  tailerd status --watch
  tailerd status orders
  tailerd status orders --json
  tailerd status --http http://10.0.0.5:9464
"""
_COLOURS = {"running": 32, "starting": 36, "paused": 36, "retrying": 33, "failed": 31}
_LAYOUT = Layout(
    columns=(
        *("table", "state", "engine", "sink", "delivered", "head", "lag", "lag time"),
        *("rows/s", "next retry", "error"),
    ),
    optional=("engine", "sink", "rows/s", "lag time", "next retry", "head"),
    cut=("error", "table"),
    least_text_width=30,
    styles={"state": _COLOURS},
)
_TOP_OF_SCREEN = b"\x1b[H\x1b[J"


@click.command("status", epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=table_names)
@http_option
@client_config_option
@token_option
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between refreshes with --watch.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a pipeline, with all fields."
)
def command(
    name: str | None,
    url: str | None,
    config_path: Path | None,
    token_file: Path | None,
    watch: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show every pipeline of the running daemon in a line, or all details of NAME.

    The columns are the newest delivered version, the newest version of the table, the lag, the rows
    a second over the last minute, and the error of a failed or retrying pipeline. NAME also shows
    the last error of a pipeline that has recovered. A narrow terminal leaves out columns; --json
    has all. Problems of no single table (the queue of notifications, a pattern of tables, the
    state) go to standard error. --watch continues while the daemon restarts. Exits with 1 if a
    shown pipeline has failed.
    """
    client = DaemonClient.from_options(url, config_path, token_file)
    tables: list[dict[str, object]] = []
    while True:
        try:
            status = client.status()
            tables = select_tables(status, client.url, name)
        except DaemonUnreachableError as error:
            if not watch:
                raise
            _clear(as_json=as_json)
            say(f"{error.message} Retrying every {interval:g} s.", err=True)
        else:
            if watch:
                _clear(as_json=as_json)
            _show(tables, is_one=len(tables) == 1 and name is not None, as_json=as_json)
            for line in problem_lines(status):
                say(line, err=True)
        if not watch:
            raise click.exceptions.Exit(any(table.get("state") == "failed" for table in tables))
        time.sleep(interval)


def _clear(*, as_json: bool) -> None:
    if sys.stdout.isatty() and not as_json:
        write_bytes(sys.stdout.buffer, _TOP_OF_SCREEN)


def _show(tables: list[dict[str, object]], *, is_one: bool, as_json: bool) -> None:
    out = sys.stdout.buffer
    if as_json:
        write_bytes(out, b"".join(map(json_line, tables)))
    elif is_one:
        lines = view_lines(tables[0], time.time(), line_width(out))
        if out.isatty() and "NO_COLOR" not in os.environ:
            label = f"{'state':<{_LABEL_WIDTH}}"
            lines = (
                label + style_word(line.removeprefix(label), _COLOURS)
                if line.startswith(label)
                else line
                for line in lines
            )
        text = "".join(f"{line}\n" for line in lines)
        write_bytes(out, text.encode("utf-8", "backslashreplace"))
    else:
        print_records([build_row(table, time.time()) for table in tables], _LAYOUT, as_json=False)


def problem_lines(status: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each problem that concerns no single table."""
    problems = status.get("problems")
    for problem in problems if isinstance(problems, list) else ():
        error = problem.get("error") if isinstance(problem, dict) else None
        if isinstance(error, dict):
            yield printable(f"{problem.get('part')} [{error.get('code')}]: {error.get('message')}")


def select_tables(
    status: Mapping[str, object], url: str, name: str | None
) -> list[dict[str, object]]:
    """Return the entries of `/status` for each pipeline, or for the named ones.

    Raises:
        DaemonRefusedError: The answer is not that of a daemon.
        UsageError: There is no pipeline of that name.
    """
    tables = status.get("tables")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DaemonRefusedError(
            f"The server at {url} returned no tables.", remedy="Check that it is a tailerd daemon."
        )
    if name is None:
        return tables
    found = [table for table in tables if is_named(str(table.get("table")), name)]
    if not found:
        remedy = suggest_name(name, [str(table.get("table")) for table in tables])
        raise UsageError(f"There is no table {name!r}.", remedy=remedy)
    return found


def build_row(table: Mapping[str, object], now: float) -> dict[str, object]:
    """Return a pipeline's line of the table.

    Args:
        table: Its entry in `/status`.
        now: Seconds since the epoch.
    """
    error, lag = table.get("last_error"), table.get("lag_seconds")
    text = None
    if isinstance(error, dict) and error.get("is_current"):
        text = f"{error.get('code')}: {error.get('message')}"
    return {
        "table": table.get("table"),
        "state": state_text(table),
        "engine": table.get("engine"),
        "sink": table.get("sink"),
        "delivered": table.get("delivered_version"),
        "head": table.get("head_version"),
        "lag": table.get("lag_versions"),
        "lag time": duration_text(lag) if isinstance(lag, int | float) else None,
        "rows/s": _round_value(table.get("rows_per_second")),
        "next retry": retry_text(table, now),
        "error": text,
    }


def state_text(table: Mapping[str, object]) -> str:
    """Return the state, with the progress of a snapshot that is being delivered."""
    progress = table.get("snapshot_progress")
    share = f" (snapshot {progress:.0%})" if isinstance(progress, int | float) else ""
    return f"{table.get('state')}{share}"


def retry_text(table: Mapping[str, object], now: float) -> str | None:
    """Return when the next attempt is; None if none is scheduled."""
    retry_ms = table.get("next_retry_ms")
    if not isinstance(retry_ms, int | float):
        return None
    seconds = retry_ms / 1000 - now
    return f"in {duration_text(seconds)}" if seconds >= 0.1 else "now"


def _round_value(value: object) -> object:
    return round(value, 1) if isinstance(value, float) else value


_RESET_ONLY = ("missing_version", "table_recreated", "topic_recreated")
"""Codes of errors that come again at each resume; a reset resumes the pipeline by itself."""
_LABEL_WIDTH = 12
_MIN_WIDTH = 40

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
            room = max(_MIN_WIDTH, width) - _LABEL_WIDTH
            lines = textwrap.wrap(lines[0], room, break_on_hyphens=False)
        for number, line in enumerate(lines):
            yield f"{'' if number else label:<{_LABEL_WIDTH}}{line}"


def _fields(table: Status, now: float) -> Iterator[tuple[str, str]]:
    yield "table", _text(table.get("table"))
    yield "state", _text(table.get("state"))
    yield "source", _text(table.get("source"))
    yield "sink", _join_texts(table.get("sink"), table.get("guarantee"))
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
        left = f"{duration_text(headroom)} until the next version may be cleaned up"
        yield "headroom", left if headroom > 0 else "none: the next changes may be gone already"


def _version(table: Status) -> str:
    delivered, head = table.get("delivered_version"), table.get("head_version")
    if head is None:
        return "not known yet" if delivered is None else f"through version {delivered}"
    newest = "has no version yet" if head == -1 else f"is at version {head}"
    if delivered is None:
        return f"nothing yet; the table {newest}, and version {table.get('offset_version')} is next"
    return f"through version {delivered}; the table {newest}"


def _lag(table: Status) -> str:
    versions, seconds, size = (
        table.get(name) for name in ("lag_versions", "lag_seconds", "lag_bytes")
    )
    if versions is None:
        return "not known yet"
    if versions == 0:
        return "none"
    parts = [f"{versions} version{'' if versions == 1 else 's'}"]
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
    elif table.get("state") == "failed" and error.get("code") not in _RESET_ONLY:
        name = table.get("table")
        yield "resume", f"fix the cause, then: tailerd resume {name}"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _join_texts(first: object, second: object) -> str:
    return ", ".join(text for text in (_text(first), _text(second)) if text)


def _number(value: object, unit: str) -> str:
    return f"{value:,.1f} {unit}" if isinstance(value, int | float) else ""


def _share(value: object) -> str:
    return f"{value:.0%} delivered" if isinstance(value, int | float) else ""
