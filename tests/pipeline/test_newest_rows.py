"""Rows for the eye: the last ones, short, and without masked columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import VARIANT_FIELD, ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.pipeline.newest_rows import LONGEST_ROW_BYTES, NewestRows
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import Event, MaskUnmatched
from tests.records.variants import array_of, metadata_of, object_of, short_string


def batch(version: int, **columns: Any) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.RecordBatch.from_pydict(columns),
        change_type=ChangeType.INSERT,
        version=Version(version),
        timestamp_us=0,
        change_source=ChangeSourceKind.FILES,
    )


def test_the_last_rows_come_newest_first_with_their_change() -> None:
    rows = NewestRows(3)
    take = rows.listener("orders")
    take(batch(1, id=[1, 2]))
    take(batch(2, id=[3, 4]))
    assert [(row["id"], row["_commit_version"]) for row in rows.list_rows("orders")] == [
        (4, 2),
        (3, 2),
        (2, 1),
    ]
    assert rows.list_rows("orders")[0]["_change_type"] == "insert"
    assert rows.list_rows("payments") == []


def test_masked_columns_are_never_kept_whatever_their_case() -> None:
    rows = NewestRows(3, ["EMAIL", "card"])
    rows.listener("orders")(batch(1, id=[1], Email=["a@b"], card=["4111"]))
    assert "a@b" not in repr(vars(rows))
    assert "4111" not in repr(vars(rows))
    assert sorted(rows.list_masked("orders")) == ["Email", "card"]
    assert sorted(rows.list_rows("orders")[0]) == [
        "_change_type",
        "_commit_timestamp",
        "_commit_version",
        "id",
    ]


ADDRESS = {"email": "bob@example.org", "n": 1}
STRUCT = pa.struct([("Email", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (STRUCT, ("bob@example.org", 1), {"n": 1}),
        (pa.list_(STRUCT), [("bob@example.org", 1), None], [{"n": 1}, None]),
        (pa.large_list(pa.list_(STRUCT)), [[("bob@example.org", 1)]], [[{"n": 1}]]),
        (pa.map_(pa.string(), STRUCT), [("k", ("bob@example.org", 1))], {"k": {"n": 1}}),
        (pa.map_(pa.string(), pa.string()), [("EMAIL", "bob@example.org"), ("n", "1")], {"n": "1"}),
        (pa.map_(STRUCT, pa.int64()), [(("bob@example.org", 1), 1)], {}),
        (pa.struct([("Email", STRUCT), ("n", pa.int64())]), (("bob@example.org", 2), 1), {"n": 1}),
        (STRUCT, None, None),
    ],
    ids=str,
)
def test_a_dotted_path_masks_a_field_wherever_the_structs_are(
    kind: pa.DataType, value: object, shown: object
) -> None:
    reported: list[Event] = []
    rows = NewestRows(3, ["Customer.email"], Telemetry([reported.append]))
    column = pa.array([value], kind)
    rows.listener("orders")(batch(1, id=[1], customer=column, email=["shown"]))
    assert "bob" not in repr(vars(rows))
    assert rows.list_rows("orders")[0]["customer"] == shown
    assert rows.list_rows("orders")[0]["email"] == "shown"
    assert rows.list_masked("orders") == ["Customer.email"]
    assert not reported


DEEP = pa.list_(pa.map_(pa.string(), pa.struct([("x.y", STRUCT)])))
DEEP_VALUE = [[("k", (("bob@example.org", 1),))]]
HOMES = [("home", ("bob@example.org", 1))]
OF_PEOPLE = pa.map_(pa.string(), STRUCT)
MEMBER = pa.struct([("element", STRUCT), ("Email", pa.string()), ("n", pa.int64())])
MEMBER_VALUE = [(("bob@example.org", 1), "bob@example.org", 2)]
TEXTS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("path", "kind", "value", "shown"),
    [
        ("value.email", OF_PEOPLE, HOMES, {"home": {"n": 1}}),
        ("key_value.value.email", OF_PEOPLE, HOMES, {"home": {"n": 1}}),
        ("HOME.email", OF_PEOPLE, HOMES, {"home": {"n": 1}}),
        ("value", OF_PEOPLE, HOMES, {}),
        ("key_value", OF_PEOPLE, HOMES, {}),
        ("key", TEXTS, [("bob@example.org", "x")], {}),
        ("key_value.key", TEXTS, [("bob@example.org", "x")], {}),
        ("value", TEXTS, [("x", "bob@example.org")], {}),
        ("bob", TEXTS, [("bob", "bob@example.org"), ("n", "1")], {"n": "1"}),
        ("key.email", pa.map_(STRUCT, pa.int64()), [(("bob@example.org", 1), 1)], {}),
        ("element.email", pa.list_(STRUCT), [("bob@example.org", 1), None], [{"n": 1}, None]),
        ("element", pa.list_(pa.string()), ["bob@example.org"], []),
        ("element.email", pa.list_(MEMBER), MEMBER_VALUE, [{"element": {"n": 1}, "n": 2}]),
        ("element.value.x.y.email", DEEP, DEEP_VALUE, [{"k": {"x.y": {"n": 1}}}]),
        ("value.x.y.email", DEEP, DEEP_VALUE, [{"k": {"x.y": {"n": 1}}}]),
        ("element.value", DEEP, DEEP_VALUE, [{}]),
    ],
    ids=str,
)
def test_the_words_of_spark_and_parquet_for_the_inside_of_lists_and_maps_may_be_in_a_path(
    path: str, kind: pa.DataType, value: object, shown: object
) -> None:
    reported: list[Event] = []
    rows = NewestRows(3, [f"customer.{path}"], Telemetry([reported.append]))
    rows.listener("orders")(batch(1, id=[1], customer=pa.array([value], kind)))
    assert "bob@" not in repr(vars(rows))
    assert rows.list_rows("orders")[0]["customer"] == shown
    assert rows.list_masked("orders") == [f"customer.{path}"]
    assert not reported


@pytest.mark.parametrize(
    ("path", "kind", "value"),
    [
        ("value.emial", OF_PEOPLE, HOMES),
        ("home.emial", OF_PEOPLE, HOMES),
        ("emial", OF_PEOPLE, HOMES),
        ("element.emial", pa.list_(STRUCT), [("bob@example.org", 1)]),
        ("value.email", TEXTS, [("bob", "1")]),
        ("element.value.x.email", DEEP, DEEP_VALUE),
    ],
    ids=str,
)
def test_a_path_that_ends_at_nothing_inside_a_list_or_map_is_told(
    path: str, kind: pa.DataType, value: object
) -> None:
    reported: list[Event] = []
    rows = NewestRows(3, [f"customer.{path}"], Telemetry([reported.append]))
    rows.listener("orders")(batch(1, customer=pa.array([value], kind)))
    [event] = reported
    assert isinstance(event, MaskUnmatched)
    assert f"have: customer.{path}." in event.reason
    assert rows.list_masked("orders") == []


def test_an_entry_of_a_map_is_left_out_by_its_key_though_the_schema_does_not_tell_of_it() -> None:
    rows = NewestRows(3, ["customer.home"])
    people = [*HOMES, ("n", ("x", 2))]
    rows.listener("orders")(batch(1, customer=pa.array([people], OF_PEOPLE)))
    assert rows.list_rows("orders")[0]["customer"] == {"n": {"Email": "x", "n": 2}}


def test_a_path_ends_at_any_depth_and_a_name_may_have_dots() -> None:
    rows = NewestRows(3, ["a.b.c", "x.y", "a.d"])
    inner = {"b": {"c": "bob", "e": 1}, "d": {"c": "bob"}}
    rows.listener("orders")(batch(1, a=[inner], **{"x.y": ["bob"], "c": ["shown"]}))
    [row] = rows.list_rows("orders")
    assert (row["a"], row["c"], "x.y" in row) == ({"b": {"e": 1}}, "shown", False)
    assert sorted(rows.list_masked("orders")) == ["a.b.c", "a.d", "x.y"]


def test_a_variant_has_fields_too() -> None:
    storage = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
    inner = object_of({0: short_string("bob"), 1: short_string("shown")})
    value = {"metadata": metadata_of("email", "n"), "value": array_of(inner, short_string("x"))}
    schema = pa.schema([pa.field("customer", storage, metadata=VARIANT_FIELD)])
    table = pa.RecordBatch.from_pylist([{"customer": value}], schema=schema)
    rows = NewestRows(3, ["customer.email"])
    rows.listener("orders")(replace(batch(1, id=[1]), rows=table))
    assert rows.list_rows("orders")[0]["customer"] == [{"n": "shown"}, "x"]


def test_names_that_mask_nothing_are_told_once_for_each_table() -> None:
    reported: list[Event] = []
    rows = NewestRows(3, ["email", "emial", "customer.mail", "id.x"], Telemetry([reported.append]))
    for table in ("orders", "payments"):
        for version in range(2):
            rows.listener(table)(batch(version, id=[1], email=["a@b"], customer=[ADDRESS]))
    rows.listener("orders")(batch(3, id=[1], email=["a@b"], other=["x"]))
    assert [event.table for event in reported if isinstance(event, MaskUnmatched)] == [
        "orders",
        "payments",
    ]
    for event in reported:
        assert isinstance(event, MaskUnmatched)
        assert "have: emial, customer.mail, id.x." in event.reason


def test_a_masked_column_that_is_renamed_is_told() -> None:
    reported: list[Event] = []
    rows = NewestRows(3, ["email", "emial"], Telemetry([reported.append]))
    take = rows.listener("orders")
    take(batch(1, email=["a@b"]))
    take(batch(2, mail=["a@b"]))
    take(batch(3, mail=["a@b"], other=["x"]))
    first, second = reported
    assert isinstance(first, MaskUnmatched)
    assert isinstance(second, MaskUnmatched)
    assert "have: emial." in first.reason
    assert "have: email." in second.reason


def test_a_table_that_goes_and_comes_again_is_looked_at_anew() -> None:
    reported: list[Event] = []
    rows = NewestRows(3, ["email"], Telemetry([reported.append]))
    for version in (1, 2):
        rows.listener("orders")(batch(version, mail=["a@b"]))
        rows.forget("orders")
        assert rows.list_masked("orders") == []
    assert len(reported) == 2


@pytest.mark.parametrize("mask", [[], ["customer.email"]], ids=["no mask", "mask"])
def test_a_row_is_as_long_with_a_mask_as_without(mask: list[str]) -> None:
    rows = NewestRows(3, mask)
    text = "\u00fc" * (LONGEST_ROW_BYTES // 4)
    rows.listener("orders")(batch(1, id=[1], text=[text], customer=[ADDRESS]))
    assert [row["text"] for row in rows.list_rows("orders")] == [text]


def test_a_table_of_masked_columns_only_shows_its_changes() -> None:
    rows = NewestRows(3, ["id"])
    rows.listener("orders")(batch(1, id=[1]))
    assert [row["_change_type"] for row in rows.list_rows("orders")] == ["insert"]


def test_change_types_that_differ_stay_with_their_rows() -> None:
    rows = NewestRows(2)
    mixed = ChangeBatch(
        rows=pa.RecordBatch.from_pydict({"id": [1, 2, 3]}),
        change_type=pa.array(["insert", "update_preimage", "delete"]).dictionary_encode(),
        version=Version(1),
        timestamp_us=0,
        change_source=ChangeSourceKind.FILES,
    )
    rows.listener("orders")(mixed)
    assert [(row["id"], row["_change_type"]) for row in rows.list_rows("orders")] == [
        (3, "delete"),
        (2, "update_preimage"),
    ]


def test_huge_rows_are_left_out_and_cost_nothing() -> None:
    rows = NewestRows(5)
    rows.listener("orders")(batch(1, id=[1, 2], text=["x" * 50_000_000, "short"]))
    assert [row["id"] for row in rows.list_rows("orders")] == [2]
    rows.listener("orders")(batch(2, id=[3], text=["x" * 50_000_000]))
    assert [row["id"] for row in rows.list_rows("orders")] == [2]


def test_a_table_that_goes_takes_its_rows_along() -> None:
    rows = NewestRows(5)
    rows.listener("orders")(batch(1, id=[1]))
    rows.forget("orders")
    assert rows.list_rows("orders") == []
