"""Changes of columns, as readers of tables of every format are told of them."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import open_table
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.delivered_schemas import SchemaWatch
from tailerd.pipeline.table_reading import Reading
from tailerd.records.schema_changes import SchemaChange, SchemaTracker, compare_schemas
from tailerd.storage.table_location import locate_table
from tailerd.transforms.options import make_view
from tests.formats.conftest import Table
from tests.formats.evolving import add_column
from tests.formats.test_views import EVERYTHING
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.lance_writer import LanceWriter


async def read_changes(source: ChangeSource, start: str) -> list[SchemaChange]:
    tracker, found = SchemaTracker(), []
    at = await source.initial_offset(start)
    async with aclosing(Reading(source=source).batches(at)) as batches:
        async for batch in batches:
            schema = await source.schema_at(batch.rows.version)
            assert compare_schemas(schema, batch.rows.rows.schema) == (), "rows are of the version"
            if (change := tracker.observe(batch.rows)) is not None:
                found.append(change)
    return found


@pytest.mark.parametrize("view", [{}, {"columns": {"exclude": ["name"]}, "rename": {"id": "key"}}])
async def test_a_column_is_added_before_the_first_row_with_it(
    table: Table, view: dict[str, object]
) -> None:
    first = table.append([1])
    table.append([2])
    if table.format == "memory":
        pytest.skip("its columns are fixed")
    version = add_column(table, 3)
    request = OpenRequest(view=make_view(**view), ledger=table.ledger)  # type: ignore[arg-type]
    source = await open_table(locate_table(str(table.location)), request)
    start, added = await read_changes(source, str(first))
    assert (start.version, start.changes) == (first, ())
    assert (added.version, added.summary) == (version, "added extra (double)")
    assert added.schema.names == ["key" if view else "id", *([] if view else ["name"]), "extra"]


@pytest.mark.parametrize("view", [{}, {"columns": ["extra", "id"], "rename": {"extra": "more"}}])
async def test_changes_are_the_same_where_another_process_reads(
    table: Table, view: dict[str, object]
) -> None:
    first = table.append([1])
    if table.format == "memory":
        pytest.skip("its columns are fixed")
    last = add_column(table, 3)
    request = OpenRequest(view=make_view(**view), ledger=table.ledger)  # type: ignore[arg-type]
    source = await open_table(locate_table(str(table.location)), request)
    start = await source.initial_offset(str(first))
    end = await source.latest_offset(start, EVERYTHING)
    after = await source.schema_at(last)
    here, there = (SchemaWatch(None, after) for _ in range(2))
    stream = ChangeStream(source, start, end, limit=DEFAULT_BATCH_LIMIT)
    [_ async for _ in here.watch(stream.batches(), stream.commits)]
    tasks = [task async for group in source.plan(start, end) for task in group.tasks]
    there.plan(tasks, stream.commits)
    assert [change.summary for change in here.changes][1:] == [
        "added more (double)" if view else "added extra (double)"
    ]
    assert [change.to_json() for change in here.changes] == [
        change.to_json() for change in there.changes
    ]


async def test_a_column_that_is_not_delivered_is_not_told(table: Table) -> None:
    first = table.append([1])
    if table.format == "memory":
        pytest.skip("its columns are fixed")
    add_column(table, 3)
    request = OpenRequest(view=make_view(columns=["id", "name"]), ledger=table.ledger)
    source = await open_table(locate_table(str(table.location)), request)
    assert [change.changes for change in await read_changes(source, str(first))] == [()]


@pytest.mark.parametrize("mapping", ["name", "id"])
async def test_column_mapping_of_delta_shows_renames(tmp_path: Path, mapping: str) -> None:
    home = delta_schema.struct(delta_schema.field("city", "string"))
    table = TableBuilder(
        tmp_path,
        fields=[("id", "integer"), ("home", home)],
        mapping=mapping,  # type: ignore[arg-type]
    )
    table.append([{"id": 1, "home": {"city": "x"}}])
    table.field_named("home")["type"]["fields"][0]["name"] = "town"
    table.rename_column("id", "key")
    table.append([{"key": 2, "home": {"town": "y"}}])
    source = await open_table(locate_table(str(tmp_path)), OpenRequest())
    _, change = await read_changes(source, "0")
    assert change.summary == "renamed id to key, renamed home.city to home.town"


async def test_field_ids_of_lance_show_renames_and_casts(tmp_path: Path) -> None:
    part = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32())])
    columns = [pa.field("id", pa.int32()), pa.field("st", part), pa.field("ls", pa.list_(part))]
    writer = LanceWriter(tmp_path / "t", schema=pa.schema(columns))
    row = {"id": 1, "st": {"a": 1, "b": 2}, "ls": [{"a": 1, "b": 2}]}
    writer.append([row])
    writer.dataset.alter_columns({"path": "st.b", "name": "c"})
    writer.dataset.alter_columns({"path": "id", "data_type": pa.int64()})
    writer.schema = writer.dataset.schema
    writer.append([{**row, "st": {"a": 1, "c": 2}}])
    source = await open_table(locate_table(str(tmp_path / "t")), OpenRequest())
    *_, change = await read_changes(source, "1")
    assert change.summary == "widened id from int32 to int64, renamed st.b to st.c"
