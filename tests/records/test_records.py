from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tailerd.records.record_parts as record_parts
from tailerd.changefeed.change_batch import VARIANT_FIELD, ChangeBatch, join_columns
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import ConfigError, TailerdError, UnsupportedFeatureError
from tailerd.records.base import FormatOptions, Records
from tailerd.records.formats.debezium import with_null_after
from tailerd.sinks.kafka.record_batches.compression import Compression, compress_bytes
from tailerd.sinks.kafka.record_batches.partitioning import explicit_partitions
from tailerd.sinks.record_formats import record_format
from tests.records.batches import TIMESTAMP_US, change_batch

PRE, POST, INSERT, DELETE = "update_preimage", "update_postimage", "insert", "delete"
JSON_FORMATS = ("debezium", "json")
OPTIONS = FormatOptions(name="lake", table="orders", key=("id",))
KEYLESS = replace(OPTIONS, key=())


def make_batch(*rows: tuple[str, int, str]) -> ChangeBatch:
    columns = {
        "id": pa.array([row[1] for row in rows], pa.int64()),
        "v": pa.array([row[2] for row in rows], pa.string()),
    }
    return change_batch(columns, [row[0] for row in rows])


def debezium(batch: ChangeBatch, options: FormatOptions = OPTIONS) -> list[tuple[Any, Any]]:
    """(key, None or (op, before, after)) of each record."""
    records = record_format("debezium", options).records(batch)
    keys = [None] * len(records) if records.keys is None else records.keys.to_pylist()
    found = []
    for key, value in zip(keys, records.values.to_pylist(), strict=True):
        read = None if value is None else json.loads(value)
        short = None if read is None else (read["op"], read["before"], read["after"])
        found.append((key, short))
    return found


def row(number: int, value: str) -> dict[str, object]:
    return {"id": number, "v": value}


def test_a_key_is_an_object_of_its_columns_in_the_order_of_the_configuration() -> None:
    batch = change_batch(
        {
            "order_id": pa.array([1, 2]),
            "day": pa.array([0, 1], pa.date32()),
            "price": pa.array([5, 6], pa.int32()).cast(pa.decimal128(12, 2)),
        }
    )

    for name in JSON_FORMATS:
        for key, first in (
            (("order_id",), b'{"order_id":1}'),
            (("day", "order_id"), b'{"day":"1970-01-01","order_id":1}'),
            (("price",), b'{"price":"5.00"}'),
        ):
            records = record_format(name, replace(OPTIONS, key=key)).records(batch)
            assert records.keys is not None
            assert records.keys[0].as_py() == first
    records = record_format("json", replace(OPTIONS, key=("price",), decimals="number")).records(
        batch
    )
    assert records.keys is not None
    assert records.keys[0].as_py() == b'{"price":5.00}'


def test_an_update_is_one_record_and_a_delete_has_its_tombstone_directly_behind_it() -> None:
    batch = make_batch((INSERT, 1, "a"), (PRE, 2, "b"), (POST, 2, "c"), (DELETE, 3, "d"))

    assert debezium(batch) == [
        (b'{"id":3}', ("d", row(3, "d"), None)),
        (b'{"id":3}', None),
        (b'{"id":1}', ("c", None, row(1, "a"))),
        (b'{"id":2}', ("u", row(2, "b"), row(2, "c"))),
    ]


def test_an_update_that_goes_elsewhere_removes_the_row_where_it_was() -> None:
    batch = make_batch((PRE, 1, "eu"), (POST, 1, "us"), (PRE, 2, "eu"), (POST, 2, "eu"))

    assert debezium(batch, replace(OPTIONS, routed_by=("v",))) == [
        (b'{"id":1}', ("d", row(1, "eu"), None)),
        (b'{"id":1}', None),
        (b'{"id":1}', ("c", None, row(1, "us"))),
        (b'{"id":2}', ("u", row(2, "eu"), row(2, "eu"))),
    ]
    assert debezium(batch, replace(KEYLESS, routed_by=("v",))) == [
        (None, ("d", row(1, "eu"), None)),
        (None, ("c", None, row(1, "us"))),
        (None, ("u", row(2, "eu"), row(2, "eu"))),
    ]


def test_an_update_of_the_key_is_a_delete_with_tombstone_and_a_create() -> None:
    assert debezium(make_batch((PRE, 1, "a"), (POST, 2, "b"))) == [
        (b'{"id":1}', ("d", row(1, "a"), None)),
        (b'{"id":1}', None),
        (b'{"id":2}', ("c", None, row(2, "b"))),
    ]


@pytest.mark.parametrize("options", [KEYLESS, replace(OPTIONS, tombstones=False)])
def test_there_is_no_tombstone_without_a_key_or_where_it_is_not_wanted(
    options: FormatOptions,
) -> None:
    found = debezium(make_batch((DELETE, 3, "d"), (INSERT, 1, "a")), options)

    assert [value and value[0] for _, value in found] == ["d", "c"]


