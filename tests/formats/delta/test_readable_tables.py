"""Tables that can be read, and were refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.change_task import ChangeMode
from tests.formats.delta.test_messages import command
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import field
from tests.tables.feed import changes

pytestmark = pytest.mark.attack


async def test_the_old_name_of_timestamps_without_a_zone_is_known(tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path,
        fields=[("id", "long"), ("t", "timestamp_ntz")],
        reader_features=["timestampWithoutTimezone"],
        properties={"delta.checkpointInterval": "1"},
    )
    table.append([{"id": 1, "t": None}])
    assert [row["id"] for row in await changes(table.folder)] == [1]
    assert command("maintain", table.folder, "--apply").returncode == 0
    assert list(table.log.glob("*.checkpoint*"))


@pytest.mark.parametrize(("new", "is_on"), [(None, True), ("false", False), ("true", True)])
def test_the_old_name_of_the_feeds_property_counts_without_the_new_one(
    tmp_path: Path, new: str | None, is_on: bool
) -> None:
    properties = {"delta.enableChangeDataCapture": "true"}
    if new is not None:
        properties["delta.enableChangeDataFeed"] = new
    table = TableBuilder(tmp_path, properties=properties)
    table.append([{"id": 1, "name": "a"}])
    done = command("tail", table.folder, "--from", "0", "--once", "--changes", "cdf")
    assert (done.returncode == 0) is is_on


def with_arrow_views(path: Path) -> None:
    """Write a Parquet file again, with an Arrow schema of views and dictionaries."""
    table = pq.read_table(path)
    views = pa.schema([item.with_type(view_of(item.type)) for item in table.schema])
    pq.write_table(table.cast(views), path)


def view_of(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.string_view()
    if pa.types.is_struct(kind):
        return pa.struct([item.with_type(view_of(item.type)) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(view_of(kind.key_type), view_of(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(view_of(kind.value_type))
    return kind


@pytest.mark.parametrize("layout", ["v1", "v2-parquet"])
async def test_a_checkpoint_whose_arrow_schema_has_views_is_read_and_followed_by_another(
    tmp_path: Path, layout: str
) -> None:
    table = TableBuilder(
        tmp_path,
        fields=[("id", "long"), ("p", "string")],
        partition_by=["p"],
        reader_features=["deletionVectors", "v2Checkpoint"],
        properties={"delta.checkpointInterval": "1"},
    )
    [add] = table.append([{"id": 1, "p": "a"}, {"id": 2, "p": "a"}]).adds
    table.delete_rows(add, [0])
    for path in table.checkpoint(layout=layout, stats="both"):  # type: ignore[arg-type]
        with_arrow_views(path)
    for version in (0, 1):
        table.commit_path(version).unlink(missing_ok=True)
    assert [(row["id"], row["p"]) for row in await changes(table.folder, "snapshot")] == [(2, "a")]
    table.append([{"id": 3, "p": "b"}])
    done = command("maintain", table.folder, "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = await changes(table.folder, "snapshot")
    assert {(row["id"], row["p"]) for row in rows} == {(2, "a"), (3, "b")}


@pytest.mark.parametrize("mode", list(ChangeMode), ids=str)
@pytest.mark.parametrize(
    ("kind", "arrow"),
    [("interval day to second", pa.int64()), ("interval year to month", pa.int32())],
)
async def test_an_interval_column_can_be_left_out(
    tmp_path: Path, mode: ChangeMode, kind: str, arrow: pa.DataType
) -> None:
    table = TableBuilder(tmp_path, properties={"delta.enableChangeDataFeed": "true"})
    table.fields.append(field("odd", kind))

    def rows(*names: str) -> pa.Table:
        numbers = pa.array(range(len(names)), pa.int64())
        return pa.table({"id": numbers, "name": list(names), "odd": numbers.cast(arrow)})

    one = table.data_file(rows("a", "b"), partition={})
    table.create(one)
    table.commit(table.remove(one), table.data_file(rows("a", "c"), partition={}))
    found = await changes(tmp_path, "1", mode=mode, columns=["id", "name"])
    kinds = {(str(row["_change_type"]), row["name"]) for row in found}
    assert {("delete", "b"), ("insert", "c")} <= kinds
    assert len(found) == (2 if mode.is_exact or mode is ChangeMode.NET else 4)
