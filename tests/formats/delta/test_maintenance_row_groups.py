"""Row groups are moved between Parquet files without being decoded, and mean the same there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import BugError, CorruptLogError
from tailerd.formats.delta.log.row_groups import (
    GroupCopier,
    RowGroupFile,
    encode_group,
    parse_footer,
)
from tailerd.reading.parquet_footer import Footer, footer_body, read_footer

ADD = pa.struct(
    {
        "path": pa.string(),
        "dataChange": pa.bool_(),
        "partitionValues": pa.map_(pa.string(), pa.string()),
        "size": pa.int64(),
        "stats": pa.string(),
    }
)
MORE = pa.struct([*ADD, pa.field("tags", pa.map_(pa.string(), pa.string()))])


def rows(count: int, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "path": f"p{n}",
            "dataChange": True,
            "partitionValues": [("day", str(n % 3)), ("hour", None)] if n % 2 else [],
            "size": n,
            "stats": "{}" * n,
            **more,
        }
        for n in range(first, first + count)
    ]


def make_file(*groups: list[Any], kind: pa.DataType = ADD, **options: Any) -> io.BytesIO:
    sink = io.BytesIO()
    schema = pa.schema({"add": kind})
    with pq.ParquetWriter(sink, schema, **{"compression": "snappy", **options}) as writer:
        for group in groups:
            batch = pa.RecordBatch.from_arrays([pa.array(group, kind)], schema=schema)
            writer.write_batch(batch, row_group_size=len(group))
    sink.seek(0)
    return sink


def blank(count: int, kind: pa.DataType = MORE) -> bytes:
    members = [
        pa.repeat(False, count) if item.name == "dataChange" else pa.nulls(count, item.type)
        for item in kind
    ]
    add = pa.StructArray.from_arrays(members, fields=list(kind))
    schema = pa.schema({"add": kind, "other": pa.int32()})
    return encode_group(
        pa.RecordBatch.from_arrays([add, pa.nulls(count, pa.int32())], schema=schema)
    )


def copied(source: io.BytesIO, kind: pa.DataType = MORE) -> list[dict[str, Any]]:
    """Copy every row group of a file and read the result with pyarrow."""
    footer = read_footer(source, "source")
    copier = GroupCopier(footer, parse_footer(blank(1, kind)))
    sink = io.BytesIO()
    target = RowGroupFile(sink.write)
    for group in footer.groups:
        columns = copier.select_columns(group)
        assert columns is not None
        target.copy(source, columns, blank(group.rows, kind), group.rows)
    target.close()
    found: list[dict[str, Any]] = pq.read_table(sink).to_pylist()
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"compression": "zstd"},
        {"compression": "gzip", "data_page_version": "2.0"},
        {"write_page_index": True},
        {"data_page_size": 100},
        {"write_page_checksum": True},
        {"version": "1.0"},
    ],
    ids=str,
)
def test_copied_rows_are_the_same_and_new_columns_are_empty(options: dict[str, Any]) -> None:
    groups = [rows(5), rows(300, 5), rows(1, 400)]
    found = copied(make_file(*groups, **options))
    expected = [{**row, "dataChange": False, "tags": None} for group in groups for row in group]
    assert found == [{"add": row, "other": None} for row in expected]


def test_copied_and_encoded_row_groups_lie_in_one_file() -> None:
    source = make_file(rows(4), rows(3, 4))
    footer = read_footer(source, "source")
    copier = GroupCopier(footer, parse_footer(blank(1)))
    sink = io.BytesIO()
    target = RowGroupFile(sink.write)
    schema = pa.schema({"add": MORE, "other": pa.int32()})
    batch = pa.RecordBatch.from_pylist([{"add": None, "other": 7}], schema=schema)
    target.append(batch)
    columns = copier.select_columns(footer.groups[1])
    assert columns is not None
    target.copy(source, columns, blank(3), 3)
    target.append(batch)
    target.close()
    file = pq.ParquetFile(sink)
    assert [file.metadata.row_group(n).num_rows for n in range(3)] == [1, 3, 1]
    assert file.metadata.num_rows == 5
    found = file.read().to_pylist()
    assert [row["add"] and row["add"]["path"] for row in found] == [None, "p4", "p5", "p6", None]
    assert [row["other"] for row in found] == [7, None, None, None, 7]
    again = read_footer(sink, "target")
    assert [group.rows for group in again.groups] == [1, 3, 1]


def is_copied(source: io.BytesIO, kind: pa.DataType = MORE) -> bool:
    footer = read_footer(source, "source")
    return (
        GroupCopier(footer, parse_footer(blank(1, kind))).select_columns(footer.groups[0])
        is not None
    )


PARSED = pa.struct([*ADD, pa.field("stats_parsed", pa.struct({"numRecords": pa.int64()}))])


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (make_file([*rows(3), None]), MORE),
        (make_file(rows(3), compression="none"), MORE),
        (make_file(rows(3), write_statistics=False), MORE),
        (make_file(rows(3), kind=pa.struct([*list(ADD)[:3], pa.field("size", pa.int32())])), MORE),
        (make_file(rows(3)), PARSED),
        (make_file(rows(3, stats_parsed=None), kind=PARSED), PARSED),
        (make_file(rows(3, stats=None, stats_parsed={"numRecords": 1}), kind=PARSED), MORE),
    ],
    ids=[
        "a row that is no file",
        "not compressed",
        "no statistics",
        "another type",
        "columns of statistics are wanted",
        "columns of statistics are empty",
        "texts of statistics are wanted",
    ],
)
def test_what_would_mean_something_else_is_not_copied(
    source: io.BytesIO, kind: pa.DataType
) -> None:
    assert not is_copied(source, kind)


def test_statistics_in_both_forms_are_copied() -> None:
    source = make_file(rows(3, stats_parsed={"numRecords": 1}), kind=PARSED)
    assert is_copied(source, PARSED)
    assert is_copied(source, MORE)


def test_a_footer_is_written_as_it_was_read() -> None:
    body = make_file(rows(20), rows(30), write_page_index=True).getvalue()
    footer = parse_footer(body)
    groups = footer.fields[4][1][1]
    written = footer_body(footer, groups, 50)
    assert body.endswith(written)


@pytest.mark.parametrize(
    "body", [b"", b"PAR1", b"PAR1PAR1", b"x" * 100, b"PAR1\xff\xff\xff\x7fPAR1"]
)
def test_what_is_no_parquet_file_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptLogError, match="not a Parquet file"):
        read_footer(io.BytesIO(body), "the file")


@given(st.data())
def test_a_damaged_footer_is_refused_or_read(data: st.DataObject) -> None:
    body = bytearray(make_file(rows(3)).getvalue())
    size = int.from_bytes(body[-8:-4], "little")
    footer = body[-8 - size : -8]
    for _ in range(data.draw(st.integers(1, 4))):
        footer[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    try:
        Footer.parse(bytes(footer))
    except CorruptLogError as error:
        assert "cannot be understood" in str(error)  # noqa: PT017


def test_a_file_that_ends_in_a_column_is_noticed() -> None:
    source = make_file(rows(300))
    footer = read_footer(source, "source")
    columns = GroupCopier(footer, parse_footer(blank(1))).select_columns(footer.groups[0])
    assert columns is not None
    cut = io.BytesIO(source.getvalue()[:50])
    with pytest.raises(CorruptLogError, match="in the middle of a column"):
        RowGroupFile(io.BytesIO().write).copy(cut, columns, blank(300), 300)


def test_a_file_without_rows_is_not_written() -> None:
    with pytest.raises(BugError):
        RowGroupFile(io.BytesIO().write).close()


def test_a_copy_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(make_file(rows(7)).getvalue())
    with path.open("rb") as source:
        assert len(copied(io.BytesIO(source.read()))) == 7
