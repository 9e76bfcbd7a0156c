"""Sentences for people: wrapped between words on a terminal, elsewhere unchanged."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TextIO

import click

_MIN_WIDTH = 40


def say(text: str, *, err: bool = False, is_json: bool = False) -> None:
    """Print a text to standard output, or to standard error; JSON is not changed."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text if is_json else wrap_text(text, stream), err=err)


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
