"""Records as an aligned table that fits a terminal: columns are left out, then texts truncated."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import BinaryIO

from tailerd.cli.change_table import GAP, pad_text, printable, text_width

Record = Mapping[str, object]

MIN_WIDTH = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table of records is fitted to the width of a line.

    Attributes:
        columns: The columns shown, in order.
        optional: Columns left out where the line is too narrow, the first one first.
        cut: Columns whose texts are cut, the first one first.
        least_text_width: A text is not cut below this while another column can be left out for it.
        styles: Columns with coloured cells: the first word of a cell -> its ANSI colour.
    """

    columns: Sequence[str]
    optional: Sequence[str] = ()
    cut: Sequence[str] = ()
    least_text_width: int = 16
    styles: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def line_width(out: BinaryIO) -> int | None:
    """Return the cells of a line: of the terminal, or as set by COLUMNS; None: any number."""
    requested = os.environ.get("COLUMNS", "")
    if out.isatty() or (requested.isascii() and requested.isdigit() and int(requested)):
        return shutil.get_terminal_size().columns
    return None


def table_text(
    first: Sequence[Record],
    remaining: Iterator[Record],
    layout: Layout,
    *,
    width: int | None,
    is_styled: bool = False,
    chunk_rows: int = 1_000,
) -> Iterator[str]:
    """Yield a heading and a line for each record, in chunks of lines.

    Args:
        first: Records that decide the widths.
        remaining: Those after them; consumed as they are printed.
        layout: What to show.
        width: Cells of a line; None for any number: nothing is left out or cut.
        is_styled: Whether to write the heading in bold, and cells in their colours.
    """
    cells = {name: [_cell(row.get(name)) for row in first] for name in layout.columns}
    natural = {
        name: max(map(text_width, [printable(name), *texts])) for name, texts in cells.items()
    }
    widths = natural if width is None else fitted_widths(natural, layout, width)
    numeric = {name: _is_numeric(first, name) for name in widths}

    def line(texts: Sequence[str]) -> str:
        parts = []
        for text, (name, size) in zip(texts, widths.items(), strict=True):
            part = pad_text(text, size, is_number=numeric[name], is_cut=width is not None)
            parts.append(style_word(part, layout.styles.get(name, {})) if is_styled else part)
        return GAP.join(parts).rstrip()

    heading = line([printable(name) for name in widths])
    yield f"\x1b[1m{heading}\x1b[0m\n" if is_styled else f"{heading}\n"
    lines = (line([_cell(row.get(name)) for name in widths]) for row in chain(first, remaining))
    while chunk := list(islice(lines, chunk_rows)):
        yield "".join(f"{text}\n" for text in chunk)


def style_word(text: str, colours: Mapping[str, int]) -> str:
    """Return a text with its first word in the colour that `colours` has for it, if any."""
    word = text.partition(" ")[0]
    colour = colours.get(word)
    return text if colour is None else f"\x1b[{colour}m{word}\x1b[0m{text[len(word) :]}"


def fitted_widths(natural: Mapping[str, int], layout: Layout, width: int) -> dict[str, int]:
    """Return the width of each column that is shown.

    Columns are left out while texts would be cut below `least_text_width`; then the longest of the
    columns that may be cut shrink to `MIN_WIDTH`.
    """
    shown = dict(natural)
    for name in layout.optional:
        if _least(shown, layout) <= width:
            break
        shown.pop(name, None)
    for name in layout.cut:
        excess = _line_width(shown) - width
        if excess > 0 and name in shown:
            shown[name] = max(min(shown[name], MIN_WIDTH), shown[name] - excess)
    return shown


def _least(widths: Mapping[str, int], layout: Layout) -> int:
    cut = {n: min(w, layout.least_text_width) for n, w in widths.items() if n in layout.cut}
    return _line_width({**widths, **cut})


def _line_width(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(value)
    return printable(json.dumps(value, ensure_ascii=False))


def _is_numeric(rows: Sequence[Record], column: str) -> bool:
    values = [row.get(column) for row in rows]
    return all(value is None or isinstance(value, int | float) for value in values)
