"""How a daemon's pipelines are put together, and what they leave behind when they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.limits import DEFAULT_READ_LIMIT
from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.daemon.pipelines import Assembly
from tailerd.daemon.tables import open_source
from tailerd.formats.delta.protocol.data_file import data_file
from tailerd.pipeline.pipeline import Pipeline
from tailerd.pipeline.pipeline_manager import PipelineManager
from tailerd.spark.supervisor import SparkPipeline
from tailerd.spark.task_runner import SparkTaskRunner
from tailerd.state.locked_files import LockedFiles
from tailerd.state.state import State
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events
from tailerd.watchers.base import StorageEvent
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS


class Messages:
    """A watcher that keeps its events elsewhere until they are seen."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._coming: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def seen(self) -> None:
        """Send one, and wait until everybody concerned has looked."""
        is_seen = asyncio.Event()
        self._coming.put_nowait(is_seen)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_seen.wait()

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        while True:
            yield StorageEvent(self._folder, on_seen=(await self._coming.get()).set)


def configured(folder: Path, *names: str, broken: str = "") -> Config:
    sinks = {name: folder / "out" / name for name in names}
    if broken:
        (folder / "out").mkdir(exist_ok=True)
        sinks[broken].write_text("no folder")
    return Config.model_validate(
        {
            "engine": "arrow",
            "state": str(folder / "state"),
            "tables": {
                name: {
                    "path": str(folder / "orders"),
                    "from": "0",
                    "max_attempts": 1,
                    "sink": {"kind": "file", "path": str(sinks[name])},
                }
                for name in names
            },
        }
    )


async def test_tables_on_spark_share_a_runner_and_only_streams_are_queries(tmp_path: Path) -> None:
    files = {name: {"kind": "file", "path": str(tmp_path / name)} for name in ("a", "b", "c")}
    sinks = {**files, "s": {"kind": "stream", "format": "json"}}
    tables = {name: {"path": str(tmp_path / "t"), "sink": sink} for name, sink in sinks.items()}
    tables["c"]["engine"] = "arrow"
    config = Config.model_validate(
        {"engine": "spark", "state": str(tmp_path / "state"), "tables": tables}
    )
    with ThreadPoolExecutor(1) as executor:
        assembly = Assembly(
            config,
            state=State(LockedFiles(tmp_path / "state")),
            stores=Stores(),
            telemetry=Telemetry(),
            clock=SystemClock(),
            executor=executor,
            is_once=True,
        )
        built = {name: member.build() for name, member in assembly.members(config).items()}
        pipelines = [built[name] for name in files]
        runners = [each._parts.runner for each in pipelines if isinstance(each, Pipeline)]
        assert len(runners) == 3
        assert isinstance(runners[0], SparkTaskRunner)
        assert runners[1] is runners[0]
        assert runners[2] is None
        assert isinstance(built["s"], SparkPipeline)
        await assembly.close()


@pytest.mark.parametrize("how", ["removed", "failed"])
async def test_a_pipeline_that_is_gone_keeps_no_message_of_a_folder_it_shared(
    tmp_path: Path, how: str
) -> None:
    TableBuilder(tmp_path / "orders").append([{"id": 1, "name": "a"}])
    reported: list[events.Event] = []
    telemetry = Telemetry([reported.append])
    config = configured(tmp_path, "a", "b", broken="b" if how == "failed" else "")
    state = State(LockedFiles(tmp_path / "state"))
    messages = Messages(str(tmp_path / "orders" / "_delta_log"))
    manager = PipelineManager(telemetry, patience_seconds=5, is_lasting=True)

    async def until(kind: type[events.Event], table: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (kind, table) not in [(type(e), getattr(e, "table", "")) for e in reported]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    with ThreadPoolExecutor(2) as threads:
        async with state.hold(), asyncio.TaskGroup() as group:
            assembly = Assembly(
                config,
                state=state,
                stores=Stores(),
                telemetry=telemetry,
                clock=SystemClock(),
                executor=threads,
                is_once=False,
            )
            hearing = group.create_task(assembly.wakeups.run([messages]))
            group.create_task(manager.run(assembly.members(config)))
            await until(events.OffsetSaved, "a")
            if how == "removed":
                await until(events.OffsetSaved, "b")
                await manager.set_members(assembly.members(configured(tmp_path, "a")))
            else:
                await until(events.PipelineFailed, "b")
            await messages.seen()
            hearing.cancel()
            manager.stop()
            manager.is_lasting = False
        await assembly.close()


async def test_a_guessed_zone_is_told_to_the_log_once_and_not_where_one_is_set(
    tmp_path: Path,
) -> None:
    fields = [("id", "long"), ("at", "timestamp")]
    table = TableBuilder(tmp_path / "orders", fields=fields, partition_by=["at"])
    partition = {"at": "2024-07-01 12:00:00"}
    table.create(table.data_file(pa.table({"id": [1]}), partition=partition))
    reported: list[events.Event] = []
    guessing = configured(tmp_path, "a").tables["a"]
    zoned = guessing.model_copy(update={"partition_timezone": "Europe/Berlin"})
    texts = []
    warned: set[str] = set()
    for config in (zoned, guessing, guessing):
        source = await open_source(
            config, Telemetry([reported.append]), stores=Stores(), warned=warned
        )
        at = await source.initial_offset("0")
        end = await source.latest_offset(at, DEFAULT_READ_LIMIT)
        texts += [data_file(g.tasks[0]).partition_values async for g in source.plan(at, end)]
        assert len([e for e in reported if isinstance(e, events.ZoneAssumed)]) == (
            config is guessing
        )
    assert [text for ((_, text),) in texts] == [
        "2024-07-01 12:00:00+02:00:00",
        *["2024-07-01 12:00:00"] * 2,
    ]
