from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import cast

import pyarrow as pa
import pytest

import tailerd.records.record_parts as record_parts
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import TableError, UnsupportedFeatureError
from tailerd.records.json import MAX_ROWS_OF_ROW_PATH, JsonEncoder
from tailerd.records.json_columns import column_texts
from tailerd.records.json_rows import row_texts
from tailerd.records.record_parts import RowPart, encode_in_parts
from tests.records.batches import TIMESTAMP, change_batch

CHANGE = f'"_change_type":"insert","_commit_version":7,"_commit_timestamp":"{TIMESTAMP}"'


def column_json(array: pa.Array, field: pa.Field | None = None, **options: bool) -> list[str]:
    """Both paths, which must agree."""
    field = pa.field("c", array.type) if field is None else field
    quote = options.get("quote_decimals", True)
    by_column = column_texts(array, field, quote_decimals=quote).complete().to_pylist()
    by_row = row_texts(array, field, quote_decimals=quote)
    assert by_column == by_row
    return cast("list[str]", by_column)


def micros(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


SCALARS: list[tuple[str, pa.Array, list[str]]] = [
    ("byte", pa.array([-128, 127, None], pa.int8()), ["-128", "127", "null"]),
    ("long", pa.array([-(2**63), 2**63 - 1]), [str(-(2**63)), str(2**63 - 1)]),
    ("boolean", pa.array([True, False, None]), ["true", "false", "null"]),
    ("void", pa.nulls(2), ["null", "null"]),
    (
        "double",
        pa.array([1.0, -0.0, 0.1, 1e300, 5e-324, 123456789.25, None, 1e15, 2.0**53, 1e-5]),
        [
            *("1.0", "-0.0", "0.1", "1e+300", "5e-324", "123456789.25", "null", "1e+15"),
            *("9.007199254740992e+15", "0.00001"),
        ],
    ),
    (
        "double specials",
        pa.array([float("nan"), float("inf"), -float("inf"), 2.5, None]),
        ['"NaN"', '"Infinity"', '"-Infinity"', "2.5", "null"],
    ),
    (
        "float is its own shortest text",
        pa.array([0.1, 16777216.0], pa.float32()),
        ["0.1", "16777216.0"],
    ),
    (
        "decimal keeps the digits of its scale",
        pa.array([Decimal("1.50"), Decimal("-0.01"), Decimal("0.00"), None], pa.decimal128(9, 2)),
        ['"1.50"', '"-0.01"', '"0.00"', "null"],
    ),
    (
        "decimal of a large scale has no exponent",
        pa.array(
            [Decimal(0), Decimal("1e-20"), Decimal("-1e-20"), Decimal("-12.5"), None],
            pa.decimal128(38, 20),
        ),
        [
            *('"0.00000000000000000000"', '"0.00000000000000000001"', '"-0.00000000000000000001"'),
            *('"-12.50000000000000000000"', "null"),
        ],
    ),
    (
        "decimal of 38 digits",
        pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38)], pa.decimal128(38, 0)),
        [f'"{"9" * 38}"', f'"-{"9" * 38}"'],
    ),
    (
        "decimal whose digits are all behind the point",
        pa.array([Decimal("1e-38"), Decimal("0." + "9" * 38)], pa.decimal128(38, 38)),
        [f'"0.{"0" * 37}1"', f'"0.{"9" * 38}"'],
    ),
    (
        "string",
        pa.array(['a"b', "\\", "\x00\x1f\n\t", "\x7fä日𝄞", "", None, "plain"]),
        [
            *('"a\\"b"', '"\\\\"', '"\\u0000\\u001f\\n\\t"', '"\x7fä日𝄞"'),
            *('""', "null", '"plain"'),
        ],
    ),
    ("string without nulls", pa.array(["a", 'b"', ""]), ['"a"', '"b\\""', '""']),
    (
        "binary",
        pa.array([b"", b"a", b"ab", b"abc", b"abcd", None, b"\xff\x00"]),
        ['""', '"YQ=="', '"YWI="', '"YWJj"', '"YWJjZA=="', "null", '"/wA="'],
    ),
    (
        "date",
        pa.array([0, -1, 19782, 2932896, -719162, -719528, None], pa.int32()).cast(pa.date32()),
        [
            *('"1970-01-01"', '"1969-12-31"', '"2024-02-29"', '"9999-12-31"', '"0001-01-01"'),
            *('"0000-01-01"', "null"),
        ],
    ),
    (
        "date beyond four digits has a sign",
        pa.array([2932897, -719529, 2**31 - 1, -(2**31), 5, None], pa.int32()).cast(pa.date32()),
        [
            *('"+10000-01-01"', '"-0001-12-31"', '"+5881580-07-11"', '"-5877641-06-23"'),
            *('"1970-01-06"', "null"),
        ],
    ),
    (
        "timestamp",
        micros(0, -1, 253402300799999999, -62135596800000000, None).cast(pa.timestamp("us", "UTC")),
        [
            *('"1970-01-01T00:00:00.000000Z"', '"1969-12-31T23:59:59.999999Z"'),
            *('"9999-12-31T23:59:59.999999Z"', '"0001-01-01T00:00:00.000000Z"', "null"),
        ],
    ),
    (
        "timestamp_ntz",
        micros(1709210096123456, None).cast(pa.timestamp("us")),
        ['"2024-02-29T12:34:56.123456"', "null"],
    ),
    (
        "timestamp beyond four digits has a sign",
        micros(253402300800000000, -62198755200000001, 2**63 - 1, 7, None).cast(
            pa.timestamp("us", "UTC")
        ),
        [
            *('"+10000-01-01T00:00:00.000000Z"', '"-0002-12-31T23:59:59.999999Z"'),
            *('"+294247-01-10T04:00:54.775807Z"', '"1970-01-01T00:00:00.000007Z"', "null"),
        ],
    ),
    (
        "timestamp in other units",
        pa.array([-1, 1001], pa.timestamp("ms", "UTC")),
        ['"1969-12-31T23:59:59.999000Z"', '"1970-01-01T00:00:01.001000Z"'],
    ),
    (
        "timestamp of nanoseconds has nine digits",
        pa.array([-1, 1001, None, -(2**63), 2**63 - 1], pa.timestamp("ns", "UTC")),
        [
            *('"1969-12-31T23:59:59.999999999Z"', '"1970-01-01T00:00:00.000001001Z"', "null"),
            *('"1677-09-21T00:12:43.145224192Z"', '"2262-04-11T23:47:16.854775807Z"'),
        ],
    ),
    (
        "time of day",
        pa.array([0, 86399999999, None], pa.time64("us")),
        ['"00:00:00.000000"', '"23:59:59.999999"', "null"],
    ),
    (
        "timestamp keeps its instant whatever the zone",
        pa.array([0], pa.timestamp("ms", "Asia/Tokyo")),
        ['"1970-01-01T00:00:00.000000Z"'],
    ),
]


