"""`tailerd completion`: completes commands, options and names of tables in the shell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TAILERD_COMPLETE"
_DAEMON_SECONDS = 0.5
_EXAMPLES = """\b
Examples:
  eval "$(tailerd completion bash)"                     # now, or in ~/.bashrc
  tailerd completion zsh > ~/.zfunc/_tailerd
  tailerd completion fish > ~/.config/fish/completions/tailerd.fish
"""


@click.command("completion", epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the program that completes `tailerd` in SHELL.

    Names of tables come from the configuration (--config, or ./tailerd.yaml), else from the running
    daemon; locations of tables are completed as folders.
    """
    from click.shell_completion import get_completion_class

    from tailerd.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    program = kind(cli, {}, "tailerd", _VARIABLE)
    text = program.source_template % program.source_vars()
    # Click's programs for zsh and fish need `tailerd` on the PATH, which a virtual environment
    # that is not activated has not. Bash runs the command as it was typed.
    here = Path(sys.argv[0])
    this = shlex.quote(str(here.absolute())) if here.name == "tailerd" else "tailerd"
    text = text.replace("(( ! $+commands[tailerd] )) && return 1", "")
    text = text.replace("_complete tailerd)", f"_complete {this})")
    click.echo(text.replace("(commandline -t) tailerd)", f"(commandline -t) {this})"))


def table_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the names of tables that begin with a word; none if no names are available."""
    from click.shell_completion import CompletionItem

    from tailerd.cli.table_options import DEFAULT_FILE

    path, url = context.params.get("config_path"), context.params.get("url")
    names = _configured_names(path or DEFAULT_FILE) if path or not url else []
    if not names and path is None:
        names = _daemon_names(url)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def table_locations(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the configured tables with --config; else let the shell complete folders."""
    from click.shell_completion import CompletionItem

    if context.params.get("config_path") is not None:
        return table_names(context, parameter, incomplete)
    return [CompletionItem(incomplete, type="dir")]


def _configured_names(path: object) -> list[str]:
    """Return the names in a file, which need not be valid yet."""
    import yaml

    try:
        content = yaml.safe_load(Path(str(path)).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return []
    tables = content.get("tables") if isinstance(content, dict) else None
    if not isinstance(tables, dict):
        return []
    sinks = {name: table["sinks"] for name, table in tables.items() if _has_sinks(table)}
    return sorted(
        [*map(str, tables), *(f"{name}/{each}" for name in sinks for each in sinks[name])]
    )


def _has_sinks(table: object) -> bool:
    return isinstance(table, dict) and isinstance(table.get("sinks"), dict)


def _daemon_names(url: object) -> list[str]:
    from tailerd.cli.daemon_client import DaemonClient
    from tailerd.errors import TailerdError

    try:
        client = DaemonClient.from_options(None if url is None else str(url), None, None)
        tables = client.status(timeout_seconds=_DAEMON_SECONDS).get("tables")
    except TailerdError:
        return []
    return [str(each.get("table")) for each in tables] if isinstance(tables, list) else []
