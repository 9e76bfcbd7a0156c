"""Columns, conditions and masks, on tables of every format and where its tasks are read."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import (
    MissingDataFileError,
    PathOutsideTableError,
    TransformsMismatchError,
    UnsupportedFeatureError,
    UsageError,
)
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import find_reader, open_table, read_tasks
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table
from tailerd.transforms.options import make_view
from tests.formats.conftest import Table
from tests.tables import delta_schema
from tests.tables.builder import CDF, TableBuilder
from tests.tables.lance_writer import LanceWriter

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**15)
VIEW: dict[str, Any] = {
    "columns": ["name", "id"],
    "rename": {"name": "label"},
    "where": "id >= 2 and name <> 'n5'",
    "mask": {"name": "redact"},
}


async def opened(table: Table, **options: Any) -> ChangeSource:
    request = OpenRequest(view=make_view(**options), ledger=table.ledger)
    return await open_table(locate_table(str(table.location)), request)


async def read(source: ChangeSource, start: Offset, end: Offset) -> list[tuple[Any, ...]]:
    """Return change, label and id of each row, as the daemon and as a worker process reads them."""
    tasks = [task for group in [g async for g in source.plan(start, end)] for task in group.tasks]
    here = [batch for task in tasks for batch in source.read(task, DEFAULT_BATCH_LIMIT)]
    there = pickle.loads(pickle.dumps(tasks))
    elsewhere = list(read_tasks(there, DEFAULT_BATCH_LIMIT, stores=Stores()))
    for task in there:
        assert find_reader(task).schema(task).names == ["label", "id"]
    found = []
    for batches in (here, elsewhere):
        rows = []
        for batch in batches:
            assert batch.rows.schema.names == ["label", "id"]
            columns = batch.rows.to_pydict().values()
            rows += list(zip(batch.change_types().to_pylist(), *columns, strict=True))
        found.append(rows)
    assert found[0] == found[1]
    return found[0]


async def test_the_changes_of_a_view_are_those_of_its_rows(table: Table) -> None:
    first = table.append([1, 2, 3])
    versions = [first, table.append([4, 5]), table.remove(first), table.append([6, 6])]
    source = await opened(table, **VIEW)
    state: Counter[tuple[Any, ...]] = Counter()
    for version in versions:
        begin = await source.offset_at(version)
        for kind, *row in await read(source, begin, begin.after_version(source)):
            state[tuple(row)] += 1 if kind == ChangeType.INSERT else -1
        begin = await source.offset_at(version, Phase.SNAPSHOT)
        snapshot = await read(source, begin, begin.after_version(source))
        assert Counter(tuple(row) for _, *row in snapshot) == +state
    assert +state == Counter({("***", 4): 1, ("***", 6): 2})


async def test_schemas_are_those_of_the_view(table: Table) -> None:
    version = table.append([1])
    source = await opened(table, **VIEW)
    assert (await source.arrow_schema()).names == ["label", "id"]
    assert (await source.schema_at(version)).names == ["label", "id"]
    assert (await source.schema_at(version, ["id"])).names == ["id"]
    hidden = await opened(table, columns=["name"], rename={"id": "key"})
    assert (await hidden.schema_at(None, ["key"])).names == ["key"]
    begin = await source.offset_at(version)
    steps = [step async for step in source.schema_steps(begin, begin.after_version(source))]
    assert [step.schema.names for step in steps] == [["label", "id"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["nam"]}, "nam"),
        ({"columns": {"exclude": ["nam"]}}, "Did you mean 'name'"),
        ({"where": "nam = 'x'"}, "Did you mean 'name'"),
        ({"where": "name > 5"}, "cannot be compared"),
        ({"mask": {"nam": "redact"}}, "Did you mean 'name'"),
        ({"mask": {"name": {"truncate": "year"}}}, "is for dates"),
        ({"rename": {"nam": "x"}}, "Did you mean 'name'"),
        ({"rename": {"name": "id"}}, "Two columns would have the name 'id'"),
    ],
)
async def test_what_does_not_fit_the_table_is_refused_when_it_is_opened(
    table: Table, options: dict[str, Any], message: str
) -> None:
    table.append([1])
    with pytest.raises(UsageError, match=message):
        await opened(table, **options)


async def test_an_error_hides_the_value_of_a_masked_partition_column(tmp_path: Path) -> None:
    fields = [("id", "long"), ("name", "string")]
    table = TableBuilder(tmp_path, fields=fields, partition_by=["name"])
    table.create(table.data_file([{"id": 1}], partition={"name": "Zaphod"}))
    [add] = table.state(table.version).adds.values()
    (tmp_path / add["path"]).unlink()
    for mask, is_hidden in (({"name": "redact"}, True), ({}, False)):
        request = OpenRequest(view=make_view(columns=["id", "name"], mask=mask))
        source = await open_table(locate_table(str(tmp_path)), request)
        begin = await source.initial_offset("snapshot")
        with pytest.raises(MissingDataFileError) as raised:
            await read(source, begin, begin.after_version(source))
        assert ("Zaphod" in str(raised.value)) is not is_hidden
        assert ("name=***" in str(raised.value)) is is_hidden
        assert "Zaphod" in raised.value.path, "the log is asked whether it still has the file"


@pytest.mark.parametrize("is_masked", [False, True])
async def test_an_error_of_planning_hides_the_value_too(is_masked: bool, tmp_path: Path) -> None:
    fields = [("id", "long"), ("name", "string")]
    table = TableBuilder(tmp_path / "table", fields=fields, partition_by=["name"])
    table.create(table.data_file([{"id": 1}], partition={"name": "Zaphod B"}))
    view = make_view(mask={"name": "redact"} if is_masked else None, columns=["id", "name"])
    source = await open_table(locate_table(str(table.folder)), OpenRequest(view=view))
    # Of a shallow clone that nobody allowed.
    action = table.data_file([{"id": 2}], partition={"name": "Zaphod B"})
    action["add"]["path"] = f"{tmp_path}/other/{action['add']['path']}"
    table.commit(action)
    begin = await source.offset_at(Version(1))
    with pytest.raises(PathOutsideTableError) as raised:
        await read(source, begin, await source.latest_offset(begin, EVERYTHING))
    assert ("Zaphod" in str(raised.value)) is not is_masked
    assert ("name=***" in str(raised.value)) is is_masked


def test_values_of_masked_columns_are_hidden_in_messages() -> None:
    view = make_view(mask={"name": "redact"})
    assert view is not None
    for text, hidden in (
        ("The file '/t/name=A B/x' is missing: why", "The file '/t/name=***/x' is missing: why"),
        ("a file 'name=A%20B/x', no more", "a file 'name=***/x', no more"),
        ("see /t/name=A B.", "see /t/name=***"),
        ("/t/surname=A/name=B/id=1", "/t/surname=A/name=***/id=1"),
        ("value 'A' of column name is no date", "value *** of column name is no date"),
        ("value 'A' of column id is no date", "value 'A' of column id is no date"),
    ):
        assert view.hide_values(text) == hidden


@pytest.mark.parametrize("kind", ["interval day to second", "geometry(4326)"])
@pytest.mark.parametrize("has_feed", [False, True])
async def test_an_excluded_column_may_have_any_type(
    kind: str, has_feed: bool, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path, properties=CDF if has_feed else {})
    table.fields.insert(1, delta_schema.field("odd", kind))
    old, new = (pa.table({"id": [1, 2], "name": names}) for names in (["a", "b"], ["a", "c"]))
    table.create(add := table.data_file(old, partition={}))
    images = {"id": 2, "name": "b", "_change_type": "update_preimage"}
    later = {"id": 2, "name": "c", "_change_type": "update_postimage"}
    feed = [table.cdc_file(pa.Table.from_pylist([images, later]))] if has_feed else []
    table.commit(table.remove(add), table.data_file(new, partition={}), *feed)
    location = locate_table(str(tmp_path))
    plain = OpenRequest(view=make_view(where="id > 0"))
    with pytest.raises(UnsupportedFeatureError, match="Column odd has the type"):
        await open_table(location, plain)
    with pytest.raises(UsageError, match="columns names 'od'"):
        await open_table(location, OpenRequest(view=make_view(columns={"exclude": ["odd", "od"]})))
    request = OpenRequest(view=make_view(columns={"exclude": ["odd"]}), identity=["id"])
    source = await open_table(location, request)
    assert (await source.arrow_schema()).names == ["id", "name"]
    begin = await source.initial_offset("0")
    end = await source.latest_offset(begin, EVERYTHING)
    tasks = [task for group in [g async for g in source.plan(begin, end)] for task in group.tasks]
    rows = [
        (kind, *row.values())
        for batch in read_tasks(
            pickle.loads(pickle.dumps(tasks)), DEFAULT_BATCH_LIMIT, stores=Stores()
        )
        for kind, row in zip(batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True)
    ]
    assert rows == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("update_preimage", 2, "b"),
        ("update_postimage", 2, "c"),
    ]


async def changes_and_files(
    folder: Path, version: int, where: str
) -> tuple[list[tuple[Any, ...]], int]:
    """Return the rows of a commit that meet a condition, and how many tasks read them."""
    source = await open_table(locate_table(str(folder)), OpenRequest(view=make_view(where=where)))
    begin = await source.offset_at(Version(version))
    end = begin.after_version(source)
    tasks = [task for group in [g async for g in source.plan(begin, end)] for task in group.tasks]
    batches = [batch for task in tasks for batch in source.read(task, DEFAULT_BATCH_LIMIT)]
    rows = [
        (kind, row["id"])
        for batch in batches
        for kind, row in zip(batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True)
    ]
    return rows, len(tasks)


async def test_files_are_left_out_whose_statistics_exclude_the_condition(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"], mapping="name")
    adds = [
        table.data_file([{"id": 10 * n + each, "name": "x"} for each in range(10)])
        for n in range(10)
    ]
    table.create(*adds)
    assert await changes_and_files(tmp_path, 0, "id between 52 and 53") == (
        [("insert", 52), ("insert", 53)],
        1,
    )
    assert await changes_and_files(tmp_path, 0, "id > 99 or name = 'x' and false") == ([], 10)
    assert await changes_and_files(tmp_path, 0, "id > 99") == ([], 0)
    # The statistics of the new action are those of the rows that are left.
    marked = table.with_vector(adds[9], [9])
    stats = json.loads(marked["add"]["stats"])
    stats["maxValues"] = {
        name: 98 if value == 99 else value for name, value in stats["maxValues"].items()
    }
    marked["add"]["stats"] = json.dumps(stats)
    table.commit(marked, table.remove(adds[9], stats=adds[9]["add"]["stats"]), operation="DELETE")
    assert await changes_and_files(tmp_path, 1, "id = 99") == ([("delete", 99)], 1)
    assert await changes_and_files(tmp_path, 1, "id = 50") == ([], 1)
    # Files that are compared are read together, or not at all.
    rewritten = [{"id": each, "name": "y"} for each in range(10)]
    removed = [table.remove(add, stats=add["add"]["stats"]) for add in adds[:2]]
    table.commit(*removed, table.data_file(rewritten))
    assert await changes_and_files(tmp_path, 2, "id = 15") == ([("delete", 15)], 1)
    assert await changes_and_files(tmp_path, 2, "id = 20") == ([], 0)


def delta_that_drops(folder: Path) -> tuple[Version, Callable[[], object]]:
    """Write a table; return the version after its last, and what drops the column `region`."""
    fields = [("id", "long"), ("name", "string"), ("region", "string")]
    table = TableBuilder(folder, fields=fields, mapping="name")
    for number in range(3):
        table.append([{"id": number, "name": f"n{number}", "region": "EU"}])

    def drop() -> None:
        table.change_metadata(fields=[each for each in table.fields if each["name"] != "region"])
        table.append([{"id": 9, "name": "n9"}])

    return Version(table.version + 1), drop


def delta_that_changes_a_type(folder: Path) -> tuple[Version, Callable[[], object]]:
    """As `delta_that_drops`, but `region` becomes a number."""
    fields = [("id", "long"), ("name", "string"), ("region", "string")]
    table = TableBuilder(folder, fields=fields)
    for number in range(3):
        table.append([{"id": number, "name": f"n{number}", "region": "EU"}])

    def overwrite() -> None:
        removes = [table.remove({"add": add}) for add in table.state().adds.values()]
        table.field_named("region")["type"] = "long"
        file = table.data_file([{"id": 9, "name": "n9", "region": 1}])
        table.commit(table.metadata(), *removes, file)

    return Version(table.version + 1), overwrite


def lance_that_drops(folder: Path) -> tuple[Version, Callable[[], object]]:
    """As `delta_that_drops`."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("region", pa.string())])
    table = LanceWriter(folder, schema=schema)
    for number in range(3):
        table.append([{"id": number, "name": f"n{number}", "region": "EU"}])

    def drop() -> None:
        table.dataset.drop_columns(["region"])
        table.schema = pa.schema(list(schema)[:2])
        table.append([{"id": 9, "name": "n9"}])

    return Version(table.dataset.version + 1), drop


