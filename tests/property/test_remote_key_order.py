"""Rows that an engine's process reads: a reader by key has what the table has, as without it."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.limits import BatchLimit
from tailerd.formats import versioned_source
from tailerd.pipeline import change_runs
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.remote_rows import RemoteRows
from tailerd.records.base import FormatOptions
from tailerd.sinks.record_formats import record_format
from tests.doubles.pickled_runner import PickledRunner
from tests.property.key_histories import (
    FIELDS,
    KeyHistory,
    Row,
    applied,
    list_pairs,
    rows_that_are_there,
)
from tests.tables.builder import CDF, TableBuilder
from tests.tables.opened import open_delta

KEY = ("id",)
TINY, ROOMY = 1, 1 << 20
FEW, MANY = 1, 16

Pairs = list[tuple[bytes, bytes | None]]


def written_pairs(batches: Iterator[ChangeBatch], style: str) -> Pairs:
    """Write as records of a format with a key."""
    format_ = record_format(style, FormatOptions(name="n", table="t", key=KEY))
    return [pair for batch in batches for pair in list_pairs(format_.records(batch))]


def written_batches(batches: Iterator[ChangeBatch]) -> list[pa.RecordBatch]:
    return [batch.to_arrow() for batch in batches]


async def there(
    folder: Path, key: tuple[str, ...], limit: BatchLimit, style: str = ""
) -> tuple[object, RemoteRows]:
    source = await open_delta(str(folder))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    runner = PickledRunner()
    rows = RemoteRows(source, start, end, table="t", limit=limit, key=key, runner=runner)
    assert await rows.plan()
    writer = partial(written_pairs, style=style) if style else written_batches
    return await rows.run(writer), rows


async def here(
    folder: Path, key: tuple[str, ...], limit: BatchLimit
) -> tuple[list[pa.RecordBatch], ChangeStream]:
    source = await open_delta(str(folder))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    stream = ChangeStream(source, start, end, limit=limit, key=key)
    async with aclosing(stream.batches()) as batches:
        return [batch.to_arrow() async for batch in batches], stream


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
        folder = Path(name)
        history = KeyHistory(folder, random.Random(seed))
        for _ in range(3):
            history.commit()
        for style in ("json", "debezium"):
            pairs, _ = asyncio.run(there(folder, KEY, limit, style))
            assert isinstance(pairs, list)
            state: dict[bytes, Row] = {}
            applied(state, pairs)
            assert rows_that_are_there(state) == history.state
        for key in ((), KEY):
            found, rows = asyncio.run(there(folder, key, limit))
            expected, stream = asyncio.run(here(folder, key, limit))
            assert found == expected
            assert (rows.rows, rows.bytes) == (stream.rows, stream.bytes)
            assert rows.commits.details == stream.commits.details


def test_the_old_image_comes_first_with_a_key_or_without(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=FIELDS, properties=CDF)
    table.create()
    new = {"id": 1, "p": "b", "v": 1, "_change_type": "update_postimage"}
    old = {"id": 1, "p": "a", "v": 1, "_change_type": "update_preimage"}
    table.commit(table.cdc_file([new]), table.cdc_file([old]))
    kinds: dict[tuple[str, ...], list[str]] = {}
    for key in ((), KEY):
        found, rows = asyncio.run(there(tmp_path, key, BatchLimit()))
        assert isinstance(found, list)
        kinds[key] = [kind for each in found for kind in each["_change_type"].to_pylist()]
        assert rows.rows == Counter(kinds[key])
    assert kinds[()] == kinds[KEY] == ["update_preimage", "update_postimage"]


def test_records_say_what_their_rows_are(tmp_path: Path) -> None:
    history = KeyHistory(tmp_path, random.Random(1))
    history.commit()
    history.commit()
    pairs, rows = asyncio.run(there(tmp_path, KEY, BatchLimit(), "json"))
    assert isinstance(pairs, list)
    assert Counter(json.loads(value)["_change_type"] for _, value in pairs) == rows.rows
