"""`tailerd status`: where the pipelines of the running daemon stand."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from tailerd.cli.daemon_client import DaemonClient, config_option, http_option, token_option
from tailerd.cli.output import print_records, write_bytes
from tailerd.errors import DaemonRefusedError, UsageError
from tailerd.registry import known

_EXAMPLES = """\b
Examples:
  tailerd status
  tailerd status --watch
  tailerd status orders --json
  tailerd status --http http://10.0.0.5:9464
"""
_COLUMNS = (
    "table",
    "state",
    "engine",
    "sink",
    "version",
    "head",
    "lag",
    "lag seconds",
    "rows/s",
    "next retry",
    "last error",
)
_LEFT_OUT_WHERE_NARROW = ("engine", "sink")
_NARROW = 100
_TOP_OF_SCREEN = b"\x1b[H\x1b[J"
_MOST_ERROR_CHARS = 100


@click.command("status", epilog=_EXAMPLES)
@click.argument("name", required=False)
@http_option
@config_option
@token_option
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks with --watch.",
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
    """Show where every pipeline of the running daemon stands, or NAME alone.

    Read from the daemon's /status: state, version and head, lag, rows a second over the last
    minute, the last error and when it is tried again. What is wrong beside the tables (the queue of
    notifications, a pattern of tables, the state) is told on standard error.
    """
    client = DaemonClient.of(url, config_path, token_file)
    is_screen = sys.stdout.isatty()
    while True:
        status = client.status()
        shown = _tables(status, client.url, name)
        if watch and is_screen and not as_json:
            write_bytes(sys.stdout.buffer, _TOP_OF_SCREEN)
        rows = shown if as_json else [row_of(table, time.time()) for table in shown]
        print_records(rows, _columns(is_screen=is_screen), as_json=as_json)
        for line in trouble_lines(status):
            click.echo(line, err=True)
        if not watch:
            return
        time.sleep(interval)


def _columns(*, is_screen: bool) -> tuple[str, ...]:
    if not is_screen or shutil.get_terminal_size().columns >= _NARROW:
        return _COLUMNS
    return tuple(column for column in _COLUMNS if column not in _LEFT_OUT_WHERE_NARROW)


def trouble_lines(status: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each thing that is wrong beside the tables."""
    troubles = status.get("troubles")
    for trouble in troubles if isinstance(troubles, list) else ():
        error = trouble.get("error") if isinstance(trouble, dict) else None
        if isinstance(error, dict):
            yield f"{trouble.get('part')} [{error.get('code')}]: {error.get('message')}"


def _tables(status: Mapping[str, object], url: str, name: str | None) -> list[dict[str, object]]:
    tables = status.get("tables")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DaemonRefusedError(f"What answers at {url} shows no tables.", hint="Is it a tailerd?")
    if name is None:
        return tables
    found = [table for table in tables if table.get("table") == name]
    if not found:
        hint = known(name, [str(table.get("table")) for table in tables])
        raise UsageError(f"There is no table {name!r}.", hint=hint)
    return found


def row_of(table: Mapping[str, object], now: float) -> dict[str, object]:
    """Return a pipeline's line of the table.

    Args:
        table: What `/status` says of it.
        now: Seconds since the epoch.
    """
    error, retry_ms = table.get("last_error"), table.get("next_retry_ms")
    seconds = None
    if isinstance(retry_ms, int | float):
        seconds = f"in {max(0.0, retry_ms / 1000 - now):.1f} s"
    text = None
    if isinstance(error, dict):
        text = f"{error.get('code')}: {error.get('message')}"
        text = text if len(text) <= _MOST_ERROR_CHARS else f"{text[: _MOST_ERROR_CHARS - 3]}..."
    return {
        "table": table.get("table"),
        "state": _state(table),
        "engine": table.get("engine"),
        "sink": table.get("sink"),
        "version": table.get("offset_version"),
        "head": table.get("head_version"),
        "lag": table.get("lag_versions"),
        "lag seconds": _rounded(table.get("lag_seconds")),
        "rows/s": _rounded(table.get("rows_per_second")),
        "next retry": seconds,
        "last error": text,
    }


def _state(table: Mapping[str, object]) -> str:
    progress = table.get("snapshot_progress")
    share = f" (snapshot {progress:.0%})" if isinstance(progress, int | float) else ""
    return f"{table.get('state')}{share}"


def _rounded(value: object) -> object:
    return round(value, 1) if isinstance(value, float) else value
