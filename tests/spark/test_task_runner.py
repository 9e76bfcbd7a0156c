"""Deliveries as tasks of Spark's jobs: which job they are in, how they fail, how they are left."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.changefeed.offset import Version
from tailerd.errors import (
    BatchRetryError,
    BugError,
    CommitAheadError,
    ConfigError,
    EngineError,
    SinkFencedError,
    TailerdError,
)
from tailerd.formats.delta.protocol.data_file import DataFile, TableSchema
from tailerd.pipeline.change_runs import Run
from tailerd.pipeline.remote_rows import RemoteAnswer, RemoteWork
from tailerd.spark import task_runner
from tailerd.spark.engine import SparkEngine
from tailerd.spark.task_reports import ReportAddress, ReportServer
from tailerd.spark.task_runner import SparkTaskRunner
from tailerd.storage.stores import StoreSettings
from tests.kafka.ports import free_port
from tests.waiting import PATIENCE_SECONDS, comes

_T = TypeVar("_T")
_MIB = 1024 * 1024
Task = Callable[[Iterable[tuple[int, bytes]]], Iterator[bytes]]


@dataclass(frozen=True)
class Named:
    """A writer that answers with its name, or raises; it takes no rows, as there are none."""

    name: str
    error: Exception | None = None

    def __call__(self, batches: Iterator[ChangeBatch]) -> str:
        assert list(batches) == []
        if self.error is not None:
            raise self.error
        return self.name


def work(name: str, error: Exception | None = None) -> RemoteWork:
    return RemoteWork(
        table=name, runs=(), key=(), limit=DEFAULT_BATCH_LIMIT, writer=Named(name, error)
    )


class SizedWork(RemoteWork):
    """Work whose files are not there."""

    __slots__ = ()

    @property
    def size_bytes(self) -> int:
        return 64 * _MIB + 1


def large(name: str) -> RemoteWork:
    return SizedWork(table=name, runs=(), key=(), limit=DEFAULT_BATCH_LIMIT, writer=Named(name))


class KilledError(BaseException):
    """Ends a task as a signal ends its process: no code of the task can catch it."""


@dataclass(frozen=True)
class Held:
    """A writer that works until a test lets it end, or until its task is killed."""

    name: str
    destination: str = ""

    def __call__(self, batches: Iterator[ChangeBatch]) -> str:
        assert list(batches) == []
        HELD[self.name].begun.set()
        HELD[self.name].released.wait(PATIENCE_SECONDS)
        if HELD[self.name].is_killed:
            raise KilledError
        return self.name


class Hold:
    """How a test controls a `Held`."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.is_killed = False


HELD: dict[str, Hold] = {}


def held(name: str, destination: str = "") -> RemoteWork:
    HELD[name] = Hold()
    writer = Held(name, destination)
    return RemoteWork(table=name, runs=(), key=(), limit=DEFAULT_BATCH_LIMIT, writer=writer)


class JobsDouble:
    """An engine whose jobs run in threads, when a test lets them, and fail when it says so.

    Attributes:
        jobs: Numbers of items and of tasks of each job that began.
        gate: Jobs wait here.
        failure: What jobs fail with behind the gate.
        killed: Tables whose tasks were killed; `dies` says whether they end then.
    """

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}
        self.jobs: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.no_session: Exception | None = None
        self.defaultParallelism = 3
        self.master = "local[3]"
        self.cancelled: list[str] = []
        self.killed: list[str] = []
        self.dies = True
        self.cores = threading.Semaphore(self.defaultParallelism)
        self.workers = ThreadPoolExecutor(16)

    def use_cores(self, cores: int) -> None:
        self.defaultParallelism = cores
        self.cores = threading.Semaphore(cores)

    @property
    def _jsc(self) -> JobsDouble:
        return self

    def sc(self) -> JobsDouble:
        return self

    def killTaskAttempt(self, task: int, interrupt: bool, reason: str) -> None:  # noqa: N802
        assert interrupt
        table = RUNNING[task]
        self.killed.append(table)
        HELD[table].is_killed = True
        if self.dies:
            HELD[table].released.set()

    def setJobGroup(self, name: str, text: str, *, interruptOnCancel: bool) -> None:  # noqa: N802, N803
        assert interruptOnCancel

    def cancelJobGroup(self, name: str) -> None:  # noqa: N802 - the name is Spark's
        self.cancelled.append(name)

    @property
    def engine(self) -> SparkEngine:
        return cast(SparkEngine, self)

    async def session(self) -> Any:
        if self.no_session is not None:
            raise self.no_session
        return self

    async def blocking(self, work: Callable[[], _T]) -> _T:
        return await asyncio.to_thread(work)

    @property
    def sparkContext(self) -> JobsDouble:  # noqa: N802 - the name is Spark's
        return self

    def getConf(self) -> dict[str, str]:  # noqa: N802 - the name is Spark's
        return self.conf

    def parallelize(self, items: list[tuple[int, bytes]], tasks: int) -> GivenDouble:
        self.jobs.append((len(items), tasks))
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure
        return GivenDouble(self, items, tasks)


