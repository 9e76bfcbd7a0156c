"""`tailerd help`: topics, as Markdown of this package or made from the code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tailerd.errors import UsageError
from tailerd.registry import suggest_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EXAMPLES = """\b
Examples:
  tailerd help
  tailerd help kafka
  tailerd help errors | less
  tailerd help configuration > all-fields.yaml
"""
_WIDEST = 100


def _topic_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from tailerd.docs.topics import TOPICS

    return [CompletionItem(name) for name in TOPICS if name.startswith(incomplete)]


@click.command("help", epilog=_EXAMPLES)
@click.argument("topic", required=False, shell_complete=_topic_names)
def command(topic: str | None) -> None:
    """Show TOPIC, or the list of topics. On a pipe it is the plain Markdown."""
    from tailerd.cli import COMMANDS
    from tailerd.docs.topics import TOPICS, topic_text

    if topic is None:
        width = max(map(len, TOPICS))
        for name, about in TOPICS.items():
            click.echo(f"{name:<{width}}  {about}")
        return
    if topic in TOPICS:
        _show(topic_text(topic), is_markdown=topic != "configuration")
        return
    if topic in COMMANDS:
        raise UsageError(f"{topic} is a command.", remedy=f"See `tailerd {topic} --help`.")
    raise UsageError(f"There is no topic {topic!r}.", remedy=suggest_name(topic, TOPICS))


def _show(text: str, *, is_markdown: bool) -> None:
    if not sys.stdout.isatty() or not is_markdown:
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text), width=min(console.width, _WIDEST))
