"""Rows read and written by other processes: what arrives and is told is as without them."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tailerd.backoff import RetryPolicy
from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.errors import EngineError, SinkError, TailerdError
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.pipeline import change_runs
from tailerd.pipeline.delivery_loop import DeliveryParts, DeliverySpec
from tailerd.pipeline.pipeline import Pipeline
from tailerd.pipeline.remote_rows import TaskRunner
from tailerd.records.json import JsonEncoder
from tailerd.sinks.base import Delivery, RemoteDelivery, RowWriter, Sink
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.sink import FileSink
from tailerd.telemetry import Telemetry, events
from tailerd.telemetry.events import CommitsDelivered, DeliveryAcknowledged, Event
from tailerd.transforms.options import make_view
from tailerd.watchers.wakeups import Wakeup
from tests.doubles.memory_stores import MemoryOffsetStore
from tests.doubles.pickled_runner import PickledRunner
from tests.doubles.sim_clock import SimClock
from tests.pipeline.collecting_sink import CollectingSink
from tests.property.key_histories import FIELDS
from tests.tables.builder import CDF, TableBuilder
from tests.tables.opened import open_delta

VECTORS = ["deletionVectors"]
IMAGES = ("update_preimage", "update_postimage")
Change = tuple[str, int, str]


@dataclass
class Delivered:
    """One table's pipeline and what it tells.

    Attributes:
        runner: Where rows are read; None for the daemon's own process.
    """

    table: Path
    sink: Sink
    runner: TaskRunner | None = None
    max_files: int = 1000
    max_attempts: int = 1
    start: str = "0"
    batch_limit: BatchLimit = field(default_factory=lambda: BatchLimit(max_rows=3))
    events: list[Event] = field(default_factory=list)
    offsets: MemoryOffsetStore = field(default_factory=MemoryOffsetStore)
    request: OpenRequest = field(default_factory=OpenRequest)

    async def run(self) -> TailerdError | None:
        """Deliver what there is; return why that failed."""
        pipeline = Pipeline(
            DeliverySpec(
                table="orders",
                sink="file",
                start=self.start,
                changes=ChangeMode.AUTO,
                read_limit=ReadLimit(max_files=self.max_files),
                batch_limit=self.batch_limit,
                is_once=True,
            ),
            DeliveryParts(
                sink=self.sink,
                wakeup=Wakeup(),
                telemetry=Telemetry([self.events.append]),
                clock=SimClock(is_automatic=True),
                runner=self.runner,
            ),
            source_location=str(self.table),
            open_source=self._open,
            offsets=self.offsets,
            retries=RetryPolicy(max_attempts=self.max_attempts, jitter=random.Random(1)),
        )
        await pipeline.run()
        return pipeline.error

    async def _open(self) -> ChangeSource:
        return await open_delta(str(self.table), self.request)

    def reported(self) -> list[Event]:
        """What was said of deliveries and commits, but for how long they took."""
        return [
            replace(each, duration_seconds=0.0) if isinstance(each, DeliveryAcknowledged) else each
            for each in self.events
            if isinstance(each, DeliveryAcknowledged | CommitsDelivered)
        ]


def table_with_history(folder: Path) -> TableBuilder:
    """Appends, a commit without rows, deleted rows, change files, and another column."""
    table = TableBuilder(folder, reader_features=VECTORS, writer_features=VECTORS)
    table.append([{"id": n, "name": f"n{n}"} for n in range(40)])
    [add] = table.append([{"id": n, "name": None} for n in range(100, 105)]).adds
    table.change_metadata(properties=CDF)
    table.delete_rows(add, [0, 3])
    table.commit(
        table.cdc_file([{"id": 1, "name": "n1", "_change_type": "update_preimage"}]),
        table.cdc_file([{"id": 1, "name": "é", "_change_type": "update_postimage"}]),
    )
    table.change_metadata(fields=[*table.fields, ("more", "double")])
    table.append([{"id": n, "name": "z", "more": n / 2} for n in range(200, 207)])
    return table


def file_sink(folder: Path, **fields: object) -> FileSink:
    config = FileSinkConfig.model_validate({"kind": "file", "path": str(folder), **fields})
    return FileSink(config, encode=JsonEncoder().encode_lines)


def contents(folder: Path) -> dict[str, bytes]:
    """What readers find: names and bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def unpublished(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.tmp"))


@pytest.mark.parametrize("start", ["0", "snapshot"])
@pytest.mark.parametrize("max_files", [1, 2, 1000])
@pytest.mark.parametrize(
    "fields",
    [
        {"format": "jsonl"},
        {"format": "jsonl", "max_bytes_per_file": 1024},
        {"format": "parquet"},
    ],
    ids=["jsonl", "jsonl-many-parts", "parquet"],
)
async def test_files_and_events_are_those_of_a_run_without_a_runner(
    tmp_path: Path, fields: Mapping[str, object], max_files: int, start: str
) -> None:
    table = table_with_history(tmp_path / "orders")
    runner = PickledRunner()
    runs = {
        name: Delivered(
            table.folder,
            file_sink(tmp_path / name, **fields),
            runner=where,
            max_files=max_files,
            start=start,
        )
        for name, where in (("here", None), ("there", runner))
    }
    for run in runs.values():
        assert await run.run() is None
    table.append([{"id": 99, "name": "last", "more": None}])
    for name, run in runs.items():
        # A sink is closed with its pipeline.
        run.sink = file_sink(tmp_path / name, **fields)
        assert await run.run() is None

    found = contents(tmp_path / "there")
    assert len(found) >= 2
    assert found == contents(tmp_path / "here")
    assert unpublished(tmp_path / "there") == []
    reported = runs["there"].reported()
    assert reported == runs["here"].reported()
    assert {type(each) for each in reported} == {DeliveryAcknowledged, CommitsDelivered}
    assert len(runner.works) >= len([e for e in reported if isinstance(e, DeliveryAcknowledged)])
    saved = {name: await run.offsets.load("orders") for name, run in runs.items()}
    assert saved["there"] == saved["here"]
    assert saved["there"] is not None


@pytest.mark.parametrize("buffered", [32 * 1024 * 1024, 1], ids=["together", "again"])
async def test_updates_that_change_nothing_are_counted_once_where_they_are_read(
    buffered: int, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "orders", properties=CDF)
    rows: list[dict[str, Any]] = [{"id": n, "name": f"n{n}"} for n in range(40)]
    [add] = table.append(rows).adds
    renamed = [{**row, "name": "x"} for row in rows]
    # So many change files are read twice: first for rows that only remove.
    images = [
        table.cdc_file(
            [
                {**row, "_change_type": "update_preimage"},
                {**row, "id": row["id"] + row["id"] // 38, "name": "x"}
                | {"_change_type": "update_postimage"},
            ]
        )
        for row in rows
    ]
    table.commit(table.remove(add), table.data_file(renamed), *images)
    # These are in one file, which is read once.
    both = [{**row, "_change_type": kind} for row in rows[:9] for kind in IMAGES]
    table.commit(table.cdc_file(both))
    table.append([{"id": 99, "name": "last"}])
    view = make_view(columns=["id"], unchanged="drop", key=["id"])
    for name, runner in (("here", None), ("there", PickledRunner())):
        run = Delivered(
            table.folder,
            file_sink(tmp_path / name),
            runner=runner,
            batch_limit=BatchLimit(max_rows=20, max_bytes=buffered),
            request=OpenRequest(view=view, identity=["id"]),
        )
        assert await run.run() is None
        commits = [each for each in run.reported() if isinstance(each, CommitsDelivered)]
        assert sum(each.unchanged_updates for each in commits) == 38 + 9
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


async def test_a_table_may_change_its_engine_between_any_two_runs(tmp_path: Path) -> None:
    table = table_with_history(tmp_path / "orders")
    plain = Delivered(table.folder, file_sink(tmp_path / "plain"))
    moving = Delivered(table.folder, file_sink(tmp_path / "moving"))
    for number in range(4):
        for run in (plain, moving):
            assert await run.run() is None
        plain.sink, moving.sink = file_sink(tmp_path / "plain"), file_sink(tmp_path / "moving")
        moving.runner = PickledRunner() if moving.runner is None else None
        table.append([{"id": 300 + number, "name": "next", "more": None}])
    found = contents(tmp_path / "moving")
    assert len(found) >= 4
    assert found == contents(tmp_path / "plain")


async def test_a_file_that_cannot_be_read_is_the_same_error_after_the_same_rows(
    tmp_path: Path,
) -> None:
    table = table_with_history(tmp_path / "orders")
    [add] = table.append([{"id": 50, "name": "x", "more": None}]).adds
    (table.folder / add["add"]["path"]).unlink()
    failures: list[tuple[type, str, object]] = []
    for name, runner in (("here", None), ("there", PickledRunner())):
        run = Delivered(table.folder, file_sink(tmp_path / name), runner=runner, max_files=1)
        error = await run.run()
        assert error is not None
        failures.append((type(error), str(error), error.version))
    assert failures[0] == failures[1]
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert unpublished(tmp_path / "there") == []


def disk_full(batch: ChangeBatch) -> bytes:
    """An encoder that meets a full disk, as writing would."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_disk_that_is_full_there_is_the_sinks_error_here(tmp_path: Path) -> None:
    table = table_with_history(tmp_path / "orders")
    errors: list[str] = []
    for runner in (None, PickledRunner()):
        config = FileSinkConfig.model_validate({"kind": "file", "path": str(tmp_path / "out")})
        run = Delivered(table.folder, FileSink(config, encode=disk_full), runner=runner)
        error = await run.run()
        assert type(error) is SinkError
        errors.append(str(error))
    assert "out cannot be written: No space left on device" in errors[1]
    assert errors[0] == errors[1]
    assert contents(tmp_path / "out") == {}
    assert unpublished(tmp_path / "out") == []


async def test_an_engine_that_fails_behind_the_writing_delivers_nothing_twice(
    tmp_path: Path,
) -> None:
    table = table_with_history(tmp_path / "orders")
    assert await Delivered(table.folder, file_sink(tmp_path / "here"), max_files=2).run() is None
    failures = iter([EngineError("Java is gone.")] * 2)
    left: list[list[Path]] = []

    def afterwards() -> None:
        for failure in failures:
            left.append(unpublished(tmp_path / "there"))
            raise failure

    runner = PickledRunner(afterwards)
    sink = file_sink(tmp_path / "there")
    run = Delivered(table.folder, sink, runner=runner, max_files=2, max_attempts=3)
    assert await run.run() is None
    assert [len(each) for each in left] == [1, 1]
    retries = [each for each in run.events if isinstance(each, events.RetryScheduled)]
    assert [each.error_code for each in retries] == [EngineError.code] * 2
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert unpublished(tmp_path / "there") == []


class ChangesSink(CollectingSink):
    """Keeps changes in the order they came, here or there.

    Attributes:
        changes: Kind, id and `p` of each row.
    """

    def __init__(self, key: Sequence[str]) -> None:
        super().__init__()
        self.key = key
        self.changes: list[Change] = []

    async def write(self, delivery: Delivery) -> int:
        found = [change async for batch in delivery.batches for change in list_changes(batch)]
        self.changes += found
        return len(found)

    async def write_remotely(self, delivery: RemoteDelivery) -> None:
        found = await delivery.run(written_changes)
        assert isinstance(found, list)
        self.changes += found


def list_changes(batch: ChangeBatch) -> list[Change]:
    kinds = batch.change_types().to_pylist()
    rows = batch.rows.to_pylist()
    return [(kind, row["id"], row["p"]) for kind, row in zip(kinds, rows, strict=True)]


def written_changes(batches: Iterator[ChangeBatch]) -> list[Change]:
    return [change for batch in batches for change in list_changes(batch)]


def moved_keys(folder: Path) -> Path:
    """A commit whose change files have what is new before what it takes the place of."""
    table = TableBuilder(folder, fields=FIELDS, properties=CDF)
    table.create()
    kinds = ["insert", "update_postimage", "update_preimage", "delete"]
    firsts = [10, 0, 0, 10]
    files = [
        [{"id": n, "p": kind, "v": 1, "_change_type": kind} for n in range(first, first + 4)]
        for kind, first in zip(kinds, firsts, strict=True)
    ]
    table.commit(*map(table.cdc_file, files))
    return table.folder


@pytest.mark.parametrize("max_rows", [1, 3, 1000])
@pytest.mark.parametrize("run_files", [1, 16], ids=["read twice", "read once"])
async def test_a_commit_of_several_change_files_has_the_order_it_has_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_files: int, max_rows: int
) -> None:
    monkeypatch.setattr(change_runs, "RUN_FILES", run_files)
    folder = moved_keys(tmp_path / "orders")
    found: list[list[Change]] = []
    for key, runner in ((("id",), None), (("id",), PickledRunner()), ((), None)):
        sink = ChangesSink(key)
        limit = BatchLimit(max_rows=max_rows)
        assert await Delivered(folder, sink, runner=runner, batch_limit=limit).run() is None
        found.append(sink.changes)
    here, there, plain = found
    assert there == here
    assert plain == here
    assert {key: kind for kind, key, _ in there} == {
        **dict.fromkeys(range(4), "update_postimage"),
        **dict.fromkeys(range(10, 14), "insert"),
    }


async def test_a_sink_that_cannot_write_there_is_delivered_here(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders")
    table.append([{"id": n, "name": "x"} for n in range(7)])
    sink, runner = CollectingSink(), PickledRunner()
    run = Delivered(table.folder, sink, runner=runner)
    assert await run.run() is None
    assert sink.ids == list(range(7))
    assert runner.works == []
    assert [e.rows for e in run.reported() if isinstance(e, DeliveryAcknowledged)] == [
        {"insert": 7}
    ]


class WriterSink(CollectingSink):
    """Has rows written by whatever a test says."""

    def __init__(self, writer: RowWriter) -> None:
        super().__init__()
        self._writer = writer

    async def write_remotely(self, delivery: RemoteDelivery) -> None:
        await delivery.run(self._writer)


def refuses(batches: Iterator[ChangeBatch]) -> None:
    next(batches)
    raise SinkError("No more fits.", remedy="Make room.")


def stops_early(batches: Iterator[ChangeBatch]) -> None:
    next(batches)


def breaks(batches: Iterator[ChangeBatch]) -> None:
    next(batches)
    raise ZeroDivisionError("odd")


@pytest.mark.parametrize(
    ("writer", "code", "reported"),
    [
        (stops_early, "bug", "only 3 were requested, which is not all of them."),
        (refuses, SinkError.code, "No more fits. Make room."),
        (breaks, "bug", "An unexpected error occurred: ZeroDivisionError: odd."),
    ],
)
async def test_what_a_writer_raises_reaches_the_pipeline_and_no_offset_is_saved(
    tmp_path: Path, writer: Callable[[Iterator[ChangeBatch]], None], code: str, reported: str
) -> None:
    table = TableBuilder(tmp_path / "orders")
    table.append([{"id": n, "name": "x"} for n in range(7)])
    run = Delivered(table.folder, WriterSink(writer), runner=PickledRunner())
    error = await run.run()
    assert error is not None
    assert (error.code, reported in str(error)) == (code, True)
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert saved.offset.version == 0
    assert run.reported() == []
