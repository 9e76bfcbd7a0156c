"""Bounds of files from their statistics: exact or wider, and none where that is not certain."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from tailerd.formats.delta.protocol.data_file import DataFile, TableSchema
from tailerd.formats.delta.protocol.rewritten_files import can_compare, file_bounds, parse_bounds
from tailerd.rows.groups import ColumnBounds
from tests.tables.delta_schema import Field, array, field, struct


def schema(*fields: Field, partition_by: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(json.dumps({"type": "struct", "fields": fields}), partition_by)


def stats(lower: Any, upper: Any, nulls: Any = 0) -> str:
    found = {"minValues": {"c": lower}, "maxValues": {"c": upper}, "nullCount": {"c": nulls}}
    return json.dumps(json.dumps(found))


MS = dt.timedelta(milliseconds=1)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("long", (1, 5), (1, 5)),
        ("string", ("a", "b"), ("a", "c")),
        ("date", ("2026-01-01", "2026-01-02"), (dt.date(2026, 1, 1), dt.date(2026, 1, 2))),
        ("timestamp", ("2026-01-01T13:00:00+01:00",) * 2, (NOON - MS, NOON + MS)),
        ("long", (1.5, "5"), (None, None)),
        ("date", ("10000-01-01", 5), (None, None)),
        ("timestamp", ("0001-01-01T00:00:00+05:00", None), (None, None)),
    ],
)
def test_bounds_hold_every_value_or_are_not_known(
    kind: str, given: tuple[Any, Any], expected: tuple[Any, Any]
) -> None:
    lower, upper = expected
    found = parse_bounds(stats(*given), schema(field("c", kind)))
    assert found == {"c": ColumnBounds(lower=lower, upper=upper, null_count=0)}


@pytest.mark.parametrize("kind", ["double", "decimal(5,2)", "boolean", struct(field("x", "long"))])
def test_columns_without_a_certain_order_have_no_bounds(kind: Any) -> None:
    assert parse_bounds(stats(1, 2), schema(field("c", kind))) == {}


@pytest.mark.parametrize("text", [None, "", "null", '"x"', "{}", '"{\\"minValues\\":1}"'])
def test_unreadable_statistics_are_as_good_as_none(text: str | None) -> None:
    found = parse_bounds(text, schema(field("c", "long")))
    assert all(each == ColumnBounds() for each in found.values())


def test_partition_values_are_parsed_and_those_that_are_not_said_are_not_known() -> None:
    table = schema(field("c", "long"), field("p", "date"), partition_by=("p",))
    one, other = (
        file_bounds(
            DataFile(url="f", schema=table, partition_values=(("p", text),)),
            None,
            with_statistics=True,
        )
        for text in ("2026-01-02", "2026-1-2")
    )
    assert one == other
    lacking = DataFile(url="f", schema=table)
    assert file_bounds(lacking, None, with_statistics=True) is None


ID, NAME = field("id", "long"), field("name", "string")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([ID, NAME], [NAME, ID], True),
        ([ID], [ID, NAME], True),
        ([ID, NAME], [ID], False),
        ([field("id", "integer")], [ID], True),
        ([ID], [field("id", "integer")], False),
        ([field("l", array(struct(ID)))], [field("l", array(struct(ID, NAME)))], True),
        ([field("l", array(struct(ID, NAME)))], [field("l", array(struct(ID)))], False),
        ([field("l", array("long"))], [field("l", "string")], False),
        ([], [ID], False),
    ],
)
def test_rows_can_be_compared_where_columns_are_kept_or_widened(
    before: list[Field], after: list[Field], expected: bool
) -> None:
    assert can_compare(schema(*before), schema(*after)) is expected