@pytest.mark.parametrize("when", ["following", "resumed"])
@pytest.mark.parametrize(
    "write",
    [delta_that_drops, delta_that_changes_a_type, lance_that_drops],
    ids=lambda f: f.__name__,
)
async def test_a_commit_that_drops_a_column_is_where_a_view_that_names_it_ends(
    write: Callable[[Path], tuple[Version, Callable[[], object]]], when: str, tmp_path: Path
) -> None:
    folder = tmp_path / "table"
    dropped_at, drop = write(folder)
    view = make_view(columns=["id"], where="region = 'EU'")
    if when == "resumed":
        drop()
    request = OpenRequest(view=view, is_resumed=True)
    source = await open_table(locate_table(str(folder)), request)
    at = await source.offset_at(Version(dropped_at - 2))
    if when == "following":
        assert (await source.latest_offset(at, EVERYTHING)).version == dropped_at
        drop()
    end = await source.latest_offset(at, EVERYTHING)
    assert end.version == dropped_at
    tasks = [task for group in [g async for g in source.plan(at, end)] for task in group.tasks]
    assert [
        batch.rows.to_pylist() for task in tasks for batch in source.read(task, DEFAULT_BATCH_LIMIT)
    ] == [[{"id": 1}], [{"id": 2}]]
    with pytest.raises(TransformsMismatchError, match="does not fit `where`") as raised:
        await source.latest_offset(end, EVERYTHING)
    assert raised.value.version == dropped_at
    assert "offsets accept" in raised.value.remedy
    # With another condition the pipeline goes on with that commit.
    mended = OpenRequest(view=make_view(columns=["id"], where="name <> 'x'"), is_resumed=True)
    source = await open_table(locate_table(str(folder)), mended)
    last = await source.latest_offset(end, EVERYTHING)
    tasks = [task for group in [g async for g in source.plan(end, last)] for task in group.tasks]
    rows = [
        (kind, row["id"])
        for task in tasks
        for batch in source.read(task, DEFAULT_BATCH_LIMIT)
        for kind, row in zip(batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True)
    ]
    assert rows[-1] == ("insert", 9)


