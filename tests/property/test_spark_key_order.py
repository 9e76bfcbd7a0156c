"""On Spark too a reader by key has what the table has, however a batch is cut into partitions."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.formats.delta.changes.source import DeltaChangeSource
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.change_range import tasks_between
from tailerd.spark.group import record_partitions
from tailerd.spark.group.record_partitions import TableRows, pack_tables, read_records
from tailerd.storage.stores import Stores
from tests.property.key_histories import KeyHistory, Row, applied, rows_that_are_there
from tests.unit.spark.record_rows import rows_of

ONE_PARTITION, MANY_PARTITIONS = 1 << 40, 1
TINY, ROOMY = 1, 1 << 20


async def tasks_of(folder: Path) -> list[ChangeTask]:
    source = await DeltaChangeSource.open(str(folder))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    return await tasks_between(source, start, end)


def records_of(tasks: list[ChangeTask], key: list[str], style: str) -> list[dict[str, Any]]:
    """Return the records as `placed` brings them into order, whichever task ends first."""
    kafka = KafkaSinkConfig.model_validate(
        {"kind": "kafka", "bootstrap_servers": "h:1", "topic": "t", "key": key, "format": style}
    )
    partitions = pack_tables([TableRows(name="t", table_id="", kafka=kafka, tasks=tasks)])
    again = pickle.loads(pickle.dumps(partitions))
    pieces = [piece for each in reversed(again) for piece in read_records(each, Stores())]
    pieces.sort(key=lambda piece: (piece.version, piece.order))
    rows = [row for piece in pieces for row in rows_of(piece)]
    orders = [(row["_commit_version"], row["_order"]) for row in rows]
    assert sorted(set(orders)) == orders
    return rows


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    table_bytes=st.sampled_from([ONE_PARTITION, MANY_PARTITIONS]),
    max_rows=st.sampled_from([1, 2, 1000]),
    max_bytes=st.sampled_from([TINY, ROOMY]),
)
def test_the_last_record_of_each_key_is_the_table(
    seed: int, table_bytes: int, max_rows: int, max_bytes: int
) -> None:
    limit = BatchLimit(max_rows=max_rows, max_bytes=max_bytes)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patches:
        patches.setattr(record_partitions, "TABLE_BYTES", table_bytes)
        patches.setattr(record_partitions, "DEFAULT_BATCH_LIMIT", limit)
        history = KeyHistory(Path(name), random.Random(seed))
        for _ in range(3):
            history.commit()
        tasks = asyncio.run(tasks_of(Path(name)))
        plain = records_of(tasks, [], "json")
        ordered = {style: records_of(tasks, ["id"], style) for style in ("json", "debezium")}
    for records in ordered.values():
        state: dict[bytes, Row] = {}
        applied(state, ((row["key"], row["value"]) for row in records))
        assert rows_that_are_there(state) == history.state
    assert Counter(row["value"] for row in ordered["json"]) == Counter(
        row["value"] for row in plain
    )


@pytest.mark.parametrize("table_bytes", [ONE_PARTITION, MANY_PARTITIONS])
def test_without_a_key_files_are_read_once_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_bytes: int
) -> None:
    monkeypatch.setattr(record_partitions, "TABLE_BYTES", table_bytes)
    table = KeyHistory(tmp_path, random.Random(1)).table
    new = {"id": 1, "p": "b", "v": 1, "_change_type": "update_postimage"}
    old = {"id": 1, "p": "a", "v": 1, "_change_type": "update_preimage"}
    table.commit(table.cdc_file([new]), table.cdc_file([old]))
    tasks = asyncio.run(tasks_of(tmp_path))
    partitions = pack_tables([TableRows(name="t", table_id="", kafka=None, tasks=tasks)])
    assert [each.task for part in partitions for each in part.parts[0].shares] == tasks
    rows = [json.loads(row["value"]) for row in records_of(tasks, [], "json")]
    assert [row["_change_type"] for row in rows] == ["update_postimage", "update_preimage"]
