"""Rows for the eye: the last ones, short, and without masked columns."""

from __future__ import annotations

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.pipeline.newest_rows import NewestRows


def batch(version: int, **columns: list[object]) -> ChangeBatch:
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
    assert [(row["id"], row["_commit_version"]) for row in rows.of("orders")] == [
        (4, 2),
        (3, 2),
        (2, 1),
    ]
    assert rows.of("orders")[0]["_change_type"] == "insert"
    assert rows.of("payments") == []


def test_masked_columns_are_never_kept_whatever_their_case() -> None:
    rows = NewestRows(3, ["EMAIL", "card"])
    rows.listener("orders")(batch(1, id=[1], Email=["a@b"], card=["4111"]))
    assert "a@b" not in repr(vars(rows))
    assert "4111" not in repr(vars(rows))
    assert sorted(rows.masked("orders")) == ["Email", "card"]
    assert sorted(rows.of("orders")[0]) == [
        "_change_type",
        "_commit_timestamp",
        "_commit_version",
        "id",
    ]


def test_a_table_of_masked_columns_only_shows_its_changes() -> None:
    rows = NewestRows(3, ["id"])
    rows.listener("orders")(batch(1, id=[1]))
    assert [row["_change_type"] for row in rows.of("orders")] == ["insert"]


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
    assert [(row["id"], row["_change_type"]) for row in rows.of("orders")] == [
        (3, "delete"),
        (2, "update_preimage"),
    ]


def test_huge_rows_are_left_out_and_cost_nothing() -> None:
    rows = NewestRows(5)
    rows.listener("orders")(batch(1, id=[1, 2], text=["x" * 50_000_000, "short"]))
    assert [row["id"] for row in rows.of("orders")] == [2]
    rows.listener("orders")(batch(2, id=[3], text=["x" * 50_000_000]))
    assert [row["id"] for row in rows.of("orders")] == [2]


def test_a_table_that_goes_takes_its_rows_along() -> None:
    rows = NewestRows(5)
    rows.listener("orders")(batch(1, id=[1]))
    rows.forget("orders")
    assert rows.of("orders") == []
