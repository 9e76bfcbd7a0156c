"""Where a column chooses the topic and a key is unique in each only: each topic's last records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.errors import ConfigError
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.remote_rows import RemoteRows
from tailerd.records.base import FormatOptions
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.routing import Router
from tailerd.sinks.kafka.sink import KafkaSink
from tailerd.sinks.record_formats import record_format
from tests.doubles.pickled_runner import PickledRunner
from tests.property.key_histories import KeyHistory, applied, list_pairs, rows_that_are_there
from tests.tables.opened import open_delta

PRE, POST = "update_preimage", "update_postimage"
# One row moves from b to a, and another, whose key is the same, from a to c.
IMAGES = [("b", 1, PRE), ("a", 2, POST), ("a", 3, PRE), ("c", 4, POST)]
LEFT = {"t.a": {1: {"id": 1, "p": "a", "v": 2}}, "t.c": {1: {"id": 1, "p": "c", "v": 4}}}
FILES = [[[0, 1], [2, 3]], [[2, 3], [0, 1]], [[0, 1, 2, 3]], [[1], [3], [0], [2]], [[1, 2], [3, 0]]]
SECTION = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:1", "key": ["id"]}
STYLES = ["json", "debezium"]
Record = tuple[str, bytes, bytes | None]
"""Topic, key and value."""
RecordsOf = Callable[[Path, KafkaSinkConfig], list[Record]]


def make_config(style: str, topic: str = "t.{column:p}") -> KafkaSinkConfig:
    return KafkaSinkConfig.model_validate({**SECTION, "topic": topic, "format": style})


def table_in(folder: Path, files: list[list[int]]) -> None:
    table = KeyHistory(folder, random.Random(0)).table
    rows = [{"id": 1, "p": p, "v": v, "_change_type": kind} for p, v, kind in IMAGES]
    table.commit(*[table.cdc_file([rows[number] for number in numbers]) for numbers in files])


async def read_batches(folder: Path, key: tuple[str, ...]) -> list[ChangeBatch]:
    source = await open_delta(str(folder))
    start, end = await source.initial_offset("1"), await source.initial_offset("latest")
    stream = ChangeStream(source, start, end, limit=DEFAULT_BATCH_LIMIT, key=key)
    async with aclosing(stream.batches()) as batches:
        return [batch async for batch in batches]


def routed_records(batches: Iterable[ChangeBatch], config: KafkaSinkConfig) -> list[Record]:
    options = FormatOptions(name="n", table="t", key=config.key, routed_by=config.routing_columns)
    found: list[Record] = []
    for batch in batches:
        records = record_format(config.format, options).records(batch)
        for routed in Router(config, "t").by_topic(batch, records):
            found += [(routed.topic, *pair) for pair in list_pairs(routed.records)]
    return found


def read_key(config: KafkaSinkConfig) -> tuple[str, ...]:
    return tuple(KafkaSink(config, table="t").key)


def here(folder: Path, config: KafkaSinkConfig) -> list[Record]:
    return routed_records(asyncio.run(read_batches(folder, read_key(config))), config)


def elsewhere(folder: Path, config: KafkaSinkConfig) -> list[Record]:
    async def run() -> object:
        source = await open_delta(str(folder))
        start, end = await source.initial_offset("1"), await source.initial_offset("latest")
        limit, runner = DEFAULT_BATCH_LIMIT, PickledRunner()
        key = read_key(config)
        rows = RemoteRows(source, start, end, table="t", limit=limit, key=key, runner=runner)
        assert await rows.plan()
        return await rows.run(partial(routed_records, config=config))

    found = asyncio.run(run())
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("records_of", [here, elsewhere])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("files", FILES, ids=str)
def test_the_last_record_of_a_key_in_a_topic_is_what_the_table_has_there(
    tmp_path: Path, style: str, files: list[list[int]], records_of: RecordsOf
) -> None:
    table_in(tmp_path, files)
    topics: dict[str, dict[bytes, dict[str, object]]] = {}
    for topic, key, value in records_of(tmp_path, make_config(style)):
        assert key == b'{"id":1}'
        applied(topics.setdefault(topic, {}), [(key, value)])
    found = {topic: rows_that_are_there(state) for topic, state in topics.items()}
    assert {topic: rows for topic, rows in found.items() if rows} == LEFT


@pytest.mark.parametrize("files", [FILES[0], FILES[2]], ids=str)
def test_a_column_that_chooses_the_topic_and_is_not_there_is_named(
    tmp_path: Path, files: list[list[int]]
) -> None:
    table_in(tmp_path, files)
    with pytest.raises(ConfigError, match=r"column 'q'.* not .*table") as caught:
        list(here(tmp_path, make_config("json", "t.{column:q}")))
    assert "topic" in f"{caught.value} {caught.value.remedy}"
