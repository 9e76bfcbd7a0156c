"""How much is read of a file of whose row groups few have rows that meet a condition."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.limits import BatchLimit
from tailerd.reading.file_scan import FieldScan, FileScan
from tailerd.reading.parquet import read_file
from tailerd.transforms.where import parse_predicate

ROWS, GROUP = 100_000, 1000
DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class CountingFile(io.FileIO):
    """A file that counts the bytes that are read of it."""

    read_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size) or b""
        self.read_bytes += len(found)
        return found


COLUMNS: dict[str, tuple[pa.Array, str]] = {
    "integer": (pa.array(range(ROWS)), "x >= 99500"),
    "text": (pa.array([f"{number:06}" for number in range(ROWS)]), "x > '0995'"),
    "time": (
        pa.array([DAY + dt.timedelta(minutes=n) for n in range(ROWS)], pa.timestamp("us", "UTC")),
        "x >= timestamp '2024-03-10 02:20:00'",
    ),
    "date": (
        pa.array([dt.date(1970, 1, 1) + dt.timedelta(n) for n in range(ROWS)], pa.date32()),
        "x >= date '2242-06-05'",
    ),
    "decimal": (
        pa.array([Decimal(n).scaleb(-2) for n in range(ROWS)], pa.decimal128(12, 2)),
        "x in (995.00, 997.5)",
    ),
    "null": (pa.array([None] * (ROWS - 2) + [1, 2]), "x is not null"),
}


def _give(source: Any, _: str) -> Any:
    return source


@pytest.mark.parametrize("name", list(COLUMNS))
def test_a_condition_that_few_row_groups_meet_reads_few_bytes(name: str, tmp_path: Path) -> None:
    values, condition = COLUMNS[name]
    table = pa.table({"x": values, "payload": [f"{n:064}" for n in range(ROWS)]})
    file = tmp_path / "x.parquet"
    pq.write_table(table, file, row_group_size=GROUP, use_dictionary=False)
    schema = table.schema
    filters = parse_predicate(condition).filters(schema)
    read = []
    for some in ((), filters):
        source: Any = CountingFile(file)
        fields = tuple(FieldScan(target=field, name=field.name) for field in schema)
        scan = FileScan(url="x", fields=fields, filters=some)
        rows = sum(
            part.rows.num_rows for part in read_file(scan, BatchLimit(), partial(_give, source))
        )
        read.append((rows, source.read_bytes))
    assert read[0][0] == ROWS
    assert 0 < read[1][0] <= 2 * GROUP
    assert read[1][1] * 10 < read[0][1]


def test_the_order_of_old_statistics_of_texts_is_not_trusted() -> None:
    from tailerd.reading.group_bounds import may_have_match
    from tailerd.reading.parquet_chunks import ColumnChunk, Statistics

    class Footer:
        def __init__(self, *, is_ordered: bool) -> None:
            self.is_ordered = is_ordered

        def statistics(self, _: ColumnChunk) -> Statistics:
            return Statistics(0, b"a", b"b", self.is_ordered)

    chunk = ColumnChunk("BYTE_ARRAY", "", False, 2, 0, 4, None, False, False, 0)
    [condition] = parse_predicate("x = 'z'").filters(pa.schema([("x", pa.string())]))
    for is_ordered in (False, True):
        footer: Any = Footer(is_ordered=is_ordered)
        found = may_have_match(footer, chunk, pa.string(), pa.string(), condition)
        assert found is not is_ordered
