"""`tailerd resume`: resume a pipeline of the running daemon."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import click

from tailerd.cli.completion import table_names
from tailerd.cli.daemon_client import DaemonClient, client_config_option, http_option, token_option
from tailerd.errors import TailerdError, find_class
from tailerd.pipeline_names import is_named

_EXAMPLES = """\b
Examples:
  tailerd resume orders
  tailerd resume orders --config tailerd.yaml
"""
_POLL_SECONDS = 0.2
_STATES: Mapping[object, int] = {"running": 0, "retrying": 2, "failed": 3}


@click.command("resume", epilog=_EXAMPLES)
@click.argument("name", shell_complete=table_names)
@http_option
@client_config_option
@token_option
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait until the pipeline runs or fails again; 0 does not wait.",
)
def command(
    name: str,
    url: str | None,
    config_path: Path | None,
    token_file: Path | None,
    wait_seconds: float,
) -> None:
    """Resume the pipeline NAME, paused or failed, at its saved offset; wait for the outcome.

    Ends with 0 when it runs, with the error's exit status when it fails again, and with 1 when it
    is still retrying after --wait.
    """
    client = DaemonClient.from_options(url, config_path, token_file)
    client.resume(name)
    if not wait_seconds:
        click.echo(f"{name} resumed.")
        return
    table = _outcome(client, name, time.monotonic() + wait_seconds)
    match table.get("state"):
        case "failed":
            raise _rebuild_error(table, f"{name} failed again")
        case "retrying":
            raise _rebuild_error(table, f"{name} is still retrying")
        case state:
            click.echo(f"{name} resumed: {state}.")


def _outcome(client: DaemonClient, name: str, deadline: float) -> Mapping[str, object]:
    """Return the status of a pipeline once it runs or has failed, or at the deadline."""
    while True:
        table = _table(client.status(), name)
        if table.get("state") in ("running", "failed") or time.monotonic() > deadline:
            return table
        time.sleep(_POLL_SECONDS)


def _table(status: Mapping[str, object], name: str) -> Mapping[str, object]:
    tables = status.get("tables")
    known = tables if isinstance(tables, list) else []
    found = [t for t in known if is_named(str(t.get("table")), name)]
    # Of the sinks of a table, the one that is furthest from running.
    return max(found, key=lambda t: _STATES.get(t.get("state"), 1), default={})


def _rebuild_error(table: Mapping[str, object], what: str) -> TailerdError:
    """Return the error that blocks a pipeline, with its class."""
    error = table.get("last_error")
    known = error if isinstance(error, dict) else {}
    kind = find_class(known.get("code")) or TailerdError
    return kind(f"{what}: {known.get('message', 'no error is known.')}")
