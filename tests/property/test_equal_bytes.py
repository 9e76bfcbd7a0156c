"""Columns that are the same bytes in two files cancel undecoded, and no row is lost or invented."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.reading import compared_files, equal_chunks, parquet, parquet_pieces
from tailerd.rows.positions import Positions
from tests.property.test_exact_changes import (
    History,
    changes_by_version,
    check_history,
    multiset,
)
from tests.rows.random_tables import RandomTable, Row, tables
from tests.tables.builder import TableBuilder

Unequal = list[tuple[Positions, Positions] | None]


@contextmanager
def every_size() -> Iterator[Unequal]:
    """Compare bytes, and read by pages, also where files are too small for it to be worth it."""
    found: Unequal = []
    unequal = compared_files.ComparedFiles.unequal

    def noted(self: compared_files.ComparedFiles, removed: int, added: int) -> Any:
        found.append(unequal(self, removed, added))
        return found[-1]

    with ExitStack() as patches:
        for module, name, value in (
            (compared_files, "MIN_BYTES", 0),
            (equal_chunks, "MIN_SHARE", 0.1),
            (equal_chunks, "BLOCK_BYTES", 16),
            (parquet_pieces, "MIN_ROWS", 1),
            (parquet_pieces, "WORTHWHILE", 0),
            (parquet, "SPARSE", 1),
            (compared_files.ComparedFiles, "unequal", noted),
        ):
            patches.enter_context(patch.object(module, name, value))
        yield found


@given(tables(), st.integers(1, 3), st.integers(1, 5), st.data())
@settings(max_examples=100, deadline=None)
def test_random_commits(
    table: RandomTable, commits: int, batch_rows: int, data: st.DataObject
) -> None:
    with every_size():
        check_history(table, commits, batch_rows, data)


@given(tables(), st.integers(1, 5), st.integers(1, 12), st.data())
@settings(max_examples=150, deadline=None)
def test_a_file_rewritten_in_a_few_places(
    table: RandomTable, batch_rows: int, group_rows: int, data: st.DataObject
) -> None:
    rows: list[Row] = data.draw(st.lists(table.rows, min_size=1, max_size=30))
    other = list(rows)
    # One column of a row at a time: the others stay the same bytes.
    for position in data.draw(st.frozensets(st.integers(0, len(rows) - 1), max_size=3)):
        column = data.draw(st.integers(0, len(table.schema) - 1))
        changed = list(other[position])
        changed[column] = data.draw(table.rows)[column]
        other[position] = tuple(changed)
    end = data.draw(st.integers(-2, 2))
    other = other[:end] if end < 0 else other + other[:end]
    with tempfile.TemporaryDirectory() as folder, every_size():
        history = History(data, table, Path(folder))
        history.builder.commit(*map(history.builder.remove, [f.add for f in history.files]))
        before, after = (
            history.builder.data_file(
                pa.Table.from_batches([table.batch(each)]),
                partition={"p": "a"},
                row_group_size=group_rows,
            )
            for each in (rows, other)
        )
        history.builder.commit(before)
        history.builder.commit(history.builder.remove(before), *[after][: len(other)])
        limit = BatchLimit(max_rows=batch_rows)
        batches = asyncio.run(changes_by_version(Path(folder), 3, limit))[2]
    one, two = (Counter((*m, "a") for m in table.model(each)) for each in (rows, other))
    assert multiset(batches, ChangeType.DELETE) == one - two
    assert multiset(batches, ChangeType.INSERT) == two - one


def test_only_what_differs_is_left_to_compare() -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
    table = RandomTable(schema, st.nothing())
    rows: list[Row] = [(number, "v" * (number % 5)) for number in range(100)]
    other = [*rows[:30], (30, "other"), *rows[31:], (100, "new")]
    left = unequal_of(table, rows, other)
    assert left is not None
    assert [each.to_numpy().tolist() for each in left] == [[30], [30, 100]]


def unequal_of(table: RandomTable, rows: list[Row], other: list[Row]) -> Any:
    """Return what was found of two files with some rows, ten in a row group."""
    with tempfile.TemporaryDirectory() as folder, every_size() as found:
        builder = TableBuilder(Path(folder), fields=[("k", "long"), ("v", "string")])
        one, two = (
            builder.data_file(pa.Table.from_batches([table.batch(each)]), row_group_size=10)
            for each in (rows, other)
        )
        builder.create(one)
        builder.commit(builder.remove(one), two)
        asyncio.run(changes_by_version(Path(folder), 1, BatchLimit()))
    return found[0] if found else None


def test_files_without_an_equal_column_are_compared_as_ever() -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
    table = RandomTable(schema, st.nothing())
    rows: list[Row] = [(number, f"{number}") for number in range(100)]
    order = np.random.default_rng(1).permutation(100)
    assert unequal_of(table, rows, [rows[position] for position in order]) is None
