"""What values in data files mean: times beyond microseconds, many columns, shredded variants."""

from __future__ import annotations

import datetime
import decimal
import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import UnreadableDataFileError
from tailerd.reading.shredded_variant import assemble_variant
from tailerd.records.variant import variant_json
from tests.cli.commands import Commands
from tests.records.variants import EMPTY, metadata_of, object_of, primitive, short_string
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.feed import changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.attack


D = decimal.Decimal

BEYOND_MS = 2**63 // 1000 + 1
"""Milliseconds since 1970 that are more microseconds than 64 bits hold."""


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("value", [BEYOND_MS, -BEYOND_MS, 2**63 - 1])
async def test_milliseconds_beyond_microseconds_are_refused_by_file_and_column(
    tmp_path: Path, kind: str, value: int
) -> None:
    fields: list[tuple[str, delta_schema.DeltaType]] = [
        ("at", kind),
        ("all", delta_schema.array(kind)),
    ]
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
    async def seconds(columns: int, attempt: int = 0) -> float:
        folder = tmp_path / f"{columns}-{attempt}"
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
    few = await seconds(2_500)
    # Four times as many; sixteen times the work of few would be looking for each among all. The
    # best of three counts: while a machine stands still, its clock of CPU time may run on.
    many = min([await seconds(10_000, attempt) for attempt in range(3)])
    assert many < max(8 * few, 2)


def texts_of(variants: pa.StructArray) -> list[str | None]:
    """Return the JSON of each variant once its columns are put together."""
    rows = assemble_variant(variants).to_pylist()
    return [None if row is None else variant_json(row["metadata"], row["value"]) for row in rows]


def group(value: list[bytes | None], typed: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array(value, pa.binary()), typed], ["value", TYPED])


def variants(value: list[bytes | None], typed: pa.Array, *names: str) -> pa.StructArray:
    width = 1 if len(names) < 10 else 2
    metadata = pa.array([metadata_of(*names, width=width)] * len(value), pa.binary())
    columns = [metadata, pa.array(value, pa.binary()), typed]
    return pa.StructArray.from_arrays(columns, ["metadata", "value", TYPED])


TYPED = "typed_value"
MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 5)
UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
WORDS = ["", 'a"\n\u2603', "x" * 63, "x" * 64, "y" * 70_000]