RUNNING: dict[int, str] = {}
"""Spark's number of a task -> the table that it works on."""
_numbers = itertools.count(1)


class TaskDouble:
    """What a task knows of itself."""

    _of_thread = threading.local()

    @classmethod
    def get(cls) -> TaskDouble | None:
        return getattr(cls._of_thread, "task", None)

    def __init__(self, attempt: int) -> None:
        self._attempt, self._number = attempt, next(_numbers)
        self._of_thread.task = self

    def attemptNumber(self) -> int:  # noqa: N802 - the name is Spark's
        return self._attempt

    def taskAttemptId(self) -> int:  # noqa: N802 - the name is Spark's
        return self._number


class GivenDouble:
    """What is given to a job, cut into its tasks as Spark cuts it, which share its cores."""

    def __init__(self, engine: JobsDouble, items: list[tuple[int, bytes]], tasks: int) -> None:
        self._engine = engine
        ends = [len(items) * number // tasks for number in range(tasks + 1)]
        self._parts = [items[a:b] for a, b in itertools.pairwise(ends)]

    def mapPartitions(self, do: Task) -> GivenDouble:  # noqa: N802 - the name is Spark's
        self._do = do
        return self

    def collect(self) -> list[bytes]:
        parts = [self._engine.workers.submit(self._task, part) for part in self._parts]
        return [found for part in parts for found in part.result()]

    def _task(self, part: list[tuple[int, bytes]]) -> list[bytes]:
        for attempt in itertools.count():
            with self._engine.cores:
                task = TaskDouble(attempt)

                def items(task: TaskDouble = task) -> Iterator[tuple[int, bytes]]:
                    for index, data in part:
                        RUNNING[task.taskAttemptId()] = pickle.loads(data).table
                        yield index, data

                try:
                    return list(self._do(items()))
                except KilledError:
                    continue
        raise AssertionError


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> JobsDouble:
    # Nothing of this process is to be kept out of garbage collections.
    monkeypatch.setattr(task_runner, "freeze_gc", lambda: None)
    monkeypatch.setattr(task_runner, "_JOBS_AT_ONCE", 1)
    monkeypatch.setattr(task_runner, "_KILL_SECONDS", 0.0)
    monkeypatch.setattr(task_runner, "TaskContext", TaskDouble)
    return JobsDouble()


Running = asyncio.Task[RemoteAnswer]


async def begun(runner: SparkTaskRunner, jobs: JobsDouble) -> Running:
    """Occupy the runner with a job that waits for the gate."""
    jobs.gate.clear()
    first = asyncio.create_task(runner.run(work("first")))
    await comes(lambda: len(jobs.jobs) == 1)
    return first


async def sent(runner: SparkTaskRunner, *works: RemoteWork) -> list[Running]:
    tasks = [asyncio.create_task(runner.run(each)) for each in works]
    await asyncio.sleep(0)
    return tasks


def written(answers: Iterable[RemoteAnswer | BaseException]) -> list[object]:
    return [each.written if isinstance(each, RemoteAnswer) else each for each in answers]


async def test_what_waits_goes_into_one_job_and_everyone_gets_the_own_answer(
    jobs: JobsDouble,
) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    waiting = await sent(runner, *(work(f"t{n}") for n in range(10)))
    jobs.gate.set()
    assert written(await asyncio.gather(*waiting)) == [f"t{n}" for n in range(10)]
    assert (await first).written == "first"
    # Ten items, and as many tasks as can run at once.
    assert jobs.jobs == [(1, 1), (10, 3)]


async def test_several_jobs_run_at_once_so_that_nobody_waits_for_one_that_is_slow(
    jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "_JOBS_AT_ONCE", 3)
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    others = await sent(runner, work("a"), work("b"), work("c"), work("d"))
    await comes(lambda: len(jobs.jobs) == 3)
    jobs.gate.set()
    assert written(await asyncio.gather(first, *others)) == ["first", "a", "b", "c", "d"]
    assert jobs.jobs == [(1, 1), (1, 1), (1, 1), (2, 2)]


async def test_large_work_has_a_job_of_its_own(jobs: JobsDouble) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    works = [work("a"), work("b"), large("c"), large("d"), work("e"), work("f")]
    waiting = await sent(runner, *works)
    jobs.gate.set()
    assert written(await asyncio.gather(*waiting)) == list("abcdef")
    await first
    assert sorted(items for items, _ in jobs.jobs) == [1, 1, 1, 4]


async def test_small_work_finds_a_job_beside_large_ones(
    jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "_JOBS_AT_ONCE", 4)
    jobs.gate.clear()
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    works = [large("a"), large("b"), large("c"), work("d"), large("e"), work("f")]
    waiting = await sent(runner, *works)
    await comes(lambda: len(jobs.jobs) == 4)
    # Two large ones, and each small one when it came: the other large ones wait.
    assert [items for items, _ in jobs.jobs] == [1, 1, 1, 1]
    jobs.gate.set()
    assert written(await asyncio.gather(*waiting)) == list("abcdef")


def test_work_is_as_large_as_the_files_it_reads() -> None:
    task = ChangeTask(
        version=Version(1),
        timestamp_us=0,
        position=0,
        change_source=ChangeSourceKind.FILES,
        change_type=ChangeType.INSERT,
        size_bytes=40 * _MIB,
        format="delta",
        payload=DataFile(url="/t/0", schema=TableSchema('{"type":"struct","fields":[]}')),
    )
    assert replace(work("t"), runs=(Run([task]), Run([task, task]))).size_bytes == 120 * _MIB


@pytest.mark.parametrize(
    ("limit", "value", "sizes"), [("_MAX_ITEMS", 4, [4, 4, 2]), ("_GIVEN_BYTES", 1, [1] * 10)]
)
async def test_a_job_is_given_no_more_than_it_can_take(
    jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(task_runner, limit, value)
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    waiting = await sent(runner, *(work(f"t{n}") for n in range(10)))
    jobs.gate.set()
    assert written(await asyncio.gather(*waiting)) == [f"t{n}" for n in range(10)]
    await first
    assert [items for items, _ in jobs.jobs] == [1, *sizes]


async def test_an_error_is_that_of_its_table_alone_and_keeps_its_class(jobs: JobsDouble) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    ahead = CommitAheadError("Too early.", version=7, remedy="Wait.")
    waiting = await sent(
        runner,
        work("a"),
        work("b", ahead),
        work("c", SinkFencedError("Somebody else writes.")),
        work("d", ZeroDivisionError("odd")),
        work("e"),
    )
    jobs.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    await first
    assert len(jobs.jobs) == 2
    found = written(answers)
    assert (found[0], found[4]) == ("a", "e")
    late, fenced, bug = found[1:4]
    assert type(late) is CommitAheadError
    assert (late.version, str(late)) == (7, str(ahead))
    assert type(fenced) is SinkFencedError
    assert type(bug) is BugError
    assert "ZeroDivisionError: odd" in str(bug)


@pytest.mark.parametrize("where", ["failure", "no_session"])
async def test_what_the_engine_fails_with_is_everybodys_in_the_job_and_the_next_one_runs(
    jobs: JobsDouble, where: str
) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    setattr(jobs, where, EngineError("Java is gone."))
    waiting = await sent(runner, work("a"), work("b"))
    jobs.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in answers] == [EngineError, EngineError]
    assert all(isinstance(each, TailerdError) and each.retryable for each in answers)
    await asyncio.gather(first, return_exceptions=True)
    setattr(jobs, where, None)
    assert (await runner.run(work("again"))).written == "again"


async def test_what_is_cancelled_while_it_waits_never_runs(jobs: JobsDouble) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    kept, dropped = await sent(runner, work("kept"), work("dropped", ValueError("it ran")))
    dropped.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait({dropped})
    assert dropped.cancelled()
    assert not first.done()
    jobs.gate.set()
    assert (await kept).written == "kept"
    await first
    assert [items for items, _ in jobs.jobs] == [1, 1]


@pytest.mark.attack
@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_cancelled_delivery_ends_its_task_and_waits_for_the_end(
    jobs: JobsDouble, is_alone: bool
) -> None:
    jobs.dies = False
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    running, *others = await sent(runner, held("a"), *([] if is_alone else [work("b"), work("c")]))
    await asyncio.to_thread(HELD["a"].begun.wait, PATIENCE_SECONDS)
    running.cancel()
    await comes(lambda: jobs.killed == ["a"])
    await asyncio.sleep(0.05)
    assert not running.done()
    HELD["a"].released.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert written(await asyncio.gather(*others)) == ([] if is_alone else ["b", "c"])
    # The table is not taken for one that is still written.
    HELD["a"] = Hold()
    HELD["a"].released.set()
    assert (await runner.run(work("a"))).written == "a"


@pytest.mark.attack
async def test_each_delivery_gets_its_result_when_its_own_rows_are_written(
    jobs: JobsDouble,
) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    slow, *others = await sent(runner, held("slow"), *(work(f"t{n}") for n in range(2)))
    jobs.gate.set()
    await first
    assert written(await asyncio.gather(*others)) == ["t0", "t1"]
    assert not slow.done()
    assert jobs.jobs == [(1, 1), (3, 3)]
    HELD["slow"].released.set()
    assert (await slow).written == "slow"


@pytest.fixture
def quick(jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a delivery be slow after a moment."""
    for name, seconds in (
        ("_SLOW_SECONDS", 0.2),
        ("_FIRST_SECONDS", 0.2),
        ("_WAIT_SECONDS", 0.02),
        ("_POLL_SECONDS", 0.01),
    ):
        monkeypatch.setattr(task_runner, name, seconds)
    monkeypatch.setattr(task_runner, "_JOBS_AT_ONCE", 4)


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("cores", [1, 2, 3, 8])
async def test_slow_deliveries_leave_the_last_core_to_tables_that_wait(
    jobs: JobsDouble, cores: int
) -> None:
    jobs.use_cores(cores)
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    names = [f"s{n}" for n in range(4)]
    slow = dict(zip(names, await sent(runner, *map(held, names)), strict=True))
    begun = min(cores, len(names))
    await comes(lambda: sum(HELD[name].begun.is_set() for name in names) == begun)
    for number in range(5):
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await runner.run(work(f"f{number}"))).written == f"f{number}"
    interrupted = [name for name in names if slow[name].done()]
    assert bool(interrupted) == (cores <= len(names))
    for name in interrupted:
        with pytest.raises(BatchRetryError, match=f"delivery of {name} took long"):
            await slow[name]
    # Nothing that waits is taken for slow, and nothing that must run is left.
    for name in names:
        HELD[name].released.set()
    rest = [task for name, task in slow.items() if name not in interrupted]
    assert all(each.written in names for each in await asyncio.gather(*rest))


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
async def test_tables_that_were_slow_share_no_job_and_leave_a_core(
    jobs: JobsDouble,
) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    names = ("first", "second", "third")
    running = await sent(runner, *map(held, names))
    await asyncio.sleep(0.4)
    for name in names:
        HELD[name].released.set()
    await asyncio.gather(*running)
    jobs.jobs.clear()
    # All at once, with tables that were quick.
    again = await sent(runner, *map(held, names), work("a"), work("b"))
    assert written(await asyncio.gather(*again[3:])) == ["a", "b"]
    await comes(lambda: sum(HELD[name].begun.is_set() for name in names) == 2)
    await asyncio.sleep(0.1)
    assert sum(HELD[name].begun.is_set() for name in names) == 2
    assert [items for items, _ in jobs.jobs] == [1, 1, 1, 1]
    for name in names:
        HELD[name].released.set()
    await asyncio.gather(*again)
    assert runner._slow_tables == set()


@pytest.mark.attack
async def test_a_table_that_failed_shares_no_job_until_it_is_delivered(jobs: JobsDouble) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    with pytest.raises(BugError):
        await runner.run(work("broken", ZeroDivisionError("odd")))
    for sizes in ([1, 1, 2], [1, 3]):
        jobs.jobs.clear()
        first = await begun(runner, jobs)
        waiting = await sent(runner, work("a"), work("broken"), work("b"))
        jobs.gate.set()
        assert written(await asyncio.gather(*waiting)) == ["a", "broken", "b"]
        await first
        assert sorted(items for items, _ in jobs.jobs) == sizes


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
async def test_tables_of_brokers_that_hang_are_not_tried_one_after_the_other(
    jobs: JobsDouble,
) -> None:
    jobs.use_cores(2)
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    names = [f"s{n}" for n in range(6)]
    slow = await sent(runner, *(held(name, "brokers") for name in names))
    await comes(lambda: sum(HELD[name].begun.is_set() for name in names) == 2)
    assert (await runner.run(work("f"))).written == "f"
    assert sum(HELD[name].begun.is_set() for name in names) == 2
    for name in names:
        HELD[name].released.set()
    ended = await asyncio.gather(*slow, return_exceptions=True)
    assert sum(isinstance(each, RemoteAnswer) for each in ended) == 5
    assert runner._slow_destinations == {}


@pytest.mark.attack
async def test_executors_that_cannot_reach_the_driver_deliver_without_reports(
    jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*_: object) -> ReportAddress:
        return ReportAddress(host="127.0.0.1", port=free_port(), token=b"", job=0)

    monkeypatch.setattr(ReportServer, "open", unreachable)
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    with pytest.raises(EngineError, match="cannot reach the driver"):
        await runner.run(work("a", ValueError("it ran")))
    assert (await runner.run(work("a"))).written == "a"


@pytest.mark.parametrize("failure", [None, EngineError("Java is gone.")])
async def test_what_becomes_of_cancelled_work_is_nobodys_error(
    jobs: JobsDouble, failure: Exception | None
) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    jobs.failure = failure
    first.cancel()
    jobs.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_one_that_does_not_end_is_left_after_a_while(
    jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "_CANCEL_SECONDS", 0.05)
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    first = await begun(runner, jobs)
    first.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait({first})
    assert first.cancelled()
    # What it does in the end disturbs nobody.
    jobs.gate.set()
    assert (await runner.run(work("next"))).written == "next"


@pytest.mark.parametrize("has_reports", [True, False])
async def test_a_task_that_spark_tries_again_writes_nothing(
    jobs: JobsDouble, has_reports: bool
) -> None:
    runner = SparkTaskRunner(jobs.engine, StoreSettings)
    runner._has_reports = has_reports
    running = asyncio.create_task(runner.run(held("a")))
    await asyncio.to_thread(HELD["a"].begun.wait, PATIENCE_SECONDS)
    HELD["a"].is_killed = True
    HELD["a"].released.set()
    with pytest.raises(BatchRetryError, match="A Spark task failed") as raised:
        await running
    assert raised.value.retryable


async def test_what_a_failed_job_had_is_tried_again_once_its_tasks_are_gone(
    jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "_KILL_SECONDS", 0.2)
    jobs.failure = EngineError("A worker died.")
    began = time.monotonic()
    with pytest.raises(EngineError):
        await SparkTaskRunner(jobs.engine, StoreSettings).run(work("a"))
    assert time.monotonic() - began >= 0.2


async def test_no_delivery_is_given_to_two_tasks_at_a_time(jobs: JobsDouble) -> None:
    jobs.conf["spark.speculation"] = "true"
    with pytest.raises(ConfigError, match="twice") as raised:
        await SparkTaskRunner(jobs.engine, StoreSettings).run(work("a", ValueError("it ran")))
    assert "spark.speculation" in raised.value.remedy
    assert jobs.jobs == []


async def test_a_java_that_is_gone_before_the_job_begins_is_tried_again(
    jobs: JobsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_gone(_: JobsDouble) -> int:
        raise Py4JError("An error occurred while calling o39.sc")

    monkeypatch.setattr(JobsDouble, "defaultParallelism", property(is_gone), raising=False)
    with pytest.raises(EngineError, match="calling o39") as raised:
        await SparkTaskRunner(jobs.engine, StoreSettings).run(work("a"))
    assert raised.value.retryable


async def test_what_pyspark_itself_raises_is_tried_again(jobs: JobsDouble) -> None:
    jobs.failure = EOFError("an answer ended in the middle")
    with pytest.raises(EngineError, match="EOFError") as raised:
        await SparkTaskRunner(jobs.engine, StoreSettings).run(work("a"))
    assert raised.value.retryable
