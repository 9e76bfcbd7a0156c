"""Change rows as a screen shows them: one text for each cell, and which cells an update changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tailerd.changefeed.change_batch import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeBatch,
)
from tailerd.changefeed.change_task import ChangeType
from tailerd.cli.change_table import printable
from tailerd.records.json import JsonEncoder
from tailerd.records.json_text import timestamp_text

MAX_ROWS = 500
"""Number of rows that a screen keeps; older ones are dropped."""

_LONGEST_CELL = 200
_COMMIT_FIGURES = ("rows_added", "rows_removed", "files_added", "files_removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """One change row.

    Attributes:
        change: Its change type.
        version, time: Of its commit; the time to the second, in UTC.
        cells: A text for each column, which a terminal can print.
        changed: Columns in which an update's new row differs from its old one.
    """

    change: str
    version: str
    time: str
    cells: Mapping[str, str]
    changed: frozenset[str] = frozenset()


def show_batch(batch: ChangeBatch, columns: Sequence[str] | None = None) -> list[ShownRow]:
    """Return the last `MAX_ROWS` rows of a batch, oldest first.

    Args:
        batch: Rows of one commit.
        columns: Only these, in this order; None for all.
    """
    start = max(0, batch.num_rows - MAX_ROWS)
    change = batch.change_type
    last = replace(
        batch,
        rows=batch.rows.slice(start),
        change_type=change if isinstance(change, ChangeType) else change.slice(start),
    )
    texts = JsonEncoder(columns=columns).encode(last).to_pylist()
    return list(with_changes(_from_json(json.loads(text)) for text in texts))


def show_daemon_rows(rows: object) -> list[ShownRow]:
    """Return what `/tables/NAME` shows of the newest rows, oldest first."""
    if not isinstance(rows, list):
        return []
    return list(with_changes(_from_json(row) for row in reversed(rows) if isinstance(row, dict)))


def show_daemon_commits(history: object) -> list[ShownRow]:
    """Return what `/tables/NAME` shows of the newest commits as rows, oldest first."""
    commits = history.get("commits") if isinstance(history, dict) else None
    if not isinstance(commits, list):
        return []
    return [
        ShownRow(
            change=_text(each.get("operation") or "commit"),
            version=_text(each.get("version")),
            time=_moment(each.get("timestamp_ms")),
            cells={
                name.replace("_", " "): "-" if each.get(name) is None else _text(each[name])
                for name in _COMMIT_FIGURES
            },
        )
        for each in commits[-MAX_ROWS:]
        if isinstance(each, dict)
    ]


def _moment(timestamp_ms: object) -> str:
    if not isinstance(timestamp_ms, int):
        return "-"
    return timestamp_text(timestamp_ms * 1000)[:19].replace("T", " ")


def with_changes(rows: Iterable[ShownRow]) -> Iterator[ShownRow]:
    """Mark what updates changed; the two rows of an update follow each other, the old one first."""
    former: ShownRow | None = None
    for row in rows:
        if (
            row.change == ChangeType.UPDATE_POSTIMAGE
            and former is not None
            and former.change == ChangeType.UPDATE_PREIMAGE
        ):
            old = former.cells
            changed = {name for name, text in row.cells.items() if text != old.get(name)}
            yield replace(row, changed=frozenset(changed))
        else:
            yield row
        former = row


def _from_json(row: Mapping[str, object]) -> ShownRow:
    return ShownRow(
        change=printable(str(row.get(CHANGE_TYPE))),
        version=str(row.get(COMMIT_VERSION)),
        time=str(row.get(COMMIT_TIMESTAMP))[:19].replace("T", " "),
        cells={name: _text(value) for name, value in row.items() if name not in CHANGE_COLUMNS},
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        text = value
    else:
        text = "null" if value is None else json.dumps(value, ensure_ascii=False)
    text = printable(text[: _LONGEST_CELL + 1])
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"
