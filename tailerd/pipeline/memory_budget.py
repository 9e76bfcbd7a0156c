"""The bytes of rows that all tables of the process may read ahead of their sinks.

Most of the budget is a pool. A table takes at most as much of it as it leaves for all others, so
that tables with slow sinks never empty it: n of them hold n/(n+1) of it together. The rest is a
reserve: the piece that a sink waits for is always admitted, if need be a small one out of the
table's own share of the reserve. So no table waits without end, and a slow sink slows only its own
table.

The bound is the budget, plus the excess of single pieces over their admitted size: at most one row
group or row each, counted until it is consumed.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from tailerd.changefeed.limits import reader_bytes

POOL_SHARE = 0.75
SMALLEST_PIECE = 64 * 1024


class MemoryBudget:
    """Hands out bytes; belongs to one event loop.

    Attributes:
        total_bytes: The whole budget.
        used_bytes: Bytes in use now.
        most_used_bytes: Peak of `used_bytes`.
        readers: The memory for pages of open files, in addition to the budget.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.most_used_bytes = 0
        self.readers = ReaderBudget(reader_bytes(total_bytes))
        self._pool_bytes = int(total_bytes * POOL_SHARE)
        self._pool_used_bytes = 0
        self._streams = 0

    def join(self, streams: int = 1) -> TableMemory:
        """Return the part of one more table; close it when the table no longer runs.

        Args:
            streams: Deliveries it may have in flight, each with a share of the reserve.
        """
        self._streams += streams
        return TableMemory(self, streams)

    def _reserve_share(self) -> int:
        reserve = self.total_bytes - self._pool_bytes
        return max(SMALLEST_PIECE, reserve // max(1, self._streams))

    def _from_pool(self, table: TableMemory, requested: int) -> Piece | None:
        left_for_others = self._pool_bytes - self._pool_used_bytes - table._pool_used_bytes
        granted = min(requested, left_for_others)
        if granted < min(requested, SMALLEST_PIECE):
            return None
        return Piece(table, granted, is_pooled=True)

    def _take(self, piece: Piece, size: int) -> None:
        if piece._is_pooled:
            self._pool_used_bytes += size
            piece._table._pool_used_bytes += size
        self.used_bytes += size
        self.most_used_bytes = max(self.most_used_bytes, self.used_bytes)


class ReaderBudget:
    """The pages of the process's open files; see `changefeed.limits.Readers`.

    Attributes:
        total_bytes: All that open readers may hold together.
        used_bytes: Held now.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._alone = threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Take a share, to be given back; return False if less is left."""
        with self._lock:
            if self.used_bytes + size_bytes > self.total_bytes:
                return False
            self.used_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Give back a share."""
        with self._lock:
            self.used_bytes -= size_bytes

    def alone(self) -> AbstractContextManager[object]:
        """Work without a share, while no other reader does."""
        return self._alone


class TableMemory:
    """One table's access to the budget."""

    def __init__(self, budget: MemoryBudget, streams: int) -> None:
        self._budget = budget
        self._streams = streams
        self._pool_used_bytes = 0
        self._is_closed = False

    def admit(self, requested: int) -> Piece:
        """Admit the piece that the sink waits for, at once; it may be smaller than wanted."""
        budget = self._budget
        piece = budget._from_pool(self, requested)
        return piece or Piece(self, min(requested, budget._reserve_share()), is_pooled=False)

    def admit_ahead(self, requested: int) -> Piece | None:
        """Admit a piece that is read ahead, perhaps smaller than wanted; None if it must wait.

        No caller blocks on it: once the sink has consumed the earlier pieces, `admit` admits it.
        """
        return self._budget._from_pool(self, requested)

    @property
    def readers(self) -> ReaderBudget:
        """The memory for pages of open files, which all tables share."""
        return self._budget.readers

    def close(self) -> None:
        """Leave; the others' shares of the reserve grow. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._budget._streams -= self._streams


class Piece:
    """Bytes that are held until `release`.

    Attributes:
        size_bytes: The admitted size, then the actual one.
    """

    def __init__(self, table: TableMemory, size_bytes: int, *, is_pooled: bool) -> None:
        self._table = table
        self._is_pooled = is_pooled
        self.size_bytes = size_bytes
        table._budget._take(self, size_bytes)

    def resize(self, size_bytes: int) -> None:
        """Set the actual size, smaller or larger than admitted."""
        difference, self.size_bytes = size_bytes - self.size_bytes, size_bytes
        self._table._budget._take(self, difference)

    def release(self) -> None:
        """Give everything back; idempotent."""
        self.resize(0)
