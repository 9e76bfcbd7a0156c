"""Keys and values of the record formats against encoders of one row, and the laws of replaying."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd import __version__
from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.records.base import FormatOptions, Records
from tailerd.sinks.record_formats import record_format
from tests.property.test_encoding import KINDS, TEXT, TYPES, agree, expected, values
from tests.records.batches import TIMESTAMP, TIMESTAMP_US, change_batch

PRE, POST, INSERT, DELETE = "update_preimage", "update_postimage", "insert", "delete"
KEY_TYPES = [pa.int64(), pa.int32(), pa.string(), pa.date32(), pa.decimal128(9, 2), pa.bool_()]

# A batch, its values row by row (dates and timestamps as integers), and each row's change.
Made = tuple[ChangeBatch, list[dict[str, object]], list[str]]
JSON_FORMATS = ("debezium", "json")


@st.composite
def batches(draw: st.DrawFn) -> Made:
    """Columns of any type and layout, slices of longer arrays; two key columns come first."""
    count = draw(st.integers(0, 7))
    start = draw(st.integers(0, 2))
    kinds = [*draw(st.lists(st.sampled_from(KEY_TYPES), min_size=2, max_size=2))]
    kinds += draw(st.lists(TYPES, max_size=3))
    names = draw(st.lists(TEXT, min_size=len(kinds), max_size=len(kinds), unique=True))
    arrays, plain = [], []
    for kind in kinds:
        items = draw(st.lists(values(kind), min_size=count + start, max_size=count + start))
        array = pa.array(items, kind)
        if kind == pa.string() and draw(st.booleans()):
            array = array.dictionary_encode()
        arrays.append(array.slice(start))
        plain.append(items[start:])
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    changes = draw(st.lists(KINDS, min_size=count, max_size=count))
    batch = change_batch(rows, changes)
    if draw(st.booleans()):
        longer = pa.array([INSERT] * start + changes, pa.string()).dictionary_encode()
        batch = replace(batch, change_type=longer.slice(start))
    by_row = [dict(zip(names, items, strict=True)) for items in zip(*plain, strict=True)]
    return batch, by_row, changes


def on_both_paths(name: str, options: FormatOptions, batch: ChangeBatch) -> Records:
    """The records of a batch, after finding that few and many rows give the same bytes."""
    found = []
    for max_rows in (0, 1_000):
        with patch("tailerd.records.json.MAX_ROWS_OF_ROW_PATH", max_rows):
            found.append(record_format(name, options).records(batch))
    for records in found:
        assert records.keys is None or len(records.keys) == len(records.values)
        assert records.values.type in (pa.binary(), pa.large_binary())
        records.values.validate(full=True)
    by_column, by_row = found
    assert by_column.values.to_pylist() == by_row.values.to_pylist()
    if by_column.keys is None:
        assert by_row.keys is None
    else:
        assert by_row.keys is not None
        by_column.keys.validate(full=True)
        assert by_column.keys.to_pylist() == by_row.keys.to_pylist()
    return by_column


def is_object_of(read: object, row: dict[str, object], schema: pa.Schema) -> bool:
    """Tell whether a JSON object holds the given columns of a row, in order."""
    assert isinstance(read, dict)
    kinds = {field.name: _plain(field.type) for field in schema}
    return list(read) == list(row) and all(
        agree(read[name], expected(value, kinds[name]), kinds[name]) for name, value in row.items()
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def list_rows(records: Records) -> list[int]:
    return list(range(len(records))) if records.rows is None else records.rows.tolist()


@settings(max_examples=200)
@given(batches(), st.integers(0, 2))
def test_json_records_are_the_rows_and_their_keys(made: Made, key_columns: int) -> None:
    batch, rows, changes = made
    schema = batch.rows.schema
    key = tuple(schema.names[:key_columns])
    options = FormatOptions(name="lake", table="orders", key=key)

    records = on_both_paths("json", options, batch)

    numbers = list_rows(records)
    assert sorted(numbers) == list(range(len(rows)))
    assert key or numbers == list(range(len(rows)))
    for number, value in zip(numbers, records.values.to_pylist(), strict=True):
        read = json.loads(value)
        tail = [read.pop(name) for name in ("_change_type", "_commit_version", "_commit_timestamp")]
        assert tail == [changes[number], 7, TIMESTAMP]
        assert is_object_of(read, rows[number], schema)
    assert_keys(records, rows, schema, key)


def assert_keys(
    records: Records, rows: list[dict[str, object]], schema: pa.Schema, key: Sequence[str]
) -> None:
    if not key:
        assert records.keys is None
        return
    assert records.keys is not None
    for number, text in zip(list_rows(records), records.keys.to_pylist(), strict=True):
        assert is_object_of(json.loads(text), {name: rows[number][name] for name in key}, schema)


@settings(max_examples=200)
@given(batches(), st.integers(0, 2), st.booleans(), st.sampled_from(["cdc", "snapshot"]))
def test_debezium_records_are_what_one_change_after_the_other_gives(
    made: Made, key_columns: int, tombstones: bool, source: str
) -> None:
    batch, rows, changes = made
    batch = replace(batch, change_source=ChangeSourceKind(source))
    schema = batch.rows.schema
    key = tuple(schema.names[:key_columns])
    options = FormatOptions(name="lake", table="orders", key=key, tombstones=tombstones)

    records = on_both_paths("debezium", options, batch)

    used: list[int] = []
    previous: dict[str, Any] | None = None
    for number, value in zip(list_rows(records), records.values.to_pylist(), strict=True):
        if value is None:
            assert previous is not None
            assert previous["after"] is None
            previous = None
            continue
        previous = json.loads(value)
        assert previous is not None
        assert_envelope(previous, source, number)
        is_before_row = changes[number] in (PRE, DELETE)
        newest = previous["before"] if is_before_row else previous["after"]
        assert is_object_of(newest, rows[number], schema)
        used.append(number)
        if None not in (previous["before"], previous["after"]):
            assert changes[number] == POST
    deletes = sum(envelope_is_delete(value) for value in records.values.to_pylist())
    wanted = deletes if tombstones and key else 0
    assert records.values.null_count == wanted
    num_updates = len(rows) - len(used)
    assert num_updates == sum(envelope_is_update(value) for value in records.values.to_pylist())
    assert_keys(records, rows, schema, key)


def envelope_is_delete(value: bytes | None) -> bool:
    return value is not None and json.loads(value)["after"] is None


def envelope_is_update(value: bytes | None) -> bool:
    return value is not None and None not in (
        json.loads(value)["after"],
        json.loads(value)["before"],
    )


def assert_envelope(read: dict[str, Any], source: str, number: int) -> None:
    times = {
        "ts_ms": TIMESTAMP_US // 1000,
        "ts_us": TIMESTAMP_US,
        "ts_ns": TIMESTAMP_US * 1000,
    }
    assert list(read) == ["before", "after", "source", "op", *times]
    ops = {(False, True): "c", (True, False): "d", (True, True): "u"}
    op = ops[read["before"] is not None, read["after"] is not None]
    is_snapshot = source == "snapshot"
    assert read["op"] == ("r" if is_snapshot else op)
    assert {name: read[name] for name in times} == times
    assert read["source"] == {
        "version": __version__,
        "connector": "tailerd",
        "name": "lake",
        **times,
        "snapshot": "true" if is_snapshot else "false",
        "db": "",
        "schema": "",
        "table": "orders",
        "commit_version": 7,
        "commit_timestamp": TIMESTAMP,
        "change_source": source,
        "sequence": f"id-1/7/0.{number}",
    }


@settings(max_examples=100)
@given(batches(), st.integers(1, 2))
def test_with_schemas_the_payload_is_the_same_and_the_schema_describes_it(
    made: Made, key_columns: int
) -> None:
    batch, _, _ = made
    key = tuple(batch.rows.schema.names[:key_columns])
    options = FormatOptions(name="lake", table="orders", key=key, db="shop")
    bare = record_format("debezium", options).records(batch)

    records = on_both_paths("debezium", replace(options, schemas=True), batch)

    assert bare.keys is not None
    assert records.keys is not None
    for name, alone, whole in (
        ("Key", bare.keys, records.keys),
        ("Envelope", bare.values, records.values),
    ):
        for payload, text in zip(alone.to_pylist(), whole.to_pylist(), strict=True):
            if payload is None:
                assert text is None
                continue
            read = json.loads(text)
            assert list(read) == ["schema", "payload"]
            assert text.endswith(b',"payload":' + payload + b"}")
            assert read["schema"]["name"] == f"lake.shop.orders.{name}"
            assert fits(read["payload"], read["schema"]), read


INTEGERS = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}


def fits(value: object, schema: dict[str, Any]) -> bool:
    """Tell whether Connect's JSON converter could read the value by the schema."""
    if value is None:
        return bool(schema["optional"])
    kind = schema["type"]
    match value:
        case bool():
            return bool(kind == "boolean")
        case int():
            return kind in INTEGERS and -INTEGERS[kind] <= value < INTEGERS[kind]
        case float():
            return kind in ("float", "double")
        case str():
            return kind in ("string", "bytes") or (
                kind in ("float", "double") and value in ("NaN", "Infinity", "-Infinity")
            )
        case list():
            return kind == "array" and all(fits(item, schema["items"]) for item in value)
        case dict() if kind == "map":
            return schema["keys"]["type"] == "string" and all(
                fits(item, schema["values"]) for item in value.values()
            )
        case dict():
            names = [member["field"] for member in schema["fields"]]
            return names == list(value) and all(
                fits(value[member["field"]], member) for member in schema["fields"]
            )
    return False


