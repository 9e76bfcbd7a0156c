from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import tailerd.records.record_parts as record_parts
from tailerd import __version__
from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.errors import ConfigError, UnsupportedFeatureError
from tailerd.records.debezium import DebeziumEncoder
from tests.records.batches import TIMESTAMP, TIMESTAMP_US, change_batch

PRE, POST, INSERT, DELETE = "update_preimage", "update_postimage", "insert", "delete"


def changes(
    rows: list[tuple[str, int, str]], key: tuple[str, ...] = (), filler: int = 0
) -> list[tuple[str, tuple[int, str] | None, tuple[int, str] | None]]:
    """(op, before, after) of the records of (change type, id, value) rows."""
    found = []
    for record in encoded(rows, key):
        found.append((record["op"], _pair(record["before"]), _pair(record["after"])))
    return found


def _pair(image: dict[str, Any] | None) -> tuple[int, str] | None:
    return None if image is None else (image["id"], image["v"])


def make_batch(rows: list[tuple[str, int, str]]) -> ChangeBatch:
    columns = {
        "id": pa.array([row[1] for row in rows], pa.int64()),
        "v": pa.array([row[2] for row in rows], pa.string()),
    }
    return change_batch(columns, [row[0] for row in rows], ChangeSourceKind.CDC)


