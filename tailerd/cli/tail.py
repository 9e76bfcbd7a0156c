"""`tailerd tail`: changes of one table to the terminal."""

from __future__ import annotations

import asyncio
import datetime
import os
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import click

from tailerd.arrow_start import start_arrow
from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Version
from tailerd.changefeed.points import parse_start
from tailerd.cli.completion import table_locations
from tailerd.cli.output import FORMATS, ChangeWriter, warn, write_while_read, writer_for
from tailerd.cli.paragraphs import say
from tailerd.cli.progress import Progress
from tailerd.cli.table_options import (
    NamedTable,
    of_configured_table,
    resolve_point,
)
from tailerd.clock import zone_named
from tailerd.errors import UsageError
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import open_table
from tailerd.pipeline.last_rows import LastRows
from tailerd.pipeline.table_reading import ReadBatch, Reading, resolve_range, watch_table
from tailerd.records.schema_changes import SchemaTracker
from tailerd.storage.table_location import TableLocation, locate_table
from tailerd.transforms.options import MASK_KEY, UNCHANGED, VIEW_OPTIONS, make_view, parse_pairs
from tailerd.transforms.view import View
from tailerd.watchers.wakeups import Wakeup

MAX_COMMITS = 100
"""Read at most for `-n`."""
MAX_SHOWN_COMMITS = 10
"""Read at most for the first screen of a terminal."""
_OTHER_LINES = 4
"""Lines of a screen for the command, the heading, the last message and the cursor."""

