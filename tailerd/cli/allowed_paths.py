"""The option `--allow-path`, which several commands share."""

from __future__ import annotations

import click

allow_path_option = click.option(
    "--allow-path",
    "allowed_paths",
    multiple=True,
    metavar="PLACE",
    help="A folder outside the table that its log may name (shallow clones), or a symbolic link in"
    " it lead to; repeatable.",
)
