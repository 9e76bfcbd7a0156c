"""Values of every type arrive in PostgreSQL as they are in Arrow."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.sinks.postgres.columns import choose_type
from tailerd.sinks.postgres.copy_encoding import (
    COPY_HEADER,
    COPY_TRAILER,
    encode_rows,
    find_unrepresentable,
)
from tests.postgres.server import Database

UTC = dt.UTC
BIG = 10**38 - 1
LIST_OF_STRUCTS = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
CASES: dict[str, tuple[pa.DataType, list[Any], str, list[Any] | None]] = {
    "boolean": (pa.bool_(), [True, False, None], "boolean", None),
    "int8": (pa.int8(), [-128, None, 127], "smallint", None),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1], "smallint", None),
    "int32": (pa.int32(), [-(2**31), 0, None, 2**31 - 1], "integer", None),
    "int64": (pa.int64(), [-(2**63), -1, 0, None, 2**63 - 1], "bigint", None),
    "uint8": (pa.uint8(), [0, 255], "smallint", None),
    "uint16": (pa.uint16(), [0, 65535], "integer", None),
    "uint32": (pa.uint32(), [0, 2**32 - 1], "bigint", None),
    "uint64": (
        pa.uint64(),
        [0, None, 2**64 - 1],
        "numeric(20,0)",
        [Decimal(0), None, Decimal(2**64 - 1)],
    ),
    "half": (pa.float16(), [1.5, None, -0.25], "real", None),
    "float": (pa.float32(), [1.5, float("inf"), None], "real", None),
    "double": (pa.float64(), [0.1, float("-inf"), None, 1e300], "double precision", None),
    "decimal": (
        pa.decimal128(10, 2),
        [Decimal("-12345678.90"), None, Decimal("0.01"), Decimal("0.00"), Decimal("99999999.99")],
        "numeric(10,2)",
        None,
    ),
    "long decimal": (
        pa.decimal128(38, 0),
        [Decimal(BIG), Decimal(-BIG), Decimal(0), Decimal(10**37)],
        "numeric(38,0)",
        None,
    ),
    "fraction": (
        pa.decimal128(38, 38),
        [Decimal(1).scaleb(-38), Decimal("-0.5")],
        "numeric(38,38)",
        None,
    ),
    "odd scale": (
        pa.decimal128(21, 7),
        [Decimal("12345678901234.1234567"), Decimal("-0.0000001")],
        "numeric(21,7)",
        None,
    ),
    "decimal256": (
        pa.decimal256(70, 3),
        [Decimal("-1" + "0" * 60 + ".001"), Decimal("9" * 67 + ".999")],
        "numeric(70,3)",
        None,
    ),
    "text": (pa.string(), ["", None, "a", "ä€😀" * 10, "x" * 100_000], "text", None),
    "large text": (pa.large_string(), ["", None, "abc"], "text", None),
    "text view": (pa.string_view(), ["", None, "more than twelve bytes"], "text", None),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b", "a"], "text", None),
    "binary": (pa.binary(), [b"", None, b"\0\xff"], "bytea", None),
    "fixed binary": (pa.binary(3), [b"abc", None], "bytea", None),
    "date": (
        pa.date32(),
        [dt.date(1, 1, 1), None, dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
        "date",
        None,
    ),
    "time": (
        pa.time64("us"),
        [dt.time(0), None, dt.time(23, 59, 59, 999999)],
        "time without time zone",
        None,
    ),
    "time in ms": (pa.time32("ms"), [dt.time(1, 2, 3, 4000), None], "time without time zone", None),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1, 1, 1, tzinfo=UTC), None, dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)],
        "timestamp with time zone",
        None,
    ),
    "timestamp without zone": (
        pa.timestamp("us"),
        [dt.datetime(1, 1, 1), None, dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
        "timestamp without time zone",
        None,
    ),
    "timestamp in ns": (
        pa.timestamp("ns"),
        [1_700_000_000_123_456_789],
        "timestamp without time zone",
        [dt.datetime(2023, 11, 14, 22, 13, 20, 123456)],
    ),
    "duration": (pa.duration("us"), [dt.timedelta(seconds=2), None], "bigint", [2_000_000, None]),
    "struct": (
        pa.struct([("a", pa.int64()), ("d", pa.decimal128(5, 2))]),
        [{"a": 1, "d": Decimal("1.50")}, None, {"a": None, "d": None}],
        "jsonb",
        [{"a": 1, "d": 1.5}, None, {"a": None, "d": None}],
    ),
    "list": (
        LIST_OF_STRUCTS,
        [[{"a": 1, "b": 'x"y\\'}], [], None],
        "jsonb",
        None,
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], None], "jsonb", [{"k": 1}, None]),
    "nothing": (pa.null(), [None, None], "text", None),
}


def round_trip(postgres: Database, array: pa.Array, field: pa.Field, kind: str) -> list[Any]:
    count = len(array)
    numbers = pa.array(range(count), pa.int64())
    columns = [(numbers, pa.field("n", pa.int64()), "bigint"), (array, field, kind)]
    raw = encode_rows(columns, count)
    with postgres.server.connect(postgres.name) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        statement = "DROP TABLE IF EXISTS t; CREATE TABLE t (n bigint, v {})"
        connection.execute(sql.SQL(statement.format(kind)))
        with connection.cursor().copy("COPY t FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(COPY_HEADER)
            copy.write(memoryview(raw))
            copy.write(COPY_TRAILER)
        return [row[0] for row in connection.execute("SELECT v FROM t ORDER BY n").fetchall()]


@pytest.mark.parametrize("name", CASES)
def test_values_arrive_as_they_are(postgres: Database, name: str) -> None:
    kind, values, expected_type, expected = CASES[name]
    field = pa.field("v", kind)
    assert choose_type(field) == expected_type
    array = pa.array(values, kind)
    assert find_unrepresentable(array, field, expected_type) is None
    found = round_trip(postgres, array, field, expected_type)
    assert found == (values if expected is None else expected)
    # A slice of a larger array, as readers return.
    padded = pa.concat_arrays([array, array]).slice(1, len(array))
    assert round_trip(postgres, padded, field, expected_type) == [*found[1:], found[0]]


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_value_of_all_rows_is_encoded_as_a_column_of_it(name: str) -> None:
    kind, values, column, _ = CASES[name]
    field = pa.field("v", kind)
    numbers = (pa.array(range(3), pa.int64()), pa.field("n", pa.int64()), "bigint")
    for value in values:
        one = pa.array([value], kind)
        repeated = pa.array([value] * 3, kind)
        short = encode_rows([numbers, (one, field, column)], 3)
        assert short.equals(encode_rows([numbers, (repeated, field, column)], 3))


def test_nan_and_a_variant_arrive(postgres: Database) -> None:
    array = pa.array([float("nan"), None])
    found = round_trip(postgres, array, pa.field("v", pa.float64()), "double precision")
    assert str(found[0]) == "nan"
    variant = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    field = pa.field("v", variant, metadata=VARIANT_FIELD)
    array = pa.array([{"metadata": b"\x01\0\0", "value": b"\x0c\x07"}, None], variant)
    assert choose_type(field) == "jsonb"
    assert round_trip(postgres, array, field, "jsonb") == [7, None]


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (pa.int16(), "bigint"),
        (pa.int32(), "numeric"),
        (pa.int32(), "double precision"),
        (pa.decimal128(5, 2), "numeric(20,4)"),
        (pa.float32(), "double precision"),
        (pa.string(), "character varying"),
        (pa.date32(), "timestamp without time zone"),
    ],
)
def test_a_wider_column_takes_the_values(
    postgres: Database, kind: pa.DataType, target: str
) -> None:
    array = pa.array([1, None, 100], pa.int32())
    array = array.cast(kind) if kind != pa.decimal128(5, 2) else pa.array([1, None, 100], kind)
    found = round_trip(postgres, array, pa.field("v", kind), target)
    if kind == pa.date32():
        assert found == [dt.datetime(1970, 1, 2), None, dt.datetime(1970, 4, 11)]
    else:
        assert found == (["1", None, "100"] if kind == pa.string() else [1, None, 100])


def test_random_decimals_arrive(postgres: Database, seed: int) -> None:
    chance = random.Random(seed)
    precision = chance.randint(1, 38)
    scale = chance.randint(0, precision)
    most = 10**precision - 1
    values = [
        None if chance.random() < 0.1 else Decimal(chance.randint(-most, most)).scaleb(-scale)
        for _ in range(300)
    ]
    kind = pa.decimal128(precision, scale)
    field = pa.field("v", kind)
    assert round_trip(postgres, pa.array(values, kind), field, choose_type(field)) == values


@pytest.mark.parametrize(
    ("array", "rows"),
    [
        (pa.array(["a", "b\0", None, "\0"]), [1, 3]),
        (pa.array([b"ok", b"\xff"]).view(pa.string()), [1]),
        (pa.array([["a"], ["b\0"], None]), [1]),
        (pa.array([["\\u0000"], ["\\\\u0000"]]), []),
        (pa.array([{"a\0": 1}]), [0]),
        (pa.array([-2_440_588 - 1, -2_440_588, 0], pa.int32()).view(pa.date32()), [0]),
        (pa.array([-210_866_803_200_000_001, -210_866_803_200_000_000]).view(pa.timestamp("us")),
         [0]),
    ],
    ids=["nul", "utf-8", "nul in a list", "backslashes", "nul in a name", "date", "timestamp"],
)  # fmt: skip
def test_values_that_postgresql_cannot_store_are_found_and_all_others_arrive(
    postgres: Database, array: pa.Array, rows: list[int]
) -> None:
    field = pa.field("v", array.type)
    kind = choose_type(field)
    found = find_unrepresentable(array, field, kind)
    assert ([] if found is None else found.rows.tolist()) == rows
    good = array.take(pa.array([n for n in range(len(array)) if n not in rows], pa.int64()))
    if len(good) and not pa.types.is_temporal(array.type):
        assert len(round_trip(postgres, good, field, kind)) == len(good)
