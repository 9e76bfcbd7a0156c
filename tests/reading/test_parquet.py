from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import FileMissingError, UnreadableDataFileError
from tailerd.formats.delta.changes.deleted_rows import select_rows
from tailerd.formats.delta.protocol.data_file import ALL_ROWS, DeletionVector, RowFilter
from tailerd.reading import parquet_batches
from tailerd.reading.file_scan import FieldScan, FileScan, FileShare
from tailerd.reading.parquet import read_file
from tailerd.reading.parquet_batches import BoundedBatches
from tests.tables import vectors


def scan_of(
    path: Path, *fields: pa.Field, rows: RowFilter = ALL_ROWS, change_column: str = ""
) -> FileScan:
    return FileScan(
        url=str(path),
        fields=tuple(FieldScan(target=field, name=field.name) for field in fields),
        select_rows=partial(select_rows, rows),
        change_column=change_column,
    )


def inline(positions: Iterable[int]) -> DeletionVector:
    descriptor = vectors.inline(positions)
    return DeletionVector(
        storage_type="i",
        path_or_inline=descriptor["pathOrInlineDv"],
        offset=None,
        size_bytes=descriptor["sizeInBytes"],
        cardinality=descriptor["cardinality"],
    )


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the numbers 0 to 99 in row groups of 16."""
    path = tmp_path_factory.mktemp("hundred") / "a.parquet"
    pq.write_table(pa.table({"id": range(100)}), path, row_group_size=16)
    return path


@given(
    include=st.none() | st.sets(st.integers(0, 99)),
    exclude=st.none() | st.sets(st.integers(0, 99)),
    max_rows=st.integers(1, 40),
)
def test_a_filter_gives_exactly_its_rows_in_order_and_in_bounded_batches(
    hundred: Path, include: set[int] | None, exclude: set[int] | None, max_rows: int
) -> None:
    rows = RowFilter(
        include=None if include is None else inline(include),
        exclude=None if exclude is None else inline(exclude),
    )
    scan = scan_of(hundred, pa.field("id", pa.int64()), rows=rows)
    batches = [part for part, _, _ in read_file(scan, BatchLimit(max_rows=max_rows))]
    expected = sorted((set(range(100)) if include is None else include) - (exclude or set()))
    assert [number for batch in batches for number in batch.column("id").to_pylist()] == expected
    assert all(0 < batch.num_rows <= max_rows for batch in batches)


@pytest.mark.parametrize("kind", ["plain", "dictionary", "zipped"])
def test_one_huge_row_group_comes_in_batches_of_bounded_bytes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.parquet"
    values = ["x" * 1000] * 20_000 if kind != "plain" else [f"{n:01000}" for n in range(20_000)]
    pq.write_table(
        pa.table({"text": values}),
        path,
        row_group_size=10**9,
        use_dictionary=kind == "dictionary",
        compression="zstd" if kind == "zipped" else "none",
    )
    assert pq.ParquetFile(path).num_row_groups == 1
    limit = BatchLimit(max_rows=10**6, max_bytes=500_000)
    batches = [
        part for part, _, _ in read_file(scan_of(path, pa.field("text", pa.string())), limit)
    ]
    assert sum(batch.num_rows for batch in batches) == 20_000
    assert max(batch.nbytes for batch in batches) <= limit.max_bytes * 1.1


def test_a_single_row_above_the_limit_still_comes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * 10_000, "y"]}), path)
    limit = BatchLimit(max_bytes=100)
    batches = [
        part for part, _, _ in read_file(scan_of(path, pa.field("text", pa.string())), limit)
    ]
    assert [batch.num_rows for batch in batches] == [1, 1]


def test_a_file_without_rows_gives_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), path)
    assert list(read_file(scan_of(path, pa.field("id", pa.int64())), BatchLimit())) == []


@pytest.mark.parametrize("rows", [ALL_ROWS, RowFilter(exclude=inline([0, 5]))])
def test_rows_are_counted_although_no_column_of_the_file_is_read(
    hundred: Path, rows: RowFilter
) -> None:
    constant = FieldScan(target=pa.field("p", pa.string()), constant=pa.scalar("x"))
    lacking = FieldScan(target=pa.field("new", pa.int32()), name="new")
    scan = FileScan(
        url=str(hundred), fields=(constant, lacking), select_rows=partial(select_rows, rows)
    )
    batches = [part for part, _, _ in read_file(scan, BatchLimit(max_rows=30))]
    expected = 100 if rows is ALL_ROWS else 98
    assert sum(batch.num_rows for batch in batches) == expected
    for batch in batches:
        assert set(batch.column("p").to_pylist()) == {"x"}
        assert batch.column("new").null_count == batch.num_rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ALL_ROWS, 100),
        (RowFilter(exclude=inline([0, 5, *range(16, 32)])), 82),
        (RowFilter(include=inline([1, 40, 41])), 3),
    ],
    ids=["all", "exclude", "include"],
)
def test_rows_are_counted_although_no_column_is_wanted(
    hundred: Path, rows: RowFilter, expected: int
) -> None:
    batches = list(read_file(scan_of(hundred, rows=rows), BatchLimit(max_rows=30)))
    assert sum(batch.num_rows for batch, _, _ in batches) == expected
    assert {tuple(batch.schema.names) for batch, _, _ in batches} == {()}


@pytest.mark.parametrize(
    "rows",
    [ALL_ROWS, RowFilter(exclude=inline([1])), RowFilter(include=inline([0, 2, 3]))],
    ids=["all", "exclude", "include"],
)
@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_texts_of_every_arrow_kind_are_read_with_deletion_vectors(
    tmp_path: Path, kind: pa.DataType, rows: RowFilter
) -> None:
    path = tmp_path / "a.parquet"
    texts = ["a", "b", None, "d" * 20]
    # The kind is kept in the file, as Arrow's own schema.
    pq.write_table(pa.table({"text": pa.array(texts).cast(kind)}), path)
    assert pq.read_schema(path).field("text").type == kind
    found = list(read_file(scan_of(path, pa.field("text", pa.string()), rows=rows), BatchLimit()))
    expected = texts if rows is ALL_ROWS else [texts[0], *texts[2:]]
    assert [text for batch, _, _ in found for text in batch["text"].to_pylist()] == expected


def test_changes_keep_their_rows_although_no_column_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    kinds = ["insert", "update_preimage", "update_postimage", "delete"] * 5
    pq.write_table(pa.table({"id": range(20), "_change_type": kinds}), path, row_group_size=6)
    scan = scan_of(path, change_column="_change_type")
    found: list[str] = []
    for rows, changes, _ in read_file(scan, BatchLimit(max_rows=4)):
        assert changes is not None
        assert rows.num_rows == len(changes)
        found += changes.to_pylist()
    assert found == kinds


def test_change_types_come_beside_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "_change_type": ["insert", "delete"]}), path)
    scan = scan_of(path, pa.field("id", pa.int64()), change_column="_change_type")
    [(rows, changes, _)] = read_file(scan, BatchLimit())
    assert rows.schema.names == ["id"]
    assert changes is not None
    assert changes.to_pylist() == ["insert", "delete"]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": [1]}),
        pa.table({"id": [1, 2], "_change_type": ["insert", None]}),
    ],
    ids=["absent", "null"],
)
def test_a_change_file_that_does_not_say_its_changes_is_an_error(
    tmp_path: Path, table: pa.Table
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    scan = scan_of(path, pa.field("id", pa.int64()), change_column="_change_type")
    with pytest.raises(UnreadableDataFileError, match=r"a\.parquet.*_change_type"):
        list(read_file(scan, BatchLimit()))


def test_a_missing_file_is_named_before_anything_is_read(tmp_path: Path) -> None:
    scan = scan_of(tmp_path / "gone.parquet", pa.field("id", pa.int64()))
    with pytest.raises(FileMissingError, match=r"gone\.parquet"):
        next(iter(read_file(scan, BatchLimit())))


@pytest.mark.parametrize(("rows", "count"), [(100, 0), (1_000_000, 1)], ids=["small", "large"])
def test_a_file_is_closed_when_its_reader_stops_early(
    tmp_path: Path, rows: int, count: int
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(rows)}), path)
    reading = read_file(scan_of(path, pa.field("id", pa.int64())), BatchLimit(max_rows=1))
    next(reading)
    # A small file is read when it is opened.
    assert open_files(path) == count
    reading.close()  # type: ignore[attr-defined]
    assert open_files(path) == 0


def open_files(path: Path) -> int:
    return sum(1 for link in Path("/proc/self/fd").iterdir() if _target(link) == str(path))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


@pytest.mark.parametrize("max_rows", [1, 2, 3, 5])
def test_images_that_lie_across_batches_and_row_groups_are_joined(
    tmp_path: Path, max_rows: int
) -> None:
    path = tmp_path / "a.parquet"
    kinds = ["insert", *["update_preimage", "update_postimage"] * 4, "delete", "update_preimage"]
    table = pa.table({"id": range(len(kinds)), "_change_type": kinds})
    pq.write_table(table, path, row_group_size=2)
    scan = scan_of(path, pa.field("id", pa.int64()), change_column="_change_type")
    parts = list(read_file(scan, BatchLimit(max_rows=max_rows)))
    assert [i for rows, _, _ in parts for i in rows.column("id").to_pylist()] == list(range(11))
    for position, (_, changes, _) in enumerate(parts):
        assert changes is not None
        if position + 1 < len(parts):
            assert changes[-1].as_py() != "update_preimage"
        else:
            assert changes.to_pylist()[-1] == "update_preimage", "one without a partner still comes"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_the_shares_of_a_file_have_each_row_once_and_in_order(tmp_path: Path, count: int) -> None:
    path = tmp_path / "groups.parquet"
    pq.write_table(pa.table({"n": range(1000)}), path, row_group_size=64)
    rows = RowFilter(exclude=inline([3, 64, 999]))
    found: list[int] = []
    for index in range(count):
        scan = dataclasses.replace(
            scan_of(path, pa.field("n", pa.int64()), rows=rows),
            share=FileShare(index=index, count=count),
        )
        found += [
            row for part, _, _ in read_file(scan, BatchLimit()) for row in part["n"].to_pylist()
        ]
    assert found == [n for n in range(1000) if n not in (3, 64, 999)]


def test_batches_of_a_file_with_many_short_texts_are_proven_by_its_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "texts.parquet"
    # The dictionary is full at 1 MiB, and the other texts follow in plain pages.
    texts = pa.table({"text": [f"name-{number:09}" for number in range(400_000)]})
    pq.write_table(texts, path)
    monkeypatch.setattr(parquet_batches, "read_pages", pytest.fail)
    monkeypatch.setattr(BoundedBatches, "_longest_decoded", pytest.fail)
    rows = [part.rows for part in read_file(scan_of(path, *texts.schema), BatchLimit())]
    assert [each.num_rows for each in rows[:-1]] == [65_536] * 6
    assert pa.Table.from_batches(rows).equals(texts)


def test_the_longest_text_of_a_full_dictionary_is_found_without_decoding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "texts.parquet"
    # Compressed, these bytes might become more than the memory: only page headers show it.
    texts = pa.table({"text": [f"name-{number:09}" for number in range(2_000_000)]})
    pq.write_table(texts, path, compression="zstd", row_group_size=2_000_000)
    monkeypatch.setattr(BoundedBatches, "_longest_decoded", pytest.fail)
    rows = [part.rows for part in read_file(scan_of(path, *texts.schema), BatchLimit())]
    assert pa.Table.from_batches(rows).equals(texts)
