from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import FIELD_ID
from tailerd.errors import UnreadableDataFileError
from tailerd.reading.conform import FileFields, conform, fold_name
from tailerd.reading.file_scan import FieldScan


def scan_for(target: pa.DataType, *children: FieldScan, **more: Any) -> FieldScan:
    return FieldScan(target=pa.field("x", target), name="x", children=children, **more)


def part(name: str, kind: pa.DataType, *children: FieldScan) -> FieldScan:
    return FieldScan(target=pa.field(name, kind), name=name, children=children)


LIST = scan_for(pa.list_(pa.int64()), part("element", pa.int64()))
MAP = scan_for(
    pa.map_(pa.string(), pa.int64()), part("key", pa.string()), part("value", pa.int64())
)
LISTS = scan_for(pa.list_(LIST.target.type), LIST)
ONES = pa.list_(pa.int32(), 1)
PAIRS = pa.list_(pa.list_(pa.int64(), 2), 2)
VIEWS = pa.list_view(pa.large_list_view(pa.int32()))
STRUCT = scan_for(
    pa.struct([("a", pa.int64()), ("b", pa.string())]),
    part("a", pa.int64()),
    part("b", pa.string()),
)


@pytest.mark.parametrize("cut", [slice(None), slice(1, None), slice(1, 3), slice(2, 2)], ids=str)
@pytest.mark.parametrize(
    ("scan", "array", "values"),
    [
        (LIST, pa.array([[1], None, [], [2, None]], pa.list_(pa.int32())), None),
        (LIST, pa.array([[1], None, [], [2, None]], pa.large_list(pa.int64())), None),
        (LIST, pa.array([[1], None, [], [2, None]], pa.list_view(pa.int32())), None),
        (LIST, pa.array([[1], None, [], [2, None]], pa.large_list_view(pa.int64())), None),
        (LIST, pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int64(), 2)), None),
        (LIST, pa.array([[], None, [], []], pa.list_(pa.int32(), 0)), None),
        (LISTS, pa.array([[[1]], None, [None, [2]], []], VIEWS), None),
        (LISTS, pa.array([[[1, 2], None], None, [[3, 4], [5, 6]], [None, None]], PAIRS), None),
        (
            scan_for(pa.map_(pa.string(), LIST.target.type), part("key", pa.string()), LIST),
            pa.array([[("a", [1])], None, [], [("b", None)]], pa.map_(pa.string(), ONES)),
            None,
        ),
        (
            scan_for(pa.struct([("l", LIST.target.type)]), replace(LIST, name="l")),
            pa.array([{"l": [1]}, None, {"l": None}, {"l": [4]}], pa.struct([("l", ONES)])),
            None,
        ),
        (LIST, pa.nulls(4), None),
        (MAP, pa.nulls(4), None),
        (STRUCT, pa.nulls(4), None),
        (scan_for(pa.string()), pa.array(["{}", None, "1", "[]"], pa.json_()), None),
        (
            MAP,
            pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int8())),
            None,
        ),
        (
            STRUCT,
            pa.array([{"a": 1}, None, {"a": None}, {"a": 4}], pa.struct([("a", pa.int32())])),
            [{"a": 1, "b": None}, None, {"a": None, "b": None}, {"a": 4, "b": None}],
        ),
        (scan_for(pa.int64()), pa.array([1, None, 3, 4], pa.int8()), None),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_nested_values_keep_nulls_and_positions_in_slices_too(
    scan: FieldScan, array: pa.Array, values: list[Any] | None, cut: slice
) -> None:
    found = conform(array[cut], scan)
    found.validate(full=True)
    assert found.type == scan.target.type
    assert found.to_pylist() == (array.to_pylist() if values is None else values)[cut]


def test_items_of_a_list_view_may_lie_in_any_order_and_under_nulls() -> None:
    views = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 1], pa.int32()),
        pa.array([2, 2, 3], pa.int32()),
        pa.array([1, 2, 3, 4]),
        mask=pa.array([False, True, False]),
    )
    assert conform(views, LIST).to_pylist() == [[3, 4], None, [2, 3, 4]]
    assert conform(views[2:], LIST).to_pylist() == [[2, 3, 4]]


@pytest.mark.parametrize(
    ("array", "scan"),
    [
        (pa.array([1]), scan_for(pa.string())),
        (pa.array(["1"]), scan_for(pa.int64())),
        (pa.array([1.0]), scan_for(pa.int64())),
        (pa.array([1.0]), scan_for(pa.float32())),
        (pa.array([True]), scan_for(pa.int64())),
        (pa.array([300]), scan_for(pa.int8())),
        (pa.array([datetime.date(2024, 1, 1)]), scan_for(pa.int64())),
        (pa.array([1]), LIST),
        (pa.array([[1]]), MAP),
        (pa.array([[1]]), STRUCT),
        (pa.array([{"a": 1}]), LIST),
        (pa.array([["x"]]), LIST),
        (pa.array([["x"]], pa.list_(pa.string(), 1)), LIST),
        (pa.array([["x"]], pa.list_view(pa.string())), LIST),
        (pa.array([b"\xff"]), scan_for(pa.string())),
    ],
    ids=lambda part: str(part.type if isinstance(part, pa.Array) else part.target.type),
)
def test_a_value_is_never_bent_into_another_type(array: pa.Array, scan: FieldScan) -> None:
    with pytest.raises(UnreadableDataFileError, match="in the file and"):
        conform(array, scan)


