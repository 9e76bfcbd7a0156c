"""Predicates: their values, their three values of truth, and errors that point at the place."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.column_filter import Comparison
from tailerd.errors import UsageError
from tailerd.transforms.where import Predicate, parse_predicate

NAN = float("nan")
NINE = dt.datetime(2026, 1, 1, 9, tzinfo=dt.UTC)
PRICES = ["10.50", "-0.01", None, "0", "99.99", "5"]
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", None, "1999-01-01", "2026-01-01"]
ROWS = pa.RecordBatch.from_arrays(
    [
        pa.array(["EU", "US", None, "", "e%u", "it's\n"], pa.string()),
        pa.array([5, 11, None, -3, 2**62, 0], pa.int64()),
        pa.array([1.5, NAN, None, -0.0, float("inf"), 0.1], pa.float64()),
        pa.array(
            [Decimal("10.50"), Decimal("-0.01"), None, Decimal(0), Decimal("99.99"), Decimal(5)]
        ),
        pa.array(
            [dt.date(2026, 1, day) for day in (1, 2, 3)]
            + [None, dt.date(1999, 1, 1), dt.date(2026, 1, 1)]
        ),
        pa.array(
            [dt.datetime(2026, 1, 1, 9, tzinfo=dt.UTC), None] * 3, pa.timestamp("us", tz="UTC")
        ),
        pa.array([True, False, None] * 2),
        pa.array([{"city": "Ulm", "at": {"no": 1}}, {"city": None, "at": None}, None] * 2),
        pa.array([b"\x00", b"\xff", None] * 2, pa.binary()),
    ],
    names=["region", "n", "x", "price", "day", "at", "ok", "home", "raw"],
)


def passing(text: str, rows: pa.RecordBatch = ROWS) -> list[int]:
    predicate = pickle.loads(pickle.dumps(parse_predicate(text)))
    predicate.check(rows.schema)
    return [number for number, passes in enumerate(predicate.passes(rows)) if passes]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region = 'EU'", [0]),
        ("region <> 'EU'", [1, 3, 4, 5]),
        ("not region = 'EU'", [1, 3, 4, 5]),
        ("region = 'EU' or n > 10", [0, 1, 4]),
        ("region = 'it''s\n'", [5]),
        ("`region` = 'EU' and \"n\" = 5", [0]),
        ("region in ('EU', 'US')", [0, 1]),
        ("region not in ('EU', null)", []),
        ("region in ('EU', null)", [0]),
        ("region is null", [2]),
        ("region is not null and n is not null", [0, 1, 3, 4, 5]),
        ("region like 'e%'", [4]),
        ("region like 'e!%%' escape '!'", [4]),
        ("region like 'e\\%_'", [4]),
        ("region like '__'", [0, 1]),
        ("region like 'it%'", [5]),
        ("region ilike 'e%'", [0, 4]),
        ("region not like '%U'", [1, 3, 4, 5]),
        ("region not like 'e!%%' escape '!'", [0, 1, 3, 5]),
        ("lower(region) = 'eu'", [0]),
        ("upper(region) = 'E%U'", [4]),
        ("n between -3 and 5", [0, 3, 5]),
        ("n not between -3 and 5", [1, 4]),
        ("n = 5.0", [0]),
        ("n > 4.99", [0, 1, 4]),
        ("n < -2", [3]),
        ("n = 4611686018427387904", [4]),
        ("n < 99999999999999999999", [0, 1, 3, 4, 5]),
        ("x = 0", [3]),
        ("x > 1e300", [1, 4]),
        ("x = x", [0, 1, 3, 4, 5]),
        ("x < 2", [0, 3, 5]),
        ("price = 10.5", [0]),
        ("price >= n", [0, 3, 5]),
        ("price < x", [1, 4]),
        ("day >= date '2026-01-02'", [1, 2]),
        ("day = '2026-01-01'", [0, 5]),
        ("day between '2026-01-01' and '2026-01-02'", [0, 1, 5]),
        ("at = timestamp '2026-01-01 09:00:00'", [0, 2, 4]),
        ("at = '2026-01-01T10:00:00+01:00'", [0, 2, 4]),
        ("at > day", [0, 4]),
        ("ok", [0, 3]),
        ("not ok", [1, 4]),
        ("ok is not true", [1, 2, 4, 5]),
        ("ok = false or ok is null", [1, 2, 4, 5]),
        ("home.city = 'Ulm'", [0, 3]),
        ("home.at.no = 1", [0, 3]),
        ("home is null", [2, 5]),
        ("home.city is null", [1, 2, 4, 5]),
        ("raw = x'ff'", [1, 4]),
        ("cast(n as string) = '11'", [1]),
        ("cast(region as int) = 5", []),
        ("cast(x as int) = 1", [0]),
        ("cast(n as int) is null", [2, 4]),
        ("cast(price as decimal(3, 1)) = 99.9", []),
        ("cast('2026-01-01' as date) = day", [0, 5]),
        ("n <=> null", [2]),
        ("null is null", [0, 1, 2, 3, 4, 5]),
        ("n = null", []),
        ("true", [0, 1, 2, 3, 4, 5]),
        ("(n = 5) = true", [0]),
        ("-3 = n", [3]),
        pytest.param(" and ".join(["n = 5"] * 500), [0], id="long"),
    ],
)
def test_rows_pass_where_a_condition_is_true(text: str, expected: list[int]) -> None:
    assert passing(text) == expected


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("region = 'EU' and amont > 1", 18, "There is no column 'amont'."),
        ("n > 'a'", 0, "cannot be compared"),
        ("region = 5", 0, "cannot be compared"),
        ("home = 5", 0, "cannot be compared"),
        ("home.town = 'x'", 0, "has no field 'town'"),
        ("region.x = 'x'", 0, "has no fields"),
        ("n", 0, "A condition is needed"),
        ("n like 'a%'", 0, "LIKE needs a text"),
        ("region like n", 0, "pattern between quotes"),
        ("lower(n) = 'a'", 6, "needs a text"),
        ("day > '2026-13-01'", 6, "is not a value of the type date"),
        ("n = 5 and coalesce(n, 1) = 1", 19, "'coalesce' is not possible"),
        ("n + 1 > 2", 0, "'add' is not possible"),
        ("n in (select 1)", 0, "IN needs a list"),
        ("n in ()", 0, "IN needs a list"),
        ("n between symmetric 2 and 1", 0, "'symmetric' is not possible"),
        ("region like any ('a', 'b')", 17, "'any' is not possible"),
        ("n in unnest(n)", 0, "IN needs a list"),
        ("n = 1; n = 2", 0, "'block' is not possible"),
        ("n = 1 and", 6, "not valid SQL"),
        ("(n = 1", 5, "not valid SQL"),
        ("n = 'x", None, "not valid SQL"),
        ("", None, "empty"),
        pytest.param("not " * 2000 + "ok", None, "nested too deeply", id="deep"),
        ("cast(n as map<int, int>) = 1", 5, "can be cast"),
        ("n = 1\n  and amont = 2", 12, "There is no column"),
    ],
)
def test_what_cannot_be_used_is_pointed_at(text: str, column: int | None, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_predicate(text).check(ROWS.schema)
    assert reason in raised.value.message
    lines = raised.value.message.splitlines()
    assert (len(lines) > 1) == (column is not None)
    if column is not None:
        start = text.rfind("\n", 0, column) + 1
        assert lines[1] == f"  {text[start:].splitlines()[0]}"
        assert lines[2].index("^") == 2 + column - start


def test_a_column_that_an_older_version_lacks_is_null() -> None:
    older = ROWS.select(["n"])
    assert list(parse_predicate("n = 5 or region = 'EU'").passes(older)) == [True] + [False] * 5
    assert parse_predicate("home.city is null").passes(older).all()


def test_the_columns_that_it_reads_are_known() -> None:
    predicate = parse_predicate("home.city = 'x' and (n > 1 or lower(region) = 'eu') and n < 5")
    assert predicate.columns == ("home", "n", "region")


def test_conditions_on_single_columns_are_found_for_skipping_files() -> None:
    text = "region = 'EU' and (day >= '2026-01-02' and 5 > n) and n in (1, 2) and x < 1 or false"
    assert parse_predicate(text).filters(ROWS.schema) == ()
    found = parse_predicate(text.removesuffix(" or false")).filters(ROWS.schema)
    assert [(each.column, each.comparison, each.values) for each in found] == [
        ("region", Comparison.EQUAL, ("EU",)),
        ("day", Comparison.AT_LEAST, (dt.date(2026, 1, 2),)),
        ("n", Comparison.LESS, (5,)),
        ("n", Comparison.IN, (1, 2)),
    ]


# DuckDB as the oracle: every condition that both understand has the same rows.

_VALUES = {
    "s": (st.sampled_from(["", "a", "b", "A", "ab", "a%", "ä", "\n"]), pa.string()),
    "i": (st.integers(-3, 3), pa.int32()),
    "j": (st.integers(-3, 3), pa.int64()),
    "f": (st.sampled_from([0.0, -0.0, 1.5, NAN, -1.0]), pa.float64()),
    "d": (
        st.sampled_from([Decimal("0.00"), Decimal("1.50"), Decimal("-1.00")]),
        pa.decimal128(9, 2),
    ),
    "t": (st.sampled_from([dt.date(2026, 1, 1), dt.date(2026, 1, 2)]), pa.date32()),
    "b": (st.booleans(), pa.bool_()),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.integers(0, 8))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
        for values, kind in _VALUES.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(_VALUES))


def _comparison(draw: st.DrawFn) -> str:
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    number = st.sampled_from(["i", "j", "f", "d", "0", "1.5", "-1", "null"])
    text = st.sampled_from(["s", "'a'", "'ab'", "''", "lower(s)", "upper(s)", "null"])
    day = st.sampled_from(["t", "date '2026-01-02'", "null"])
    one, other = draw(st.sampled_from([(number, number), (text, text), (day, day)]))
    return f"{draw(one)} {operator} {draw(other)}"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 9 if depth else 6))
    if kind <= 3:
        return _comparison(draw)
    if kind == 4:
        return draw(st.sampled_from(["b", "i is null", "s is not null", "b is true", "f is null"]))
    if kind == 5:
        word = draw(st.sampled_from(["like", "not like"]))
        return f"s {word} '{draw(st.sampled_from(['a%', '%', '_', 'a_', '']))}'"
    if kind == 6:
        values = draw(st.lists(st.sampled_from(["1", "2", "null", "-1", "1.5"]), min_size=1))
        return f"i {draw(st.sampled_from(['', 'not ']))}in ({', '.join(values)})"
    if kind == 7:
        return f"not ({draw(conditions(depth - 1))})"
    word = draw(st.sampled_from(["and", "or"]))
    return f"({draw(conditions(depth - 1))}) {word} ({draw(conditions(depth - 1))})"


@given(batches(), conditions())
def test_the_same_rows_pass_as_in_duckdb(rows: pa.RecordBatch, condition: str) -> None:
    numbered = pa.Table.from_batches([rows]).append_column("no", pa.array(range(rows.num_rows)))
    relation: Any = duckdb.connect().from_arrow(numbered)
    expected = [row[0] for row in relation.filter(condition).order("no").select("no").fetchall()]
    found = Predicate(condition).passes(rows)
    assert [number for number, passes in enumerate(found) if passes] == expected
