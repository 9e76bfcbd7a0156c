"""`tailerd history`: one line per commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict

import click

from tailerd.changefeed.points import show_ms
from tailerd.cli.allowed_paths import allow_path_option
from tailerd.cli.inspected import open_inspection
from tailerd.cli.output import print_records
from tailerd.cli.table_format import ledger_option, ledger_place, table_format_option
from tailerd.formats.inspection import TableInspection

_EXAMPLES = """\b
Examples:
  tailerd history /lake/orders
  tailerd history /lake/orders --limit 5 --json
"""
_COLUMNS = (
    "version",
    "time",
    "operation",
    "files_added",
    "files_removed",
    "bytes_added",
    "bytes_removed",
    "changes",
)


@click.command("history", epilog=_EXAMPLES)
@click.argument("table")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Newest so many commits."
)
@table_format_option
@ledger_option
@allow_path_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(
    table: str,
    limit: int,
    table_format: str,
    ledger: str | None,
    allowed_paths: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what each commit did, newest last, and how its row changes are read.

    `changes` of a Delta table is cdc (change files), vectors (deletion vectors), rows (the rows it
    removes and adds, compared), files (all rows of files it adds or removes) or none. A Kartothek
    dataset has no history but what a ledger kept of it: name the folder with --ledger FOLDER.
    """

    async def show() -> None:
        inspection = await open_inspection(
            table, table_format, allowed_paths, is_strict=True, ledger=ledger_place(ledger)
        )
        rows = [row async for row in _rows(inspection, limit)]
        print_records(rows, _COLUMNS, as_json=as_json)

    asyncio.run(show())


async def _rows(inspection: TableInspection, limit: int) -> AsyncIterator[Mapping[str, object]]:
    async for commit in inspection.history(limit):
        fields = asdict(commit)
        yield {"version": fields.pop("version"), "time": show_ms(commit.timestamp_ms), **fields}
