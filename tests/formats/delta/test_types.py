"""Rows 37 and 48 of the corners, CHAR and INT96: what a value is, whatever its file says."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import UnreadableDataFileError, UnsupportedFeatureError
from tests.cli.commands import Commands
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import field
from tests.tables.feed import changes

pytestmark = pytest.mark.attack


D = decimal.Decimal
DATE, TIME = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29)

WIDENINGS: list[tuple[str, Any, str, Any]] = [
    ("byte", -5, "short", -5),
    ("byte", -5, "integer", -5),
    ("byte", -5, "long", -5),
    ("short", 300, "integer", 300),
    ("short", 300, "long", 300),
    ("integer", 2**31 - 1, "long", 2**31 - 1),
    ("byte", 7, "double", 7.0),
    ("short", 7, "double", 7.0),
    ("integer", 2**31 - 1, "double", float(2**31 - 1)),
    ("float", 0.1, "double", float(np.float32(0.1))),
    ("byte", 7, "decimal(10,0)", D(7)),
    ("short", 7, "decimal(12,2)", D("7.00")),
    ("integer", 7, "decimal(10,0)", D(7)),
    ("long", 2**63 - 1, "decimal(20,0)", D(2**63 - 1)),
    ("decimal(5,2)", D("123.45"), "decimal(7,2)", D("123.45")),
    ("decimal(5,2)", D("123.45"), "decimal(8,4)", D("123.4500")),
    ("decimal(5,2)", D("-1.10"), "decimal(38,10)", D("-1.1000000000")),
    ("date", DATE, "timestamp_ntz", TIME),
]


@pytest.mark.parametrize(("old", "value", "new", "wide"), WIDENINGS)
async def test_row_37_a_widened_column_has_the_type_of_each_commit(
    tmp_path: Path, old: str, value: Any, new: str, wide: Any
) -> None:
    def fields(kind: str) -> list[Any]:
        inner = delta_schema.struct(field("x", kind))
        listed = delta_schema.array(kind)
        mapped = delta_schema.map_of(kind, kind)
        return [("x", kind), ("s", inner), ("l", listed), ("m", mapped)]

    table = TableBuilder(tmp_path, fields=fields(old), reader_features=["typeWidening"])
    row = {"x": value, "s": {"x": value}, "l": [value, None], "m": {value: value}}
    [add] = table.append([row, {}]).adds
    table.change_metadata(fields=fields(new))
    table.commit(table.remove(add))

    first, _, last, nothing = await changes(tmp_path)

    assert first["x"] == (value if old != "float" else wide)
    for found in (last, (await changes(tmp_path, "0", columns=["x", "s", "l", "m"]))[2]):
        assert (found["x"], found["s"], found["l"]) == (wide, {"x": wide}, [wide, None])
        assert found["m"] == [(wide, wide)]
        assert type(found["x"]) is type(wide)
    assert [nothing[name] for name in ("x", "s", "l", "m")] == [None] * 4


def values_table(folder: Path, kind: str, column: pa.Array) -> TableBuilder:
    table = TableBuilder(folder, fields=[("x", kind)])
    table.create(table.data_file(pa.table({"x": column}), partition={}))
    return table


@pytest.mark.parametrize("kind", ["float", "double"])
def test_row_48_numbers_that_are_none_are_told_by_name(
    tmp_path: Path, kind: str, command: Commands
) -> None:
    values = [math.nan, math.inf, -math.inf, -0.0, None]
    arrow = pa.float32() if kind == "float" else pa.float64()
    values_table(tmp_path, kind, pa.array(values, arrow))
    found = [row["x"] for row in command.tail(tmp_path, "--from", 0).rows]
    assert [repr(value) for value in found] == [
        *("'NaN'", "'Infinity'", "'-Infinity'", "-0.0", "None")
    ]


def test_row_48_the_json_of_every_type_is_that_of_the_contract(
    tmp_path: Path, command: Commands
) -> None:
    cases: dict[str, tuple[Any, pa.Array, Any]] = {
        "i8": ("byte", pa.array([-128], pa.int8()), -128),
        "i16": ("short", pa.array([32767], pa.int16()), 32767),
        "i32": ("integer", pa.array([-(2**31)], pa.int32()), -(2**31)),
        "i64": ("long", pa.array([2**63 - 1]), 2**63 - 1),
        "f64": ("double", pa.array([0.1]), 0.1),
        "dec": ("decimal(10,3)", pa.array([D("1.500")], pa.decimal128(10, 3)), "1.500"),
        "yes": ("boolean", pa.array([True]), True),
        "txt": ("string", pa.array(['a"\n\u0001☃']), 'a"\n\u0001☃'),
        "bin": ("binary", pa.array([b"\x00\xff"]), "AP8="),
        "day": ("date", pa.array([DATE]), "2024-02-29"),
        "at": (
            "timestamp",
            pa.array([1], pa.timestamp("us", tz="UTC")),
            "1970-01-01T00:00:00.000001Z",
        ),
        "ntz": ("timestamp_ntz", pa.array([-1], pa.timestamp("us")), "1969-12-31T23:59:59.999999"),
        "arr": (delta_schema.array("long"), pa.array([[1, None]]), [1, None]),
        "map": (
            delta_schema.map_of("integer", "string"),
            pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())),
            {"1": "a"},
        ),
        "row": (delta_schema.struct(field("x", "long")), pa.array([{"x": None}]), {"x": None}),
    }
    features = ["timestampNtz"]
    fields = [(name, case[0]) for name, case in cases.items()]
    table = TableBuilder(tmp_path, fields=fields, reader_features=features)
    file = pa.table({name: case[1] for name, case in cases.items()})
    file = file.set_column(
        list(cases).index("row"), "row", pa.array([{"x": None}], pa.struct([("x", pa.int64())]))
    )
    table.create(table.data_file(file, partition={}))
    [row] = command.tail(tmp_path, "--from", 0).rows
    assert {name: row[name] for name in cases} == {name: case[2] for name, case in cases.items()}
    assert list(row) == [*cases, "_change_type", "_commit_version", "_commit_timestamp"]


async def test_row_48_a_column_of_type_void_is_null_whatever_the_file_has(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.fields.insert(1, field("nothing", "void"))
    file = pa.table({"id": [1], "nothing": [1], "name": ["a"]})
    table.create(table.data_file(file, partition={}))
    [row] = await changes(tmp_path)
    assert list(row.items())[:3] == [("id", 1), ("nothing", None), ("name", "a")]


@pytest.mark.parametrize("kind", ["interval day to second", "geometry(4326)", "timestamp_nanos"])
async def test_row_48_a_type_that_is_not_read_is_refused_by_name_unless_left_out(
    tmp_path: Path, kind: str
) -> None:
    table = TableBuilder(tmp_path)
    table.fields.append(field("odd", kind))
    table.create(table.data_file(pa.table({"id": [1], "name": ["a"]}), partition={}))
    with pytest.raises(UnsupportedFeatureError, match="Column odd has the type"):
        await changes(tmp_path)
    assert len(await changes(tmp_path, columns=["id"])) == 1


def time_of(year: int, *rest: int) -> datetime.datetime:
    return datetime.datetime(year, *rest, tzinfo=datetime.UTC)  # type: ignore[misc, arg-type]


FAR = [
    time_of(1, 1, 1),
    time_of(1582, 10, 4, 23, 59, 59, 999999),
    time_of(1582, 10, 15),
    time_of(1900, 1, 1, 0, 0, 0, 1),
    time_of(2024, 2, 29, 12, 34, 56, 123456),
    time_of(2262, 4, 12),
    time_of(9999, 12, 31, 23, 59, 59, 999999),
]


def int96(time: datetime.datetime) -> bytes:
    """Return a moment as Spark's INT96: nanoseconds of the day, Julian day."""
    day = time.date().toordinal() + 1_721_425
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    micros = (time - midnight) // datetime.timedelta(microseconds=1)
    return (micros * 1000).to_bytes(8, "little") + day.to_bytes(4, "little")


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
async def test_int96_values_of_all_years_are_read_exactly(tmp_path: Path, kind: str) -> None:
    table = TableBuilder(tmp_path, fields=[("x", kind)])
    add = table.data_file(pa.table({"x": [1]}), path="a.parquet", partition={})
    near = [time_of(2000, 1, 1 + number) for number in range(len(FAR))]
    column = pa.array([time.replace(tzinfo=None) for time in near], pa.timestamp("us"))
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": column}),
        file,
        use_deprecated_int96_timestamps=True,
        use_dictionary=False,
        compression="none",
        write_statistics=False,
    )
    body = file.read_bytes()
    for old, new in zip(near, FAR, strict=True):
        assert body.count(int96(old)) == 1
        body = body.replace(int96(old), int96(new))
    file.write_bytes(body)
    table.create(add)
    expected = FAR if kind == "timestamp" else [time.replace(tzinfo=None) for time in FAR]
    assert [row["x"] for row in await changes(tmp_path)] == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "+02:00"])
