"""A table that the tests of daemons and buckets share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables.builder import CDF, TableBuilder


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """A checkpoint, commits after it, one with a change file, and a deletion vector."""
    table = TableBuilder(
        tmp_path / "table",
        properties=CDF,
        reader_features=["deletionVectors"],
        writer_features=["deletionVectors", "changeDataFeed"],
    )
    [first] = table.append([{"id": n, "name": f"n{n}"} for n in range(5)]).adds
    table.append([{"id": 10, "name": "ten"}])
    table.checkpoint()
    table.append([{"id": 11, "name": "eleven"}])
    table.commit(
        table.remove(first),
        table.cdc_file([{"id": n, "name": f"n{n}", "_change_type": "delete"} for n in range(5)]),
    )
    return table
