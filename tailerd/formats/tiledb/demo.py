"""A small array and a writer that keeps changing it: for `demo` only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tailerd.formats.demo_orders import DemoOrders, Order
from tailerd.formats.parts import Demo
from tailerd.formats.tiledb.library import library_lock, load

_MAX_ORDERS = 10**9


class DemoArray(DemoOrders):
    """A sparse array of orders, by their number, and its writer."""

    _last_ms = 0

    def create(self) -> None:
        """Create the array, with the first orders."""
        library = load()
        number = library.Dim("order_id", domain=(0, _MAX_ORDERS), tile=10_000, dtype=np.int64)
        schema = library.ArraySchema(
            domain=library.Domain(number),
            sparse=True,
            attrs=[
                library.Attr("amount", dtype=np.float64),
                library.Attr("customer", dtype=str, var=True),
                library.Attr("status", dtype=str, var=True),
            ],
        )
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        library.Array.create(str(self.folder), schema)
        self._write(*self.make_first_orders())

    def change(self) -> str:
        """Commit once more: location, update or delete an order; return which."""
        change = self.change_order()
        if change.after is not None:
            self._write(change.after)
        else:
            with self._open("d") as array:
                array.query(cond=f"order_id == {change.order_id}").submit()
        return change.kind

    def _write(self, *orders: Order) -> None:
        with self._open("w") as array:
            array[np.array([each["order_id"] for each in orders], np.int64)] = {
                "amount": np.array([each["amount"] for each in orders], np.float64),
                "customer": np.array([each["customer"] for each in orders], dtype=object),
                "status": np.array([each["status"] for each in orders], dtype=object),
            }

    @contextmanager
    def _open(self, mode: str) -> Iterator[Any]:
        # The daemon of the demo reads the array in the same process.
        with (
            library_lock,
            load().open(str(self.folder), mode, timestamp=self._time_ms()) as array,
        ):
            yield array

    def _time_ms(self) -> int:
        """Return a time for a commit that is later than those of all commits before."""
        while (now := time.time_ns() // 1_000_000) <= self._last_ms:
            time.sleep(0.0005)
        self._last_ms = now
        return now


DEMO = Demo(table=DemoArray)
