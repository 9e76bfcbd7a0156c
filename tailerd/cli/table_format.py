"""The options that say a table's format, and where its observed states are kept."""

from __future__ import annotations

import click

from tailerd.formats.detect import AUTO
from tailerd.formats.ledger import LedgerPlace

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
    help="Where what was observed of a table without history (Kartothek) is kept: a folder or URL.",
)


def ledger_place(folder: str | None) -> LedgerPlace | None:
    """Return the ledger that `--ledger` names."""
    return None if folder is None else LedgerPlace(folder)
