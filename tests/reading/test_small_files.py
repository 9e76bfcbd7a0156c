"""Files that are read together give the rows, positions and errors of files that are read alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import FileMissingError, TailerdError, UnreadableDataFileError
from tailerd.formats.delta.changes.deleted_rows import select_rows
from tailerd.formats.delta.protocol.data_file import RowFilter
from tailerd.reading import small_files
from tailerd.reading.file_scan import FieldScan, FileScan
from tailerd.reading.parquet import FileRows, read_file
from tailerd.reading.small_files import read_files
from tailerd.storage.stores import Stores
from tests.reading.test_parquet import inline

NAMES = frozenset({"id", "name", "tags"})
FIELDS = (
    FieldScan(target=pa.field("id", pa.int64()), name="id"),
    FieldScan(target=pa.field("name", pa.string()), name="name"),
    FieldScan(
        target=pa.field("tags", pa.list_(pa.string())),
        name="tags",
        children=(FieldScan(target=pa.field("element", pa.string()), name="element"),),
    ),
)
Row = tuple[int, dict[str, Any], str | None, int]


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [None if number % 7 == 3 else f"name {number % 5}" for number in numbers],
            "tags": pa.array(
                [[str(number)] * (number % 3) for number in numbers], pa.list_(pa.string())
            ),
        }
    )


def write(folder: Path, kind: str, number: int, rows: int) -> FileScan:
    """Write a file, and return its scan."""
    path = folder / f"{number}-{kind}.parquet"
    content, change_column = table(rows, number * 100), ""
    fields: tuple[FieldScan, ...] = FIELDS[:2]
    match kind:
        case "lists":
            fields = FIELDS
        case "changes":
            names = ["insert", "update_preimage", "update_postimage", "delete"]
            kinds = [names[position % 4] for position in range(rows)]
            content = content.append_column("_change_type", pa.array(kinds, pa.string()))
            change_column = "_change_type"
        case "older":
            content = content.drop_columns(["name"])
        case "narrow":
            content = content.set_column(0, "id", content["id"].cast(pa.int32()))
        case "large":
            noise = np.random.default_rng(number).bytes(700_000)
            content = content.append_column("noise", pa.array([noise] * rows, pa.binary()))
        case "partition":
            constant = pa.scalar("p" * number, pa.string())
            fields = (
                FIELDS[0],
                FieldScan(target=pa.field("part", pa.string()), constant=constant),
            )
    pq.write_table(content, path, row_group_size=max(1, rows // 2))
    scan = FileScan(url=str(path), fields=fields, change_column=change_column, table_names=NAMES)
    if kind == "deleted":
        rows_ = RowFilter(exclude=inline(range(0, rows, 3)))
        return replace(scan, select_rows=partial(select_rows, rows_))
    if kind == "damaged":
        data = bytearray(path.read_bytes())
        data[8:200] = bytes(192)
        path.write_bytes(data)
    if kind == "missing":
        path.unlink()
    return scan


def flatten(number: int, part: FileRows) -> Iterator[Row]:
    at = part.positions
    positions = range(at, at + part.rows.num_rows) if isinstance(at, int) else at
    kinds = [None] * part.rows.num_rows if part.changes is None else part.changes.to_pylist()
    for row, kind, position in zip(part.rows.to_pylist(), kinds, positions, strict=True):
        yield number, row, kind, int(position)


def collect(parts: Iterable[tuple[int, FileRows]]) -> tuple[list[Row], str]:
    """Return the rows before an error, and the error."""
    rows: list[Row] = []
    try:
        for number, part in parts:
            rows += flatten(number, part)
    except TailerdError as error:
        return rows, f"{type(error).__name__}: {error.message}"
    return rows, ""


def one_by_one(scans: Sequence[FileScan], limit: BatchLimit) -> Iterator[tuple[int, FileRows]]:
    for number, scan in enumerate(scans):
        for part in read_file(scan, limit):
            yield number, part


KINDS = ["plain", "plain", "lists", "changes", "older", "narrow", "large", "partition", "deleted"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12)), max_size=14),
    bad=st.none() | st.tuples(st.sampled_from(["damaged", "missing"]), st.integers(0, 14)),
    max_rows=st.integers(1, 20),
    memory_bytes=st.sampled_from([64 << 20, 256 << 20]),
)
def test_files_together_give_what_each_gives_alone(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, int]],
    bad: tuple[str, int] | None,
    max_rows: int,
    memory_bytes: int,
) -> None:
    if bad is not None:
        files.insert(bad[1], (bad[0], 9))
    folder = tmp_path_factory.mktemp("files")
    scans = [write(folder, kind, number, rows) for number, (kind, rows) in enumerate(files)]
    limit = BatchLimit(max_rows=max_rows, memory_bytes=memory_bytes)
    together = collect(read_files(scans, len(scans), limit, Stores().open_data_file))
    assert together == collect(one_by_one(scans, limit))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of files of each call of Arrow."""
    found: list[int] = []
    decode = small_files.decode_together

    def count(files: Any, max_rows: int) -> Any:
        found.append(len(files))
        return decode(files, max_rows)

    monkeypatch.setattr(small_files, "decode_together", count)
    return found


