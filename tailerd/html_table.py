"""A few rows as an HTML table, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import islice

ROWS_SHOWN = 20


def html_table(title: str, names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return the first rows with a title; texts are escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = ""
    for row in islice(rows, ROWS_SHOWN):
        cells = ("<i>null</i>" if (v := row.get(n)) is None else html.escape(str(v)) for n in names)
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    more = "<p>More rows follow.</p>" if len(rows) > ROWS_SHOWN else ""
    return (
        f"<p>{html.escape(title)}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{more}"
    )