# ---------------------------------------------------------------- replaying

State = dict[int, str]
Row = tuple[str, int, str]


@st.composite
def commits(draw: st.DrawFn) -> tuple[State, list[Row], State]:
    """A keyed table, one commit's change rows in some order, and the table after it."""
    keys = st.integers(0, 9)
    words = st.text("abc", max_size=2)
    before: State = draw(st.dictionaries(keys, words, max_size=7))
    left = list(before)
    units: list[list[Row]] = []
    after: State = {}
    for key in left:
        fate = draw(st.sampled_from(["stays", "goes", "changes", "moves"]))
        if fate == "stays":
            after[key] = before[key]
        elif fate == "goes":
            units.append([(DELETE, key, before[key])])
        else:
            to = key if fate == "changes" else draw(keys)
            if to in after or (to != key and to in before and to not in _freed(units)):
                # The key is taken: this row is only deleted.
                units.append([(DELETE, key, before[key])])
                continue
            after[to] = draw(words)
            units.append([(PRE, key, before[key]), (POST, to, after[to])])
    for key in draw(st.lists(keys, max_size=4, unique=True)):
        if key not in after and (key not in before or key in _freed(units)):
            after[key] = draw(words)
            units.append([(INSERT, key, after[key])])
    return before, _arranged(draw, units), after


