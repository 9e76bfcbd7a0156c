"""Change rows through a view: updates that enter and leave, and updates that change nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeType
from tests.transforms.batches import change_batch, view_of

PRE, POST = "update_preimage", "update_postimage"


def rows_of(
    rows: list[tuple[str, int, str]], kind: ChangeType | None = None, **options: Any
) -> list[Any]:
    """Return the change and values of each row (change, id, region) as a view delivers them."""
    changes, ids, regions = zip(*rows, strict=True)
    columns = {"id": pa.array(ids, pa.int64()), "region": pa.array(regions)}
    batch = change_batch(columns, list(changes) if kind is None else kind)
    found = view_of(**options).bind(batch.rows.schema).apply(batch)
    if found is None:
        return []
    values = [found.rows.column(name).to_pylist() for name in found.rows.schema.names]
    return list(zip(found.change_types().to_pylist(), *values, strict=True))


EU = "region = 'EU'"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(PRE, 1, "EU"), (POST, 1, "EU")], [(PRE, 1, "EU"), (POST, 1, "EU")]),
        ([(PRE, 1, "EU"), (POST, 1, "US")], [("delete", 1, "EU")]),
        ([(PRE, 1, "US"), (POST, 1, "EU")], [("insert", 1, "EU")]),
        ([(PRE, 1, "US"), (POST, 1, "US")], []),
        ([("insert", 1, "EU"), ("delete", 2, "US")], [("insert", 1, "EU")]),
        (
            [(PRE, 1, "EU"), (PRE, 2, "US"), (POST, 2, "EU"), (POST, 1, "US")],
            [("delete", 1, "EU"), ("insert", 2, "EU")],
        ),
    ],
)
@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_row_that_enters_is_inserted_and_one_that_leaves_is_deleted(
    rows: list[tuple[str, int, str]], expected: list[tuple[str, int, str]], key: tuple[str, ...]
) -> None:
    assert rows_of(rows, where=EU, key=key) == expected


def test_images_that_cannot_be_paired_are_a_delete_and_an_insert() -> None:
    rows = [(PRE, 1, "EU"), (PRE, 2, "EU"), (POST, 1, "EU"), (POST, 2, "EU")]
    assert [row[0] for row in rows_of(rows, where=EU)] == ["delete"] * 2 + ["insert"] * 2
    assert [row[0] for row in rows_of(rows, where=EU, key=["id"])] == [PRE, PRE, POST, POST]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ChangeType.DELETE, "delete"),
        (ChangeType.INSERT, "insert"),
        (ChangeType.UPDATE_PREIMAGE, "delete"),
        (ChangeType.UPDATE_POSTIMAGE, "insert"),
    ],
)
def test_rows_of_one_change_are_selected(kind: ChangeType, expected: str) -> None:
    assert rows_of([("", 1, "EU"), ("", 2, "US")], kind, where=EU) == [(expected, 1, "EU")]


@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        # A column that is not delivered.
        ({"columns": ["id"]}, [(PRE, 1, "EU"), (POST, 1, "US")], []),
        ({"columns": ["id"]}, [(PRE, 1, "EU"), (POST, 2, "EU")], [(PRE, 1), (POST, 2)]),
        # The same masked value.
        ({"mask": {"region": "redact"}}, [(PRE, 1, "EU"), (POST, 1, "US")], []),
        # A column of the condition.
        (
            {"columns": ["id"], "where": "region in ('EU', 'US')"},
            [(PRE, 1, "EU"), (POST, 1, "US")],
            [(PRE, 1), (POST, 1)],
        ),
        ({"columns": ["id"], "where": EU}, [(PRE, 1, "EU"), (POST, 1, "US")], [("delete", 1)]),
        # Among others.
        (
            {},
            [("insert", 3, "x"), (PRE, 1, "EU"), (POST, 1, "EU"), (PRE, 2, "a"), (POST, 2, "b")],
            [("insert", 3, "x"), (PRE, 2, "a"), (POST, 2, "b")],
        ),
        (
            {},
            [("delete", 1, "EU"), ("insert", 1, "EU")],
            [("delete", 1, "EU"), ("insert", 1, "EU")],
        ),
    ],
)
def test_updates_that_change_nothing_are_left_out(
    options: dict[str, Any], rows: list[tuple[str, int, str]], expected: list[tuple[Any, ...]]
) -> None:
    assert rows_of(rows, unchanged="drop", **options) == expected


def test_the_digest_names_the_meaning_and_not_the_spelling() -> None:
    view = view_of(columns=["a"], where="a = 1", mask={"a": "redact"})
    same = view_of(where="a = 1 ", mask={"a": "redact"}, columns=["a"])
    assert view.digest() == same.digest()
    for other in (
        view_of(columns=["b"], where="a = 1", mask={"a": "redact"}),
        view_of(columns=["a"], where="a = 2", mask={"a": "redact"}),
        view_of(columns=["a"], where="a = 1", mask={"a": "null"}),
        view_of(columns=["a"], where="a = 1", mask={"a": "redact"}, unchanged="drop"),
        view_of(columns=["a"], where="a = 1", mask={"a": "redact"}, rename={"a": "b"}),
    ):
        assert view.digest() != other.digest()
