"""Every clause of `TableFormat`, `ChangeSource` and `TaskReader`, against every format."""

from __future__ import annotations

import asyncio
import datetime
import pickle
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType, TaskGroup
from tailerd.changefeed.column_filter import ColumnFilter, Comparison
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit, ReadLimit
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Phase, Version
from tailerd.errors import (
    ConfigError,
    MissingVersionError,
    NotATableError,
    TableRecreatedError,
    UsageError,
)
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import (
    commit_folder,
    find_format,
    find_reader,
    open_table,
    presumed_format,
    table_format,
)
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table
from tailerd.transforms.options import make_view
from tests.formats.conftest import Table

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**15)
ONE = ReadLimit(max_files=1, max_bytes=1)


async def opened(table: Table, columns: Sequence[str] | None = None) -> ChangeSource:
    request = OpenRequest(view=make_view(columns=columns), ledger=table.ledger)
    return await open_table(locate_table(str(table.location)), request)


async def groups(source: ChangeSource, start: Offset, end: Offset) -> list[TaskGroup]:
    return [group async for group in source.plan(start, end)]


async def tasks(source: ChangeSource, start: Offset, end: Offset) -> list[ChangeTask]:
    return [task for group in await groups(source, start, end) for task in group.tasks]


def rows(batches: Iterable[ChangeBatch]) -> list[tuple[str, int]]:
    return [
        (kind, row["id"])
        for batch in batches
        for kind, row in zip(batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True)
    ]


async def read(source: ChangeSource, start: Offset, end: Offset) -> list[tuple[str, int]]:
    planned = await tasks(source, start, end)
    return [row for task in planned for row in rows(source.read(task, DEFAULT_BATCH_LIMIT))]


async def snapshot(source: ChangeSource, version: Version) -> Counter[int]:
    begin = await source.offset_at(version, Phase.SNAPSHOT)
    found = await read(source, begin, begin.after_version(source))
    assert {kind for kind, _ in found} <= {ChangeType.INSERT}
    return Counter(number for _, number in found)


async def test_a_table_is_recognised_and_a_folder_without_one_is_not(table: Table) -> None:
    location = locate_table(str(table.location))
    assert not await table_format(table.format).detect(location)
    with pytest.raises(NotATableError):
        await open_table(location, OpenRequest())
    table.append([1])
    assert await table_format(table.format).detect(location)
    assert (await find_format(location)).name == table.format
    assert presumed_format(location).name == table.format


async def test_the_names_of_commits_are_told_from_others(table: Table) -> None:
    table.append([1])
    kind = table_format(table.format)
    location = locate_table(str(table.location))
    folder = commit_folder(location)
    assert folder == kind.folder(location)
    assert kind.is_at(location)
    assert not kind.is_at(locate_table(f"{table.location}/not there"))
    store, _ = Stores().locate(str(table.location))
    names = [meta.name async for meta in store.list_from(folder)]
    commits = [name for name in names if kind.names.version_of(name) is not None]
    assert commits
    assert all(name.endswith(kind.names.suffix) for name in commits)
    assert kind.names.version_of("part-00000.parquet") is None


async def test_versions_follow_each_other_as_the_source_says(table: Table) -> None:
    found = [table.append([number]) for number in range(3)]
    source = await opened(table)
    assert source.version_before(found[0]) == BEFORE_ALL
    assert source.next_version(BEFORE_ALL) == found[0]
    assert [source.next_version(version) for version in found[:2]] == found[1:]
    assert [source.version_before(version) for version in found[1:]] == found[:2]


async def test_a_start_is_a_word_a_version_or_a_time(table: Table) -> None:
    first, head = table.append([1]), table.append([2])
    source = await opened(table)
    latest = await source.initial_offset("latest")
    expected = Offset(table_id=source.table_id, version=source.next_version(head))
    assert replace(latest, mark="") == expected
    assert (await source.initial_offset("snapshot")).phase is Phase.SNAPSHOT
    assert (await source.initial_offset("snapshot")).version == head
    assert await source.initial_offset(str(first)) == await source.offset_at(first)
    assert (await source.initial_offset("1970-01-01T00:00:00Z")).version == first
    with pytest.raises(UsageError):
        await source.initial_offset("2999-01-01")


async def test_a_time_since_which_nothing_was_committed_is_that_of_the_next_commit(
    table: Table,
) -> None:
    head = table.append([1])
    await asyncio.sleep(0.01)
    source = await opened(table)
    since = await source.initial_offset(datetime.datetime.now(datetime.UTC).isoformat())
    assert since == await source.initial_offset("latest")
    assert since.version == source.next_version(head)
    with pytest.raises(MissingVersionError):
        await source.initial_offset(str(source.next_version(source.next_version(head))))