@pytest.mark.parametrize(("array", "texts"), [pytest.param(a, t, id=n) for n, a, t in SCALARS])
def test_a_scalar_has_the_text_of_the_contract(array: pa.Array, texts: list[str]) -> None:
    assert column_json(array) == texts
    assert [json.loads(text) is None for text in texts] == array.is_null().to_pylist()


@pytest.mark.parametrize(("array", "texts"), [pytest.param(a, t, id=n) for n, a, t in SCALARS])
def test_a_slice_has_the_texts_of_its_own_rows(array: pa.Array, texts: list[str]) -> None:
    for start in range(len(array) + 1):
        assert column_json(array.slice(start, 2)) == texts[start : start + 2]


LAYOUTS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "large_string": lambda a: a.cast(pa.large_string()),
    "string_view": lambda a: a.cast(pa.string_view()),
    "dictionary": lambda a: a.dictionary_encode(),
    "sliced dictionary": lambda a: pa.concat_arrays([a, a]).dictionary_encode().slice(len(a)),
    "run-end encoded": lambda a: pa.compute.run_end_encode(a),
    "sliced run-end encoded": lambda a: pa.compute.run_end_encode(pa.concat_arrays([a, a])).slice(
        len(a)
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_strings_does_not_matter(layout: str) -> None:
    plain = pa.array(["a", "a", None, 'quo"te', "", "日本"])

    assert column_json(LAYOUTS[layout](plain)) == column_json(plain)


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.binary(3)])
def test_the_layout_of_binary_does_not_matter(kind: pa.DataType) -> None:
    plain = pa.array([b"abc", None, b"\x00\xff\x01"])

    assert column_json(plain.cast(kind)) == ['"YWJj"', "null", '"AP8B"']


def test_damaged_utf8_becomes_escapes_and_replacement_characters() -> None:
    # What writers left: an unpaired surrogate, a CESU-8 pair, a stray byte, half a character.
    raw = [b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"a\xffb", b"\xe6\x97", b'ok"', None]
    array = pa.array(raw, pa.binary())
    array = pa.Array.from_buffers(pa.string(), len(array), array.buffers())

    texts = column_json(array)

    assert texts[:2] == ['"\\ud800"', '"\\ud83d\\ude00"']
    assert json.loads(texts[1]) == "😀"
    assert texts[2:] == ['"a\ufffdb"', '"\ufffd"', '"ok\\""', "null"]


