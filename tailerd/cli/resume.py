"""`tailerd resume`: let a pipeline of the running daemon go on."""

from __future__ import annotations

from pathlib import Path

import click

from tailerd.cli.daemon_client import DaemonClient, config_option, http_option, token_option

_EXAMPLES = """\b
Examples:
  tailerd resume orders
  tailerd resume orders --config tailerd.yaml
"""


@click.command("resume", epilog=_EXAMPLES)
@click.argument("name")
@http_option
@config_option
@token_option
def command(name: str, url: str | None, config_path: Path | None, token_file: Path | None) -> None:
    """Let the pipeline NAME go on at its saved offset: a paused one, or one that has failed."""
    DaemonClient.of(url, config_path, token_file).resume(name)
    click.echo(f"{name} goes on.")