def test_all_rows_deleted_alternate_with_tombstones() -> None:
    batch = change_batch({"id": pa.array(range(300))}, ChangeType.DELETE)

    records = record_format("debezium", OPTIONS).records(batch)

    assert records.values.is_null().to_pylist() == [False, True] * 300
    assert records.rows is not None
    assert records.rows.tolist() == [number // 2 for number in range(600)]


def test_json_records_put_deletes_first_and_keep_both_images_of_an_update_together() -> None:
    batch = make_batch(
        (PRE, 1, "a"),
        (PRE, 2, "b"),
        (INSERT, 3, "x"),
        (POST, 2, "B"),
        (POST, 1, "A"),
        (DELETE, 4, "y"),
    )

    records = record_format("json", OPTIONS).records(batch)

    assert records.rows is not None
    assert records.rows.tolist() == [5, 2, 1, 3, 0, 4]
    values = [json.loads(value)["v"] for value in records.values.to_pylist()]
    assert values == ["y", "x", "b", "B", "a", "A"]
    assert records.keys is not None
    assert records.keys.to_pylist()[2:4] == [b'{"id":2}'] * 2


def test_columns_of_the_rows_follow_the_records() -> None:
    batch = make_batch((INSERT, 1, "a"), (DELETE, 3, "d"))

    records = record_format("debezium", OPTIONS).records(batch)

    assert records.from_rows(batch.rows.column("v")).to_pylist() == ["d", "d", "a"]
    part = records.take(np.array([2, 0]))
    assert part.from_rows(batch.rows.column("v")).to_pylist() == ["a", "d"]
    plain = Records(keys=None, values=pa.array([b"x", b"y"]))
    assert plain.from_rows(pa.array([1, 2])).to_pylist() == [1, 2]
    assert plain.take(np.array([1])).from_rows(pa.array([1, 2])).to_pylist() == [2]


@pytest.mark.parametrize("count", [2, 1000])
@pytest.mark.parametrize("name", JSON_FORMATS)
def test_rows_without_columns_have_their_records(name: str, count: int) -> None:
    kinds = [INSERT, DELETE] * (count // 2)
    records = record_format(name, KEYLESS).records(
        change_batch(join_columns([], pa.schema([]), count), kinds)
    )
    found = [json.loads(value) for value in records.values.to_pylist()]
    assert len(found) == count
    if name == "debezium":
        images = {(each["op"], json.dumps([each["before"], each["after"]])) for each in found}
        assert images == {("c", "[null, {}]"), ("d", "[{}, null]")}


def test_the_time_of_processing_is_said_where_the_format_has_it() -> None:
    batch = make_batch((INSERT, 1, "a"))
    later = TIMESTAMP_US + 1_000_000

    [value] = record_format("debezium", OPTIONS).records(batch, now_us=later).values.to_pylist()

    assert json.loads(value)["ts_us"] == later
    assert json.loads(value)["source"]["ts_us"] == TIMESTAMP_US
    plain = record_format("json", OPTIONS)
    assert plain.records(batch, now_us=later) == plain.records(batch)


def test_large_batches_are_encoded_in_parts_with_the_same_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(kind, n, f"{n}") for n in range(150) for kind in (PRE, POST)]
    rows += [(DELETE, n, f"{n}") for n in range(150, 200)]
    batch = make_batch(*rows)
    whole = {name: record_format(name, OPTIONS).records(batch) for name in JSON_FORMATS}

    monkeypatch.setattr(record_parts, "MAX_PART_BYTES", 1000)

    for name, records in whole.items():
        parts = record_format(name, OPTIONS).records(batch)
        assert pa.types.is_large_binary(parts.values.type)
        assert parts.values.to_pylist() == records.values.to_pylist()
        assert parts.keys is not None
        assert records.keys is not None
        assert parts.keys.to_pylist() == records.keys.to_pylist()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_nulls_are_put_behind_values_of_a_slice(kind: pa.DataType) -> None:
    values = pa.array([b"cut", b"a", b"", b"ccc", b"cut"], kind).slice(1, 3)

    with_nulls = with_null_after(values, np.array([True, False, True]))

    with_nulls.validate(full=True)
    assert with_nulls.to_pylist() == [b"a", None, b"", b"ccc", None]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_a_key_that_is_no_column_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="'order' is not among the table's columns \\(id, v\\)"):
        record_format(name, replace(OPTIONS, key=("order",))).records(make_batch((INSERT, 1, "a")))


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'xml' is not known"):
        record_format("xml", OPTIONS)


# ---------------------------------------------------------------- Connect schemas


def test_a_key_with_its_schema_byte_for_byte() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    batch = change_batch(pa.RecordBatch.from_arrays([pa.array([1])], schema=schema))

    records = record_format("debezium", replace(OPTIONS, schemas=True)).records(batch)

    assert records.keys is not None
    assert records.keys.to_pylist() == [
        b'{"schema":{"type":"struct","fields":[{"type":"int64","optional":true,"field":"id"}],'
        b'"optional":false,"name":"lake.orders.Key"},"payload":{"id":1}}'
    ]