def test_a_column_is_found_by_its_id_or_not_at_all() -> None:
    fields = [pa.field("x", pa.int64(), metadata={FIELD_ID: b"7"}), pa.field("y", pa.int64())]
    assert FileFields(fields).find(scan_for(pa.int64(), field_id=7)) == 0
    assert FileFields(fields).find(scan_for(pa.int64(), field_id=8)) is None
    assert FileFields(fields).find(part("y", pa.int64())) == 1


def test_a_name_in_another_case_is_found_only_where_it_is_the_only_one() -> None:
    fields = [pa.field(name, pa.int64()) for name in ("X", "Y", "y")]
    assert FileFields(fields).find(part("x", pa.int64())) == 0
    assert FileFields(fields).find(part("y", pa.int64())) == 2
    assert FileFields(fields).find(part("Y", pa.int64())) == 1


@pytest.mark.attack
@pytest.mark.parametrize(
    ("in_file", "in_table", "name"),
    [
        (["AB", "Ab"], ["ab"], "ab"),
        (["AB", "AB"], ["ab"], "ab"),
        (["AB"], ["ab", "aB"], "ab"),
    ],
)
def test_several_matches_of_a_name_are_an_error(
    in_file: list[str], in_table: list[str], name: str
) -> None:
    fields = [pa.field(each, pa.int64()) for each in in_file]
    with pytest.raises(UnreadableDataFileError, match="case is ignored"):
        FileFields(fields, in_table).find(part(name, pa.int64()))


@pytest.mark.attack
def test_the_exact_name_of_another_column_is_never_read() -> None:
    fields = [pa.field("a", pa.int64())]
    assert FileFields(fields, ["A", "a"]).find(part("A", pa.int64())) is None
    assert FileFields(fields, ["A", "a"]).find(part("a", pa.int64())) == 0
    struct = pa.array([{"a": 1}])
    target = pa.struct([("A", pa.int64()), ("a", pa.int64())])
    children = part("A", pa.int64()), part("a", pa.int64())
    assert conform(struct, scan_for(target, *children)).to_pylist() == [{"A": None, "a": 1}]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("in_file", "in_table"),
    [("strasse", "stra\N{LATIN SMALL LETTER SHARP S}e"), ("s", "\N{LATIN SMALL LETTER LONG S}")],
)
def test_letters_that_java_keeps_apart_are_different_names(in_file: str, in_table: str) -> None:
    fields = [pa.field(in_file, pa.int64())]
    assert FileFields(fields).find(part(in_table, pa.int64())) is None
    assert FileFields(fields).find(part(in_file.upper(), pa.int64())) == 0


def test_columns_of_one_name_are_told_apart_by_id_and_never_mixed_up() -> None:
    fields = [pa.field("x", pa.int64(), metadata={FIELD_ID: number}) for number in (b"1", b"2")]
    assert FileFields(fields).find(scan_for(pa.int64(), field_id=2)) == 1
    with pytest.raises(UnreadableDataFileError, match="several of its columns have the name 'x'"):
        FileFields(fields).find(scan_for(pa.int64()))
    with pytest.raises(UnreadableDataFileError, match="several of its columns have id 1"):
        FileFields(fields[:1] * 2).find(scan_for(pa.int64(), field_id=1))


JAVA = {
    "Id": "id",
    "Stra\N{LATIN SMALL LETTER SHARP S}e": "stra\N{LATIN SMALL LETTER SHARP S}e",
    "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}D": "i\N{COMBINING DOT ABOVE}d",
    "\N{LATIN SMALL LETTER DOTLESS I}": "\N{LATIN SMALL LETTER DOTLESS I}",
    "\N{KELVIN SIGN}": "k",
    "\N{LATIN CAPITAL LETTER SHARP S}": "\N{LATIN SMALL LETTER SHARP S}",
    "ΑΣ": "ας",
    "ΑΣ.": "ας.",
    "ΑΣ_Α": "ασ_α",
    "ΑΣ Β": "ας β",
    "ΑΣ-Β": "ασ-β",
    "ΑΣ:Β": "ας:β",
    "ΑΣ1": "ας1",
    "Α1Σ": "α1ς",
    "_Σ": "_σ",
    "a_Σ": "a_ς",
    "ΣΑΣ": "σας",
    "Σ": "σ",
}
"""What `String.toLowerCase(Locale.ROOT)` of Java 17 returns."""


@pytest.mark.attack
@pytest.mark.parametrize(("name", "folded"), JAVA.items())
def test_names_are_folded_as_java_writes_them_in_lower_case(name: str, folded: str) -> None:
    assert fold_name(name) == folded