async def test_versions_before_a_column_was_added_have_null_in_it(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long")])
    table.append([{"id": 1}])
    table.change_metadata(fields=[*table.fields, ("name", "string")])
    table.append([{"id": 2, "name": "a"}])
    view = make_view(columns=["id"], where="name is null or name = 'a'")
    for is_resumed in (False, True):
        request = OpenRequest(view=view, is_resumed=is_resumed)
        source = await open_table(locate_table(str(tmp_path)), request)
        begin = await source.initial_offset("0")
        end = await source.latest_offset(begin, EVERYTHING)
        tasks = [
            task for group in [g async for g in source.plan(begin, end)] for task in group.tasks
        ]
        batches = [batch for t in tasks for batch in source.read(t, DEFAULT_BATCH_LIMIT)]
        assert [batch.rows.to_pylist() for batch in batches] == [[{"id": 1}], [{"id": 2}]]


async def test_a_view_that_fits_no_version_is_refused_while_nothing_is_pending(
    table: Table,
) -> None:
    table.append([1])
    request = OpenRequest(view=make_view(where="nam = 'x'"), ledger=table.ledger, is_resumed=True)
    source = await open_table(locate_table(str(table.location)), request)
    begin = await source.initial_offset("latest")
    with pytest.raises(UsageError, match="Did you mean 'name'"):
        await source.latest_offset(begin, EVERYTHING)