def test_every_type_of_delta_has_a_connect_type() -> None:
    struct = pa.struct([pa.field("x", pa.int16()), pa.field("y", pa.list_(pa.float32()))])
    kinds: list[tuple[pa.DataType, Any]] = [
        (pa.int8(), "int8"),
        (pa.int16(), "int16"),
        (pa.int32(), "int32"),
        (pa.int64(), "int64"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.bool_(), "boolean"),
        (pa.string(), "string"),
        (pa.binary(), "bytes"),
        (pa.date32(), "string"),
        (pa.timestamp("us"), "string"),
        (pa.decimal128(10, 2), "string"),
        (pa.timestamp("us", "UTC"), ("string", "io.debezium.time.ZonedTimestamp")),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.map_(pa.int32(), pa.int64()), "map"),
        (struct, "struct"),
    ]
    fields = [pa.field(f"c{index}", kind) for index, (kind, _) in enumerate(kinds)]
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(1, kind) for kind, _ in kinds], schema=pa.schema(fields)
    )
    options = replace(KEYLESS, schemas=True)

    [value] = record_format("debezium", options).records(change_batch(rows)).values.to_pylist()

    members = json.loads(value)["schema"]["fields"][1]["fields"]
    found = [(m["type"], m["name"]) if "name" in m else m["type"] for m in members]
    assert found == [expected for _, expected in kinds]
    assert members[-2]["keys"] == {"type": "string", "optional": False}
    assert members[-2]["values"] == {"type": "int64", "optional": True}
    assert [m["field"] for m in members[-1]["fields"]] == ["x", "y"]
    assert members[-1]["fields"][1]["items"] == {"type": "float", "optional": True}


def variants(values: list[tuple[bytes, bytes] | None]) -> tuple[pa.Array, pa.Field]:
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    items = [None if v is None else {"metadata": v[0], "value": v[1]} for v in values]
    return pa.array(items, kind), pa.field("doc", kind, metadata=VARIANT_FIELD)


EMPTY_DICTIONARY = b"\x01\x00\x00"
TRUE = b"\x04"


def test_with_schemas_a_variant_is_json_text_as_debezium_has_it() -> None:
    array, field = variants([(EMPTY_DICTIONARY, TRUE), None])
    rows = pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))
    options = replace(KEYLESS, schemas=True)

    values = record_format("debezium", options).records(change_batch(rows)).values.to_pylist()

    read = [json.loads(value) for value in values]
    assert [each["payload"]["after"]["doc"] for each in read] == ["true", None]
    [member] = read[0]["schema"]["fields"][1]["fields"]
    assert (member["type"], member["name"]) == ("string", "io.debezium.data.Json")
    bare = record_format("debezium", KEYLESS).records(change_batch(rows)).values.to_pylist()
    assert json.loads(bare[0])["after"]["doc"] is True


def test_with_schemas_a_variant_inside_another_type_is_refused() -> None:
    array, field = variants([(EMPTY_DICTIONARY, TRUE)])
    outer = pa.StructArray.from_arrays([array], fields=[field])

    with pytest.raises(UnsupportedFeatureError, match="variant inside another type"):
        record_format("debezium", replace(KEYLESS, schemas=True)).records(
            change_batch({"outer": outer})
        )


# ---------------------------------------------------------------- partitions, compression


def test_a_column_chooses_the_partition() -> None:
    found = explicit_partitions(pa.array([0, 3, 1], pa.int8()), 4, column="p")

    assert found.tolist() == [0, 3, 1]
    assert explicit_partitions(pa.array([], pa.int64()), 4, column="p").tolist() == []


@pytest.mark.parametrize(
    "numbers",
    [
        pa.array([0, 4], pa.int64()),
        pa.array([-1], pa.int32()),
        pa.array([0, None], pa.int8()),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array(["0"]),
    ],
    ids=str,
)
def test_a_column_that_names_no_partition_is_refused(numbers: pa.Array) -> None:
    with pytest.raises(TailerdError, match="'p'"):
        explicit_partitions(numbers, 4, column="p")


def test_snappy_has_the_framing_of_kafkas_java_client() -> None:
    data = b"value" * 20_000

    framed = bytes(compress_bytes(memoryview(data), Compression.SNAPPY))

    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    blocks: list[bytes] = []
    start = 16
    while start < len(framed):
        size = int.from_bytes(framed[start : start + 4], "big")
        block = framed[start + 4 : start + 4 + size]
        left = len(data) - 32_768 * len(blocks)
        blocks.append(pa.Codec("snappy").decompress(block, min(32_768, left), asbytes=True))
        start += 4 + size
    assert b"".join(blocks) == data


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    framed = bytes(compress_bytes(memoryview(b"value" * 100_000), Compression.LZ4))

    assert framed[:4] == b"\x04\x22\x4d\x18"
    # Of the flags: version 01, and blocks that are independent.
    assert framed[4] >> 6 == 1
    assert framed[4] & 0x20
