"""A group of tables in this process's Spark session, for tests: run to the heads, or live."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.config import Config, TableConfig
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.source import DeltaChangeSource
from tailerd.pipeline.pipeline_manager import Member, PipelineManager
from tailerd.records.json import JsonEncoder
from tailerd.spark.change_range import tasks_between
from tailerd.spark.engine import SparkEngine
from tailerd.spark.group.grouped_pipeline import GroupedPipeline, Groups
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import DeliveryAcknowledged, Event

Tables = dict[str, Any]


def configured(folder: Path, tables: Tables) -> Config:
    """A configuration with the state below `folder`; tables get a sink of JSON lines."""
    with_sinks = {
        name: {"sink": {"kind": "file", "path": str(folder / "out" / name)}, **table}
        for name, table in tables.items()
    }
    settings: dict[str, Any] = {
        "state": str(folder / "state"),
        "spark": {"master": "local[2]"},
        "shutdown_timeout": "20s",
        "tables": with_sinks,
    }
    return Config(**settings)


class Grouped:
    """A manager of grouped pipelines, and what they said."""

    def __init__(self, config: Config, *, once: bool) -> None:
        self.events: list[Event] = []
        telemetry = Telemetry([self.events.append])
        self.engine = SparkEngine(config, telemetry, once=once)
        self.groups = Groups(self.engine, config.spark.tables_per_query)
        self.manager = PipelineManager(
            telemetry, patience_seconds=20.0, is_lasting=not once, is_once=once
        )

    def members(self, config: Config) -> dict[str, Member]:
        return {name: self._member(name, table) for name, table in config.tables.items()}

    def _member(self, name: str, table: TableConfig) -> Member:
        return Member(
            settings=table,
            engine="spark",
            path=table.path,
            build=lambda: GroupedPipeline(self.groups, name, table),
        )

    def of(self, kind: type[Event], table: str) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and getattr(e, "table", "") == table]

    def delivered(self, table: str) -> int:
        return sum(sum(e.rows.values()) for e in self.of(DeliveryAcknowledged, table))

    async def until(self, is_true: Callable[[], bool], seconds: float = 150.0) -> None:
        async with asyncio.timeout(seconds):
            while not is_true():  # noqa: ASYNC110 - events come from several threads
                await asyncio.sleep(0.05)


@asynccontextmanager
async def grouped(spark: SparkSession, config: Config) -> AsyncIterator[Grouped]:
    """Run a configuration's tables until the block ends."""
    run = Grouped(config, once=False)
    running = asyncio.ensure_future(run.manager.run(run.members(config)))
    try:
        yield run
    finally:
        run.manager.stop()
        await running
        await _closed(spark, run)


async def run_to_heads(spark: SparkSession, config: Config) -> Grouped:
    """Run a configuration's tables as `tailerd run --once` does."""
    run = Grouped(config, once=True)
    await run.manager.run(run.members(config))
    await _closed(spark, run)
    return run


async def _closed(spark: SparkSession, run: Grouped) -> None:
    """End what is the run's; the session is the test process's own."""
    await run.groups.close()
    await asyncio.to_thread(spark.streams.removeListener, run.engine.listener)


def lines(folder: Path, name: str) -> list[bytes]:
    """A table's lines, in the order of delivery."""
    files = sorted((folder / "out" / name).glob("*.jsonl"))
    return [line for file in files for line in file.read_bytes().splitlines()]


def versions(given: list[bytes]) -> list[int]:
    """The commit of each line."""
    return [json.loads(line)["_commit_version"] for line in given]


async def arrow_lines(table: TableConfig) -> Counter[bytes]:
    """What the Arrow engine would write."""
    source = await DeltaChangeSource.open(
        table.path, OpenRequest(changes=ChangeMode(table.changes))
    )
    start, end = [await source.initial_offset(at) for at in (table.start, "latest")]
    found: Counter[bytes] = Counter()
    for task in await tasks_between(source, start, end):
        for batch in source.read(task, DEFAULT_BATCH_LIMIT):
            found.update(JsonEncoder().encode_lines(batch).splitlines())
    return found