COLUMNS: dict[str, tuple[pa.Array, list[str]]] = {
    "boolean": (pa.array([True, False]), ["true", "false"]),
    "int8": (pa.array([-128, 127], pa.int8()), ["-128", "127"]),
    "int16": (pa.array([-(2**15)], pa.int16()), ["-32768"]),
    "int32": (pa.array([2**31 - 1], pa.int32()), [str(2**31 - 1)]),
    "int64": (pa.array([-(2**63)]), [str(-(2**63))]),
    "float": (pa.array([0.1, float("nan")], pa.float32()), ["0.1", '"NaN"']),
    "double": (pa.array([0.1, 1e300]), ["0.1", "1e+300"]),
    "decimal4": (pa.array([D("-0.05")], pa.decimal128(9, 2)), ["-0.05"]),
    "decimal8": (pa.array([D(10**17)], pa.decimal128(18, 0)), [str(10**17)]),
    "decimal16": (pa.array([D(1 - 10**38)], pa.decimal128(38, 0)), [str(1 - 10**38)]),
    "date": (pa.array([datetime.date(1582, 10, 4)]), ['"1582-10-04"']),
    "time": (pa.array([datetime.time(1, 2, 3, 4)], pa.time64("us")), ['"01:02:03.000004"']),
    "timestamp": (
        pa.array([MOMENT], pa.timestamp("us", "UTC")),
        ['"1969-12-31T23:59:59.000005Z"'],
    ),
    "timestamp_ntz": (pa.array([MOMENT], pa.timestamp("us")), ['"1969-12-31T23:59:59.000005"']),
    "nanoseconds": (
        pa.array([-1], pa.timestamp("ns", "UTC")),
        ['"1969-12-31T23:59:59.999999999Z"'],
    ),
    "nanoseconds_ntz": (pa.array([1], pa.timestamp("ns")), ['"1970-01-01T00:00:00.000000001"']),
    "binary": (pa.array([b"", b"\x00\xff"]), ['""', '"AP8="']),
    "string": (pa.array(WORDS), [json.dumps(word, ensure_ascii=False) for word in WORDS]),
    "uuid": (
        pa.array([bytes(range(16))], pa.binary(16)),
        [f'"{uuid.UUID(bytes=bytes(range(16)))}"'],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_variant_shredded_as_any_type_is_what_it_was(name: str) -> None:
    column, expected = COLUMNS[name]
    # Others than the shredded type are in `value`; a slice begins in the middle of everything.
    typed = pa.concat_arrays([column, pa.nulls(3, column.type), column])
    rest = [*[None] * len(column), short_string("other"), primitive(0), None, *[None] * len(column)]
    texts = [*expected, '"other"', "null", "null", *expected]
    assert texts_of(variants(rest, typed)) == texts
    assert texts_of(variants(rest, typed).slice(1)) == texts[1:]


def test_shredded_objects_and_arrays_tell_missing_from_null_and_keep_the_rest() -> None:
    inner = pa.StructArray.from_arrays(
        [
            group([None, primitive(0), None, None], pa.array([7, None, None, None], pa.int32())),
            group([None] * 4, pa.array(["t", None, None, None])),
        ],
        ["n", "a"],
        mask=pa.array([False, False, True, True]),
    )
    elements = group([None, primitive(0), None, short_string("s")], pa.array([1, None, 3, None]))
    lists = pa.ListArray.from_arrays(
        pa.array([0, 4, 4, 4, 4], pa.int32()), elements, mask=pa.array([False, False, True, True])
    )
    typed = pa.StructArray.from_arrays(
        [group([None, None, short_string("o"), None], inner), group([None] * 4, lists)],
        ["o", "l"],
        mask=pa.array([False, False, False, True]),
    )
    # Dictionary: a=0, l=1, n=2, o=3, z=4.
    rest = object_of({4: primitive(1)})
    made = variants([rest, None, None, short_string("text")], typed, "a", "l", "n", "o", "z")
    assert texts_of(made) == [
        '{"l":[1,null,3,"s"],"o":{"a":"t","n":7},"z":true}',
        '{"l":[],"o":{"n":null}}',
        '{"o":"o"}',
        '"text"',
    ]


def test_many_fields_and_elements_have_the_widths_they_need() -> None:
    names = [f"n{number:05}" for number in range(300)]
    fields = [group([None], pa.array([number])) for number in range(300)]
    wide = variants([None], pa.StructArray.from_arrays(fields, names), *names)
    assert json.loads(texts_of(wide)[0] or "") == dict(zip(names, range(300), strict=True))

    items = pa.ListArray.from_arrays(
        pa.array([0, 70_000], pa.int32()), group([None] * 70_000, pa.array(range(70_000)))
    )
    assert json.loads(texts_of(variants([None], items))[0] or "") == list(range(70_000))


BAD: dict[str, pa.StructArray] = {
    "twice": variants([primitive(1)], pa.array([1])),
    "no-object-besides": variants(
        [primitive(1)], pa.StructArray.from_arrays([group([None], pa.array([1]))], ["a"]), "a"
    ),
    "name-unknown": variants(
        [None], pa.StructArray.from_arrays([group([None], pa.array([1]))], ["a"]), "b"
    ),
    "no-variant-type": variants([None], pa.array([1], pa.uint16())),
    "field-is-no-group": variants([None], pa.StructArray.from_arrays([pa.array([1])], ["a"]), "a"),
    "torn-rest": variants(
        [b"\x02\x05"], pa.StructArray.from_arrays([group([None], pa.array([1]))], ["a"]), "a"
    ),
    "torn-dictionary": pa.StructArray.from_arrays(
        [
            pa.array([b"\x01\x09"]),
            pa.StructArray.from_arrays([group([None], pa.array([1]))], ["a"]),
        ],
        ["metadata", TYPED],
    ),
}


@pytest.mark.parametrize("variant", BAD.values(), ids=BAD)
def test_shredded_columns_that_contradict_each_other_are_an_error(variant: pa.StructArray) -> None:
    with pytest.raises(UnreadableDataFileError, match="shredded variant cannot be assembled"):
        assemble_variant(variant)


@pytest.mark.parametrize("feature", ["variantShredding", "variantShredding-preview"])
@pytest.mark.parametrize("kind", ["variant", delta_schema.array("variant")], ids=["column", "list"])
async def test_a_table_with_shredded_variants_is_served(
    tmp_path: Path, feature: str, kind: delta_schema.DeltaType
) -> None:
    features = ["variantType", feature]
    table = TableBuilder(
        tmp_path, fields=[("x", kind)], reader_features=features, writer_features=features
    )
    column = variants([None, primitive(0), None], pa.array([42, None, None]))
    column = pa.StructArray.from_arrays(
        column.flatten(), list(column.type.names), mask=pa.array([False, False, True])
    )
    if kind != "variant":
        column = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), column)
    table.create(table.data_file(pa.table({"x": column}), partition={}, stats=False))
    found = [row["x"] for row in await changes(tmp_path)]
    values = found if kind == "variant" else found[0]
    long = {"metadata": EMPTY, "value": primitive(6, (42).to_bytes(8, "little"))}
    assert values == [long, {"metadata": EMPTY, "value": primitive(0)}, None]


