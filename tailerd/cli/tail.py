"""`tailerd tail`: changes of one table to the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Any

import click

from tailerd.arrow_start import start_without_pandas
from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind
from tailerd.changefeed.offset import Offset, Version
from tailerd.cli.output import FORMATS, ChangeWriter, warn, write_while_read, writer_for
from tailerd.cli.progress import Progress
from tailerd.cli.table_options import (
    allow_path_option,
    ledger_option,
    resolve_point,
    table_format_option,
)
from tailerd.clock import zone_named
from tailerd.errors import UsageError
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import open_table, require_folder
from tailerd.pipeline.table_reading import ReadBatch, Reading, resolve_range, watch_table
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.table_location import locate_table

_EXAMPLES = """\b
Examples:
  tailerd tail /lake/orders
  tailerd tail /lake/orders --from snapshot --format jsonl | head
  tailerd tail /lake/orders --from 12 --to 20 --changes files
  tailerd tail /lake/orders --from 12 --key order_id
  tailerd tail /lake/orders -i --from -2h
  tailerd tail /lake/orders --from 2026-11-21T08:00:00 --once --columns order_id,amount
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest:
    """The arguments and options of a `tail` command, by their names."""

    table: str
    start: str
    end: str | None
    is_once: bool
    changes: ChangeMode
    columns: tuple[str, ...] | None
    key: tuple[str, ...]
    allowed_paths: tuple[str, ...]
    partition_timezone: str | None
    table_format: str
    ledger: LedgerLocation | None
    is_interactive: bool


@click.command("tail", epilog=_EXAMPLES)
@click.argument("table")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="START",
    callback=lambda _, __, text: resolve_point(text),
    help="snapshot, latest, a version (inclusive) or a time (first commit at or after it), such as"
    " 2026-11-21T09:30, -2h, yesterday.",
)
@click.option(
    "--to",
    "end",
    metavar="END",
    callback=lambda _, __, text: None if text is None else resolve_point(text),
    help="Last version, or time (inclusive).",
)
@click.option("--once", "is_once", is_flag=True, help="Stop at the newest version.")
@click.option(
    "--changes",
    type=click.Choice([mode.value for mode in ChangeMode]),
    default=ChangeMode.AUTO.value,
    show_default=True,
    callback=lambda _, __, mode: ChangeMode(mode),
    help="auto: exactly the rows that changed; cdf: Delta's change data feed only; files: every row"
    " of removed and of added files; net: what differs between the first and the last version.",
)
@click.option("--format", "format_name", type=click.Choice(FORMATS), help="table by default.")
@click.option(
    "--columns",
    callback=lambda _, option, text: _names(option, text),
    help="Only these columns, separated by commas.",
)
@click.option(
    "--key",
    callback=lambda _, option, text: _names(option, text) or (),
    help="Columns that identify a row, separated by commas: a deleted and an inserted row of one"
    " commit with the same values there are shown as an update.",
)
@allow_path_option
@click.option(
    "--partition-timezone",
    metavar="ZONE",
    callback=lambda _, __, text: _timezone(text),
    help="The zone of partition timestamps that have none, such as Europe/Berlin; UTC by default.",
)
@click.option(
    "-i",
    "--interactive",
    "is_interactive",
    is_flag=True,
    help="On a screen that scrolls, with the cells that updates changed in colour; needs Textual.",
)
@table_format_option
@ledger_option
def command(format_name: str | None, **requested: Any) -> None:
    """Print the row changes of a table as they are committed.

    Rows come in commit order. Keeps no offset: every start is a fresh one. Ends with --to, with
    --once, or on Ctrl-C.
    """
    start_without_pandas()
    request = TailRequest(**requested)
    if request.is_interactive:
        _require_screen(format_name)
    writer = writer_for(
        format_name or "table",
        sys.stdout.buffer,
        is_terminal=sys.stdout.isatty(),
        columns=request.columns,
        table_name=request.table.rstrip("/").rpartition("/")[2],
    )
    asyncio.run(_tail(request, writer))


