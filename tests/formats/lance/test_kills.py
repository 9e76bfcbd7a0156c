"""`kill -9` of the real daemon while a table keeps changing; see `tests.formats.killing`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.killing import ChangingTable, Kills, Row
from tests.tables.lance_writer import LanceWriter

pytestmark = [pytest.mark.slow, pytest.mark.full]


class ChangingLance(ChangingTable):
    """Appended to, updated, deleted from, compacted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "t"))
        self.writer = LanceWriter(folder / "t", stable_ids=True)
        self._append()

    def change(self) -> None:
        self.chance.choice(
            [self._append, self._append, self._update, self._update, self._delete, self._compact]
        )()

    def _append(self) -> None:
        first = max(self.rows, default=-1) + 1
        rows: list[Row] = [{"id": n, "name": f"n{n}"} for n in range(first, first + 50)]
        self.rows |= {row["id"]: row for row in rows}
        self.writer.append(rows)

    def _update(self) -> None:
        part = self.chance.randrange(40)
        changed: dict[int, Row] = {
            n: {"id": n, "name": f"{row['name']}'"}
            for n, row in self.rows.items()
            if n % 40 == part
        }
        self.writer.dataset.update({"name": "name || ''''"}, where=f"id % 40 = {part}")
        self.rows |= changed

    def _delete(self) -> None:
        part = self.chance.randrange(20)
        self.writer.delete(f"id % 20 = {part} AND id < {max(self.rows)}")
        last = max(self.rows)
        self.rows = {n: row for n, row in self.rows.items() if n % 20 != part or n == last}

    def _compact(self) -> None:
        self.writer.dataset.optimize.compact_files()


@pytest.fixture
def table(tmp_path: Path) -> ChangingLance:
    return ChangingLance(tmp_path)


class TestLance(Kills):
    """Daemons that deliver it are killed."""
