"""The newest change rows of each table, for an operator's eyes: few, short, and without secrets.

Masked columns are left out before anything is kept, so no dump of this process's answers has them.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.encoding.json import JsonEncoder

LONGEST_ROW_BYTES = 4096
_LARGEST_PIECE_BYTES = 64 * 1024


class NewestRows:
    """Keeps the last rows that went to each table's sink; any thread may ask.

    Args:
        count: So many of each table.
        mask: Names of columns nobody may see, whatever their case.
    """

    def __init__(self, count: int, mask: Iterable[str] = ()) -> None:
        self._count = count
        self._mask = frozenset(name.casefold() for name in mask)
        self._lock = threading.Lock()
        self._rows: dict[str, deque[str]] = {}
        self._masked: dict[str, tuple[str, ...]] = {}

    def listener(self, table: str) -> Callable[[ChangeBatch], None]:
        """Return what takes the batches of a table."""

        def take(batch: ChangeBatch) -> None:
            self._take(table, batch)

        return take

    def forget(self, table: str) -> None:
        """Drop a table's rows."""
        with self._lock:
            self._rows.pop(table, None)

    def of(self, table: str) -> list[dict[str, object]]:
        """Return a table's rows, newest first, as `tail --format jsonl` prints them."""
        with self._lock:
            texts = list(self._rows.get(table, ()))
        return [json.loads(text) for text in reversed(texts)]

    def masked(self, table: str) -> list[str]:
        """Return the columns of a table that are left out."""
        with self._lock:
            return list(self._masked.get(table, ()))

    def _take(self, table: str, batch: ChangeBatch) -> None:
        last = _last(batch, self._count)
        names = list(batch.rows.schema.names)
        shown = [name for name in names if name.casefold() not in self._mask]
        texts = JsonEncoder(columns=shown).encode(last).to_pylist() if last.num_rows else []
        kept = [text for text in map(_text, texts) if len(text) <= LONGEST_ROW_BYTES]
        with self._lock:
            self._rows.setdefault(table, deque(maxlen=self._count)).extend(kept)
            self._masked[table] = tuple(name for name in names if name not in shown)


def _last(batch: ChangeBatch, count: int) -> ChangeBatch:
    """Return the last rows of a batch, fewer where they are large."""
    start = max(0, batch.num_rows - count)
    while start < batch.num_rows and batch.rows.slice(start).nbytes > _LARGEST_PIECE_BYTES:
        start += max(1, (batch.num_rows - start) // 2)
    change = batch.change_type
    return ChangeBatch(
        rows=batch.rows.slice(start),
        change_type=change if isinstance(change, str) else change.slice(start),
        version=batch.version,
        timestamp_us=batch.timestamp_us,
        change_source=batch.change_source,
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
