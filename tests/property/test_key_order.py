"""Commits of several change files and batches: a reader by key has what the table has."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.formats import versioned_source
from tailerd.formats.base import OpenRequest
from tailerd.formats.comparing_source import ComparingSource
from tailerd.formats.delta.changes.log import open_delta_log
from tailerd.formats.delta.changes.task_reader import DeltaTaskReader
from tailerd.formats.versioned_source import VersionedSource
from tailerd.pipeline import change_runs
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.delivery_loop import DeliveryParts, DeliverySpec
from tailerd.pipeline.memory_budget import MemoryBudget
from tailerd.pipeline.pipeline import Pipeline
from tailerd.records.base import FormatOptions
from tailerd.sinks.base import Keyed
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.sink import KafkaSink
from tailerd.sinks.record_formats import record_format
from tailerd.storage.table_location import locate_table
from tailerd.telemetry import Telemetry
from tailerd.watchers.wakeups import Wakeup
from tests.doubles.memory_stores import MemoryOffsetStore
from tests.doubles.sim_clock import SimClock
from tests.pipeline.collecting_sink import CollectingSink
from tests.property.key_histories import (
    KeyHistory,
    Row,
    applied,
    list_pairs,
    rows_that_are_there,
)
from tests.tables.opened import open_delta

KEY = ("id",)
TINY, ROOMY = 1, 1 << 20
FEW, MANY = 1, 16
STYLES = ("json", "debezium")

Changes = list[tuple[str, tuple[object, ...]]]


async def read_batches(
    folder: Path, key: tuple[str, ...], limit: BatchLimit, changes: ChangeMode = ChangeMode.AUTO
) -> list[ChangeBatch]:
    source = await open_delta(str(folder), OpenRequest(changes=changes))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    memory = MemoryBudget(1 << 30).join()
    stream = ChangeStream(source, start, end, limit=limit, key=key, memory=memory)
    async with aclosing(stream.batches()) as batches:
        found = [batch async for batch in batches]
    assert stream.total_rows == sum(batch.num_rows for batch in found)
    kind = "files" if changes is ChangeMode.FILES else "cdc"
    assert stream.commits.kinds[kind] == len({batch.version for batch in found})
    return found


async def batches_of_files(folder: Path, limit: BatchLimit) -> list[ChangeBatch]:
    """Read the change files one after another, as they are."""
    source = await open_delta(str(folder))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    tasks = [task async for group in source.plan(start, end) for task in group.tasks]
    return [batch for task in tasks for batch in source.read(task, limit)]


def list_changes(batch: ChangeBatch) -> Changes:
    kinds = batch.change_types().to_pylist()
    rows = (tuple(row.values()) for row in batch.rows.to_pylist())
    return list(zip(kinds, rows, strict=True))


def naive_order(batches: list[ChangeBatch]) -> Changes:
    """What only removes, then the rest, row by row; pairs as `update_pairs` says."""
    if len(batches) == 1:
        return list_changes(batches[0])
    parts: tuple[Changes, Changes] = ([], [])
    for changes in map(list_changes, batches):
        new = Counter(row[0] for kind, row in changes if kind == "update_postimage")
        for kind, row in changes:
            is_paired = kind == "update_preimage" and new[row[0]] > 0
            new[row[0]] -= is_paired
            is_removal = kind in ("delete", "update_preimage") and not is_paired
            parts[0 if is_removal else 1].append((kind, row))
    return parts[0] + parts[1]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    max_rows=st.sampled_from([1, 2, 3, 1000]),
    max_bytes=st.sampled_from([TINY, ROOMY]),
    run_files=st.sampled_from([FEW, MANY]),
    group_tasks=st.sampled_from([1, 2, 10_000]),
)
def test_the_last_record_of_each_key_is_the_table(
    seed: int, max_rows: int, max_bytes: int, run_files: int, group_tasks: int
) -> None:
    limit = BatchLimit(max_rows=max_rows, max_bytes=max_bytes)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patches:
        patches.setattr(change_runs, "RUN_FILES", run_files)
        patches.setattr(versioned_source, "GROUP_TASKS", group_tasks)
        history = KeyHistory(Path(name), random.Random(seed))
        for _ in range(3):
            history.commit()
        plain = asyncio.run(batches_of_files(Path(name), limit))
        ordered = asyncio.run(read_batches(Path(name), KEY, limit))
        whole_files = asyncio.run(read_batches(Path(name), KEY, limit, ChangeMode.FILES))
    for version, batches in itertools.groupby(plain, lambda batch: batch.version):
        found = [
            change for each in ordered if each.version == version for change in list_changes(each)
        ]
        assert found == naive_order(list(batches))
    for style, given_batches in itertools.product(STYLES, (ordered, whole_files)):
        format_ = record_format(style, FormatOptions(name="n", table="t", key=KEY))
        state: dict[bytes, Row] = {}
        for batch in given_batches:
            applied(state, list_pairs(format_.records(batch)))
        assert rows_that_are_there(state) == history.state


@pytest.mark.parametrize("granted", [(ROOMY, ROOMY, TINY, TINY), (TINY, TINY, ROOMY, ROOMY)])
def test_whatever_memory_is_granted_meanwhile_both_readings_have_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: tuple[int, ...]
) -> None:
    # All old images come first, as delta-rs writes them: it is the batch that makes pairs of them.
    images = [
        {"id": key, "p": "a", "v": 1, "_change_type": kind}
        for kind in ("update_preimage", "update_postimage")
        for key in range(4)
    ]
    table = KeyHistory(tmp_path, random.Random(1)).table
    others = [{**image, "id": 10 + int(str(image["id"]))} for image in images]
    table.commit(table.cdc_file(images), table.cdc_file(others))
    rest = itertools.chain(granted, itertools.repeat(ROOMY))
    with monkeypatch.context() as patches:
        patches.setattr(change_runs, "RUN_FILES", 1)
        patches.setattr(MemoryBudget, "_from_pool", lambda *_: None)
        patches.setattr(MemoryBudget, "_reserve_share", lambda _: next(rest))
        ordered = asyncio.run(read_batches(tmp_path, KEY, BatchLimit(max_bytes=ROOMY)))
    found = Counter(change for each in ordered for change in list_changes(each))
    assert found == Counter((row["_change_type"], (row["id"], "a", 1)) for row in images + others)


@pytest.mark.parametrize(
    ("max_bytes", "order", "readings"), [(ROOMY, (0, 1, 2), 1), (TINY, (1, 0, 2), 2)]
)
def test_a_commit_of_one_batch_is_read_once_and_given_as_it_is(
    tmp_path: Path, max_bytes: int, order: tuple[int, ...], readings: int
) -> None:
    kinds = ["update_postimage", "update_preimage", "insert"]
    table = KeyHistory(tmp_path, random.Random(2)).table
    for _ in range(5):
        rows = [
            {"id": int(kind == "insert"), "p": kind, "v": 1, "_change_type": kind} for kind in kinds
        ]
        table.commit(table.cdc_file(rows))
    reads: Counter[int] = Counter()

    class Counting(ComparingSource):
        def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
            reads.update(task.version for task in tasks)
            return super().read_run(tasks, limit)

    async def read() -> list[ChangeBatch]:
        log = await open_delta_log(locate_table(str(tmp_path)), OpenRequest())
        source = Counting(log, log, DeltaTaskReader(), OpenRequest())
        start, end = await source.initial_offset("1"), await source.initial_offset("latest")
        stream = ChangeStream(source, start, end, limit=BatchLimit(max_bytes=max_bytes), key=KEY)
        return [batch async for batch in stream.batches()]

    found = [kind for each in asyncio.run(read()) for kind, _ in list_changes(each)]
    assert found == [kinds[position] for position in order] * 5
    assert reads == dict.fromkeys(range(1, 6), readings)


class KeyedSink(CollectingSink):
    """Has what `KafkaSink` has, and keeps what it is given."""

    key = KEY


@pytest.mark.parametrize("sink", [CollectingSink(), KeyedSink()], ids=["no key", "key"])
async def test_a_sink_is_given_what_goes_before_what_comes(
    tmp_path: Path, sink: CollectingSink
) -> None:
    table = KeyHistory(tmp_path, random.Random(3)).table
    came = {"id": 2, "p": "b", "v": 1, "_change_type": "insert"}
    went = {"id": 1, "p": "a", "v": 1, "_change_type": "delete"}
    table.commit(table.cdc_file([came]), table.cdc_file([went]))

    async def open_source() -> VersionedSource:
        return await open_delta(str(tmp_path))

    plan = DeliverySpec(table="t", sink="s", start="1", changes=ChangeMode.AUTO, is_once=True)
    pipeline = Pipeline(
        plan,
        DeliveryParts(sink=sink, wakeup=Wakeup(), telemetry=Telemetry(), clock=SimClock()),
        source_location=str(tmp_path),
        open_source=open_source,
        offsets=MemoryOffsetStore(),
    )
    await pipeline.run()
    assert (pipeline.error, sink.ids) == (None, [1, 2])


def test_the_kafka_sink_tells_its_key() -> None:
    section = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t", "key": ["id"]}
    sink = KafkaSink(KafkaSinkConfig.model_validate(section), table="t")
    assert isinstance(sink, Keyed)
    assert sink.key == KEY
