"""The option that names a table's format."""

from __future__ import annotations

import click

from tailerd.formats.detect import AUTO

table_format_option = click.option(
    "--table-format",
    default=AUTO,
    show_default=True,
    metavar="FORMAT",
    help="Format of the table, such as delta; auto recognises it.",
)
