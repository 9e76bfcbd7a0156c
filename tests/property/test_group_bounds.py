"""Row groups that are left out by their statistics have no row that meets a condition."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailerd.changefeed.limits import BatchLimit
from tailerd.reading.file_scan import FieldScan, FileScan
from tailerd.reading.parquet import read_file
from tailerd.reading.row_selection import RowSelection
from tailerd.transforms.where import parse_predicate

TIMES = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))
MILLIS = TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))
TEXTS = st.one_of(
    st.text(max_size=3),
    st.text("aé\U0010ffff", min_size=60, max_size=70),
    st.sampled_from(["a", "b", "ab", ""]),
)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = min(10**precision - 1, 2000)
    return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-scale))


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-3, 3),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.date32(): st.dates(dt.date(1500, 1, 1), dt.date(2200, 1, 1)),
    pa.timestamp("ms"): MILLIS,
    pa.timestamp("us"): TIMES,
    pa.timestamp("ns"): TIMES,
    pa.timestamp("us", "UTC"): TIMES,
    pa.decimal128(5, 2): decimals(5, 2),
    pa.decimal128(18, 4): decimals(18, 4),
    pa.decimal128(38, 10): decimals(38, 10),
}


def literal(kind: pa.DataType, value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime):
        word = "timestamptz" if kind.tz else "timestamp_ntz"
        return f"cast('{value.isoformat(sep=' ')}' as {word})"
    if isinstance(value, dt.date):
        return f"date '{value.isoformat()}'"
    if isinstance(value, float):
        return f"{value!r}" if np.isfinite(value) else "1e300"
    return f"{value}"


@st.composite
def files(draw: st.DrawFn) -> tuple[pa.Table, str, dict[str, Any]]:
    """Return the rows of a file, a condition, and how the file is written."""
    kind = draw(st.sampled_from(list(VALUES)))
    values = draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=30))
    if draw(st.booleans()):
        values.sort(key=lambda value: (value is None, value if value == value else 0))
    known = [value for value in values if value is not None]
    chosen = st.sampled_from(known) | VALUES[kind] if known else VALUES[kind]
    one, other = (literal(kind, draw(chosen)) for _ in range(2))
    condition = draw(
        st.sampled_from(
            [
                *(f"x {sign} {one}" for sign in ("=", "<", "<=", ">", ">=")),
                f"x in ({one}, {other})",
                f"x between {one} and {other}",
                "x is null",
                "x is not null",
            ]
        )
    )
    if pa.types.is_boolean(kind):
        condition = draw(st.sampled_from(["x", "x = true", "x is null"]))
    options = {
        "row_group_size": draw(st.integers(1, 8)),
        "store_schema": draw(st.booleans()),
        "store_decimal_as_integer": draw(st.booleans()),
        "write_statistics": draw(st.sampled_from([True, True, True, False])),
        "use_dictionary": draw(st.booleans()),
    }
    return pa.table({"x": pa.array(values, kind)}), condition, options


@settings(max_examples=600, deadline=None)
@given(files(), st.none() | st.sets(st.integers(0, 29)), st.integers(1, 5))
def test_the_rows_that_meet_a_condition_are_the_same_without_the_row_groups_left_out(
    file: tuple[pa.Table, str, dict[str, Any]], chosen: set[int] | None, max_rows: int
) -> None:
    table, condition, options = file
    written = io.BytesIO()
    pq.write_table(table, written, **options)
    kind = pq.read_schema(io.BytesIO(written.getvalue())).field("x").type
    if pa.types.is_timestamp(kind):
        # As tables have them.
        kind = pa.timestamp("us", "UTC" if kind.tz else None)
    field = FieldScan(target=pa.field("x", kind), name="x")
    predicate = parse_predicate(condition)
    filters = predicate.filters(pa.schema([field.target]))
    found = []
    for given_filters in ((), filters):
        scan = FileScan(
            url="x",
            fields=(field,),
            filters=given_filters,
            select_rows=None
            if chosen is None
            else lambda rows, _: RowSelection(
                BitMap64(number for number in chosen if number < rows), is_included=True
            ),
        )
        rows: list[tuple[int, Any]] = []
        parts = read_file(
            scan, BatchLimit(max_rows=max_rows), lambda _: io.BytesIO(written.getvalue())
        )
        for part in parts:
            at = part.positions
            positions = at + np.arange(part.rows.num_rows) if isinstance(at, int) else at
            passes = predicate.passes(part.rows)
            values = part.rows.column(0).to_pylist()
            rows += [(int(positions[n]), repr(values[n])) for n in np.flatnonzero(passes)]
        found.append(rows)
    assert found[0] == found[1]
