"""`tailerd top`: the running daemon's pipelines and their newest changes, on a screen."""

from __future__ import annotations

from pathlib import Path

import click

from tailerd.cli.daemon_client import DaemonClient, client_config_option, http_option, token_option
from tailerd.cli.full_screen import require_screen

_EXAMPLES = """\b
Examples:
  tailerd top
  tailerd top --interval 0.5
  tailerd top --http http://10.0.0.5:9464
"""


@click.command("top", epilog=_EXAMPLES)
@http_option
@client_config_option
@token_option
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between refreshes.",
)
def command(
    url: str | None, config_path: Path | None, token_file: Path | None, interval: float
) -> None:
    """Show the running daemon's pipelines and their newest changes, until q is pressed.

    Arrow keys choose a pipeline; below are its error and its newest change rows, with the cells
    that an update changed in colour. Pressed twice, p pauses or resumes it; o opens its page in a
    browser. Rows are shown for tables on the Arrow engine if the
    configuration has `web.rows`; for others, the newest commits. Continues while the daemon
    restarts. Needs a terminal, and Textual: pip install 'tailerd[terminal]'.
    """
    require_screen("top", "Use `tailerd status --watch`, which prints lines.")
    from tailerd.cli.screens.top_screen import TopScreen

    client = DaemonClient.from_options(url, config_path, token_file)
    # A wrong address or token is an error of this command, not a line on its screen.
    client.status()
    TopScreen(client, interval).run()
