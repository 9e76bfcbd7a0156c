"""Sentences for people: wrapped between words on a terminal, elsewhere unchanged.

A terminal shows errors in colour with the remedy on its own line, and long texts page by page.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TextIO

import click

_MIN_WIDTH = 40
_COLOURS = {"error": "red", "warning": "yellow", "remedy:": "cyan"}


def say(text: str, *, err: bool = False, is_json: bool = False) -> None:
    """Print a text to standard output, or to standard error; JSON is not changed."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text if is_json else wrap_text(text, stream), err=err)


def say_error(code: str, message: str, remedy: str = "", *, kind: str = "error") -> None:
    """Print an error, or another `kind` of message, to standard error.

    A terminal gets the remedy on a separate line; a pipe gets one paragraph.
    """
    head = f"{kind}[{code}]:"
    if not sys.stderr.isatty():
        click.echo(f"{head} {message} {remedy}".rstrip(), err=True)
        return
    for label, text in ((head, message), ("remedy:", remedy)):
        if text:
            wrapped = wrap_text(f"{label} {text}", sys.stderr).removeprefix(label)
            if "NO_COLOR" not in os.environ:
                label = click.style(label, fg=_COLOURS[label.partition("[")[0]], bold=True)
            click.echo(label + wrapped, err=True)


def show_pages(text: str) -> None:
    """Print a text; on a terminal that it does not fit, page by page."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal and text.count("\n") >= shutil.get_terminal_size().lines:
        click.echo_via_pager(text)
    else:
        click.echo(text, nl=False)


def wrap_text(text: str, stream: TextIO) -> str:
    """Return a text with its lines wrapped between words to the width of a terminal.

    A word that is longer than a line, such as a path, is not broken.
    """
    width = _width(stream)
    if width is None:
        return text
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        if len(line) > width
        else line
        for line in text.split("\n")
    )


def _width(stream: TextIO) -> int | None:
    """Return the cells of a terminal's line; None if there is no terminal."""
    if not stream.isatty():
        return None
    requested = os.environ.get("COLUMNS", "")
    try:
        width = int(requested) if requested.isascii() and requested.isdigit() else 0
        return max(_MIN_WIDTH, width or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return None
