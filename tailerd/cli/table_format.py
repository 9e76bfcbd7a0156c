"""The options that say a table's format, and the format's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tailerd.errors import UsageError
from tailerd.formats.detect import AUTO

table_format_option = click.option(
    "--table-format",
    default=AUTO,
    show_default=True,
    metavar="FORMAT",
    help="Format of the table, such as delta; auto recognises it.",
)


format_option: Callable[[Any], Any] = click.option(
    "--option",
    "format_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the table's format, such as ledger=FOLDER; may be given several times.",
)


def parsed_options(options: tuple[str, ...]) -> dict[str, object]:
    """Return what `--option` gave, by name.

    Raises:
        UsageError: One is not NAME=VALUE.
    """
    found: dict[str, object] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator or not name:
            raise UsageError(f"--option is {option!r}.", hint="Write it as NAME=VALUE.")
        found[name] = value
    return found