@pytest.mark.parametrize("rows", [1, MAX_ROWS_OF_ROW_PATH + 1])
def test_no_reader_finds_a_line_end_inside_an_object(rows: int) -> None:
    # Python's `splitlines`, among others, ends a line at each of these.
    text = "a\nb\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\\ü"
    values = pa.record_batch({"v": [text] * rows, "s": [{"w": [text]}] * rows})

    lines = JsonEncoder().encode_lines(change_batch(values)).decode().splitlines()

    found = [json.loads(line) for line in lines]
    assert [(row["v"], row["s"]["w"]) for row in found] == [(text, [text])] * rows


def test_bytes_under_a_null_are_not_read() -> None:
    raw = pa.array(["x", 'hid"den', "y"])
    masked = pa.Array.from_buffers(
        pa.string(), 3, [pa.py_buffer(b"\x05"), *raw.buffers()[1:]], null_count=1
    )

    assert column_json(masked) == ['"x"', "null", '"y"']


def test_structs_keep_null_members_and_may_be_null() -> None:
    kind = pa.struct([("a", pa.int32()), ('q"', pa.string())])
    array = pa.array([{"a": 1, 'q"': "x"}, None, {"a": None, 'q"': None}], kind)

    texts = ['{"a":1,"q\\"":"x"}', "null", '{"a":null,"q\\"":null}']
    assert column_json(array) == texts
    assert column_json(array.slice(1)) == texts[1:]


def test_a_struct_without_members_is_an_empty_object() -> None:
    assert column_json(pa.array([{}, None], pa.struct([]))) == ["{}", "null"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.list_view(pa.string()),
        pa.large_list_view(pa.large_string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_lists_of_every_layout_are_arrays(kind: pa.DataType) -> None:
    array = pa.array([["a", 'b"'], [], None, [None], ["c"]], kind)
    texts = ['["a","b\\""]', "[]", "null", "[null]", '["c"]']

    assert column_json(array) == texts
    assert column_json(array.slice(1, 3)) == texts[1:4]


def test_lists_of_fixed_size_are_arrays() -> None:
    array = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2))

    assert column_json(array) == ["[1,2]", "null", "[3,null]"]
    assert column_json(array.slice(1)) == ["null", "[3,null]"]


def test_nulls_that_cover_items_hide_them() -> None:
    covered = pa.ListArray.from_arrays(
        pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )

    assert column_json(covered) == ["null", "[3]"]


@pytest.mark.parametrize(
    ("kind", "keys", "texts"),
    [
        (pa.string(), ["a", 'b"'], ['"a"', '"b\\""']),
        (pa.int64(), [-1, 2], ['"-1"', '"2"']),
        (pa.bool_(), [True, False], ['"true"', '"false"']),
        (pa.float64(), [1.0, float("nan")], ['"1.0"', '"NaN"']),
        (pa.decimal128(5, 2), [Decimal("1.50")], ['"1.50"']),
        (pa.date32(), [0], ['"1970-01-01"']),
        (pa.timestamp("us", "UTC"), [0], ['"1970-01-01T00:00:00.000000Z"']),
        (pa.binary(), [b"a"], ['"YQ=="']),
        (pa.struct([("x", pa.string())]), [{"x": "y"}], ['"{\\"x\\": \\"y\\"}"']),
    ],
    ids=str,
)
def test_map_keys_are_text(kind: pa.DataType, keys: list[object], texts: list[str]) -> None:
    entries = list(zip(keys, range(len(keys)), strict=True))
    array = pa.array([entries, None, []], pa.map_(kind, pa.int32()))
    body = ",".join(f"{text}:{index}" for index, text in enumerate(texts))

    assert column_json(array) == [f"{{{body}}}", "null", "{}"]
    assert column_json(array.slice(1)) == ["null", "{}"]


def test_decimals_can_be_numbers_but_not_as_map_keys() -> None:
    kind = pa.map_(pa.decimal128(5, 2), pa.list_(pa.decimal128(5, 2)))
    array = pa.array([[(Decimal("1.50"), [Decimal("-0.25"), None])]], kind)

    assert column_json(array, quote_decimals=False) == ['{"1.50":[-0.25,null]}']


def test_a_type_that_delta_lacks_is_refused_by_name() -> None:
    array = pa.array([1], pa.duration("us"))

    with pytest.raises(UnsupportedFeatureError, match=r"'gap'.*duration"):
        JsonEncoder().encode(change_batch({"gap": array}))


# ---------------------------------------------------------------- records

SIZES = [1, MAX_ROWS_OF_ROW_PATH + 1]


@pytest.mark.parametrize("count", SIZES)
def test_a_record_is_the_columns_then_the_change_columns(count: int) -> None:
    encoder = JsonEncoder()
    batch = change_batch({"id": pa.array([5] * count), "na\nme": pa.array(["x"] * count)})

    records = encoder.encode(batch)

    assert records.type == pa.binary()
    assert records.to_pylist() == [f'{{"id":5,"na\\nme":"x",{CHANGE}}}'.encode()] * count
    assert encoder.encode_lines(batch) == f'{{"id":5,"na\\nme":"x",{CHANGE}}}\n'.encode() * count