def encoded(rows: list[tuple[str, int, str]], key: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    encoder = DebeziumEncoder(name="lake", table="orders", key=key)
    batch = make_batch(rows)
    lines = encoder.encode_lines(batch)
    assert [record + b"\n" for record in encoder.encode(batch).to_pylist()] == lines.splitlines(
        keepends=True
    )
    return [json.loads(line) for line in lines.splitlines()]


def test_an_insert_is_the_whole_envelope_byte_for_byte() -> None:
    batch = change_batch({"id": pa.array([1])})
    encoder = DebeziumEncoder(name="lake", table="orders", db="shop", schema="s", table_id="t-1")
    times = '"ts_ms":1709210096123,"ts_us":1709210096123456,"ts_ns":1709210096123456000'

    assert encoder.encode_lines(batch).decode() == (
        '{"before":null,"after":{"id":1},"source":{'
        f'"version":"{__version__}","connector":"tailerd","name":"lake",{times},'
        '"snapshot":"false","db":"shop","schema":"s","table":"orders","table_id":"t-1",'
        f'"commit_version":7,"commit_timestamp":"{TIMESTAMP}","change_source":"files","sequence":"id-1/7/0.0"'
        f'}},"op":"c",{times}}}\n'
    )


def test_the_outer_times_are_those_of_processing_where_given() -> None:
    batch = change_batch({"id": pa.array([1])})
    encoder = DebeziumEncoder(name="lake", table="orders")

    [record] = encoder.encode(batch, now_us=TIMESTAMP_US + 5_000).to_pylist()

    envelope = json.loads(record)
    assert envelope["ts_us"] == TIMESTAMP_US + 5_000
    assert envelope["ts_ms"] == (TIMESTAMP_US + 5_000) // 1000
    assert envelope["source"]["ts_us"] == TIMESTAMP_US
    assert "table_id" not in envelope["source"]


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize(
    ("change", "source", "op", "image"),
    [
        (ChangeType.INSERT, ChangeSourceKind.FILES, "c", "after"),
        (ChangeType.DELETE, ChangeSourceKind.FILES, "d", "before"),
        (ChangeType.INSERT, ChangeSourceKind.SNAPSHOT, "r", "after"),
    ],
)
def test_one_change_for_all_rows(
    count: int, change: ChangeType, source: ChangeSourceKind, op: str, image: str
) -> None:
    batch = change_batch({"id": pa.array(range(count))}, change, source)

    lines = DebeziumEncoder(name="n", table="t").encode_lines(batch).splitlines()

    records = [json.loads(line) for line in lines]
    other = "before" if image == "after" else "after"
    assert [record[image] for record in records] == [{"id": index} for index in range(count)]
    assert {record["op"] for record in records} == {op}
    assert {record[other] for record in records} == {None}
    is_snapshot = "true" if op == "r" else "false"
    assert {record["source"]["snapshot"] for record in records} == {is_snapshot}


PAIRS: dict[str, tuple[tuple[str, ...], list[Any], list[Any]]] = {
    "alternating images are updates without a key": (
        (),
        [(INSERT, 9, "n"), (PRE, 1, "a"), (POST, 1, "b"), (PRE, 2, "c"), (POST, 3, "d")],
        [("c", None, (9, "n")), ("u", (1, "a"), (1, "b")), ("u", (2, "c"), (3, "d"))],
    ),
    "a key pairs images wherever they are": (
        ("id",),
        [
            *[(POST, 2, "d"), (PRE, 1, "a"), (INSERT, 9, "n"), (PRE, 2, "c")],
            *[(DELETE, 4, "x"), (POST, 1, "b")],
        ],
        [
            *[("d", (4, "x"), None), ("u", (2, "c"), (2, "d"))],
            *[("c", None, (9, "n")), ("u", (1, "a"), (1, "b"))],
        ],
    ),
    "an update of the key is a delete and a create": (
        ("id",),
        [(PRE, 1, "a"), (POST, 2, "b"), (PRE, 2, "c"), (POST, 3, "d")],
        [("d", (1, "a"), None), ("u", (2, "c"), (2, "b")), ("c", None, (3, "d"))],
    ),
    "a key of several columns and repeated keys": (
        ("id", "v"),
        [(PRE, 1, "x"), (PRE, 1, "x"), (POST, 1, "x"), (PRE, 1, "y"), (POST, 1, "y")],
        [("d", (1, "x"), None), ("u", (1, "x"), (1, "x")), ("u", (1, "y"), (1, "y"))],
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_images_are_paired(case: str) -> None:
    key, rows, expected = PAIRS[case]
    assert changes(rows, key) == expected


def test_one_update_is_paired_in_either_order() -> None:
    assert changes([(POST, 1, "b"), (DELETE, 5, "x"), (PRE, 1, "a")]) == [
        ("d", (5, "x"), None),
        ("u", (1, "a"), (1, "b")),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [(PRE, 1, "a"), (PRE, 2, "c"), (POST, 1, "b"), (POST, 2, "d")],
        [(POST, 1, "b"), (PRE, 1, "a"), (POST, 2, "d"), (PRE, 2, "c")],
        [(PRE, 1, "a"), (POST, 1, "b"), (INSERT, 7, "n"), (POST, 2, "d"), (PRE, 2, "c")],
    ],
    ids=["blocks", "reversed", "one pair reversed"],
)
def test_images_that_could_be_paired_wrongly_stay_apart(rows: list[tuple[str, int, str]]) -> None:
    found = changes(rows)

    assert [record for record in found if record[0] == "d"] == [
        ("d", (1, "a"), None),
        ("d", (2, "c"), None),
    ]
    assert ("c", None, (1, "b")) in found
    assert ("c", None, (2, "d")) in found
    assert [record[0] for record in found] == sorted((r[0] for r in found), reverse=True)
    assert "u" not in {record[0] for record in found}


def test_images_without_their_partner_are_not_lost() -> None:
    assert changes([(PRE, 1, "a")]) == [("d", (1, "a"), None)]
    assert changes([(POST, 1, "b")], ("id",)) == [("c", None, (1, "b"))]
    assert changes([(PRE, 1, "a"), (PRE, 2, "b"), (POST, 2, "c")]) == [
        ("d", (1, "a"), None),
        ("d", (2, "b"), None),
        ("c", None, (2, "c")),
    ]


def test_an_empty_batch_has_no_records() -> None:
    assert encoded([]) == []
    assert encoded([], ("id",)) == []


def test_a_key_that_is_no_column_is_named() -> None:
    rows = [(PRE, 1, "a"), (POST, 1, "b")]

    with pytest.raises(ConfigError, match=r"'nr'.*\(id, v\)"):
        encoded(rows, ("nr",))


def test_a_change_type_that_no_protocol_names_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match="update_pre"):
        changes([(INSERT, 1, "a"), ("update_pre", 2, "b")])


def test_pairs_are_not_cut_when_a_batch_is_encoded_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(PRE, i, "a" * 40) for i in range(100)] + [(POST, i, "b" * 40) for i in range(100)]
    rows.append((DELETE, -1, "gone"))
    whole = encoded(rows, ("id",))
    monkeypatch.setattr(record_parts, "MAX_PART_BYTES", 600)

    encoder = DebeziumEncoder(name="lake", table="orders", key=("id",))
    parts = encoder.encode(make_batch(rows))

    assert parts.type == pa.large_binary()
    assert [json.loads(record) for record in parts.to_pylist()] == whole
    assert [record["op"] for record in whole] == ["d"] + ["u"] * 100
