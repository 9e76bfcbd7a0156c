"""Readers of one process share the memory for pages; one without a share gives the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.limits import BatchLimit
from tailerd.pipeline.memory_budget import MemoryBudget, ReaderBudget
from tailerd.reading.file_scan import FieldScan, FileScan
from tailerd.reading.parquet import read_file

ROWS = 6_000


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flat, nested, repeated, short and long values in two row groups, with dictionaries."""
    source = np.random.default_rng(7)
    numbers = source.integers(0, 1 << 40, ROWS)
    texts = [f"{'long ' * (n % 50)}{n % 999}" for n in range(ROWS)]
    columns = {f"c{n}": pa.array(numbers + n) for n in range(20)}
    nested = pa.StructArray.from_arrays([numbers, pa.array(texts)], names=["a", "b"])
    lists = pa.array([[n, None] * (n % 3) for n in range(ROWS)])
    table = pa.table({**columns, "s": texts, "nested": nested, "lists": lists})
    path = tmp_path_factory.mktemp("wide") / "wide.parquet"
    pq.write_table(table, path, row_group_size=ROWS * 2 // 3)
    return path


def scan_wide(path: Path) -> FileScan:
    fields = tuple(scan_field(field) for field in pq.read_schema(path))
    return FileScan(url=str(path), fields=fields)


def scan_field(field: pa.Field) -> FieldScan:
    children = [field.type.field(n) for n in range(field.type.num_fields)]
    return FieldScan(
        target=field, name=field.name, children=tuple(scan_field(child) for child in children)
    )


class NoShares(ReaderBudget):
    """Every reader works without a share, a few columns at a time."""

    def take(self, size_bytes: int) -> bool:
        return False


@pytest.mark.attack
@pytest.mark.parametrize("max_bytes", [256 * 1024, 1 << 30])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 256 << 20])
@pytest.mark.parametrize("total_bytes", [1, 4 << 20, 1 << 30])
def test_a_reader_without_a_share_gives_the_same_rows(
    wide: Path, max_bytes: int, memory_bytes: int, total_bytes: int
) -> None:
    scan = scan_wide(wide)
    whole = pa.Table.from_batches(each.rows for each in read_file(scan, BatchLimit()))
    limit = BatchLimit(
        max_rows=1_500,
        max_bytes=max_bytes,
        memory_bytes=memory_bytes,
        readers=NoShares(total_bytes),
    )
    parts = list(read_file(scan, limit))
    assert pa.Table.from_batches(each.rows for each in parts).equals(whole)
    at = 0
    for each in parts:
        assert each.positions == at
        at += each.rows.num_rows


@pytest.mark.attack
@pytest.mark.parametrize("taken", [0, 1, 100])
def test_an_open_reader_gives_its_share_back_whenever_it_ends(wide: Path, taken: int) -> None:
    readers = MemoryBudget(256 << 20).readers
    scan = scan_wide(wide)
    reading = read_file(scan, BatchLimit(max_rows=200, readers=readers))
    for _, _ in zip(range(taken), reading, strict=False):
        assert 0 < readers.used_bytes <= readers.total_bytes
    close = getattr(reading, "close", None)
    assert close is not None
    close()
    assert readers.used_bytes == 0


def test_shares_never_exceed_the_total() -> None:
    readers = ReaderBudget(10)
    assert [readers.take(size) for size in (6, 6, 4, 1)] == [True, False, True, False]
    readers.give_back(6)
    assert readers.take(6)
    assert readers.used_bytes == 10
