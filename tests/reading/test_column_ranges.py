"""Where columns lie in a file: everything a reader asks for, and little besides."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.reading.column_ranges import Range, column_ranges, ranges_ahead
from tailerd.reading.parquet_chunks import RowGroup
from tailerd.reading.parquet_open import open_parquet

ROWS = 40_000
LEAVES = {"a": [0], "b": [1], "c.d": [2, 3], "e": [4]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("columns") / "a.parquet"
    numbers = pa.array(range(4 * ROWS))
    inner = pa.StructArray.from_arrays([numbers, numbers], ["x", "y"])
    columns = {"a": numbers, "b": numbers, "c.d": inner, "e": numbers}
    # Each column chunk is larger than what is read for being between two.
    pq.write_table(pa.table(columns), path, row_group_size=ROWS, use_dictionary=["e"])
    return path


def groups_of(path: Path) -> Sequence[RowGroup]:
    with path.open("rb") as source:
        return open_parquet(source, 1 << 28, "file").footer.groups


class Watched(io.BytesIO):
    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.reads: list[Range] = []

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.reads.append((self.tell() - len(found), len(found)))
        return found


@pytest.mark.parametrize("columns", [["a"], ["b", "c.d"], ["a", "e"], ["a", "b", "c.d", "e"]])
@pytest.mark.parametrize("group", [0, 3])
def test_all_that_a_reader_reads_of_a_row_group_is_within_the_ranges(
    path: Path, columns: list[str], group: int
) -> None:
    source = Watched(path.read_bytes())
    file = pq.ParquetFile(source, pre_buffer=True)
    source.reads.clear()
    table = file.read_row_group(group, columns=columns)
    assert table.column_names == columns
    leaves = [leaf for column in columns for leaf in LEAVES[column]]
    ranges = column_ranges(groups_of(path)[group], leaves)
    for start, length in source.reads:
        assert any(at <= start and start + length <= at + size for at, size in ranges)
    read = sum(length for _, length in source.reads)
    assert read <= sum(size for _, size in ranges) <= read + len(ranges) * 1024


def test_neighbouring_columns_are_one_range_and_distant_ones_two(path: Path) -> None:
    group = groups_of(path)[0]
    assert len(column_ranges(group, [0, 1])) == 1
    assert len(column_ranges(group, [0, 4])) == 2
    assert column_ranges(group, []) == []


def test_the_following_row_group_is_expected_only_where_it_fits(path: Path) -> None:
    about = groups_of(path)
    first, second = (column_ranges(group, [0]) for group in about[:2])
    size = sum(length for _, length in second)
    assert ranges_ahead(about, [0], 0, [1], size) == first + second
    assert ranges_ahead(about, [0], 0, [1], size - 1) == first
    assert ranges_ahead(about, [0], 3, [], 0) == column_ranges(about[3], [0])