def _freed(units: list[list[Row]]) -> set[int]:
    return {row[1] for unit in units for row in unit if row[0] in (DELETE, PRE)}


def _arranged(draw: st.DrawFn, units: list[list[Row]]) -> list[Row]:
    layout = draw(st.sampled_from(["pairs", "preimages first", "any"]))
    units = draw(st.permutations(units))
    rows = [row for unit in units for row in unit]
    if layout == "preimages first":
        rows.sort(key=lambda row: row[0] != PRE)
    return list(draw(st.permutations(rows))) if layout == "any" else rows


def make_batch(rows: list[Row]) -> ChangeBatch:
    columns = {
        "id": pa.array([row[1] for row in rows], pa.int64()),
        "v": pa.array([row[2] for row in rows], pa.string()),
    }
    return change_batch(columns, [row[0] for row in rows], ChangeSourceKind.CDC)


OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))


def list_pairs(records: Records) -> list[tuple[int, dict[str, Any] | None]]:
    assert records.keys is not None
    return [
        (json.loads(key)["id"], None if value is None else json.loads(value))
        for key, value in zip(records.keys.to_pylist(), records.values.to_pylist(), strict=True)
    ]


@settings(max_examples=300)
@given(commits())
def test_replaying_debezium_records_by_key_gives_the_table_after_the_commit(
    commit: tuple[State, list[Row], State],
) -> None:
    before, rows, after = commit

    found = list_pairs(record_format("debezium", OPTIONS).records(make_batch(rows)))

    state, compacted = dict(before), dict(before)
    last: dict[int, dict[str, Any] | None] = {}
    for key, value in found:
        last[key] = value
        if value is None:
            assert key not in state, "a tombstone follows its delete"
        elif value["after"] is None:
            assert state.pop(key) == value["before"]["v"]
        else:
            assert value["after"]["id"] == key
            if value["before"] is not None:
                assert state[key] == value["before"]["v"]
            state[key] = value["after"]["v"]
    assert state == after
    for key, value in last.items():
        # What compaction leaves of a key says all.
        if value is None:
            del compacted[key]
        else:
            compacted[key] = value["after"]["v"]
    assert compacted == after


@settings(max_examples=300)
@given(commits())
def test_replaying_json_records_by_key_gives_the_table_after_the_commit(
    commit: tuple[State, list[Row], State],
) -> None:
    before, rows, after = commit

    found = list_pairs(record_format("json", OPTIONS).records(make_batch(rows)))

    state = dict(before)
    kinds = []
    for key, value in found:
        assert value is not None
        assert value["id"] == key
        kinds.append((key, value["_change_type"]))
        if value["_change_type"] in (DELETE, PRE):
            assert state.pop(key) == value["v"]
        else:
            assert key not in state
            state[key] = value["v"]
    assert state == after
    images = {key for key, kind in kinds if kind == PRE} & {k for k, kind in kinds if kind == POST}
    for key in images:
        assert kinds.index((key, POST)) == kinds.index((key, PRE)) + 1


@pytest.mark.parametrize("name", JSON_FORMATS)
@pytest.mark.parametrize("change", [ChangeType.INSERT, ChangeType.DELETE, []])
@pytest.mark.parametrize("key", [(), ("id",)])
def test_an_empty_batch_gives_no_records(
    name: str, change: ChangeType | list[str], key: tuple[str, ...]
) -> None:
    batch = change_batch({"id": pa.array([], pa.int64())}, change)

    records = record_format(name, replace(OPTIONS, key=key)).records(batch)

    assert len(records) == 0
    assert (records.keys is None) == (key == ())
