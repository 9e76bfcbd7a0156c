"""The orders of demo tables: placed, updated and deleted at random, the same for the same seed."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CUSTOMERS = ("Ada", "Bola", "Chiara", "Dmitri", "Emre", "Fatima", "Gyeong", "Hinemoa")
_STEPS = {"placed": "paid", "paid": "shipped", "shipped": "delivered"}
_FIRST_ORDERS = 8

Order = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChange:
    """One order before and after a change.

    Attributes:
        before: None if it is new.
        after: None if it is deleted.
    """

    order_id: int
    before: Order | None = None
    after: Order | None = None

    @property
    def kind(self) -> str:
        """The kind of change."""
        if self.before is None:
            return "insert"
        return "delete" if self.after is None else "update"


class DemoOrders:
    """The rows of a demo table and their changes; a format's demo table inherits it.

    Args:
        folder: Where the table is created; must not contain one yet.
        seed: The same seed yields the same changes.

    Attributes:
        orders: The current orders, by number.
    """

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._next_id = 1001
        self.orders: dict[int, Order] = {}

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    def make_first_orders(self) -> list[Order]:
        """Place the initial orders of the table."""
        for _ in range(_FIRST_ORDERS):
            self._place_order()
        return list(self.orders.values())

    def change_order(self) -> OrderChange:
        """Place an order, update one or delete one."""
        draw = self._random.random()
        if draw < 0.45 or len(self.orders) < 3:
            return self._place_order()
        number = self._random.choice(list(self.orders))
        before = self.orders[number]
        if draw >= 0.85:
            del self.orders[number]
            return OrderChange(order_id=number, before=before)
        status = _STEPS.get(str(before["status"]), "placed")
        after = {**before, "status": status, "updated_at": datetime.now(UTC)}
        self.orders[number] = after
        return OrderChange(order_id=number, before=before, after=after)

    def _place_order(self) -> OrderChange:
        number, self._next_id = self._next_id, self._next_id + 1
        self.orders[number] = {
            "order_id": number,
            "customer": self._random.choice(CUSTOMERS),
            "amount": self._random.randrange(500, 50_000) / 100,
            "status": "placed",
            "updated_at": datetime.now(UTC),
        }
        return OrderChange(order_id=number, after=self.orders[number])


def publish_file(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it: readers see all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(content)
    aside.replace(path)


def encode_parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