async def test_timestamps_of_every_unit_and_zone_are_the_same_instant(
    tmp_path: Path, unit: str, zone: str | None
) -> None:
    column = pa.array([time_of(2024, 1, 2, 3, 4, 5)], pa.timestamp(unit, tz=zone or "UTC"))
    if zone is None:
        column = column.cast(pa.timestamp(unit))
    values_table(tmp_path, "timestamp", column)
    assert [row["x"] for row in await changes(tmp_path)] == [time_of(2024, 1, 2, 3, 4, 5)]


@pytest.mark.parametrize("text", ["a", "", "日本", "exact", None, "longer than it"])
async def test_char_columns_are_padded_by_the_reader(tmp_path: Path, text: str | None) -> None:
    char: dict[str, Any] = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
    inner = delta_schema.struct(field("c", "string", **char))
    table = TableBuilder(tmp_path, fields=[field("c", "string", **char), field("s", inner)])
    table.append([{"c": text, "s": {"c": text}}])
    [row] = await changes(tmp_path)
    expected = None if text is None else text.ljust(5)
    assert row["c"] == expected
    assert row["s"] == {"c": expected}


@pytest.mark.attack
async def test_char_types_inside_structs_arrays_and_maps_are_padded(tmp_path: Path) -> None:
    def declared(kind: str) -> dict[str, Any]:
        return {"__CHAR_VARCHAR_TYPE_STRING": kind}

    inner = delta_schema.struct(
        field("a b", "string"),
        field("v", "string"),
        field("l", delta_schema.array("string")),
        field("added later", "long"),
    )
    fields = [
        field(
            "s",
            inner,
            **declared("struct<`a b`:char(3),v:varchar(9),l:array<char(2)>,gone:decimal(3,1)>"),
        ),
        field(
            "l",
            delta_schema.array(delta_schema.struct(field("c", "string"))),
            **declared("array<struct<c:char(4)>>"),
        ),
        field("m", delta_schema.map_of("string", "string"), **declared("map<char(2),char(3)>")),
        field("bad", "string", **declared("struct<c:char(5>")),
        field("number", "long", **declared("char(5)")),
    ]
    table = TableBuilder(tmp_path, fields=fields)
    row = {
        "s": {"a b": "x", "v": "v", "l": ["y", None], "added later": 1},
        "l": [{"c": "c"}, {"c": None}],
        "m": [("k", "v")],
        "bad": "b",
        "number": 7,
    }
    table.append([row])
    [found] = await changes(tmp_path)
    assert found["s"] == {"a b": "x  ", "v": "v", "l": ["y ", None], "added later": 1}
    assert found["l"] == [{"c": "c   "}, {"c": None}]
    assert found["m"] == [("k ", "v  ")]
    assert (found["bad"], found["number"]) == ("b", 7)