async def test_an_end_is_a_version_or_a_time(table: Table) -> None:
    table.append([1])
    head = table.append([2])
    source = await opened(table)
    assert await source.end_version(str(head)) == head
    assert await source.end_version("2999-01-01") == head
    with pytest.raises(MissingVersionError):
        await source.end_version("1969-01-01")


async def test_a_snapshot_and_what_follows_is_the_table(table: Table) -> None:
    first = table.append([1, 2, 3])
    table.append([4])
    found = [first, table.remove(first), table.append([5, 5, 6])]
    source = await opened(table)
    for version in found[1:]:
        begin = await source.offset_at(version)
        changes = await read(source, begin, begin.after_version(source))
        expected = await snapshot(source, source.version_before(version))
        for kind, number in changes:
            expected[number] += 1 if kind == ChangeType.INSERT else -1
        assert +expected == await snapshot(source, version)
    assert await snapshot(source, found[-1]) == Counter([4, 5, 5, 6])


@pytest.mark.parametrize("start", ["snapshot", "first"])
async def test_steps_of_any_size_give_the_same_tasks_in_the_same_order(
    table: Table, start: str
) -> None:
    first = table.append(range(5))
    table.append([7])
    source = await opened(table)
    begin = await source.initial_offset("snapshot" if start == "snapshot" else str(first))
    table.append([8, 9, 10])
    whole, at = await tasks_of_steps(source, begin, EVERYTHING)
    small, until = await tasks_of_steps(source, begin, ONE)
    assert whole == small
    assert await source.latest_offset(at, ONE) == at, "nothing is new"
    another = await opened(table)
    assert at == until == await another.initial_offset("latest")
    again = await tasks(another, begin, at)
    assert again == whole, "another process plans the same"


async def tasks_of_steps(
    source: ChangeSource, at: Offset, limit: ReadLimit
) -> tuple[list[ChangeTask], Offset]:
    found: list[ChangeTask] = []
    while (end := await source.latest_offset(at, limit)) != at:
        assert at.is_before(end)
        planned = await groups(source, at, end)
        assert planned[0].start == at
        assert planned[-1].end == end
        found += [task for group in planned for task in group.tasks]
        at = end
    return found, at


async def test_a_task_crosses_processes_and_its_reader_is_found_by_its_format(
    table: Table,
) -> None:
    version = table.append([1, 2])
    source = await opened(table)
    begin = await source.offset_at(version)
    for task in await tasks(source, begin, begin.after_version(source)):
        copy = pickle.loads(pickle.dumps(task))
        assert copy == task
        assert copy.format == table.format
        reader = find_reader(copy)
        assert rows(reader.read(copy)) == rows(source.read(task, DEFAULT_BATCH_LIMIT))
        assert reader.schema(copy).names == ["id", "name"]
        [batch, *_] = reader.read(copy)
        assert (batch.version, batch.timestamp_us) == (task.version, task.timestamp_us)


async def test_columns_are_read_as_asked_and_batches_are_bounded(table: Table) -> None:
    version = table.append(range(10))
    source = await opened(table, columns=["name"])
    assert (await source.arrow_schema()).names == ["name"]
    begin = await source.offset_at(version)
    found = await tasks(source, begin, begin.after_version(source))
    batches = [b for task in found for b in source.read(task, BatchLimit(max_rows=1))]
    assert [batch.num_rows for batch in batches] == [1] * 10
    assert {tuple(batch.rows.schema.names) for batch in batches} == {("name",)}
    task = found[0]
    assert find_reader(task).schema(task, ["name", "not there"]).names == ["name"]
    assert await source.schema_at(version, ["id"]) == pa.schema([pa.field("id", pa.int64())])
    with pytest.raises(UsageError):
        await source.schema_at(version, ["not there"])


def ids(batches: Iterable[ChangeBatch]) -> list[str]:
    """Return the ids of all rows."""
    found = [batch.ids() for batch in batches]
    assert None not in found, "readers say where rows stand"
    return [each for column in found if column is not None for each in column.to_pylist()]


@pytest.mark.parametrize("target_bytes", [1, 50, 10**9])
async def test_the_parts_of_a_task_are_the_whole(table: Table, target_bytes: int) -> None:
    version = table.append(range(20))
    source = await opened(table)
    begin = await source.offset_at(version)
    for task in await tasks(source, begin, begin.after_version(source)):
        reader = find_reader(task)
        parts = reader.split(task, target_bytes)
        assert {part.position for part in parts} == {task.position}
        assert rows(reader.read_run(parts)) == rows(reader.read(task))
        assert ids(reader.read_run(parts)) == ids(reader.read(task, BatchLimit(max_rows=3)))
        assert sum(part.size_bytes for part in parts) <= max(task.size_bytes, len(parts))


