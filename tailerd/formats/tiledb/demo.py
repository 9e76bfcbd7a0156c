"""A small array and a writer that keeps changing it: for `demo` only."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from tailerd.formats.tiledb.library import load

_CUSTOMERS = ("Ada", "Bola", "Chiara", "Dmitri", "Emre", "Fatima", "Gyeong", "Hinemoa")
_STEPS = {"placed": "paid", "paid": "shipped", "shipped": "delivered"}
_FIRST_ROWS = 8
_MOST_ORDERS = 10**9

Order = dict[str, Any]


class DemoArray:
    """A sparse array of orders, by their number, and its writer.

    Args:
        folder: There must be no array yet.
        seed: Makes the same changes again.
    """

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._orders: dict[int, Order] = {}
        self._next_id = 1001
        self._last_ms = 0

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    def create(self) -> None:
        """Make the array, with the first orders."""
        library = load()
        number = library.Dim("order_id", domain=(0, _MOST_ORDERS), tile=10_000, dtype=np.int64)
        schema = library.ArraySchema(
            domain=library.Domain(number),
            sparse=True,
            attrs=[
                library.Attr("amount", dtype=np.float64),
                library.Attr("customer", dtype=str, var=True),
                library.Attr("status", dtype=str, var=True),
            ],
        )
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        library.Array.create(str(self._folder), schema)
        for _ in range(_FIRST_ROWS):
            self._place_order()
        self._write(*self._orders)

    def change(self) -> str:
        """Commit once more: an order is placed, goes on or is deleted; return which."""
        draw = self._random.random()
        if draw < 0.45 or len(self._orders) < 3:
            self._write(self._place_order())
            return "insert"
        number = self._random.choice(list(self._orders))
        if draw < 0.85:
            order = self._orders[number]
            self._orders[number] = {**order, "status": _STEPS.get(order["status"], "placed")}
            self._write(number)
            return "update"
        del self._orders[number]
        with load().open(str(self._folder), "d", timestamp=self._time_ms()) as array:
            array.query(cond=f"order_id == {number}").submit()
        return "delete"

    def _place_order(self) -> int:
        number, self._next_id = self._next_id, self._next_id + 1
        self._orders[number] = {
            "amount": self._random.randrange(500, 50_000) / 100,
            "customer": self._random.choice(_CUSTOMERS),
            "status": "placed",
        }
        return number

    def _write(self, *numbers: int) -> None:
        orders = [self._orders[number] for number in numbers]
        with load().open(str(self._folder), "w", timestamp=self._time_ms()) as array:
            array[np.array(numbers, np.int64)] = {
                "amount": np.array([each["amount"] for each in orders], np.float64),
                "customer": np.array([each["customer"] for each in orders], dtype=object),
                "status": np.array([each["status"] for each in orders], dtype=object),
            }

    def _time_ms(self) -> int:
        """Return the time of a commit, which no commit before has."""
        while (now := time.time_ns() // 1_000_000) <= self._last_ms:
            time.sleep(0.0005)
        self._last_ms = now
        return now


class TileDBDemo:
    """What the format offers to show how tailerd works; `formats.parts.Demo`."""

    maintenance: dict[str, object] | None = None

    def table(self, folder: Path, seed: int = 7) -> DemoArray:
        """Return an array that is still to be made."""
        return DemoArray(folder, seed)
