"""The option that names a table's format."""

from __future__ import annotations

import click

from tailerd.formats.detect import AUTO
from tailerd.registry import format_names

table_format_option = click.option(
    "--table-format",
    type=click.Choice([AUTO, *format_names()]),
    default=AUTO,
    show_default=True,
    help="Format of the table; auto recognises it.",
)