@pytest.mark.parametrize("count", SIZES)
def test_a_table_without_columns_still_has_records(count: int) -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))

    assert JsonEncoder().encode_lines(change_batch(rows)) == f"{{{CHANGE}}}\n".encode() * count


def test_an_empty_batch_has_no_records() -> None:
    batch = change_batch({"a": pa.array([], pa.list_(pa.string())), "b": pa.array([], pa.binary())})

    assert JsonEncoder().encode(batch).to_pylist() == []
    assert JsonEncoder().encode_lines(batch) == b""


@pytest.mark.parametrize("count", SIZES)
def test_each_row_has_its_own_change_type(count: int) -> None:
    kinds = ["update_preimage", "update_postimage"] * count
    batch = change_batch({"a": pa.array([None] * 2 * count, pa.int32())}, kinds)

    lines = JsonEncoder().encode_lines(batch).splitlines()

    assert [json.loads(line)["_change_type"] for line in lines] == kinds


@pytest.mark.parametrize("count", SIZES)
def test_columns_are_chosen_and_one_not_yet_there_is_null(count: int) -> None:
    batch = change_batch({"a": pa.array([1] * count), "b": pa.array(["x"] * count)})
    encoder = JsonEncoder(columns=["b", "later", "_change_type"])

    assert encoder.encode_lines(batch) == f'{{"b":"x","later":null,{CHANGE}}}\n'.encode() * count
    assert JsonEncoder(columns=[]).encode_lines(batch) == f"{{{CHANGE}}}\n".encode() * count


@pytest.mark.parametrize("count", SIZES)
def test_decimals_as_numbers(count: int) -> None:
    batch = change_batch({"d": pa.array([Decimal("1.50")] * count, pa.decimal128(5, 2))})

    line = JsonEncoder(decimals="number").encode_lines(batch).splitlines()[0]

    assert line == f'{{"d":1.50,{CHANGE}}}'.encode()


def test_a_change_type_is_not_taken_from_a_column_of_that_name() -> None:
    # Such a table is the caller's problem; ours is that both stay valid JSON.
    batch = change_batch({"_change_type": pa.array(["mine"])}, ChangeType.DELETE)

    line = JsonEncoder().encode_lines(batch)

    pairs = json.loads(line, object_pairs_hook=lambda members: members)
    assert pairs[:2] == [("_change_type", "mine"), ("_change_type", "delete")]


@pytest.mark.parametrize("change", [ChangeType.INSERT, ["insert"] * 997])
def test_a_batch_too_large_for_one_array_is_encoded_in_parts(
    monkeypatch: pytest.MonkeyPatch, change: ChangeType | list[str]
) -> None:
    batch = change_batch({"s": pa.array([f"row {i}" for i in range(997)])}, change)
    whole = JsonEncoder().encode_lines(batch)
    monkeypatch.setattr(record_parts, "MAX_PART_BYTES", 500)

    records = JsonEncoder().encode(batch)

    assert records.type == pa.large_binary()
    assert b"".join(record + b"\n" for record in records.to_pylist()) == whole
    assert JsonEncoder().encode_lines(batch) == whole


def test_what_does_not_fit_32_bit_offsets_is_halved_until_it_does() -> None:
    batch = change_batch({"i": pa.array(range(100))})

    def encode_ten(part: RowPart) -> pa.Array:
        if part.batch.num_rows > 10:
            raise pa.ArrowCapacityError("as Arrow does above 2 GiB")
        return part.batch.rows.column(0).cast(pa.string())

    records = encode_in_parts(RowPart(batch), encode_ten)

    assert records.type == pa.large_binary()
    assert records.to_pylist() == [str(index).encode() for index in range(100)]


def test_a_row_that_is_too_large_alone_is_an_error_of_the_table() -> None:
    def encode(part: RowPart) -> pa.Array:
        raise pa.ArrowCapacityError("as Arrow does above 2 GiB")

    with pytest.raises(TableError, match="version 7"):
        encode_in_parts(RowPart(change_batch({"i": pa.array([1, 2])})), encode)


@pytest.mark.parametrize("count", SIZES)
def test_a_change_type_that_no_protocol_names_is_written_as_it_is(count: int) -> None:
    kinds = ["update_pre", 'odd"'] * count
    batch = change_batch({"id": pa.array(range(2 * count))}, kinds)
    records = JsonEncoder().encode(batch).to_pylist()
    assert [json.loads(record)["_change_type"] for record in records] == kinds
