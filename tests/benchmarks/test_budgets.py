"""What reading a log may cost in requests and memory. Always run: counts do not depend on load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.stats.table_growth import SnapshotCache
from tailerd.formats.versioned_source import VersionedSource
from tailerd.records.base import FormatOptions
from tailerd.sinks.record_formats import TableRecords
from tailerd.storage.base import ObjectStore
from tailerd.storage.local import LocalStore
from tailerd.storage.metered import MeteredStore
from tests.benchmarks.big_tables import WIDE_FIELDS, wide_table, write_large_commit
from tests.benchmarks.measuring import RESET_PEAK, mebibytes, run_process
from tests.tables.builder import CDF, TableBuilder
from tests.tables.opened import open_delta

T = TypeVar("T")
GIGABYTE = 10**9
MIB = 2**20


def make_table(folder: Path, commits: int) -> TableBuilder:
    table = TableBuilder(folder)
    for number in range(commits):
        table.append([{"id": number, "name": "x"}])
    return table


def metered(table: TableBuilder) -> tuple[MeteredStore, LogReader]:
    store = MeteredStore(LocalStore())
    return store, LogReader(store, str(table.folder))


def used(store: MeteredStore) -> dict[str, int]:
    return {kind: count for kind, count in store.requests.items() if count}


async def test_opening_without_a_checkpoint_takes_one_listing_and_each_commit_once(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path, 20)
    store, reader = metered(table)
    snapshot = await reader.open()
    assert snapshot.num_files == 20
    # The hint is asked for in any case.
    assert used(store) == {"list": 1, "get": 1 + 20}


async def test_opening_with_a_checkpoint_reads_it_and_only_the_commits_after_it(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path, 20)
    table.checkpoint(16)
    store, reader = metered(table)
    snapshot = await reader.open()
    assert snapshot.num_files == 20
    assert used(store) == {"list": 1, "get": 1 + 3, "open": 1}


@pytest.mark.parametrize("layout", ["v2-json", "v2-parquet"])
async def test_opening_with_sidecars_reads_each_once(tmp_path: Path, layout: str) -> None:
    table = TableBuilder(tmp_path, reader_features=["v2Checkpoint"])
    for number in range(20):
        table.append([{"id": number, "name": "x"}])
    table.checkpoint(16, layout="v2-json" if layout == "v2-json" else "v2-parquet", sidecars=3)
    store, reader = metered(table)
    assert (await reader.open()).num_files == 20
    assert store.requests["list"] == 1
    assert store.requests["get"] + store.requests["open"] == 1 + 1 + 3 + 3


async def test_opening_without_files_is_no_dearer(tmp_path: Path) -> None:
    table = make_table(tmp_path, 20)
    table.checkpoint(16)
    store, reader = metered(table)
    await reader.open(with_files=False)
    assert store.total <= 1 + 1 + 1 + 3


async def test_advancing_takes_one_request_a_commit_however_long_the_log(tmp_path: Path) -> None:
    table = make_table(tmp_path, 30)
    store, reader = metered(table)
    cache = SnapshotCache(reader)
    await cache.open()
    store.reset()
    for number in range(5):
        table.append([{"id": number, "name": "y"}])
        assert await cache.advance() is not None
    assert cache.snapshot.num_files == 35
    assert used(store) == {"get": 5}


async def test_an_idle_poll_takes_one_request(tmp_path: Path) -> None:
    table = make_table(tmp_path, 30)
    store, reader = metered(table)
    cache = SnapshotCache(reader)
    await cache.open()
    store.reset()
    assert await cache.advance() is None
    assert used(store) == {"get": 1}


async def test_a_catch_up_in_steps_gets_each_commit_once(tmp_path: Path) -> None:
    make_table(tmp_path, 30)
    stores: list[MeteredStore] = []

    def metering(store: ObjectStore) -> MeteredStore:
        stores.append(MeteredStore(store))
        return stores[-1]

    source = await open_delta(str(tmp_path), OpenRequest(wrap_store=metering))
    [store] = stores
    start, steps, tasks = await source.initial_offset("0"), 0, 0
    store.reset()
    while (end := await source.latest_offset(start, ReadLimit(max_files=10))) != start:
        assert [step.version async for step in source.schema_steps(start, end)] == [start.version]
        async for group in source.plan(start, end):
            tasks += len(group.tasks)
        await source.commit(end)
        start, steps = end, steps + 1
    assert (steps, tasks) == (3, 30)
    # All of them were read to learn the first one's location; what follows is the head's absence.
    assert used(store) == {"get": 2}


class PythonCalls:
    """Counts the functions of Python that are called meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> PythonCalls:
        sys.setprofile(self._notify)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _notify(self, _: FrameType, event: str, __: object) -> None:
        self.count += event == "call"


