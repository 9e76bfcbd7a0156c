"""Files of a delivery depend on its rows alone, not on the batches in which they are read."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.errors import SinkRefusedError
from tailerd.records.json import JsonEncoder
from tailerd.sinks.bucket.delivery_files import DeliveryFiles, Layout, Target
from tailerd.sinks.bucket.row_sizes import measure_rows
from tailerd.storage.local import LocalStore
from tailerd.storage.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = dt.datetime(2030, 12, 31, 23, 30, tzinfo=dt.UTC)
ROWS = pa.record_batch(
    {
        "id": pa.array(range(60), pa.int64()),
        "region": pa.array([("eu", "u/s", None, "")[n % 4] for n in range(60)]),
        "at": pa.array(
            [DAY + dt.timedelta(minutes=n) for n in range(60)], pa.timestamp("us", "UTC")
        ),
        "note": pa.array(["x" * (n % 7 * 20) for n in range(60)]),
        "tags": pa.array([None if n % 5 == 0 else ["a" * n] * (n % 3) for n in range(60)]),
    }
)


def change_batch(rows: pa.RecordBatch) -> ChangeBatch:
    return ChangeBatch(
        rows=rows,
        change_type=ChangeType.INSERT,
        version=Version(3),
        timestamp_us=1_700_000_000_000_000,
        change_source=ChangeSourceKind.FILES,
    )


async def write(target: Target, layout: Layout, batches: list[pa.RecordBatch]) -> dict[str, int]:
    """Write a delivery; return the number of rows by file."""
    encode = JsonEncoder().encode_lines
    files = DeliveryFiles(target, layout, encode, folder="epoch=1", name="d")
    for rows in batches:
        await files.add(change_batch(rows))
    return {file.path: file.rows for file in await files.finish()}


@given(
    cuts=st.lists(st.integers(1, 59), unique=True, max_size=8).map(sorted),
    max_bytes=st.integers(64, 4000),
    partition_by=st.sampled_from([(), ("region",), ("region", "date(at)")]),
)
def test_the_rows_of_each_file_do_not_depend_on_batches(
    cuts: list[int], max_bytes: int, partition_by: tuple[str, ...]
) -> None:
    layout = Layout(
        format="parquet", compression="zstd", max_bytes=max_bytes, partition_by=partition_by
    )
    ends = [*cuts, 60]
    pieces = [ROWS.slice(a, b - a) for a, b in zip([0, *cuts], ends, strict=True)]
    # A copy has buffers of its own, and texts may come in a dictionary.
    copies = [pa.RecordBatch.from_pylist(each.to_pylist(), schema=ROWS.schema) for each in pieces]

    async def both() -> None:
        whole, cut = MemoryStore("whole"), MemoryStore("cut")
        expected = await write(Target(store=whole, root="/a"), layout, [ROWS])
        found = await write(Target(store=cut, root="/a"), layout, copies)
        assert found == expected
        for path in expected:
            one, other = [
                pq.read_table(io.BytesIO(await store.get(f"/a/{path}")), partitioning=None)
                for store in (whole, cut)
            ]
            assert one.equals(other)

    asyncio.run(both())


def test_sizes_are_those_of_values_and_not_of_buffers() -> None:
    texts = pa.array(["a", "bbb", None, "a"])
    plain = pa.record_batch({"t": texts})
    coded = pa.record_batch({"t": texts.dictionary_encode()})
    expected = [37, 39, 36, 37]
    assert measure_rows(plain).tolist() == measure_rows(coded).tolist() == expected
    for kind in (pa.string_view(), pa.binary_view(), pa.large_string()):
        other = pa.record_batch({"t": texts.cast(kind)})
        assert measure_rows(other).tolist() == expected
        assert measure_rows(other.slice(1, 2)).tolist() == expected[1:3]
    nested = pa.array(
        [{"m": [("k", 1)], "l": [[1, 2], []]}, None, {"m": None, "l": [None]}],
        pa.struct({"m": pa.map_(pa.string(), pa.int32()), "l": pa.list_(pa.list_(pa.int64()))}),
    )
    whole = measure_rows(pa.record_batch({"n": nested}))
    for start in range(3):
        one = measure_rows(pa.record_batch({"n": nested.slice(start, 1)}))
        assert np.array_equal(one, whole[start : start + 1])
    wide = pa.array([[0.0] * 256] * 2, pa.list_(pa.float32(), 256))
    assert measure_rows(pa.record_batch({"v": wide})).tolist() == [32 + 1024] * 2


async def test_readers_find_partitions_and_every_row(tmp_path: Path) -> None:
    layout = Layout(
        format="parquet", compression="zstd", max_bytes=10**6, partition_by=("region", "date(at)")
    )
    written = await write(Target(store=LocalStore(), root=str(tmp_path)), layout, [ROWS])
    null = "region=__HIVE_DEFAULT_PARTITION__"
    days = ("at_date=2030-12-31", "at_date=2031-01-01")
    assert sorted(written) == sorted(
        f"epoch=1/{region}/{day}/d-00000.parquet"
        for region in ("region=eu", "region=u%2Fs", null)
        for day in days
    )
    files = f"{tmp_path}/**/*.parquet"
    by_day = "SELECT CAST(at_date AS VARCHAR), count(*) FROM read_parquet(?) GROUP BY 1 ORDER BY 1"
    assert duckdb.execute(by_day, [files]).fetchall() == [("2030-12-31", 30), ("2031-01-01", 30)]
    slash = "SELECT id FROM read_parquet(?, hive_partitioning = true) WHERE region = 'u/s'"
    found = duckdb.execute(slash, [files]).fetchall()
    assert sorted(row[0] for row in found) == list(range(1, 60, 4))
    frame = pl.read_parquet(files, hive_partitioning=True)
    assert sorted(frame["id"]) == list(range(60))
    whole = ds.dataset(tmp_path, format="parquet", exclude_invalid_files=True)
    assert sorted(whole.to_table(columns=["id"])["id"].to_pylist()) == list(range(60))


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_spark_reads_the_folder(spark: SparkSession, kind: Any, tmp_path: Path) -> None:
    layout = Layout(
        format=kind,
        compression="zstd" if kind == "parquet" else "gzip",
        max_bytes=2000,
        partition_by=("region", "date(at)"),
    )
    written = asyncio.run(write(Target(store=LocalStore(), root=str(tmp_path)), layout, [ROWS]))
    assert len(written) > 6
    (tmp_path / "_tailerd").mkdir()
    (tmp_path / "_tailerd" / "00000000000000000001.json").write_text("{}")
    reader = spark.read.parquet if kind == "parquet" else spark.read.json
    frame = reader(str(tmp_path))
    rows = frame.select("id", "region", "epoch").collect()
    assert sorted(row.id for row in rows) == list(range(60))
    assert {row.region for row in rows if row.id % 4 == 1} == {"u/s"}
    assert {row.epoch for row in rows} == {1}


async def test_parquet_files_have_statistics_and_the_schema_of_the_commit(tmp_path: Path) -> None:
    layout = Layout(format="parquet", compression="zstd", max_bytes=10**6)
    [path] = await write(Target(store=LocalStore(), root=str(tmp_path)), layout, [ROWS])
    file = pq.ParquetFile(tmp_path / path)
    column = file.metadata.row_group(0).column(0)
    assert (column.statistics.min, column.statistics.max) == (0, 59)
    assert (column.compression, file.metadata.num_row_groups) == ("ZSTD", 1)
    assert file.schema_arrow.names[:5] == ROWS.schema.names
    assert file.schema_arrow.field("at").type == ROWS.schema.field("at").type


async def test_rows_of_another_schema_go_to_the_next_file(tmp_path: Path) -> None:
    layout = Layout(format="parquet", compression="zstd", max_bytes=10**6)
    fewer = ROWS.select(["id"])
    written = await write(
        Target(store=LocalStore(), root=str(tmp_path)), layout, [ROWS, fewer, fewer, ROWS]
    )
    assert list(written.values()) == [60, 120, 60]


@pytest.mark.parametrize(
    ("rows", "partition_by", "reason"),
    [
        (ROWS, ("missing",), "no such column"),
        (ROWS, ("tags",), "has the type list"),
        (ROWS, ("date(note)",), "has the type string"),
        (pa.record_batch({"epoch": [1]}), (), "a column epoch"),
        (ROWS.rename_columns(["at_date", *ROWS.schema.names[1:]]), ("date(at)",), "at_date"),
    ],
    ids=["missing", "nested", "no-date", "epoch", "taken"],
)
async def test_rows_that_partitions_would_change_or_miss_are_refused(
    rows: pa.RecordBatch, partition_by: tuple[str, ...], reason: str
) -> None:
    layout = Layout(
        format="parquet", compression="zstd", max_bytes=10**6, partition_by=partition_by
    )
    store = MemoryStore("refused")
    with pytest.raises(SinkRefusedError, match=reason):
        await write(Target(store=store, root="/a"), layout, [rows])
