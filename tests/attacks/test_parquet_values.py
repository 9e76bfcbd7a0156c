"""What values in data files mean: times beyond microseconds, many columns, shredded variants."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import UnreadableDataFileError
from tests.corners.feed import changes
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder

BEYOND_MS = 2**63 // 1000 + 1
"""Milliseconds since 1970 that are more microseconds than 64 bits hold."""


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("value", [BEYOND_MS, -BEYOND_MS, 2**63 - 1])
async def test_milliseconds_beyond_microseconds_are_refused_by_file_and_column(
    tmp_path: Path, kind: str, value: int
) -> None:
    fields = [("at", kind), ("all", delta_schema.array(kind))]
    column = pa.array([0, value], pa.timestamp("ms"))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), column)
    for name, rows in {
        "at": {"at": column, "all": pa.nulls(2, lists.type)},
        "all": {"at": pa.nulls(2, column.type), "all": lists},
    }.items():
        table = TableBuilder(tmp_path / name, fields=fields, reader_features=["timestampNtz"])
        table.create(table.data_file(pa.table(rows), path="a.parquet", partition={}, stats=False))
        column_name = "at" if name == "at" else "element"
        with pytest.raises(UnreadableDataFileError, match=rf"a\.parquet.*{column_name} .*beyond"):
            await changes(tmp_path / name)


@pytest.mark.parametrize("is_int96", [False, True])
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
async def test_nanoseconds_are_floored_to_microseconds_also_before_1970(
    tmp_path: Path, kind: str, is_int96: bool
) -> None:
    nanos = [-(2**63), -1001, -1000, -999, -1, 0, 1, 999, 1000, 2**63 - 1, None]
    rows = pa.table({"at": pa.array(nanos, pa.timestamp("ns"))})
    table = TableBuilder(tmp_path, fields=[("at", kind)], reader_features=["timestampNtz"])
    table.create(table.data_file(rows, path="a.parquet", partition={}, stats=False))
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=is_int96)
    found = pa.array([row["at"] for row in await changes(tmp_path)])
    micros = found.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    assert micros == [None if value is None else value // 1000 for value in nanos]


async def test_a_file_of_ten_thousand_columns_is_read_in_time_that_follows_their_number(
    tmp_path: Path,
) -> None:
    async def seconds(columns: int) -> float:
        folder = tmp_path / str(columns)
        names = [f"column_{number}" for number in range(columns)]
        table = TableBuilder(folder, fields=[(name, "long") for name in names])
        rows = pa.table({name: [number] for number, name in enumerate(reversed(names))})
        table.create(table.data_file(rows, partition={}, stats=False))
        start = time.process_time()
        [row] = await changes(folder)
        taken = time.process_time() - start
        assert row[names[0]] == columns - 1
        return taken

    await seconds(10)
    few, many = await seconds(2_500), await seconds(10_000)
    # Four times as many; sixteen times the work of few would be looking for each among all.
    assert many < max(8 * few, 2)
