"""A small table made with the library, and a writer that keeps changing it: for `demo` only.

Orders that keep their row ids, so that updates come as pairs.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tailerd.formats.lance.library import load_lance

if TYPE_CHECKING:
    import lance

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("status", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("updated_at", pa.timestamp("us", "UTC")),
    ]
)
_CUSTOMERS = ("Ada", "Bola", "Chiara", "Dmitri", "Emre", "Fatima", "Gyeong", "Hinemoa")
_STEPS = {"placed": "paid", "paid": "shipped", "shipped": "delivered"}
_FIRST_ROWS = 8


class DemoLance:
    """The table and its writer: rows keep their ids, so an update comes as one.

    Args:
        folder: There must be no table yet.
        seed: Makes the same changes again.
    """

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._statuses: dict[int, str] = {}
        self._next_id = 1001
        self._table: lance.LanceDataset | None = None

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    def create(self) -> None:
        """Write the first orders."""
        library = load_lance()
        rows = [self._order() for _ in range(_FIRST_ROWS)]
        self._table = library.write_dataset(
            pa.Table.from_pylist(rows, SCHEMA), str(self._folder), enable_stable_row_ids=True
        )

    def change(self) -> str:
        """Commit one more version: an order is placed, goes on or is deleted; return which."""
        assert self._table is not None
        draw = self._random.random()
        if draw < 0.45 or len(self._statuses) < 3:
            self._table.insert(pa.Table.from_pylist([self._order()], SCHEMA))
            return "insert"
        key = self._random.choice(list(self._statuses))
        if draw < 0.85:
            status = _STEPS.get(self._statuses[key], "placed")
            self._statuses[key] = status
            self._table.update({"status": f"'{status}'"}, where=f"order_id = {key}")
            return "update"
        del self._statuses[key]
        self._table.delete(f"order_id = {key}")
        return "delete"

    def _order(self) -> dict[str, object]:
        number, self._next_id = self._next_id, self._next_id + 1
        self._statuses[number] = "placed"
        return {
            "order_id": number,
            "customer": self._random.choice(_CUSTOMERS),
            "status": "placed",
            "amount": self._random.randrange(500, 50_000) / 100,
            "updated_at": datetime.now(UTC),
        }


class LanceDemo:
    """What the format offers to show how tailerd works; `formats.parts.Demo`."""

    maintenance: dict[str, object] | None = None

    def table(self, folder: Path, seed: int = 7) -> DemoLance:
        """Return a table that is still to be made."""
        return DemoLance(folder, seed)
