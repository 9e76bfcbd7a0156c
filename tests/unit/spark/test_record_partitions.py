"""A group's rows are read as a single table's are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.reading import files_ahead
from tailerd.sources.delta.source import DeltaChangeSource
from tailerd.spark.group.record_partitions import TableRows, pack_tables, read_records
from tests.tables.builder import TableBuilder


async def test_the_files_behind_are_under_way_when_the_first_record_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path)
    for number in range(3):
        table.append([{"id": number, "name": "a"}])
    source = await DeltaChangeSource.open(str(tmp_path))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    tasks = [task async for group in source.plan(start, end) for task in group.tasks]
    [partition] = pack_tables([TableRows(name="t", table_id="", kafka=None, tasks=tasks)])
    begun: list[str] = []
    # A local file is not begun: only a bucket makes one wait for it.
    monkeypatch.setattr(files_ahead, "begin_data_file", begun.append)

    pieces = read_records(partition)
    first = next(pieces)

    assert begun == [task.url for task in tasks]
    assert [piece.version for piece in (first, *pieces)] == [0, 1, 2]
