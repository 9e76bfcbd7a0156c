"""Rows read by the pages that have them are those that reading the whole file gives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.errors import UnreadableDataFileError
from tailerd.reading import parquet, parquet_pieces
from tailerd.reading.file_scan import FieldScan, FileScan
from tailerd.reading.parquet import read_positioned
from tailerd.reading.parquet_pieces import RowPieces
from tailerd.reading.row_selection import RowSelection


def make_rows(count: int, seed: int) -> pa.Table:
    """Return rows whose columns have pages of different lengths, each text at most once."""
    random = np.random.default_rng(seed)
    words = [
        None if n % 7 == 0 else f"{n}-" + "x" * (n % 90) for n in random.integers(0, 99, count)
    ]
    return pa.table(
        {
            "id": np.arange(count),
            "word": words,
            "pair": [
                None if n % 5 == 0 else {"x": int(n), "y": "y" * int(n % 300)}
                for n in random.integers(0, 1000, count)
            ],
            "kind": pa.array(random.integers(0, 3, count), pa.int8()),
            "flag": random.random(count) < 0.5,
        }
    )


def written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def scan_of(item: pa.Field) -> FieldScan:
    nested = pa.types.is_nested(item.type)
    children = [item.type.field(n) for n in range(item.type.num_fields)] if nested else []
    return FieldScan(target=item, name=item.name, children=tuple(map(scan_of, children)))


def read(
    body: bytes,
    schema: pa.Schema,
    expected: list[int] | None,
    limit: BatchLimit = DEFAULT_BATCH_LIMIT,
) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the rows at some positions, and those."""
    fields = tuple(scan_of(field) for field in schema)
    selection = (
        None if expected is None else RowSelection.from_positions(np.array(expected, np.int64))
    )
    scan = FileScan(url="file", fields=fields, select_rows=lambda rows, memory: selection)
    row_positions: list[int] = []
    rows: list[dict[str, Any]] = []
    for positions, batch in read_positioned(scan, limit, lambda url: io.BytesIO(body)):
        is_first = isinstance(positions, int)
        at = np.arange(len(batch)) + positions if is_first else np.asarray(positions)
        row_positions += at.tolist()
        rows += batch.to_pylist()
    return row_positions, rows


@pytest.fixture
def pieces() -> Iterator[list[bool]]:
    """Whether each row group of few wanted rows was read by its pages."""
    found: list[bool] = []
    whole = RowPieces.rows

    def rows(self: RowPieces, *arguments: Any) -> Any:
        batches = whole(self, *arguments)
        found.append(batches is not None)
        return batches

    with patch.object(RowPieces, "rows", rows):
        yield found


@given(
    st.integers(1, 400),
    st.integers(0, 2**32),
    st.fixed_dictionaries(
        {
            "data_page_size": st.sampled_from([1, 100, 1000, 5000]),
            "write_batch_size": st.sampled_from([1, 7, 64]),
            "dictionary_pagesize_limit": st.sampled_from([1, 200, 10_000]),
            "use_dictionary": st.booleans() | st.just(["word"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "compression": st.sampled_from(["none", "snappy", "zstd"]),
            "row_group_size": st.sampled_from([50, 130, 1000]),
            "write_statistics": st.booleans(),
        }
    ),
    st.integers(1, 50),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_rows_read_by_their_pages_are_those_of_the_file(
    count: int, seed: int, options: dict[str, Any], batch_rows: int, data: st.DataObject
) -> None:
    table = make_rows(count, seed)
    body = written(table, **options)
    expected = sorted(data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=9)))
    limit = BatchLimit(max_rows=batch_rows)
    with (
        patch.object(parquet_pieces, "MIN_ROWS", 1),
        patch.object(parquet, "SPARSE", 1),
        patch.object(parquet_pieces, "WORTHWHILE", 0),
    ):
        positions, rows = read(body, table.schema, expected, limit)
    assert positions == expected
    assert rows == table.take(pa.array(expected)).to_pylist()


def test_few_rows_of_many_are_read_by_their_pages(pieces: list[bool]) -> None:
    table = make_rows(100_000, 1)
    body = written(table)
    expected = [50_000, 50_001, 60_000]
    assert read(body, table.schema, expected) == (
        expected,
        table.take(pa.array(expected)).to_pylist(),
    )
    assert pieces == [True]


def test_rows_all_over_a_row_group_are_read_with_it(pieces: list[bool]) -> None:
    table = make_rows(100_000, 1)
    expected = list(range(0, 100_000, 5000))
    assert read(written(table), table.schema, expected)[0] == expected
    assert pieces == [False]


def test_columns_with_lists_are_read_whole(pieces: list[bool]) -> None:
    lists = pa.array([[n, n] for n in range(100_000)])
    table = pa.table({"id": np.arange(100_000), "lists": lists})
    found = read(written(table), table.schema, [70_000])
    assert found == ([70_000], [{"id": 70_000, "lists": [70_000, 70_000]}])
    assert pieces == [False]


def test_a_page_that_is_damaged_is_told_as_in_any_file(pieces: list[bool]) -> None:
    table = make_rows(100_000, 1).select(["id"])
    body = bytearray(written(table, use_dictionary=False, compression="snappy"))
    at = len(body) // 2
    body[at : at + 40_000] = b"\xff" * 40_000
    with pytest.raises(UnreadableDataFileError, match="cannot be read"):
        read(bytes(body), table.schema, [50_000])