async def planned(table: TableBuilder, files: int) -> tuple[int, list[ChangeTask], VersionedSource]:
    """Commit files of one row each; return the calls that planning it takes, and the plan."""
    source = await open_delta(str(table.folder))
    start = await source.initial_offset("latest")
    rows = [{"id": number, "name": "x"} for number in range(files)]
    table.commit(*(action for row in rows for action in table.data_files([row])))
    with PythonCalls() as calls:
        end = await source.latest_offset(start, ReadLimit(max_files=10**9))
        tasks = [task async for group in source.plan(start, end) for task in group.tasks]
    return calls.count, tasks, source


async def test_planning_a_commit_takes_few_calls_a_file(tmp_path: Path) -> None:
    table = make_table(tmp_path, 1)
    few, _, _ = await planned(table, 10)
    many, tasks, _ = await planned(table, 510)
    assert len(tasks) == 510
    assert (many - few) / 500 < 20


async def test_planning_many_small_commits_takes_few_calls_and_switches_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of Python's functions for each commit of one file, a tenth above the need."""
    switches: list[object] = []
    submit = ThreadPoolExecutor.submit

    def count_switch(pool: ThreadPoolExecutor, work: Callable[..., T], *given: Any) -> Future[T]:
        switches.append(work)
        return submit(pool, work, *given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", count_switch)
    make_table(tmp_path, 401)
    counts: list[int] = []
    for commits in (100, 100, 400):
        source = await open_delta(str(tmp_path))
        start = await source.initial_offset("1")
        switches.clear()
        with PythonCalls() as calls:
            end = await source.latest_offset(start, ReadLimit(max_files=commits))
            groups = [group async for group in source.plan(start, end)]
        assert len(groups) == commits
        counts.append(calls.count)
    # The first has imports of its own.
    _, few, many = counts
    assert (many - few) / 300 < 214
    assert len(switches) < 400 / 10


@pytest.mark.parametrize("name", ["json", "debezium"])
async def test_reading_and_writing_rows_takes_calls_for_batches_not_for_rows(
    tmp_path: Path, name: str
) -> None:
    options = FormatOptions(name="n", table="t", key=("id",))
    counts: list[int] = []
    for rows in (10, 10, 50_000):
        table = make_table(tmp_path / f"{len(counts)}", 1)
        source = await open_delta(str(table.folder))
        start = await source.initial_offset("latest")
        table.append([{"id": number, "name": "x"} for number in range(rows)])
        end = await source.latest_offset(start, ReadLimit(max_files=10**9))
        [task] = [task async for group in source.plan(start, end) for task in group.tasks]
        records = TableRecords(name, options)
        with PythonCalls() as calls:
            batches = list(source.read(task, BatchLimit(max_rows=100_000, max_bytes=2**30)))
            made = sum(len(records.records(batch)) for batch in batches)
        assert made == rows
        counts.append(calls.count)
    # The first has imports of its own.
    _, few, many = counts
    assert many - few < 1000


@pytest.mark.parametrize(("distinct", "most_calls"), [(7, 280), (5000, 265)])
async def test_reading_a_small_file_takes_few_calls(
    tmp_path: Path, distinct: int, most_calls: int
) -> None:
    """Calls of Python's functions for each file of three columns, a tenth above the need.

    A file of 5000 different texts comes in a few parts, but nothing of it is read twice.
    """
    table = TableBuilder(tmp_path, fields=[("id", "long"), ("name", "string"), ("at", "double")])
    for _ in range(12):
        table.append({"id": n, "name": f"name-{n % distinct}", "at": n / 7} for n in range(5000))
    source = await open_delta(str(tmp_path))
    start = await source.initial_offset("0")
    end = await source.latest_offset(start, ReadLimit(max_files=10**9))
    tasks = [task async for group in source.plan(start, end) for task in group.tasks]
    counts = []
    # The first ones import what the next ones find imported.
    for files in (1, 11, 1, 11):
        with PythonCalls() as calls:
            rows = sum(batch.num_rows for batch in source.read_run(tasks[:files], BatchLimit()))
        assert rows == files * 5000
        counts.append(calls.count)
    *_, one, eleven = counts
    assert (eleven - one) / 10 <= most_calls


READ_IN_SPARK = """
    import re, sys
    from tailerd.spark.datasource import TailerdDataSource

    def read(**options):
        source = TailerdDataSource({"path": sys.argv[1], "startingversion": "0", **options})
        reader = source.reader(source.schema())
        partitions = reader.partitions()
        before = bytes_read()
        rows = sum(batch.num_rows for part in partitions for batch in reader.read(part))
        return rows, bytes_read() - before

    def bytes_read():
        return int(re.search(r"rchar: (\\d+)", open("/proc/self/io").read())[1])

    read()  # Warm: libraries are loaded.
    result = [read(), read(columns="id,amount")]
"""


def test_a_spark_task_reads_only_the_columns_that_were_named(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=list(WIDE_FIELDS))
    text = "customer-{0:040}-{0:x}"
    table.append(
        {"id": n, "amount": n / 7, "customer": text.format(n), "product": text.format(-n)}
        for n in range(100_000)
    )
    (rows, all_bytes), (same_rows, bytes_of_two) = run_process(READ_IN_SPARK, tmp_path).result
    assert rows == same_rows == 100_000
    size = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    assert size * 0.9 < all_bytes < size * 1.2
    assert bytes_of_two < all_bytes / 2


IN_BOUNDED_MEMORY = f"""
    import asyncio, sys
    from tailerd.changefeed.limits import ReadLimit
    from tailerd.formats.delta.log.log_reader import LogReader
    from tests.tables.opened import open_delta
    from tailerd.formats.versioned_source import VersionedSource

    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * 4096

    async def replayed(table):
        return (await LogReader.at(table).open()).num_files

    async def planned(table):
        source = await open_delta(table)
        limit = ReadLimit(max_files=200_000, max_bytes=10**18)
        offset, tasks = await source.initial_offset("1"), 0
        while (end := await source.latest_offset(offset, limit)) != offset:
            async for group in source.plan(offset, end):
                tasks += len(group.tasks)
            await source.commit(end)
            offset = end
        return tasks

    async def main(work, large, small):
        await work(small)  # Warm: libraries are loaded, pools exist.
        {RESET_PEAK}
        idle = resident()
        return {{"idle_bytes": idle, "files": await work(large)}}

    result = asyncio.run(main(globals()[sys.argv[1]], sys.argv[2], sys.argv[3]))
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "size_bytes", "above_idle"),
    [
        ("replayed", GIGABYTE, 300 * MIB),
        # A task for each of its files takes ten times as long: less of it, and less memory. Alone
        # it takes 36 MiB; on a busy machine what is read ahead waits to be used, and takes 80.
        ("planned", GIGABYTE // 4, 120 * MIB),
    ],
    ids=["a-gigabyte-replayed", "a-quarter-planned"],
)
def test_a_very_large_commit_is_handled_in_bounded_memory(
    tmp_path: Path, work: str, size_bytes: int, above_idle: int
) -> None:
    small = make_table(tmp_path / "small", 2)
    large = wide_table(tmp_path / "large")
    large.create()
    commit = large.commit_path(1)
    files = write_large_commit(commit, size_bytes)
    run = run_process(IN_BOUNDED_MEMORY, work, large.folder, small.folder)
    commit.unlink()
    assert run.result["files"] == files
    above = run.peak_bytes - run.result["idle_bytes"]
    assert above < above_idle, f"peak is {mebibytes(above)} above idle"


def test_a_large_change_file_is_judged_in_bounded_memory(tmp_path: Path) -> None:
    """The column of change types alone has 300 MB as texts."""
    rows, part = 20_000_000, 1_000_000
    small, large = (TableBuilder(tmp_path / name, properties=CDF) for name in ("small", "large"))
    for table in (small, large):
        [add] = table.append([{"id": 1, "name": "x"}]).adds
        images = [("update_preimage", "x"), ("update_postimage", "y")]
        changes = table.cdc_file([{"id": 1, "name": n, "_change_type": t} for t, n in images])
        table.commit(table.remove(add), table.data_file([{"id": 1, "name": "y"}]), changes)
    [path] = large.folder.glob("_change_data/*.parquet")
    schema = pq.read_schema(path)
    half = pa.array(["update_preimage", "update_postimage"]).take(pa.array([0, 1] * (part // 2)))
    columns = {"id": pa.repeat(1, part), "name": pa.repeat("x", part), "_change_type": half}
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(rows // part):
            writer.write_table(pa.table(columns).cast(schema))
    run = run_process(IN_BOUNDED_MEMORY, "planned", large.folder, small.folder)
    assert run.result["files"] == 1
    above = run.peak_bytes - run.result["idle_bytes"]
    assert above < 100 * MIB, f"peak is {mebibytes(above)} above idle"