async def test_varchar_columns_are_not_padded(tmp_path: Path) -> None:
    varchar: dict[str, Any] = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}
    table = TableBuilder(tmp_path, fields=[field("c", "string", **varchar)])
    table.append([{"c": "a"}])
    assert [row["c"] for row in await changes(tmp_path)] == ["a"]


async def test_a_char_column_that_partitions_the_table_is_padded_too(tmp_path: Path) -> None:
    char: dict[str, Any] = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
    fields = [field("id", "long"), field("c", "string", **char)]
    table = TableBuilder(tmp_path, fields=fields, partition_by=["c"])
    table.append([{"id": 1, "c": "a"}])
    assert [row["c"] for row in await changes(tmp_path)] == ["a    "]


ARROW_SPELLINGS: dict[str, tuple[str, pa.Array, Any]] = {
    "large text": ("string", pa.array(["a"], pa.large_string()), "a"),
    "dictionary": ("string", pa.array(["a"]).dictionary_encode(), "a"),
    "binary as text": ("string", pa.array([b"a"], pa.binary()), "a"),
    "text as binary": ("binary", pa.array(["a"]), b"a"),
    "fixed binary": ("binary", pa.array([b"ab"], pa.binary(2)), b"ab"),
    "only nulls": ("long", pa.nulls(1), None),
    "unsigned": ("long", pa.array([5], pa.uint32()), 5),
    "smaller": ("long", pa.array([5], pa.int8()), 5),
}