def _require_screen(format_name: str | None) -> None:
    from tailerd.cli.full_screen import require_screen

    if format_name is not None:
        raise UsageError("-i and --format exclude each other.", remedy="Leave one of them out.")
    require_screen("tail -i", "Leave out -i: `tailerd tail` prints lines.")


def _names(option: click.Parameter, columns: str | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    flag = option.opts[0]
    names = tuple(part.strip() for part in columns.split(","))
    if not all(names):
        raise UsageError(f"{flag} {columns!r} has an empty name.", remedy="Write a,b without gaps.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(
            f"{flag} {columns!r} names {twice[0]} twice.", remedy="Name each column once."
        )
    return names


def _timezone(text: str | None) -> str | None:
    try:
        return None if text is None else zone_named(text).key
    except ValueError as error:
        raise UsageError(f"--partition-timezone is {text!r}, but {error}.") from error


async def _tail(request: TailRequest, writer: ChangeWriter) -> None:
    table = locate_table(request.table, request.allowed_paths)
    await require_folder(table)
    source = await open_table(
        table,
        OpenRequest(
            changes=request.changes,
            columns=request.columns,
            identity=request.key,
            on_warning=warn,
            options={"partition_timezone": request.partition_timezone},
            ledger=request.ledger,
        ),
        request.table_format,
    )
    await source.arrow_schema()
    at, last = await resolve_range(source, request.start, request.end)
    if request.key:
        # Refuses names that the table does not have.
        await source.schema_at((await source.backlog(at)).head_version, request.key)
    if request.is_once and last is None:
        last = (await source.backlog(at)).head_version
    meter = _Meter(_progress(request, is_bounded=last is not None), at, last)
    reading = Reading(source=source, last=last)
    async with (
        watch_table(table, table_format=request.table_format) as wakeup,
        aclosing(reading.batches(at, wakeup)) as batches,
    ):
        if request.is_interactive:
            await _show(request, batches)
        else:
            await write_while_read(_print(batches, writer, meter), sys.stdout.buffer)


async def _print(batches: AsyncIterator[ReadBatch], writer: ChangeWriter, meter: _Meter) -> None:
    with meter.progress or nullcontext():
        async for batch in batches:
            writer.write(batch.rows)
            meter.count(batch.rows, batch.planned)
    writer.close()


async def _show(request: TailRequest, batches: AsyncIterator[ReadBatch]) -> None:
    """Show the rows on a screen until the user leaves it.

    Raises:
        TailerdError: The rows cannot be read.
    """
    from tailerd.cli.screens.tail_screen import TailScreen

    error = await TailScreen(request.table, batches, request.columns).run_async()
    if error is not None:
        raise error


def _progress(request: TailRequest, *, is_bounded: bool) -> Progress | None:
    """Return the display of reading progress; None if rows on a terminal show it themselves."""
    if sys.stdout.isatty() or not is_bounded:
        return None
    return Progress(f"Reading {request.table}", "rows")


class _Meter:
    """Turns printed rows into progress: rows, and the share of a snapshot or of versions."""

    def __init__(self, progress: Progress | None, start: Offset, last: Version | None) -> None:
        self.progress = progress
        self._start = start
        self._last = last
        self._rows = 0

    def count(self, batch: ChangeBatch, planned: Offset | None) -> None:
        """Count a printed batch; `planned` is how far files were listed."""
        self._rows += batch.num_rows
        if self.progress is not None:
            self.progress.report(self._rows, self._share(batch, planned))

    def _share(self, batch: ChangeBatch, planned: Offset | None) -> float | None:
        if batch.change_source is ChangeSourceKind.SNAPSHOT:
            return None if planned is None else planned.snapshot_share()
        if self._last is None or self._last <= self._start.version:
            return None
        return (batch.version - self._start.version) / (self._last - self._start.version)
