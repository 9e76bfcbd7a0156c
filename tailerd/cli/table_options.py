"""Options that several commands share: a table's location, its format, and points in time."""

from __future__ import annotations

import datetime as dt

import click

from tailerd.changefeed.points import resolved_point
from tailerd.registry import AUTO
from tailerd.state.ledger import LedgerLocation

allow_path_option = click.option(
    "--allow-path",
    "allowed_paths",
    multiple=True,
    metavar="LOCATION",
    help="A folder outside the table that its log may name (shallow clones), or a symbolic link in"
    " it lead to; repeatable.",
)

table_format_option = click.option(
    "--table-format",
    default=AUTO,
    show_default=True,
    metavar="FORMAT",
    help="Format of the table, such as delta; auto recognises it.",
)
ledger_option = click.option(
    "--ledger",
    metavar="FOLDER",
    callback=lambda _, __, folder: None if folder is None else LedgerLocation(folder),
    help="Folder or URL of the ledger of a table without history (Kartothek).",
)


def resolve_point(text: str) -> str:
    """Return a version, word or time with `-2h`, `yesterday` and `today` made absolute.

    Raises:
        UsageError: It is too long ago for a time.
    """
    return resolved_point(text, dt.datetime.now(dt.UTC))
