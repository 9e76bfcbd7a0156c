"""An update whose two images are in different change files of a commit, the new one first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailerd
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.pipeline import change_runs
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.remote_rows import RemoteRows
from tailerd.spark.change_range import tasks_between
from tailerd.spark.partitions import pack, read_partition
from tailerd.storage.stores import Stores
from tests.doubles.pickled_runner import PickledRunner
from tests.formats.delta.test_messages import command
from tests.tables.builder import CDF, TableBuilder
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack

OLD, NEW = {"id": 1, "p": "z"}, {"id": 1, "p": "a"}
WANTED = [("delete", 7), ("update_preimage", 1), ("update_postimage", 1), ("insert", 8)]


@pytest.fixture(params=[1, 40], ids=["few files", "many files"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> TableBuilder:
    """Return a table whose version 1 moves a row to another partition."""
    table = TableBuilder(
        tmp_path / "t", fields=[("id", "long"), ("p", "string")], partition_by=["p"], properties=CDF
    )
    added = table.create(*table.data_files([OLD, {"id": 7, "p": "z"}])).adds
    rows = [{"id": 100 + n, "p": f"m{n}"} for n in range(request.param)]
    others = [table.cdc_file([{**row, "_change_type": "insert"}]) for row in rows]
    table.commit(
        *map(table.remove, added),
        *table.data_files([NEW, {"id": 8, "p": "a"}, *rows]),
        table.cdc_file(
            [
                {**NEW, "_change_type": "update_postimage"},
                {"id": 8, "p": "a", "_change_type": "insert"},
            ]
        ),
        *others,
        table.cdc_file(
            [
                {**OLD, "_change_type": "update_preimage"},
                {"id": 7, "p": "z", "_change_type": "delete"},
            ]
        ),
    )
    return table


def kinds(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["_change_type"], row["id"]) for row in rows if row["id"] < 100]


def check_order(rows: Sequence[dict[str, Any]]) -> None:
    """Check that replaying the rows gives the table: what goes comes before what arrives."""
    found = kinds(rows)
    assert sorted(found) == sorted(WANTED)
    assert {kind for kind, _ in found[:2]} == {"delete", "update_preimage"}


@pytest.mark.parametrize("key", [(), ("id",)], ids=["no key", "key"])
def test_tail_and_python_give_the_old_image_first(
    table: TableBuilder, key: tuple[str, ...]
) -> None:
    arguments = [word for name in key for word in ("--key", name)]
    done = command("tail", table.folder, "--from", "1", "--once", "--format", "jsonl", *arguments)
    check_order([json.loads(line) for line in done.stdout.splitlines()])
    rows = tailerd.changes(str(table.folder), since=1, key=list(key)).to_arrow().to_pylist()
    check_order(rows)


@pytest.mark.parametrize("is_tight", [False, True], ids=["in memory", "read twice"])
@pytest.mark.parametrize("key", [(), ("id",)], ids=["no key", "key"])
async def test_sinks_on_both_engines_get_the_old_image_first(
    table: TableBuilder, key: tuple[str, ...], is_tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_tight:
        monkeypatch.setattr(change_runs, "RUN_FILES", 1)
    limit = BatchLimit(max_bytes=1 if is_tight else 1 << 20)
    source = await open_delta(str(table.folder))
    start = await source.initial_offset("1")
    end = await source.latest_offset(start, ReadLimit())
    stream = ChangeStream(source, start, end, limit=limit, key=key)
    check_order([row async for batch in stream.batches() for row in batch.to_arrow().to_pylist()])

    remote = RemoteRows(source, start, end, table="t", limit=limit, key=key, runner=PickledRunner())
    await remote.plan()
    found = await remote.run(written)
    assert isinstance(found, list)
    check_order([row for batch in found for row in batch.to_pylist()])


def written(batches: Iterator[Any]) -> list[pa.RecordBatch]:
    return [batch.to_arrow() for batch in batches]


@pytest.mark.parametrize("target_bytes", [1, 1 << 30], ids=["read twice", "one partition"])
async def test_spark_batches_have_the_old_image_first(
    table: TableBuilder, target_bytes: int
) -> None:
    source = await open_delta(str(table.folder))
    start = await source.initial_offset("0")
    end = await source.latest_offset(start, ReadLimit())
    partitions = pack(await tasks_between(source, start, end), target_bytes)
    assert (len(partitions) == 1) is (target_bytes > 1)
    target = tailerd.changes(str(table.folder), since=0).schema()
    rows = [
        row
        for partition in partitions
        for batch in read_partition(partition, target, Stores(), may_drop=False)
        for row in batch.to_pylist()
    ]
    check_order([row for row in rows if row["_commit_version"] == 1])
