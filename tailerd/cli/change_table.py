"""Change rows as an aligned table that is printed while rows arrive: for people, not programs.

A narrow terminal gets one line for each field.

Rich is imported only for a terminal or wide characters, so that pipes start faster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.records.json_rows import row_texts
from tailerd.records.json_text import timestamp_text

CHANGE_STYLES = {
    "insert": "green",
    "delete": "red",
    "update_preimage": "yellow",
    "update_postimage": "yellow",
}
HEADINGS = ("change", "version", "time (UTC)")
TIME = 2
MIN_WIDTH = 6
COMFORTABLE_WIDTH = 16
MIN_COLUMNS = 3
"""Fewer of the table's columns on a line say too little: each field gets its own line."""
GAP = "  "

# Terminals interpret C0 and C1 controls and reverse text at bidirectional overrides.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        is_number: Aligned to the right.
        is_cut: Whether long values may be cut; numbers and times would then read as others.
    """

    name: str
    is_number: bool = False
    is_cut: bool = False


class ChangeTable:
    """Lays out batch after batch; widths only grow, so that rows of many batches stay aligned.

    A heading comes again only if other columns are shown, not if one became wider.

    Args:
        width: Cells of the terminal; None neither cuts values nor leaves columns out.
        is_coloured: Whether to write ANSI colours for the change types.
    """

    def __init__(self, *, width: int | None, is_coloured: bool) -> None:
        self._width = width
        self._is_coloured = is_coloured
        self._columns: list[Column] = []
        self._widths: list[int] = []
        self._shown: list[int] = []

    def lines(self, batch: ChangeBatch) -> str:
        """Return the batch's rows, after a heading if the layout is new."""
        if batch.num_rows == 0:
            return ""
        columns = [Column(name, is_number=name == HEADINGS[1]) for name in HEADINGS]
        columns += map(_describe_column, batch.rows.schema)
        cells = _cells(batch)
        widths = [
            max(text_width(column.name), max(map(text_width, texts)))
            for column, texts in zip(columns, cells, strict=True)
        ]
        if self._width is not None:
            # Wide enough for every change type, so that the columns keep their position.
            widths[0] = max(widths[0], *map(len, CHANGE_STYLES))
        is_new = columns != self._columns
        if not is_new:
            widths = [max(pair) for pair in zip(widths, self._widths, strict=True)]
        self._columns, self._widths = columns, widths
        before = self._shown
        if is_new or (before and not fit_widths(columns, widths, before, self._width)):
            self._shown = choose_columns(columns, widths, self._width)
        rows = zip(*cells, strict=True)
        if not self._shown:
            lines = [line for row in rows for line in self._fields(row)]
        else:
            fitted = fit_widths(columns, widths, self._shown, self._width)
            lines = [self._heading(fitted)] if is_new or self._shown != before else []
            lines += [self._style_line(row[0], self._line(row, fitted)) for row in rows]
        return "".join(f"{line}\n" for line in lines)

    def _heading(self, fitted: Sequence[int]) -> str:
        line = self._line([column.name for column in self._columns], fitted)
        if left_out := _count_left_out(self._columns, self._shown):
            line = f"{line}{GAP}+{left_out}"
        return f"\x1b[1m{line}\x1b[0m" if self._is_coloured else line

    def _line(self, texts: Sequence[str], fitted: Sequence[int]) -> str:
        parts = [
            pad_text(
                texts[index],
                width,
                is_number=self._columns[index].is_number,
                is_cut=self._width is not None,
            )
            for index, width in zip(self._shown, fitted, strict=True)
        ]
        return GAP.join(parts).rstrip()

    def _fields(self, row: Sequence[str]) -> Iterator[str]:
        """Yield a row as a line for each field."""
        assert self._width is not None
        kind, version, time, *texts = row
        head = f"{kind}{GAP}version {version}"
        head += f"{GAP}{time}" if len(head) + len(GAP) + len(time) <= self._width else ""
        yield self._style_line(kind, head)
        columns = self._columns[len(HEADINGS) :]
        most = max(MIN_WIDTH, self._width // 2 - len(GAP))
        label = min(most, max((text_width(column.name) for column in columns), default=0))
        room = max(MIN_WIDTH, self._width - label - 2 * len(GAP))
        for column, text in zip(columns, texts, strict=True):
            name = pad_text(column.name, label, is_cut=True)
            yield f"{GAP}{name}{GAP}{pad_text(text, room, is_cut=column.is_cut).rstrip()}"

    def _style_line(self, kind: str, line: str) -> str:
        if not self._is_coloured:
            return line
        from rich.color import ColorSystem
        from rich.style import Style

        style = Style.parse(CHANGE_STYLES.get(kind, ""))
        length = min(len(kind), len(line))
        coloured = style.render(line[:length], color_system=ColorSystem.STANDARD)
        return coloured + line[length:]


def printable(text: str) -> str:
    """Replace characters that a terminal would interpret by visible escapes."""
    return _UNPRINTABLE.sub(lambda match: _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text)


def text_width(text: str) -> int:
    """Return how many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad_text(text: str, width: int, *, is_number: bool = False, is_cut: bool = False) -> str:
    """Pad to a width, numbers to the right; a longer text is truncated only with `is_cut`."""
    length = text_width(text)
    if length > width and is_cut:
        return _cut(text, width)
    padding = " " * (width - length)
    return padding + text if is_number else text + padding


def _cut(text: str, width: int) -> str:
    if text.isascii():
        return text[: width - 1] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def choose_columns(
    columns: Sequence[Column], widths: Sequence[int], total: int | None
) -> list[int]:
    """Return which columns of a batch are shown; none if each field needs its own line.

    The time is left out first, then texts are cut, then columns are left out from the right.

    Args:
        columns: The change columns, then the table's.
        widths: Cells of their widest values.
        total: Cells of a line; None for any number.
    """
    everything = list(range(len(columns)))
    roomy = [
        min(width + len(GAP), COMFORTABLE_WIDTH) if column.is_cut else width
        for column, width in zip(columns, widths, strict=True)
    ]
    if total is None or _line_width(roomy) <= total:
        return everything
    shown = [index for index in everything if index != TIME]
    while len(shown) >= len(HEADINGS) and not fit_widths(columns, widths, shown, total):
        shown.pop()
    is_enough = len(shown) - TIME >= min(MIN_COLUMNS, len(columns) - len(HEADINGS))
    return shown if is_enough and fit_widths(columns, widths, shown, total) else []


def fit_widths(
    columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], total: int | None
) -> list[int]:
    """Return the widths of the columns that are shown, the widest texts cut; none if too wide.

    Arguments as for `choose_columns`.
    """

    def cut(cap: int) -> list[int]:
        return [min(widths[i], cap) if columns[i].is_cut else widths[i] for i in shown]

    if total is None:
        return [widths[i] for i in shown]
    if left_out := _count_left_out(columns, shown):
        total -= len(GAP) + len(f"+{left_out}")
    fitting = (cut(cap) for cap in range(max(total, MIN_WIDTH), MIN_WIDTH - 1, -1))
    return next((each for each in fitting if _line_width(each) <= total), [])


def _count_left_out(columns: Sequence[Column], shown: Sequence[int]) -> int:
    """Return how many columns are left out, except for the time."""
    return len(set(range(len(columns))) - {*shown, TIME})


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _cells(batch: ChangeBatch) -> list[Sequence[str]]:
    count = batch.num_rows
    time = timestamp_text(batch.timestamp_us)[:19].replace("T", " ")
    cells: list[Sequence[str]] = [
        [printable(kind) for kind in batch.change_types().to_pylist()],
        [str(batch.version)] * count,
        [time] * count,
    ]
    for array, field in zip(batch.rows.columns, batch.rows.schema, strict=True):
        cells.append(list(_bare(row_texts(array, field, quote_decimals=True))))
    return cells


def _bare(texts: Iterable[str]) -> Iterable[str]:
    """Show strings without quotes."""
    for text in texts:
        yield printable(json.loads(text) if text.startswith('"') else text)


def _describe_column(field: pa.Field) -> Column:
    kind = field.type
    is_number = bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )
    is_cut = not (is_number or pa.types.is_temporal(kind) or pa.types.is_boolean(kind))
    return Column(printable(field.name), is_number=is_number, is_cut=is_cut)
