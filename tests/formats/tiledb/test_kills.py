"""`kill -9` of the real daemon while an array keeps changing; see `tests.formats.killing`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import tiledb

from tests.formats.killing import ChangingTable, Kills, Row
from tests.formats.tiledb import arrays

pytestmark = [pytest.mark.slow, pytest.mark.full]
LATE_MS = 40


class ChangingArray(ChangingTable):
    """Written to, overwritten, deleted from, merged; some writes come from a clock that is slow."""

    start = "snapshot"
    # The library opens an array of thousands of fragments slower than they come otherwise.
    pause_seconds = 0.2

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "array"))
        self._path = folder / "array"
        schema = tiledb.ArraySchema(
            domain=tiledb.Domain(tiledb.Dim("id", domain=(0, 10**9), tile=1000, dtype=np.int64)),
            sparse=True,
            attrs=[tiledb.Attr("name", dtype=str, var=True)],
        )
        tiledb.Array.create(str(self._path), schema)
        self._last_ms = 0
        self._times: set[int] = set()
        self._next_id = 0
        self._append()

    @property
    def head_ms(self) -> int:
        """Time of its newest commit."""
        return self._last_ms

    def change(self) -> None:
        kinds = [self._append, self._late, self._update, self._delete, self._merge]
        self.chance.choices(kinds, weights=(6, 4, 8, 1, 1))[0]()

    def _now_ms(self) -> int:
        # All of a millisecond is one version, which must not grow once it was delivered.
        while (now := time.time_ns() // 1_000_000) <= self._last_ms:
            time.sleep(0.001)
        self._last_ms = now
        self._times.add(now)
        return now

    def _append(self) -> None:
        self._new_rows(self._now_ms())

    def _late(self) -> None:
        behind = self._last_ms - self.chance.randrange(1, LATE_MS)
        while behind in self._times:
            behind -= 1
        self._times.add(behind)
        self._new_rows(behind)

    def _new_rows(self, time_ms: int) -> None:
        ids = range(self._next_id, self._next_id + 50)
        self._next_id += 50
        self._write(time_ms, [{"id": n, "name": f"n{n}"} for n in ids])

    def _update(self) -> None:
        chosen = self.chance.sample(list(self.rows.values()), min(20, len(self.rows)))
        rows = sorted(chosen, key=lambda row: int(row["id"]))
        if rows:
            self._write(
                self._now_ms(), [{"id": row["id"], "name": f"{row['name']}'"} for row in rows]
            )

    def _write(self, time_ms: int, rows: list[Row]) -> None:
        names = np.array([row["name"] for row in rows], dtype=object)
        self.rows |= {row["id"]: row for row in rows}
        with tiledb.open(str(self._path), "w", timestamp=time_ms) as array:
            array[np.array([row["id"] for row in rows], np.int64)] = {"name": names}

    def _delete(self) -> None:
        # Of rows whose writing is no longer late for any delete.
        first = self.chance.randrange(self._next_id)
        self.rows = {n: row for n, row in self.rows.items() if not first <= n < first + 20}
        arrays.delete(self._path, self._now_ms(), f"id >= {first} and id < {first + 20}")

    def _merge(self) -> None:
        arrays.consolidate(self._path, "fragment_meta")
        arrays.vacuum(self._path, "fragment_meta")


@pytest.fixture
def table(tmp_path: Path) -> ChangingArray:
    return ChangingArray(tmp_path)


class TestArray(Kills):
    """Daemons that deliver it are killed."""
