"""The plan of a net change: kept as it is, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import PathOutsideTableError, StorageError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.net_plan import NetPlan, NetPlanFile
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.rewritten_files import rewritten_files
from tests.doubles.owned_state import owned_scratch
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta


async def make_plan(table: TableBuilder, first: int = 2) -> NetPlan:
    """Return the plan of everything from one version on."""
    source = await open_delta(
        str(table.folder), OpenRequest(changes=ChangeMode.NET, identity=["id"])
    )
    start = await source.offset_at(Version(first))
    end = await source.offset_at(Version(table.version + 1))
    [group] = [group async for group in source.plan(start, end)]
    [step] = [step async for step in source.schema_steps(start, end)]
    assert step.offset == start
    schema = TableSchema(table.schema_string)
    return NetPlan(group=group, schema=schema)


def rewritten_table(folder: Path) -> TableBuilder:
    """Make a table in which one file gave way to another, and one lost rows to a vector."""
    table = TableBuilder(folder, reader_features=["deletionVectors"])
    [first] = table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]).adds
    [second] = table.append([{"id": 3, "name": "50 %"}, {"id": 4, "name": "d"}]).adds
    table.commit(table.remove(first), table.data_file([{"id": 1, "name": "c"}]))
    table.delete_rows(second, [0])
    return table


async def test_a_plan_is_found_as_it_was_and_only_for_its_step(tmp_path: Path) -> None:
    table = rewritten_table(tmp_path / "50% off")
    plan = await make_plan(table)
    files = rewritten_files(plan.group.tasks[0])
    assert {file.rows.include is None for file in files.removed} == {True, False}
    file = NetPlanFile(Spool(owned_scratch(tmp_path / "state")), DataPaths(str(table.folder)))
    start, end = plan.group.start, plan.group.end
    assert await file.find(start, end) is None
    await file.keep(plan)
    assert await file.find(start, end) == plan
    for other in (replace(start, table_id="another"), replace(start, version=Version(1))):
        assert await file.find(other, end) is None
    assert await file.find(start, replace(end, version=Version(99))) is None


async def test_a_step_without_rows_is_a_plan_too(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "table")
    table.append([{"id": 1, "name": "a"}])
    table.commit({"txn": {"appId": "a", "version": 1}})
    plan = await make_plan(table, first=table.version)
    assert plan.group.tasks == ()
    file = NetPlanFile(Spool(owned_scratch(tmp_path / "state")), DataPaths(str(table.folder)))
    await file.keep(plan)
    assert await file.find(plan.group.start, plan.group.end) == plan


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
async def test_a_damaged_plan_is_none(tmp_path: Path, keep: int) -> None:
    table = rewritten_table(tmp_path / "table")
    plan = await make_plan(table)
    spool = Spool(owned_scratch(tmp_path / "state"))
    file = NetPlanFile(spool, DataPaths(str(table.folder)))
    await file.keep(plan)
    [path] = (tmp_path / "state").iterdir()
    path.write_bytes(path.read_bytes()[:keep])
    assert await file.find(plan.group.start, plan.group.end) is None
    await spool.remove()
    assert await file.find(plan.group.start, plan.group.end) is None


async def test_a_plan_names_no_file_outside_the_table(tmp_path: Path) -> None:
    table = rewritten_table(tmp_path / "table")
    plan = await make_plan(table)
    spool = Spool(owned_scratch(tmp_path / "state"))
    await NetPlanFile(spool, DataPaths(str(table.folder))).keep(plan)
    elsewhere = NetPlanFile(spool, DataPaths(str(tmp_path / "other")))
    with pytest.raises(PathOutsideTableError):
        await elsewhere.find(plan.group.start, plan.group.end)


async def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    table = rewritten_table(tmp_path / "table")
    plan = await make_plan(table)
    (tmp_path / "state").write_text("in the way")
    file = NetPlanFile(Spool(owned_scratch(tmp_path / "state")), DataPaths(str(table.folder)))
    assert await file.find(plan.group.start, plan.group.end) is None
    with pytest.raises(StorageError, match=r"state.* a file is where a folder must be"):
        await file.keep(plan)


async def test_without_a_folder_nothing_is_stored(tmp_path: Path) -> None:
    table = rewritten_table(tmp_path / "table")
    plan = await make_plan(table)
    file = NetPlanFile(None, DataPaths(str(table.folder)))
    await file.keep(plan)
    start: Offset = plan.group.start
    assert await file.find(start, plan.group.end) is None
