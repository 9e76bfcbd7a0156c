"""`tailerd help`: topics and errors, as Markdown of this package or made from the code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tailerd.cli.paragraphs import show_pages
from tailerd.errors import UsageError
from tailerd.registry import nearest, suggest_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EXAMPLES = """\b
Examples:
  tailerd help
  tailerd help kafka
  tailerd help missing_version
  tailerd help configuration > all-fields.yaml
"""
_WIDEST = 100


def _topic_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from tailerd.docs.topics import TOPICS
    from tailerd.error_catalogue import REMEDIES

    return [CompletionItem(name) for name in (*TOPICS, *REMEDIES) if name.startswith(incomplete)]


@click.command("help", epilog=_EXAMPLES)
@click.argument("topic", required=False, metavar="[TOPIC or CODE]", shell_complete=_topic_names)
def command(topic: str | None) -> None:
    """Show TOPIC, explain the error CODE, or list the topics.

    A terminal shows a long text page by page, with the program that PAGER names. On a pipe it is
    the plain Markdown.
    """
    from tailerd.cli import COMMANDS
    from tailerd.docs.topics import TOPICS, error_text, topic_text
    from tailerd.error_catalogue import REMEDIES

    if topic is None:
        width = max(map(len, TOPICS))
        for name, about in TOPICS.items():
            click.echo(f"{name:<{width}}  {about}")
        return
    if topic in TOPICS:
        _show(topic_text(topic), is_markdown=topic != "configuration")
        return
    # As it is printed: `error[code]`.
    code = topic.removeprefix("error[").removesuffix("]").lower()
    if (text := error_text(code)) is not None:
        _show(text, is_markdown=True)
        return
    if topic in COMMANDS:
        raise UsageError(f"{topic} is a command.", remedy=f"See `tailerd {topic} --help`.")
    near = nearest(topic, (*TOPICS, *REMEDIES))
    raise UsageError(
        f"There is no topic and no error {topic!r}.",
        remedy=f"Did you mean `{near}`?" if near else suggest_name(topic, TOPICS),
    )


def _show(text: str, *, is_markdown: bool) -> None:
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    if is_markdown:
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        with console.capture() as captured:
            console.print(Markdown(text), width=min(console.width, _WIDEST))
        text = captured.get()
    show_pages(text)
