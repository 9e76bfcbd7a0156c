"""What filters leave out of a Spark batch holds no row that passes them."""

from __future__ import annotations

import asyncio
import datetime as dt
import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.formats.versioned_source import VersionedSource
from tailerd.spark.change_range import UNLIMITED, tasks_between
from tailerd.spark.datasource import column_filters, first_version, last_version, may_match
from tests.tables.builder import CDF, TableBuilder
from tests.tables.opened import open_delta

FIELDS = [("id", "long"), ("p", "string"), ("n", "integer"), ("day", "date"), ("d", "decimal(5,2)")]
DAY = dt.date(2024, 2, 28)
STRINGS = (None, "", "a", "ab", "Z", "ä", "\U0001f600", "￿", "a b=c/ü")

ORDERED: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[ChangeTask, list[Row]]]:
    return asyncio.run(_tasks(tmp_path_factory.mktemp("table")))


async def _tasks(folder: Path) -> list[tuple[ChangeTask, list[Row]]]:
    table = TableBuilder(folder, fields=FIELDS, partition_by=["p", "n", "day", "d"], properties=CDF)
    for number, p in enumerate(STRINGS):
        n = None if number % 4 == 3 else number - 3
        day = None if number == 5 else DAY + dt.timedelta(days=number)
        d = None if number == 6 else Decimal(number - 4) / 4
        table.append([{"id": number, "p": p, "n": n, "day": day, "d": d}])
    adds = list(table.state().adds.values())
    table.delete_rows({"add": adds[0]}, [0])
    table.commit(table.remove({"add": adds[3]}))
    row = {"id": 1, "p": "a", "n": 1, "day": DAY, "d": None}
    changes = [{**row, "_change_type": kind} for kind in ("update_preimage", "update_postimage")]
    table.commit(
        table.cdc_file(changes, partition={"p": "a", "n": "1", "day": str(DAY), "d": None})
    )
    source = await open_delta(str(folder))
    start = await source.initial_offset("0")
    end = await source.latest_offset(start, UNLIMITED)
    found = await tasks_between(source, start, end)
    snapshot = await source.initial_offset("snapshot")
    found += await tasks_between(source, snapshot, snapshot.after_version(source))
    return [(task, _rows(source, task)) for task in found]


def _rows(source: VersionedSource, task: ChangeTask) -> list[Row]:
    batches = source.read(task, DEFAULT_BATCH_LIMIT)
    return [row for batch in batches for row in batch.to_arrow().to_pylist()]


def _values(column: str, times: list[dt.datetime]) -> st.SearchStrategy[Any]:
    near = st.sampled_from([dt.timedelta(0), *(dt.timedelta(microseconds=n) for n in (-1, 1))])
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "id": st.integers(-1, 10),
        "p": st.sampled_from([text for text in STRINGS if text is not None]) | st.text(max_size=2),
        "n": st.integers(-5, 7),
        "day": st.dates(DAY - dt.timedelta(days=1), DAY + dt.timedelta(days=10)),
        "d": st.decimals(-2, 2, places=2) | st.integers(-2, 2),
        "_change_type": st.sampled_from(["insert", "delete", "update_preimage", "nothing"]),
        "_commit_version": st.integers(-2, 15),
        "_commit_timestamp": st.builds(operator.add, st.sampled_from(times), near)
        | st.sampled_from([time.replace(tzinfo=None) for time in times]),
    }
    return kinds[column]


@st.composite
def filters(draw: st.DrawFn, times: list[dt.datetime]) -> list[Filter]:
    """Filters as Spark pushes them: all of them must hold."""
    found: list[Filter] = []
    for _ in range(draw(st.integers(1, 3))):
        column = draw(
            st.sampled_from(
                ["id", "p", "n", "day", "d", "_change_type", "_commit_version", "_commit_timestamp"]
            )
        )
        values = _values(column, times)
        kind: Any = draw(st.sampled_from([*ORDERED, EqualNullSafe, In, IsNull, IsNotNull]))
        if kind is In:
            found.append(In((column,), tuple(draw(st.lists(st.none() | values, max_size=3)))))
        elif kind in (IsNull, IsNotNull):
            found.append(kind((column,)))
        else:
            found.append(
                kind((column,), draw(values if kind is not EqualNullSafe else values | st.none()))
            )
    return found


def _passes(row: Row, each: Any) -> bool:
    """SQL's meaning, where it is certain: a time without a zone may be any."""
    value = row[each.attribute[0]]
    match each:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case In(value=choices):
            return any(_passes(row, EqualTo(each.attribute, choice)) for choice in choices)
        case EqualNullSafe(value=None):
            return value is None
    expected = each.value
    if value is None or expected is None:
        return False
    if isinstance(expected, dt.datetime) and expected.tzinfo is None:
        return True
    if isinstance(value, str):
        value, expected = value.encode(), expected.encode("utf-8", "surrogatepass")
    compare = ORDERED[EqualTo] if isinstance(each, EqualNullSafe) else ORDERED[type(each)]
    return compare(value, expected)


@given(data=st.data())
def test_no_row_that_passes_is_left_out(
    tasks: list[tuple[ChangeTask, list[Row]]], data: st.DataObject
) -> None:
    times = sorted({row["_commit_timestamp"] for _, rows in tasks for row in rows})
    given_filters = data.draw(filters(times))
    first, last = first_version(given_filters), last_version(given_filters)
    for task, rows in tasks:
        is_read = may_match(task, column_filters(given_filters))
        is_read = is_read and first <= task.version and (last is None or task.version <= last)
        if not is_read:
            assert not [r for r in rows if all(_passes(r, each) for each in given_filters)]


def test_filters_on_the_commit_time_leave_out_the_commits_of_other_times(
    tasks: list[tuple[ChangeTask, list[Row]]],
) -> None:
    times = sorted({row["_commit_timestamp"] for _, rows in tasks for row in rows})
    middle = times[len(times) // 2]
    for kind, holds in ORDERED.items():
        given_filters = [kind(("_commit_timestamp",), middle)]
        kept = {
            rows[0]["_commit_timestamp"]
            for task, rows in tasks
            if rows and may_match(task, column_filters(given_filters))
        }
        assert kept == {time for time in times if holds(time, middle)}
