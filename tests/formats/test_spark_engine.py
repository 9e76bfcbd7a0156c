"""The daemon's Spark engine delivers tables of every format side by side, and goes on with them.

One process has them all, as a Spark takes long to start.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.formats.conftest import ROOT, WrittenMemory
from tests.formats.delivering import Change, changes, delivered
from tests.formats.tiledb import arrays
from tests.integration.daemon.running import file_table, write_config
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder
from tests.tables.dataset_writer import DatasetWriter, Rows
from tests.tables.iceberg_writer import IcebergWriter
from tests.tables.lance_writer import LanceWriter

pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.usefixtures("memory_is_installed")]


def rows(*ids: int) -> Rows:
    return [{"id": number, "name": f"n{number}"} for number in ids]


class Tables:
    """A table of each format; ids 1 and 2, and later others.

    Attributes:
        locations: Of each.
    """

    def __init__(self, folder: Path) -> None:
        self._delta = TableBuilder(folder / "delta")
        self._delta.append(rows(1, 2))
        self._lance = LanceWriter(folder / "lance", stable_ids=True)
        self._lance.append(rows(1, 2))
        self._iceberg = IcebergWriter(folder / "iceberg")
        self._iceberg.append(rows(1, 2))
        self._dataset = DatasetWriter(folder / "store")
        [self._first] = self._dataset.commit(rows(1, 2))
        self._array = folder / "array"
        arrays.create_named(self._array)
        arrays.write_named(self._array, 1000, [1, 2])
        self._memory = WrittenMemory(folder / "memory")
        self._appended = self._memory.append([1, 2])
        self.positions = {
            "delta": self._delta.folder,
            "iceberg": folder / "iceberg",
            "lance": folder / "lance",
            "kartothek": self._dataset.location,
            "tiledb": self._array,
            "memory": self._memory.location,
        }

    def change(self) -> None:
        self._delta.append(rows(3))
        self._lance.dataset.update({"name": "'x'"}, where="id = 2")
        self._lance.append(rows(3))
        self._iceberg.delete("id = 1")
        self._iceberg.append(rows(3))
        self._dataset.commit(rows(2, 3), without=lambda label: label == self._first)
        arrays.delete(self._array, 2000, "id == 1")
        self._memory.append([3])
        self._memory.remove(self._appended)


EXPECTED: dict[str, list[Change]] = {
    "delta": [("insert", 1, 0), ("insert", 2, 0), ("insert", 3, 1)],
    "iceberg": [
        *(("insert", 1, 1), ("insert", 2, 1), ("delete", 1, 2), ("insert", 3, 3)),
    ],
    "lance": [
        *(("insert", 1, 1), ("insert", 2, 1), ("insert", 3, 3)),
        *(("update_preimage", 2, 2), ("update_postimage", 2, 2)),
    ],
    "kartothek": [("insert", 1, 0), ("insert", 2, 0), ("delete", 1, 1), ("insert", 3, 1)],
    "tiledb": [("insert", 1, 1000), ("insert", 2, 1000), ("delete", 1, 2000)],
    "memory": [
        *(("insert", 1, 10), ("insert", 2, 10), ("insert", 3, 20)),
        *(("delete", 1, 30), ("delete", 2, 30)),
    ],
}


def test_tables_of_every_format_are_delivered_and_gone_on_with(tmp_path: Path) -> None:
    require_java()
    tables = Tables(tmp_path)
    config = write_config(
        tmp_path,
        **{
            name: file_table(tables.positions[name], tmp_path / "out" / name, engine="spark")
            for name in EXPECTED
        },
    )
    for step in range(2):
        if step:
            tables.change()
        command = [sys.executable, "-m", "tailerd", "run", "--config", str(config), "--once"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr[-4000:]
    for name in EXPECTED:
        assert changes(delivered(tmp_path / "out" / name)) == Counter(EXPECTED[name]), name
