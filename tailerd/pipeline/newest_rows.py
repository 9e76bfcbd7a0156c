"""Keeps the newest change rows of each table for operators: few, short, and masked.

Masked columns are left out before anything is kept, so no answer of this process has them.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.pipeline.column_mask import ColumnMask
from tailerd.records.json import JsonEncoder
from tailerd.telemetry import Telemetry, events

LONGEST_ROW_BYTES = 4096
_LARGEST_PIECE_BYTES = 64 * 1024


class NewestRows:
    """Keeps the last rows that went to each table's sink; any thread may ask.

    Args:
        count: Number of rows for each table.
        mask: Names of masked columns, case-insensitive, or dotted paths to fields.
        telemetry: Receives names that mask nothing in a table: when it is first seen, and when its
            columns change.
    """

    def __init__(
        self, count: int, mask: Iterable[str] = (), telemetry: Telemetry | None = None
    ) -> None:
        self._count = count
        self._mask = tuple(mask)
        self._telemetry = Telemetry() if telemetry is None else telemetry
        self._lock = threading.Lock()
        self._rows: dict[str, deque[str]] = {}
        self._masks: dict[str, tuple[pa.Schema, ColumnMask]] = {}

    def listener(self, table: str) -> Callable[[ChangeBatch], None]:
        """Return a callback for the batches of a table."""

        def take(batch: ChangeBatch) -> None:
            self._take(table, batch)

        return take

    def forget(self, table: str) -> None:
        """Drop a table's rows and columns."""
        with self._lock:
            self._rows.pop(table, None)
            self._masks.pop(table, None)

    def list_rows(self, table: str) -> list[dict[str, object]]:
        """Return a table's rows, newest first, as `tail --format jsonl` prints them."""
        with self._lock:
            texts = list(self._rows.get(table, ()))
        return [json.loads(text) for text in reversed(texts)]

    def list_masked(self, table: str) -> list[str]:
        """Return a table's masked columns."""
        with self._lock:
            _, mask = self._masks.get(table, (None, None))
            return [] if mask is None else list(mask.masked)

    def _take(self, table: str, batch: ChangeBatch) -> None:
        last = _last(batch, self._count)
        mask = self._choose_mask(table, batch.rows.schema)
        kept = [text for text in shown_texts(last, mask) if len(text) <= LONGEST_ROW_BYTES]
        with self._lock:
            self._rows.setdefault(table, deque(maxlen=self._count)).extend(kept)

    def _choose_mask(self, table: str, schema: pa.Schema) -> ColumnMask:
        with self._lock:
            before, mask = self._masks.get(table, (None, None))
            if mask is not None and schema.equals(before):
                return mask
            made = ColumnMask.from_names(self._mask, schema)
            self._masks[table] = (schema, made)
        known = () if mask is None else mask.unknown
        if new := [name for name in made.unknown if name not in known]:
            names = ", ".join(new)
            self._telemetry.emit(
                events.MaskUnmatched(
                    table=table,
                    reason=f"`web.mask` names columns that the table does not have: {names}. To"
                    " mask one, write the column's exact name or the dotted path to the field.",
                )
            )
        return made


def shown_texts(batch: ChangeBatch, mask: ColumnMask) -> list[str]:
    """Return rows as `tail --format jsonl` prints them, without masked columns."""
    if not batch.num_rows:
        return []
    texts = [_text(text) for text in JsonEncoder(columns=mask.shown).encode(batch).to_pylist()]
    if mask.hides_within():
        return [_compact(mask.without(json.loads(text))) for text in texts]
    return texts


def _last(batch: ChangeBatch, count: int) -> ChangeBatch:
    """Return the last rows of a batch, fewer where they are large."""
    start = max(0, batch.num_rows - count)
    while start < batch.num_rows and batch.rows.slice(start).nbytes > _LARGEST_PIECE_BYTES:
        start += max(1, (batch.num_rows - start) // 2)
    return batch.slice(start, batch.num_rows - start)


def _compact(row: dict[str, object]) -> str:
    """Write a row as compactly as `JsonEncoder`, so that masking does not exceed its limit."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
