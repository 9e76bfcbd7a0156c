"""Types of columns, names, and what is refused with the file named."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiledb

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.changefeed.offset import Phase
from tailerd.errors import (
    NotATableError,
    TableError,
    UnreadableDataFileError,
    UnsupportedFeatureError,
)
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import EVERYTHING, changes, opened


def created(path: Path, *attributes: Any, dim: Any = None, enums: Any = ()) -> None:
    if dim is None:
        dim = tiledb.Dim("x", domain=(0, 99), tile=10, dtype=np.int32)
    schema = tiledb.ArraySchema(
        domain=tiledb.Domain(dim), sparse=True, attrs=list(attributes), enums=list(enums)
    )
    tiledb.Array.create(str(path), schema)


async def rows(path: Path) -> list[dict[str, object]]:
    source = await opened(path)
    start = await source.initial_offset("snapshot")
    assert start.phase is Phase.SNAPSHOT
    found: list[dict[str, object]] = []
    async for group in source.plan(start, start.after_version(source)):
        for task in group.tasks:
            for batch in source.read(task, DEFAULT_BATCH_LIMIT):
                assert batch.rows.schema == await source.arrow_schema()
                found += batch.rows.to_pylist()
    return found


DAY = datetime.date(1969, 12, 31)
CASES: list[tuple[Any, pa.DataType, Any, object]] = [
    (tiledb.Attr("a", dtype=np.uint8), pa.uint8(), np.array([7, 8], np.uint8), 7),
    (tiledb.Attr("a", dtype=np.bool_), pa.bool_(), np.array([True, False]), True),
    (tiledb.Attr("a", dtype=np.float32), pa.float32(), np.array([1.5, 2], np.float32), 1.5),
    (tiledb.Attr("a", dtype="S", var=True), pa.binary(), np.array([b"a\xff", b""], "O"), b"a\xff"),
    (tiledb.Attr("a", dtype="ascii", var=True), pa.binary(), np.array(["a", ""], "O"), b"a"),
    (tiledb.Attr("a", dtype="S3"), pa.binary(), np.array([b"abc", b"d"], "S3"), b"abc"),
    (tiledb.Attr("a", dtype=str, var=True), pa.string(), np.array(["å", ""], "O"), "å"),
    (
        tiledb.Attr("a", dtype="datetime64[D]"),
        pa.date32(),
        np.array(["1969-12-31", "2020-01-01"], "datetime64[D]"),
        DAY,
    ),
    (
        tiledb.Attr("a", dtype="datetime64[ns]"),
        pa.timestamp("us"),
        np.array([-1, 10**9], "datetime64[ns]"),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    ),
    (
        tiledb.Attr("a", dtype="datetime64[s]"),
        pa.timestamp("us"),
        np.array([5, 6], "datetime64[s]"),
        datetime.datetime(1970, 1, 1, 0, 0, 5),
    ),
]


@pytest.mark.parametrize(("attribute", "kind", "values", "first"), CASES)
async def test_a_type_reads_as_it_is_documented(
    tmp_path: Path, attribute: Any, kind: pa.DataType, values: Any, first: object
) -> None:
    created(tmp_path / "a", attribute)
    with tiledb.open(str(tmp_path / "a"), "w", timestamp=1000) as array:
        array[np.array([1, 2], np.int32)] = {"a": values}
    source = await opened(tmp_path / "a")
    assert (await source.arrow_schema()).field("a").type == kind
    found = await rows(tmp_path / "a")
    assert found[0] == {"x": 1, "a": first}
    assert len(found) == 2


async def test_enumerations_are_their_values(tmp_path: Path) -> None:
    colours = tiledb.Enumeration("colours", False, values=["red", "blue"])
    attribute = tiledb.Attr("a", dtype=np.int8, enum_label="colours")
    created(tmp_path / "a", attribute, enums=[colours])
    with tiledb.open(str(tmp_path / "a"), "w", timestamp=1000) as array:
        array[np.array([1, 2], np.int32)] = {"a": np.array([1, 0], np.int8)}
    assert [row["a"] for row in await rows(tmp_path / "a")] == ["blue", "red"]
    arrays.delete(tmp_path / "a", 2000, "a == 'red'")
    source = await opened(tmp_path / "a")
    start = await source.initial_offset("2000")
    found = await changes(source, start, start.after_version(source))
    assert found == [("delete", (2, "red"))]


async def test_text_dimensions_are_strings_and_updates_of_them_are_pairs(tmp_path: Path) -> None:
    dim = tiledb.Dim("k", domain=(None, None), tile=None, dtype="ascii")
    created(tmp_path / "a", tiledb.Attr("v", dtype=np.int64), dim=dim)
    for time, keys in ((1000, ["a", "bb", "c"]), (2000, ["bb", "zz"])):
        with tiledb.open(str(tmp_path / "a"), "w", timestamp=time) as array:
            array[np.array(keys, dtype="O")] = {"v": np.full(len(keys), time)}
    source = await opened(tmp_path / "a")
    start = await source.initial_offset("2000")
    assert await changes(source, start, start.after_version(source)) == [
        ("update_preimage", ("bb", 1000)),
        ("update_postimage", ("bb", 2000)),
        ("insert", ("zz", 2000)),
    ]


async def test_cells_of_several_values_are_refused(tmp_path: Path) -> None:
    created(tmp_path / "a", tiledb.Attr("a", dtype=np.dtype([("", "f4"), ("", "f4")])))
    with pytest.raises(UnsupportedFeatureError, match="'a'"):
        await opened(tmp_path / "a")


async def test_an_update_by_condition_is_refused_with_the_file_named(tmp_path: Path) -> None:
    arrays.create_named(tmp_path / "a")
    arrays.write_named(tmp_path / "a", 1000, [1])
    name = f"__2000_2000_{7:032x}_22.upd"
    (tmp_path / "a/__commits" / name).write_bytes(b"x")
    with pytest.raises(UnsupportedFeatureError, match=name):
        await opened(tmp_path / "a")


async def test_a_damaged_delete_is_an_error_that_names_it(tmp_path: Path) -> None:
    arrays.create_named(tmp_path / "a")
    arrays.write_named(tmp_path / "a", 1000, [1])
    name = f"__2000_2000_{7:032x}_22.del"
    (tmp_path / "a/__commits" / name).write_bytes(b"no tile")
    source = await opened(tmp_path / "a")
    start = await source.initial_offset("2000")
    with pytest.raises(TableError):
        await changes(source, start, start.after_version(source))


async def test_a_folder_without_an_array_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotATableError):
        await opened(tmp_path)


async def test_an_array_without_commits_has_no_rows_yet(tmp_path: Path) -> None:
    arrays.create_named(tmp_path / "a")
    source = await opened(tmp_path / "a")
    assert (await source.arrow_schema()).names == ["id", "name"]
    start = await source.initial_offset("snapshot")
    arrays.write_named(tmp_path / "a", 1000, [1])
    end = await source.latest_offset(start, EVERYTHING)
    assert await changes(source, start, end) == [("insert", (1, "n1"))]


@pytest.mark.attack
@pytest.mark.parametrize("dtype", [np.int32, np.float64])
async def test_cells_in_the_new_part_of_a_current_domain_are_inserts(
    tmp_path: Path, dtype: Any
) -> None:
    path = str(tmp_path / "a")
    domain = tiledb.Domain(
        tiledb.Dim("x", domain=(0, 1000), tile=10, dtype=dtype),
        tiledb.Dim("y", domain=(0, 1000), tile=10, dtype=np.int32),
    )

    def current(last: int) -> Any:
        box = tiledb.NDRectangle(tiledb.default_ctx(), domain)
        box.set_range(0, dtype(0), dtype(last))
        box.set_range(1, 0, 500)
        found = tiledb.CurrentDomain(tiledb.default_ctx())
        found.set_ndrectangle(box)
        return found

    schema = tiledb.ArraySchema(
        domain=domain, attrs=[tiledb.Attr("v", dtype=np.int32)], sparse=True
    )
    schema.set_current_domain(current(4))
    tiledb.Array.create(path, schema)

    def write(time_ms: int, *xs: int) -> None:
        with tiledb.open(path, "w", timestamp=time_ms) as array:
            array[np.array(xs, dtype), np.array(xs, np.int32)] = np.array(xs, np.int32) + time_ms

    write(10, 1, 4)
    evolution = tiledb.ArraySchemaEvolution(tiledb.default_ctx())
    evolution.timestamp(20)
    evolution.expand_current_domain(current(9))
    evolution.array_evolve(path)
    write(30, 9)
    write(40, 4, 8)
    source = await opened(tmp_path / "a")
    at = await source.initial_offset("30")
    end = await source.latest_offset(at, EVERYTHING)
    found = [(kind, row[0], row[2]) for kind, row in await changes(source, at, end)]
    assert sorted(found) == [
        ("delete", 4, 14),
        ("insert", 4, 44),
        ("insert", 8, 48),
        ("insert", 9, 39),
    ] or sorted(found) == [
        ("insert", 8, 48),
        ("insert", 9, 39),
        ("update_postimage", 4, 44),
        ("update_preimage", 4, 14),
    ]


@pytest.mark.attack
@pytest.mark.parametrize("is_var", [False, True])
@pytest.mark.parametrize(
    ("unit", "number"),
    [("h", 2**62), ("m", -(2**58)), ("s", 2**45), ("ms", -(2**60)), ("D", 2**40), ("Y", 2**33)],
)
async def test_times_beyond_the_range_of_arrow_are_refused(
    tmp_path: Path, unit: str, number: int, is_var: bool
) -> None:
    kind = f"datetime64[{unit}]"
    created(tmp_path / "a", tiledb.Attr("a", dtype=kind, var=is_var))
    cells: Any = np.array([number, 5], "int64").view(kind)
    if is_var:
        parts = np.empty(2, "O")
        parts[:] = [cells[:1], cells]
        cells = parts
    with tiledb.open(str(tmp_path / "a"), "w") as array:
        array[np.array([1, 2])] = cells
    with pytest.raises(UnreadableDataFileError, match=r"'a' has a value that is not a valid"):
        await rows(tmp_path / "a")


@pytest.mark.attack
async def test_lists_of_times_are_read_in_every_unit(tmp_path: Path) -> None:
    created(tmp_path / "a", tiledb.Attr("a", dtype="datetime64[h]", var=True))
    parts = np.empty(1, "O")
    parts[:] = [np.array([1, -1], "datetime64[h]")]
    with tiledb.open(str(tmp_path / "a"), "w") as array:
        array[np.array([1])] = parts
    [row] = await rows(tmp_path / "a")
    hour = datetime.timedelta(hours=1)
    assert row["a"] == [datetime.datetime(1970, 1, 1) + hour, datetime.datetime(1970, 1, 1) - hour]