@pytest.mark.parametrize("comparison", Comparison)
@pytest.mark.parametrize("column", ["id", "name", "not there"])
async def test_no_row_that_passes_is_left_out(
    table: Table, comparison: Comparison, column: str
) -> None:
    version = table.append([1, 2, 3])
    source = await opened(table)
    begin = await source.offset_at(version)
    value: object = 2 if column == "id" else "n2"
    condition = ColumnFilter(column=column, comparison=comparison, values=(value,))
    for task in await tasks(source, begin, begin.after_version(source)):
        values = [row.get(column) for batch in find_reader(task).read(task)
                  for row in batch.rows.to_pylist()]  # fmt: skip
        if find_reader(task).excludes(task, [condition]):
            assert column != "not there"
            assert not any(_passes(each, comparison, value) for each in values)


def _passes(value: object, comparison: Comparison, wanted: object) -> bool:
    match comparison:
        case Comparison.IS_NULL:
            return value is None
        case Comparison.IS_NOT_NULL:
            return value is not None
        case Comparison.EQUAL | Comparison.IN:
            return value == wanted
        case Comparison.GREATER:
            return str(value) > str(wanted)
        case Comparison.AT_LEAST:
            return str(value) >= str(wanted)
        case Comparison.LESS:
            return str(value) < str(wanted)
        case Comparison.AT_MOST:
            return str(value) <= str(wanted)


async def test_the_backlog_counts_the_versions_that_wait(table: Table) -> None:
    found = [table.append([number]) for number in range(3)]
    source = await opened(table)
    backlog = await source.backlog(await source.offset_at(found[1]))
    assert (backlog.head_version, backlog.versions) == (found[2], 2)
    assert backlog.oldest_undelivered_timestamp_ms is not None
    at_rest = await source.backlog(await source.initial_offset("latest"))
    assert (at_rest.versions, at_rest.oldest_undelivered_timestamp_ms) == (0, None)


async def test_schemas_are_told_for_rows_that_come(table: Table) -> None:
    version = table.append([1])
    source = await opened(table)
    for phase in Phase:
        begin = await source.offset_at(version, phase)
        steps = [s async for s in source.schema_steps(begin, begin.after_version(source))]
        assert [(step.offset, step.version) for step in steps] == [(begin, version)]
        assert steps[0].schema == await source.arrow_schema()
        assert [s async for s in source.schema_steps(begin, begin)] == []


async def test_a_version_that_is_gone_is_a_gap(table: Table) -> None:
    first, second = table.append([1]), table.append([2])
    table.drop_before(second)
    source = await opened(table)
    gone = await source.offset_at(first)
    with pytest.raises(MissingVersionError):
        await source.latest_offset(gone, EVERYTHING)
    with pytest.raises(MissingVersionError):
        await source.initial_offset(str(first))
    assert await snapshot(source, second) == Counter([1, 2])


async def test_an_offset_of_a_table_that_was_dropped_is_refused(table: Table) -> None:
    version = table.append([1])
    before = await (await opened(table)).offset_at(version)
    table.replace()
    source = await opened(table)
    assert source.table_id != before.table_id
    with pytest.raises(TableRecreatedError):
        await source.latest_offset(before, EVERYTHING)
    identity = await source.identity(version)
    assert identity.table_id == source.table_id
    assert identity.schema_id
    assert (await source.identity(BEFORE_ALL)).schema_id == ""


async def test_a_run_of_tasks_gives_what_each_gives(table: Table) -> None:
    first, _, last = (table.append(ids) for ids in ([1, 2], [3], [4, 5, 6]))
    source = await opened(table)
    start, end = await source.offset_at(first), await source.offset_at(last)
    run = await tasks(source, start, end.after_version(source))
    each = [row for task in run for row in rows(source.read(task, DEFAULT_BATCH_LIMIT))]
    assert rows(source.read_run(run, DEFAULT_BATCH_LIMIT)) == each
    assert len(each) == 6


async def test_an_option_that_the_format_does_not_have_is_refused(table: Table) -> None:
    table.append([1])
    request = OpenRequest(options={"no_such_option": "1", "not_given": None})
    with pytest.raises(ConfigError, match=f"format {table.format}, which has no option"):
        await open_table(locate_table(str(table.location)), request, table.format)