@pytest.mark.parametrize("spelling", ARROW_SPELLINGS)
async def test_writers_may_spell_one_type_in_several_ways(tmp_path: Path, spelling: str) -> None:
    kind, column, value = ARROW_SPELLINGS[spelling]
    values_table(tmp_path, kind, column)
    assert [row["x"] for row in await changes(tmp_path)] == [value]


async def test_text_that_is_no_unicode_is_an_error_and_not_garbled(tmp_path: Path) -> None:
    values_table(tmp_path, "string", pa.array([b"\xff\xfe"], pa.binary()))
    with pytest.raises(UnreadableDataFileError, match="column x"):
        await changes(tmp_path)


LISTS: dict[str, pa.DataType] = {
    "fixed": pa.list_(pa.int64(), 2),
    "large": pa.large_list(pa.int64()),
    "view": pa.list_view(pa.int64()),
    "large view": pa.large_list_view(pa.int64()),
    "in a struct": pa.struct([("l", pa.list_(pa.int64(), 2))]),
    "in a map": pa.map_(pa.string(), pa.list_view(pa.int64())),
}


@pytest.mark.parametrize("location", LISTS)
async def test_lists_are_read_as_whatever_kind_deltalake_leaves_in_the_file(
    tmp_path: Path, location: str
) -> None:
    items = [[1, 2], None, [3, 4]]
    values: list[Any] = list(items)
    if location == "in a struct":
        values = [{"l": item} for item in items]
    if location == "in a map":
        values = [[("k", item)] for item in items]
    written = pa.table({"id": [0, 1, 2], "x": pa.array(values, LISTS[location])})
    deltalake.write_deltalake(tmp_path, written)
    assert [row["x"] for row in await changes(tmp_path)] == values
    properties = {"delta.enableDeletionVectors": "true"}
    deltalake.DeltaTable(tmp_path).alter.set_table_properties(properties)
    deltalake.DeltaTable(tmp_path).delete("id = 0")
    gone = [row for row in await changes(tmp_path, "2") if row["id"] == 0]
    assert [(row["x"], row["_change_type"]) for row in gone] == [(values[0], "delete")]


@pytest.mark.parametrize("kind", ["variant", delta_schema.array("variant")], ids=["column", "list"])
async def test_a_shredded_variant_is_assembled_whatever_the_protocol_says_of_it(
    tmp_path: Path, kind: delta_schema.DeltaType
) -> None:
    shredded = pa.struct(
        [("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())]
    )
    value = {"metadata": b"\x01\x00\x00", "value": None, "typed_value": 42}
    column = pa.array([value], shredded)
    if kind != "variant":
        column = pa.array([[value]], pa.list_(shredded))
    features = ["variantType"]
    table = TableBuilder(
        tmp_path, fields=[("x", kind)], reader_features=features, writer_features=features
    )
    table.create(table.data_file(pa.table({"x": column}), partition={}))
    [row] = await changes(tmp_path)
    found = row["x"] if kind == "variant" else row["x"][0]
    assert found == {"metadata": b"\x01\x00\x00", "value": b"\x18" + (42).to_bytes(8, "little")}
