"""Output of commands: change rows in four formats, objects and records in two.

Standard output carries data only; messages for people go to stderr. If the reader closes the pipe
(`| head`), the command ends silently with status 0. Rich is imported only for a terminal, so that
pipes start faster.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import sys
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Protocol

import click
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch, join_columns
from tailerd.cli.change_table import ChangeTable, pad_text, printable, text_width
from tailerd.cli.paragraphs import say_error
from tailerd.cli.record_table import Layout, line_width, table_text
from tailerd.errors import TailerdError, UsageError
from tailerd.records.arrow import ArrowStream
from tailerd.records.debezium import DebeziumEncoder
from tailerd.records.json import JsonEncoder
from tailerd.records.schema_changes import SchemaChange
from tailerd.remedies import TAIL

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FORMATS = ("table", "jsonl", "debezium", "arrow")

MAX_ROWS_IN_TABLE = 1_000
"""Number of records that are laid out together; further ones are written when they arrive."""


class ChangeWriter(Protocol):
    """Prints change rows. A written batch has left this process when `write` returns.

    Raises:
        click.exceptions.Exit: With status 0, the reader has closed the pipe.
    """

    def write(self, batch: ChangeBatch) -> None:
        """Print the rows of a batch, in order."""
        ...

    def tell(self, change: SchemaChange) -> None:
        """Print that the rows after this have other columns."""
        ...

    def close(self) -> None:
        """Print what ends the output; the stream stays open."""
        ...


def writer_for(
    format_name: str,
    stream: BinaryIO,
    *,
    is_terminal: bool,
    columns: Sequence[str] | None = None,
    table_name: str = "",
) -> ChangeWriter:
    """Return the writer of a `--format`.

    Args:
        format_name: One of `FORMATS`.
        stream: Takes the bytes.
        is_terminal: Colours and truncated lines; binary output is refused.
        columns: The table's columns to print, in this order; one that a batch lacks is null.
        table_name: What Debezium's `source` calls the table.

    Raises:
        UsageError: The format is unknown, or not suitable for a terminal.
    """
    match format_name:
        case "jsonl":
            return JsonLinesWriter(stream, columns)
        case "table":
            return TableWriter(stream, columns, is_terminal=is_terminal)
        case "debezium":
            return DebeziumWriter(stream, columns, table_name=table_name)
        case "arrow" if is_terminal:
            raise UsageError(
                "The format arrow is binary and would garble this terminal.",
                remedy="Redirect the output to a file or a pipe.",
            )
        case "arrow":
            return ArrowWriter(stream, columns)
        case _:
            raise UsageError(
                f"The format {format_name!r} is unknown.",
                remedy=f"Use one of {', '.join(FORMATS)}.",
            )


class JsonLinesWriter:
    """One JSON object a row."""

    def __init__(self, stream: BinaryIO, columns: Sequence[str] | None = None) -> None:
        self._stream = stream
        self._encoder = JsonEncoder(columns=columns)

    def write(self, batch: ChangeBatch) -> None:
        """Print the rows of a batch."""
        write_bytes(self._stream, self._encoder.encode_lines(batch))

    def tell(self, change: SchemaChange) -> None:
        """Print one object with the member `_event`."""
        write_bytes(self._stream, json_line(change.to_json()))

    def close(self) -> None:
        """Do nothing: every line is complete."""


class TableWriter:
    """Aligned columns; on a terminal the change types are coloured and long values truncated."""

    def __init__(
        self, stream: BinaryIO, columns: Sequence[str] | None = None, *, is_terminal: bool
    ) -> None:
        self._stream = stream
        self._columns = columns
        width, is_coloured = None, False
        if is_terminal:
            console = _console()
            width = console.width
            is_coloured = console.color_system is not None and not console.no_color
        self._table = ChangeTable(width=width, is_coloured=is_coloured)

    def write(self, batch: ChangeBatch) -> None:
        """Print the rows of a batch."""
        text = self._table.lines(_select_columns(batch, self._columns))
        write_bytes(self._stream, text.encode("utf-8", "backslashreplace"))

    def tell(self, change: SchemaChange) -> None:
        """Print the differences; a heading shows the first columns."""
        if change.changes:
            text = printable(f"-- version {change.version}: {change.summary}")
            write_bytes(self._stream, _bytes(f"{text}\n"))

    def close(self) -> None:
        """Do nothing: the table has no end."""


class DebeziumWriter:
    """One Debezium envelope a change."""

    def __init__(
        self, stream: BinaryIO, columns: Sequence[str] | None = None, *, table_name: str = ""
    ) -> None:
        self._stream = stream
        self._columns = columns
        self._encoder = DebeziumEncoder(name="tailerd", table=table_name)

    def write(self, batch: ChangeBatch) -> None:
        """Print the changes of a batch."""
        write_bytes(self._stream, self._encoder.encode_lines(_select_columns(batch, self._columns)))

    def tell(self, change: SchemaChange) -> None:
        """Print the value of a record of Debezium's schema change topic."""
        write_bytes(self._stream, _bytes(f"{self._encoder.encode_schema(change)}\n"))

    def close(self) -> None:
        """Do nothing: every line is complete."""