VALUES = [
    '{"a":1,"b":{"c":"x","d":[1.25,"n",null,3.5],"z":9},"f":true,"j":[{"k":1},{"k":"t"},5],"y":{}}',
    *("5", "null", '[1,{"a":3}]', '{"a":"text","b":7,"j":{}}', "{}", '{"a":null,"b":{}}'),
    *('{"b":{"d":[]},"j":[]}', '"s"', '{"b":{"c":"\u00e9\\"q"}}', '{"a":99999999999999999999}'),
]


@pytest.mark.full
@pytest.mark.spark
def test_variants_that_spark_shredded_are_those_it_was_given(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    shape = "a long, b struct<c string, d array<decimal(9,2)>>, f boolean, j array<struct<k int>>"
    rows = spark.createDataFrame([(text,) for text in VALUES], "text string").coalesce(1)
    written = rows.selectExpr("text", "parse_json(text) AS v")
    options = {
        "spark.sql.variant.writeShredding.enabled": "true",
        "spark.sql.variant.forceShreddingSchemaForTest": shape,
    }
    table = TableBuilder(
        tmp_path / "orders",
        fields=[("text", "string"), ("v", "variant"), ("nothing", "void")],
        reader_features=["variantType", "variantShredding"],
        writer_features=["variantType", "variantShredding"],
    )
    for name, value in options.items():
        spark.conf.set(name, value)
    try:
        written.write.parquet(str(tmp_path / "written"))
    finally:
        for name in options:
            spark.conf.unset(name)
    [file] = (tmp_path / "written").glob("*.parquet")
    assert "typed_value" in str(pq.ParquetFile(file).schema)
    (tmp_path / "orders").mkdir()
    size = file.rename(tmp_path / "orders" / "a.parquet").stat().st_size
    add: dict[str, Any] = {"path": "a.parquet", "partitionValues": {}, "size": size}
    table.create({"add": {**add, "modificationTime": 0, "dataChange": True}})

    found = Commands(capfd).tail(tmp_path / "orders", "--from", "0").rows
    assert [row["v"] for row in found] == [json.loads(row["text"]) for row in found]
    assert len(found) == len(VALUES)

    import tailerd.spark

    tailerd.spark.register(spark)
    read = spark.read.format("tailerd").load(str(tmp_path / "orders"))
    answers = read.selectExpr("text", "to_json(v) AS v", "nothing").collect()
    assert [json.loads(row.v) for row in answers] == [json.loads(row.text) for row in answers]
    assert {row.nothing for row in answers} == {None}
    assert len(answers) == len(VALUES)
