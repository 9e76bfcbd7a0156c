"""Old dates and times of Spark 2.4 and its mode LEGACY, which files have in the Julian calendar."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.errors import UnreadableDataFileError
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.rewritten_files import parse_bounds
from tailerd.formats.plain_schema import file_column, plain_type
from tailerd.reading.equal_chunks import compare_files
from tailerd.reading.file_scan import FileScan
from tailerd.reading.parquet import read_file
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.feed import changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.attack

VERSION, ZONE = "org.apache.spark.version", "org.apache.spark.timeZone"
DATETIME, INT96 = "org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96"
DAY_US = 86_400_000_000

JULIAN = [-719_164, -354_221, -171_597, -141_428, -141_427, 18_262, None]
"""Days of the legacy calendar; the second is 1000-02-29, which only the Julian calendar has."""
TEXTS = ["0001-01-01", "1000-03-01", "1500-02-28", "1582-10-04", "1582-10-15", "2020-01-01", None]


def days(numbers: list[int | None]) -> pa.Array:
    return pa.array(numbers, pa.int32()).cast(pa.date32())


def times(numbers: list[int | None], zone: str | None = "UTC") -> pa.Array:
    micros = [None if number is None else number * DAY_US for number in numbers]
    return pa.array(micros, pa.int64()).view(pa.timestamp("us", zone))


def make_file(table: pa.Table, notes: dict[str, str], **how: Any) -> bytes:
    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema, store_schema=False, **how) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(notes)
    return out.getvalue()


def read(body: bytes) -> pa.Table:
    stored = pq.ParquetFile(io.BytesIO(body), coerce_int96_timestamp_unit="us").schema_arrow
    fields = [pa.field(each.name, plain_type(each.type)) for each in stored]
    scan = FileScan(url="file", fields=tuple(map(file_column, fields)))
    parts = read_file(scan, DEFAULT_BATCH_LIMIT, lambda url: io.BytesIO(body))
    return pa.Table.from_batches([part.rows for part in parts])


def texts(column: pa.ChunkedArray) -> list[str | None]:
    return [None if text is None else text[:10] for text in column.cast(pa.string()).to_pylist()]


@pytest.mark.parametrize(
    "notes", [{VERSION: "2.4.8"}, {VERSION: "3.5.1", DATETIME: "", ZONE: "UTC"}]
)
def test_old_days_are_those_that_the_writer_meant(notes: dict[str, str]) -> None:
    found = read(make_file(pa.table({"d": days(JULIAN), "t": times(JULIAN)}), notes))
    assert texts(found["d"]) == TEXTS
    assert texts(found["t"]) == TEXTS


@pytest.mark.parametrize("notes", [{}, {VERSION: "3.5.1"}, {VERSION: "3.5.1", INT96: ""}])
def test_files_that_do_not_say_so_are_in_the_modern_calendar(notes: dict[str, str]) -> None:
    table = pa.table({"d": days(JULIAN), "t": times(JULIAN)})
    found = read(make_file(table, notes))
    assert found["d"].combine_chunks() == table["d"].combine_chunks()
    assert found["t"].combine_chunks() == table["t"].combine_chunks()


@pytest.mark.parametrize(
    ("notes", "is_legacy"),
    [
        ({VERSION: "2.4.8"}, True),
        ({VERSION: "3.0.3"}, True),
        ({VERSION: "3.5.1", INT96: ""}, True),
        ({VERSION: "3.5.1", DATETIME: ""}, False),
    ],
)
def test_times_of_type_int96_have_a_flag_of_their_own(
    notes: dict[str, str], is_legacy: bool
) -> None:
    table = pa.table({"t": times(JULIAN, None)})
    found = read(make_file(table, notes, use_deprecated_int96_timestamps=True))
    assert (texts(found["t"]) == TEXTS) is is_legacy


def test_times_without_a_zone_were_never_in_the_legacy_calendar() -> None:
    table = pa.table({"t": times(JULIAN, None)})
    found = read(make_file(table, {VERSION: "3.5.1", DATETIME: "", ZONE: "UTC"}))
    assert found["t"].combine_chunks() == table["t"].combine_chunks()


def test_old_days_inside_nested_columns_are_rebased_in_slices_too() -> None:
    dates = days(JULIAN)
    struct = pa.StructArray.from_arrays(
        [pa.array(range(7)), dates], ["n", "d"], mask=pa.array([False] * 6 + [True])
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 5, 6, 6, 7], pa.int32()), struct)
    maps = pa.MapArray.from_arrays(
        pa.array(range(8), pa.int32()), pa.array(list("abcdefg")), times(JULIAN)
    )
    body = make_file(pa.table({"s": struct, "l": lists, "m": maps}), {VERSION: "2.4.8"})
    right = make_file(
        pa.table(
            {
                "s": pa.StructArray.from_arrays(
                    [pa.array(range(7)), pa.array(TEXTS).cast(pa.date32())],
                    ["n", "d"],
                    mask=pa.array([False] * 6 + [True]),
                ),
                "l": pa.ListArray.from_arrays(
                    lists.offsets,
                    pa.StructArray.from_arrays(
                        [pa.array(range(7)), pa.array(TEXTS).cast(pa.date32())],
                        ["n", "d"],
                        mask=pa.array([False] * 6 + [True]),
                    ),
                ),
                "m": pa.MapArray.from_arrays(
                    maps.offsets,
                    maps.keys,
                    pa.array(TEXTS)
                    .cast(pa.date32())
                    .cast(pa.timestamp("us"))
                    .cast(maps.items.type),
                ),
            }
        ),
        {},
    )
    assert read(body).equals(read(right))


@pytest.mark.parametrize(
    ("zone", "seconds"),
    [
        ("UTC", 2 * 86_400),
        ("America/Los_Angeles", 172_378),
        ("Europe/Amsterdam", 175_350),
        ("+02:00", 172_800),
        ("GMT-8", 172_800),
    ],
)
def test_old_times_move_as_spark_moves_them(zone: str, seconds: int) -> None:
    # The table of Spark says by how many seconds those of the first century move.
    moment = pa.array([-62_000_000_000 * 10**6, -1_000_000_000 * 10**6]).view(
        pa.timestamp("us", "UTC")
    )
    body = make_file(pa.table({"t": moment}), {VERSION: "2.4.8", ZONE: zone})
    found = read(body)["t"].combine_chunks().view(pa.int64()).to_pylist()
    assert found == [(-62_000_000_000 + seconds) * 10**6, -1_000_000_000 * 10**6]


def test_an_unknown_zone_matters_only_where_there_are_old_times() -> None:
    notes = {VERSION: "2.4.8", ZONE: "Moon/Tycho"}
    assert texts(read(make_file(pa.table({"t": times([0])}), notes))["t"]) == ["1970-01-01"]
    with pytest.raises(UnreadableDataFileError, match="Moon/Tycho"):
        read(make_file(pa.table({"t": times([-719_164])}), notes))


def test_equal_bytes_in_two_calendars_are_not_equal_values(tmp_path: Path) -> None:
    table = pa.table({"id": range(7), "d": days(JULIAN)})
    bodies = {
        "old": make_file(table, {VERSION: "2.4.8"}),
        "new": make_file(table, {VERSION: "3.5.1"}),
    }
    fields = tuple(map(file_column, table.schema))
    for names, is_compared in ((("old", "old"), True), (("old", "new"), False)):
        one, other = (FileScan(url=name, fields=fields) for name in names)
        found = compare_files((one, other), lambda url: io.BytesIO(bodies[url]), 1 << 28)
        assert (found is not None) is is_compared


async def test_a_rewrite_by_a_new_release_gives_only_the_days_that_differ(tmp_path: Path) -> None:
    fields: list[tuple[str, delta_schema.DeltaType]] = [("id", "long"), ("d", "date")]
    table = TableBuilder(tmp_path, fields=fields)
    stored = pa.table({"id": range(2), "d": days([-171_597, 0])})
    last = None
    for name, rows, version in (
        ("old", stored, "2.4.8"),
        ("same", pa.table({"id": range(2), "d": days([-171_606, 0])}), "3.5.1"),
        ("other", stored, "3.5.1"),
    ):
        add = table.data_file(rows, path=f"{name}.parquet", partition={}, stats=False)
        (tmp_path / f"{name}.parquet").write_bytes(make_file(rows, {VERSION: version}))
        if last is None:
            table.create(add)
        else:
            table.commit(table.remove(last), add)
        last = add
    found = await changes(tmp_path)
    assert [row["d"] for row in found if row["_commit_version"] == 0] == [
        dt.date(1500, 2, 28),
        dt.date(1970, 1, 1),
    ]
    assert {row["_commit_version"] for row in found} == {0, 2}


def test_old_bounds_of_the_log_separate_no_files() -> None:
    schema = TableSchema(
        text='{"type":"struct","fields":[{"name":"d","type":"date","nullable":true,"metadata":{}},'
        '{"name":"t","type":"timestamp","nullable":true,"metadata":{}}]}',
        partition_columns=(),
        column_mapping="none",
    )
    stats = (
        '"{\\"minValues\\":{\\"d\\":\\"0001-01-01\\",\\"t\\":\\"1899-12-31T00:00:00Z\\"},'
        '\\"maxValues\\":{\\"d\\":\\"2020-01-01\\",\\"t\\":\\"2020-01-01T00:00:00Z\\"}}"'
    )
    found = parse_bounds(stats, schema)
    assert (found["d"].lower, found["d"].upper) == (None, dt.date(2020, 1, 1))
    assert found["t"].lower is None


def test_statistics_in_a_checkpoint_are_rebased() -> None:
    minimum = pa.StructArray.from_arrays([days(JULIAN)], ["d"])
    parsed = pa.StructArray.from_arrays([minimum], ["minValues"])
    add = pa.StructArray.from_arrays([pa.array(list("abcdefg")), parsed], ["path", "stats_parsed"])
    body = io.BytesIO(make_file(pa.table({"add": add}), {VERSION: "2.4.8"}))
    with CheckpointFile(body, "0.checkpoint.parquet") as file:
        [batch] = file.rows(("add",))
    found = batch.column("add").field("stats_parsed").field("minValues").field("d")
    assert texts(pa.chunked_array([found])) == TEXTS


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["TIMESTAMP_MICROS", "TIMESTAMP_MILLIS", "INT96"])
def test_what_spark_writes_in_its_mode_legacy_is_what_spark_reads(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    settings = {
        "spark.sql.session.timeZone": "America/Los_Angeles",
        "spark.sql.parquet.outputTimestampType": kind,
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        rows = spark.sql(
            "SELECT d, t, named_struct('d', d) AS s, array(t) AS l FROM (SELECT"
            " explode(array(date'0001-01-01', date'1582-10-04', date'1883-11-18')) AS d) LATERAL"
            " VIEW explode(array(cast(d AS timestamp), cast(d AS timestamp) + interval 5 hours))"
            " AS t"
        )
        rows.coalesce(1).write.parquet(str(tmp_path / "out"))
        read_back = spark.read.parquet(str(tmp_path / "out"))
        wanted = read_back.selectExpr("unix_date(d)", "unix_micros(t)", "unix_micros(l[0])")
        expected = [tuple(row) for row in wanted.collect()]
    finally:
        for name in settings:
            spark.conf.unset(name)
    [path] = (tmp_path / "out").glob("*.parquet")
    found = read(path.read_bytes())
    micros = found["t"].combine_chunks().view(pa.int64()).to_pylist()
    numbers = found["d"].combine_chunks().view(pa.int32()).to_pylist()
    inner = pa.compute.list_flatten(found["l"]).combine_chunks().view(pa.int64()).to_pylist()
    assert list(zip(numbers, micros, inner, strict=True)) == expected
    assert [each["d"] for each in found["s"].to_pylist()] == found["d"].to_pylist()