def read(scans: Sequence[FileScan]) -> tuple[list[Row], str]:
    return collect(read_files(scans, len(scans), BatchLimit(), Stores().open_data_file))


def test_alternating_kinds_take_one_call_each(tmp_path: Path, decoded: list[int]) -> None:
    scans = [write(tmp_path, ("plain", "changes")[at % 2], at, 10) for at in range(16)]
    rows, error = read(scans)
    assert (len(rows), error, sorted(decoded)) == (160, "", [8, 8])


def test_a_damaged_file_is_named_after_the_rows_before_it(tmp_path: Path) -> None:
    scans = [write(tmp_path, "damaged" if at == 5 else "plain", at, 10) for at in range(9)]
    rows, error = read(scans)
    assert {number for number, *_ in rows} == {0, 1, 2, 3, 4}
    assert error.startswith(UnreadableDataFileError.__name__)
    assert "5-damaged.parquet" in error


def test_rows_before_a_missing_file_are_given(tmp_path: Path) -> None:
    scans = [write(tmp_path, "missing" if at == 5 else "plain", at, 10) for at in range(9)]
    rows, error = read(scans)
    assert {number for number, *_ in rows} == {0, 1, 2, 3, 4}
    assert error.startswith(FileMissingError.__name__)


def test_a_long_text_that_is_repeated_is_not_decoded_together(
    tmp_path: Path, decoded: list[int]
) -> None:
    """A few kilobytes become gigabytes: their size is known from no footer."""
    scans = [write(tmp_path, "plain", at, 10) for at in range(6)]
    codes = pa.array([0] * 6000, pa.int32())
    names = pa.DictionaryArray.from_arrays(codes, ["x" * 60_000])
    bomb = pa.table({"id": range(6000), "name": names})
    pq.write_table(bomb, tmp_path / "bomb.parquet", store_schema=False)
    scans.insert(3, replace(scans[0], url=str(tmp_path / "bomb.parquet")))
    total = sum(
        part.rows.num_rows
        for _, part in read_files(scans[:3] + scans[4:], 6, BatchLimit(), Stores().open_data_file)
    )
    assert (total, decoded) == (60, [6])
    decoded.clear()
    parts = read_files(scans, len(scans), BatchLimit(), Stores().open_data_file)
    largest = max(part.rows.nbytes for _, part in parts)
    assert largest <= BatchLimit().max_bytes
    assert 7 not in decoded


def test_a_footer_with_other_rows_than_the_file_is_no_silent_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = [write(tmp_path, "plain", at, 10) for at in range(6)]
    monkeypatch.setattr(small_files.AlikeFile, "num_rows", property(lambda _: 9))
    rows, error = read(scans)
    assert (len(rows), error) == (60, "")
