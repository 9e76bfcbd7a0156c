"""`kill -9` of the real daemon while a dataset keeps changing; see `tests.formats.killing`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.formats.killing import ChangingTable, Kills, Row
from tests.tables.dataset_writer import DatasetWriter

pytestmark = [pytest.mark.slow, pytest.mark.full]
SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("part", pa.int64()), pa.field("name", pa.string())]
)


class ChangingDataset(ChangingTable):
    """Appended to, rewritten with a few changes, deleted from."""

    start = "snapshot"

    def __init__(self, folder: Path) -> None:
        self.writer = DatasetWriter(folder / "store", schema=SCHEMA, partition_on=["part"])
        super().__init__(str(self.writer.location))
        self._next_id = 0
        self._append()

    def change(self) -> None:
        self.chance.choice([self._append, self._append, self._rewrite, self._rewrite, self._drop])()

    def _append(self) -> None:
        ids = range(self._next_id, self._next_id + 100)
        self._next_id += 100
        rows: list[Row] = [
            {"id": n, "part": self.chance.randrange(8), "name": f"n{n}"} for n in ids
        ]
        self.rows |= {row["id"]: row for row in rows}
        self.writer.commit(rows)

    def _rewrite(self) -> None:
        part = self.chance.randrange(8)
        rows = [row for row in self.rows.values() if row["part"] == part]
        changed = [
            {**row, "name": f"{row['name']}'"} if self.chance.random() < 0.05 else row
            for row in rows
        ]
        self.rows |= {row["id"]: row for row in changed}
        self.writer.commit(changed, without=_of(part))

    def _drop(self) -> None:
        part = self.chance.randrange(8)
        self.rows = {n: row for n, row in self.rows.items() if row["part"] != part}
        self.writer.commit(without=_of(part))


def _of(part: int) -> Any:
    return lambda label: label.startswith(f"part={part}/")


@pytest.fixture
def table(tmp_path: Path) -> ChangingDataset:
    return ChangingDataset(tmp_path)


class TestDataset(Kills):
    """Daemons that deliver it are killed."""