_EXAMPLES = """\b
Examples:
  tailerd tail /lake/orders
  tailerd tail orders --config tailerd.yaml
  tailerd tail /lake/orders -n 20 --once
  tailerd tail /lake/orders --since 2h --format jsonl | jq .order_id
  tailerd tail /lake/orders --from snapshot --format jsonl | head
  tailerd tail /lake/orders --from 12 --to 20 --changes files
  tailerd tail /lake/orders --from 12 --key order_id
  tailerd tail /lake/orders --where "region = 'EU'" --mask email=hash
  tailerd tail /lake/orders -i --from -2h
  tailerd tail /lake/orders --from 0 --format jsonl --events
  tailerd tail /lake/orders --from 2026-11-21T08:00:00 --once --columns order_id,amount
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest:
    """The arguments and options of a `tail` command, by their names."""

    table: NamedTable
    start: str | None
    count: int | None
    end: str | None
    is_once: bool
    is_following: bool
    changes: ChangeMode
    view: View | None
    key: tuple[str, ...]
    partition_timezone: str | None
    is_interactive: bool
    has_events: bool


@click.command("tail", epilog=_EXAMPLES)
@of_configured_table
@click.argument("table", shell_complete=table_locations)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(0),
    metavar="N",
    help=f"Begin with the last N change rows, of the newest {MAX_COMMITS} commits.",
)
@click.option(
    "-f",
    "--follow",
    "is_following",
    is_flag=True,
    help="Wait for the next commits: the default without --to and --once.",
)
@click.option(
    "--from",
    "start",
    metavar="START",
    callback=lambda _, __, text: None if text is None else resolve_point(text),
    help="snapshot, latest, a version (inclusive) or a time (first commit at or after it), such as"
    " 2026-11-21T09:30, -2h, yesterday. By default a terminal begins with the last commits, and a"
    " pipe gets only later commits (latest).",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=lambda _, __, text: None if text is None else _time(text),
    help="As --from, with a time: 2h (ago), 30m, yesterday, 2026-11-21T09:30.",
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
    " of removed and of added files; net: the difference between the first and the last version.",
)
@click.option("--format", "format_name", type=click.Choice(FORMATS), help="table by default.")
@click.option(
    "--columns",
    callback=lambda _, option, text: _names(option, text),
    help="Only these columns and fields (a.b), separated by commas.",
)
@click.option(
    "--rename",
    callback=lambda _, __, text: None if text is None else parse_pairs(text, "--rename"),
    metavar="A=X,...",
    help="New names of columns.",
)
@click.option(
    "--where",
    metavar="CONDITION",
    help="Only rows that meet a condition in SQL, such as \"region = 'EU' and amount > 10\". An"
    " update whose row enters the condition is an insert, one whose row leaves it a delete.",
)
@click.option(
    "--mask",
    callback=lambda _, __, text: None if text is None else parse_pairs(text, "--mask"),
    metavar="A=HOW,...",
    help="Replace values: hash (with the secret in TAILERD_MASK_KEY), redact, null, partial (the"
    " last 4 characters) or truncate:UNIT (year, month, day, hour, or a number).",
)
@click.option(
    "--unchanged",
    type=click.Choice(UNCHANGED),
    default="keep",
    show_default=True,
    help="drop: no updates that change no shown column; needs --key if tailerd compares rows.",
)
@click.option(
    "--key",
    callback=lambda _, option, text: _names(option, text) or (),
    help="Columns that identify a row, separated by commas: a deleted and an inserted row of one"
    " commit with the same values there are shown as an update.",
)
@click.option(
    "--events",
    "has_events",
    is_flag=True,
    help="Show each change of the columns before the first row that has it: jsonl as an object with"
    ' the member "_event", debezium as the value of its schema change topic, table as a line.',
)
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
    help="Show the rows on a screen that scrolls, with changed cells in colour; needs Textual.",
)
def command(format_name: str | None, since: str | None, **requested: Any) -> None:
    """Print the row changes of a table as they are committed.

    Rows come in commit order. tail saves no offset, so each start is a new one. It ends after --to,
    with --once, or on Ctrl-C.
    """
    start_arrow()
    _refuse_both({"--from": requested["start"], "--since": since, "-n": requested["count"]})
    _refuse_both({"-f": requested["is_following"] or None, "--once": requested["is_once"] or None})
    if since is not None:
        requested["start"] = since
    view = make_view(
        mask_key=os.environ.get(MASK_KEY),
        key=requested["key"],
        **{name: requested.pop(name) for name in VIEW_OPTIONS},
    )
    request = TailRequest(view=view, **requested)
    if request.count is not None and request.changes is ChangeMode.NET:
        raise UsageError(
            "-n counts the rows of single commits, and --changes net joins all commits.",
            remedy="Use --from with a version instead of -n.",
        )
    if request.is_interactive:
        _require_screen(format_name)
    if request.has_events and (request.is_interactive or format_name == "arrow"):
        _refuse_both({"--events": True, "-i" if request.is_interactive else "--format arrow": True})
    writer = writer_for(
        format_name or "table",
        sys.stdout.buffer,
        is_terminal=sys.stdout.isatty(),
        columns=None if view is None else view.output_names,
        table_name=request.table.path.rstrip("/").rpartition("/")[2],
    )
    asyncio.run(_tail(request, writer))


def _refuse_both(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} exclude each other.", remedy="Leave one of them out."
        )


def _time(text: str) -> str:
    """Return the point for `--since`: a time, also `2h` for two hours ago.

    Raises:
        UsageError: It is no time.
    """
    for word in (f"-{text.strip()}", text.strip()):
        with suppress(UsageError):
            point = resolve_point(word)
            if isinstance(parse_start(point), datetime.datetime):
                return point
    raise UsageError(
        f"--since {text!r} is not a time.",
        remedy="Write 2h, yesterday or 2026-11-21T09:30; --from also takes a version.",
    )


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


async def _open(request: TailRequest, table: TableLocation) -> ChangeSource:
    options = dict(request.table.format_options)
    if request.partition_timezone is not None:
        options["partition_timezone"] = request.partition_timezone
    source = await open_table(
        table,
        OpenRequest(
            changes=request.changes,
            view=request.view,
            identity=request.key,
            on_warning=warn,
            options=options,
            ledger=request.table.ledger,
        ),
        request.table.table_format,
    )
    await source.arrow_schema()
    return source


async def _tail(request: TailRequest, writer: ChangeWriter) -> None:
    named = request.table
    table = locate_table(named.path, named.allowed_paths, stores=named.stores)
    source = await _open(request, table)
    start = "latest" if request.start is None else request.start
    at, last = await resolve_range(source, start, request.end)
    if request.key:
        # Refuses names that the table does not have.
        await source.schema_at((await source.backlog(at)).head_version, request.key)
    if request.is_once:
        head = (await source.backlog(at)).head_version
        last = head if last is None else min(last, head)
    opening = _choose_opening(request)
    if opening is not None and last is not None and last < at.version:
        at = await source.offset_at(source.next_version(last))
    notes = None
    if sys.stdout.isatty() and not request.is_interactive:
        notes = _Notes(is_hinting=not request.key)
    meter = _Meter(_progress(request, is_bounded=last is not None), at, last)
    reading = Reading(source=source, last=last, on_head=None if notes is None else notes.wait)
    async with (
        watch_table(table, table_format=named.table_format) as wakeup,
        aclosing(_read(reading, at, opening, wakeup)) as batches,
    ):
        if request.is_interactive:
            await _show(request, batches)
        else:
            printing = _print(batches, writer, meter, notes, is_telling=request.has_events)
            await write_while_read(printing, sys.stdout.buffer)


def _choose_opening(request: TailRequest) -> LastRows | None:
    """Return which rows to begin with; None for those of the start that the user gave."""
    if request.count is not None:
        return LastRows(rows=request.count, commits=MAX_COMMITS, is_exact=True)
    is_given = request.start is not None or request.changes is ChangeMode.NET
    if is_given or not sys.stdout.isatty():
        return None
    lines = max(1, shutil.get_terminal_size().lines - _OTHER_LINES)
    return LastRows(rows=lines, commits=MAX_SHOWN_COMMITS, is_exact=False)


async def _read(
    reading: Reading, at: Offset, opening: LastRows | None, wakeup: Wakeup
) -> AsyncGenerator[ReadBatch, None]:
    """Yield the last rows before an offset, if requested, and those from it on."""
    if opening is not None:
        async with aclosing(opening.read(reading.source, at, reading.batch_limit)) as rows:
            async for batch in rows:
                yield ReadBatch(rows=batch, start=at, end=None, planned=None)
    async with aclosing(reading.batches(at, wakeup)) as batches:
        async for read in batches:
            yield read


async def _print(
    batches: AsyncIterator[ReadBatch],
    writer: ChangeWriter,
    meter: _Meter,
    notes: _Notes | None,
    *,
    is_telling: bool,
) -> None:
    tracker = SchemaTracker()
    with meter.progress or nullcontext():
        async for batch in batches:
            if is_telling and (change := tracker.observe(batch.rows)) is not None:
                writer.tell(change)
            writer.write(batch.rows)
            meter.count(batch.rows, batch.planned)
            if notes is not None:
                notes.check(batch.rows)
    writer.close()
    if notes is not None:
        notes.flush()


class _Notes:
    """Lines for people on standard error, below the rows: a hint, and that `tail` waits.

    The hint says once that `--key` shows deleted and inserted rows of one commit as updates.
    """

    def __init__(self, *, is_hinting: bool) -> None:
        self._is_hinting = is_hinting
        self._is_at_head = False
        self._version: Version | None = None
        self._hint = ""

    def check(self, batch: ChangeBatch) -> None:
        """Note whether the commit of a printed batch has deleted and inserted rows."""
        if not self._is_hinting or batch.change_source is not ChangeSourceKind.ROWS:
            return
        changes = batch.count_changes()
        is_paired = self._version == batch.version or ChangeType.DELETE in changes
        self._version = batch.version if is_paired else None
        if is_paired and ChangeType.INSERT in changes and batch.rows.schema.names:
            self._is_hinting = False
            column = batch.rows.schema.names[0]
            self._hint = (
                f"hint: version {batch.version} deletes and inserts rows. If {column} identifies"
                f" a row, --key {shlex.quote(column)} shows them as updates."
            )
            if self._is_at_head:
                self.flush()

    def flush(self) -> None:
        """Print the hint, if it is pending."""
        if self._hint:
            say(self._hint, err=True)
        self._hint = ""

    def wait(self, version: Version) -> None:
        """Say after which version `tail` waits."""
        self.flush()
        self._is_at_head = True
        commit = "for the first commit" if version == BEFORE_ALL else f"after version {version}"
        say(f"waiting {commit}", err=True)


async def _show(request: TailRequest, batches: AsyncIterator[ReadBatch]) -> None:
    """Show the rows on a screen until the user leaves it.

    Raises:
        TailerdError: The rows cannot be read.
    """
    from tailerd.cli.screens.tail_screen import TailScreen

    columns = None if request.view is None else request.view.output_names
    error = await TailScreen(request.table.path, batches, columns).run_async()
    if error is not None:
        raise error


def _progress(request: TailRequest, *, is_bounded: bool) -> Progress | None:
    """Return the display of reading progress; None if rows on a terminal show it themselves."""
    if sys.stdout.isatty() or not is_bounded:
        return None
    return Progress(f"Reading {request.table.path}", "rows")


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