class ArrowWriter:
    """One Arrow IPC stream; `write` raises `SchemaChangedError` if the columns change."""

    def __init__(self, stream: BinaryIO, columns: Sequence[str] | None = None) -> None:
        self._stream = stream
        self._columns = columns
        self._arrow = ArrowStream()

    def write(self, batch: ChangeBatch) -> None:
        """Print a batch as one record batch of the stream."""
        write_bytes(self._stream, self._arrow.append(_select_columns(batch, self._columns)))

    def tell(self, change: SchemaChange) -> None:
        """Do nothing: the stream has its schema, and other columns end it."""

    def close(self) -> None:
        """End the stream, so that readers can check that it is complete."""
        write_bytes(self._stream, self._arrow.finish())


def print_object(
    values: Mapping[str, object], *, as_json: bool, stream: BinaryIO | None = None
) -> None:
    """Print one object: a JSON line, a table of two columns, or `name  value` lines on a pipe.

    Args:
        values: JSON values by name.
        as_json: As `--json` asks.
        stream: Standard output when absent.

    Raises:
        click.exceptions.Exit: With status 0, the reader has closed the pipe.
    """
    out = _output(stream)
    if as_json:
        write_bytes(out, json_line(values))
        return
    cells = [(printable(name), _cell(value)) for name, value in values.items()]
    if out.isatty():
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for name, text in cells:
            grid.add_row(Text(name, style="bold"), Text(text))
        _render(out, grid)
        return
    width = max((text_width(name) for name, _ in cells), default=0)
    lines = [f"{pad_text(name, width)}  {text}".rstrip() + "\n" for name, text in cells]
    write_bytes(out, _bytes("".join(lines)))


def print_records(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str] | Layout,
    *,
    as_json: bool,
    stream: BinaryIO | None = None,
) -> None:
    """Print records: one JSON object a line with all it has, else a table of some columns.

    Args:
        rows: JSON values by name; consumed as they are printed.
        columns: The columns of a table, in order, and those left out on a narrow terminal; a row
            may lack some.
        as_json: As `--json` asks.
        stream: Standard output when absent.

    Raises:
        click.exceptions.Exit: With status 0, the reader has closed the pipe.
    """
    out = _output(stream)
    remaining = iter(rows)
    if as_json:
        while lines := b"".join(map(json_line, islice(remaining, MAX_ROWS_IN_TABLE))):
            write_bytes(out, lines)
        return
    layout = columns if isinstance(columns, Layout) else Layout(columns=columns)
    first = list(islice(remaining, MAX_ROWS_IN_TABLE + 1))
    is_styled = out.isatty() and "NO_COLOR" not in os.environ
    for text in table_text(first, remaining, layout, width=line_width(out), is_styled=is_styled):
        write_bytes(out, _bytes(text))


def json_line(values: Mapping[str, object]) -> bytes:
    """Return one JSON object as a line; unpaired surrogates (of file names) stay escaped."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return _bytes(f"{text}\n")


def warn(error: TailerdError) -> None:
    """Print a warning of something that does not stop the command."""
    say_error(error.code, error.message, error.address(TAIL).remedy, kind="warning")


READER_SECONDS = 0.2
"""Until it is noticed that the reader of a pipe has gone."""


def write_bytes(stream: BinaryIO, data: bytes) -> None:
    """Write and flush.

    Raises:
        click.exceptions.Exit: With status 0, the reader has closed the pipe.
    """
    with _ending_with_its_reader(stream):
        if data:
            stream.write(data)
        stream.flush()


async def write_while_read(writing: Awaitable[None], stream: BinaryIO) -> None:
    """Run what writes to a stream, until the reader of a pipe has gone, as `| head` does.

    Nothing else shows that while there is nothing to write.

    Raises:
        BrokenPipeError: The reader has gone.
    """
    tasks = asyncio.ensure_future(writing), asyncio.ensure_future(_wait_reader_gone(stream))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if tasks[0].cancelled():
        raise BrokenPipeError
    tasks[0].result()


async def _wait_reader_gone(stream: BinaryIO) -> None:
    poller = select.poll()
    # Not all streams are files. Errors are reported whatever is waited for.
    with suppress(OSError, ValueError):
        poller.register(stream.fileno(), 0)
    while True:
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0)):
            return
        await asyncio.sleep(READER_SECONDS)


@contextmanager
def _ending_with_its_reader(stream: BinaryIO) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        # Buffered output would fail again, with a message, when Python flushes at exit.
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), stream.fileno())
        raise click.exceptions.Exit(0) from error


def _select_columns(batch: ChangeBatch, columns: Sequence[str] | None) -> ChangeBatch:
    """Return the batch with some columns; one that it lacks is null."""
    if columns is None:
        return batch
    schema = batch.rows.schema
    fields = [
        schema.field(name) if name in schema.names else pa.field(name, pa.null())
        for name in columns
    ]
    arrays = [
        batch.rows.column(field.name) if field.name in schema.names else pa.nulls(batch.num_rows)
        for field in fields
    ]
    return replace(batch, rows=join_columns(arrays, pa.schema(fields), batch.num_rows))


def _output(stream: BinaryIO | None) -> BinaryIO:
    return sys.stdout.buffer if stream is None else stream


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(value)
    return printable(json.dumps(value, ensure_ascii=False))


def _render(out: BinaryIO, renderable: RenderableType) -> None:
    console = _console()
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    write_bytes(out, _bytes(console.file.getvalue()))


def _console() -> Console:
    """Return a console that knows the terminal's width and colours and prints into memory."""
    from rich.console import Console

    return Console(file=io.StringIO(), force_terminal=True)
