"""Change rows as an aligned table that is printed while rows arrive: for people, not programs.

Rich is imported only for a terminal or wide characters, so that pipes start faster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
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
MIN_WIDTH = 6
GAP = "  "

# Terminals interpret C0 and C1 controls and reverse text at bidirectional overrides.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    is_number: bool


class ChangeTable:
    """Lays out batch after batch; widths only grow, so that rows of many batches stay aligned.

    Args:
        width: Cells of the terminal; None neither truncates values nor leaves columns out.
        is_coloured: Whether to write ANSI colours for the change types.
    """

    def __init__(self, *, width: int | None, is_coloured: bool) -> None:
        self._width = width
        self._is_coloured = is_coloured
        self._columns: list[_Column] = []
        self._widths: list[int] = []
        self._shown: list[int] = []

    def lines(self, batch: ChangeBatch) -> str:
        """Return the batch's rows, after a heading if the layout is new."""
        if batch.num_rows == 0:
            return ""
        columns = [_Column(name, name == HEADINGS[1]) for name in HEADINGS]
        columns += [_Column(printable(f.name), _is_number(f.type)) for f in batch.rows.schema]
        cells = _cells(batch)
        needed = [
            max(text_width(column.name), max(map(text_width, texts)))
            for column, texts in zip(columns, cells, strict=True)
        ]
        if self._width is not None:
            # Wide enough for every change type, so that the columns keep their position.
            needed[0] = max(needed[0], max(map(len, CHANGE_STYLES)))
        is_new = columns != self._columns
        self._columns = columns
        if not is_new:
            needed = [max(pair) for pair in zip(needed, self._widths, strict=True)]
        self._widths = needed
        shown = fit_widths(needed, self._width)
        is_new = is_new or shown != self._shown
        self._shown = shown
        lines = []
        if is_new:
            lines.append(self._heading(shown))
        lines.extend(
            self._style_line(row[0], self._line(row, shown)) for row in zip(*cells, strict=True)
        )
        return "".join(f"{line}\n" for line in lines)

    def _heading(self, shown: Sequence[int]) -> str:
        left_out = len(self._columns) - len(shown)
        line = self._line([column.name for column in self._columns], shown)
        if left_out:
            line = f"{line}{GAP}+{left_out}"
        return f"\x1b[1m{line}\x1b[0m" if self._is_coloured else line

    def _line(self, texts: Sequence[str], shown: Sequence[int]) -> str:
        parts = [
            pad_text(text, width, is_number=column.is_number, is_cut=self._width is not None)
            for text, width, column in zip(texts, shown, self._columns, strict=False)
        ]
        return GAP.join(parts).rstrip()

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
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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


def fit_widths(widths: Sequence[int], total_width: int | None) -> list[int]:
    """Return widths that fit into a line: the widest shrink first, then columns are left out.

    The change columns are never left out.
    """
    if total_width is None:
        return list(widths)
    total = total_width
    fixed = list(widths[: len(HEADINGS)])
    free = list(widths[len(HEADINGS) :])
    count = len(free)
    while free and _line_width([*fixed, *(min(width, MIN_WIDTH) for width in free)]) > total:
        free.pop()
        # Room for the number of columns left out.
        total = min(total, total_width - len(GAP) - len(f"+{count}"))
    for cap in range(total, MIN_WIDTH, -1):
        capped = [*fixed, *(min(width, cap) for width in free)]
        if _line_width(capped) <= total:
            return capped
    return [*fixed, *(min(width, MIN_WIDTH) for width in free)]


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


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )
