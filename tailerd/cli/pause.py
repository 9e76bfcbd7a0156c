"""`tailerd pause`: pause one pipeline of the running daemon."""

from __future__ import annotations

from pathlib import Path

import click

from tailerd.cli.completion import table_names
from tailerd.cli.daemon_client import DaemonClient, client_config_option, http_option, token_option

_EXAMPLES = """\b
Examples:
  tailerd pause orders
  tailerd pause orders --http http://127.0.0.1:9464
"""


@click.command("pause", epilog=_EXAMPLES)
@click.argument("name", shell_complete=table_names)
@http_option
@client_config_option
@token_option
def command(name: str, url: str | None, config_path: Path | None, token_file: Path | None) -> None:
    """Let the pipeline NAME finish pending deliveries, and pause it.

    It stays paused, over restarts of the daemon too, until `tailerd resume NAME`. Other pipelines
    continue.
    """
    DaemonClient.from_options(url, config_path, token_file).pause(name)
    click.echo(f"{name} is paused.")
