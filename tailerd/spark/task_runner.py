"""Reads and writes deliveries on Spark: each is one item of a task of a job.

A job takes all waiting deliveries, so that a thousand small tables need few jobs, and each gets its
result when its own rows are written. Errors are values: those of one table do not fail the job. If
Spark itself fails a job, all its deliveries fail and are retried.

A slow table never holds up another: large deliveries, and tables whose last delivery was slow or
failed, have their own jobs. The large and slow ones leave one of the cores to the others. A
delivery that turns out to be slow while it has the last core, and others wait, is interrupted and
repeated later. If two tables with the same destination, such as the same brokers, do so at once,
others with it are taken for slow too, for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from pyspark import SparkContext, TaskContext

from tailerd.errors import BatchRetryError, ConfigError, EngineError, TailerdError
from tailerd.pipeline.remote_rows import RemoteAnswer, RemoteWork, do_remote_work
from tailerd.pipeline.unexpected import as_bug
from tailerd.spark.engine import SparkEngine
from tailerd.spark.partitions import freeze_gc
from tailerd.spark.remote import is_local
from tailerd.spark.task_reports import ReportAddress, ReportServer, TaskLink, TaskReporter
from tailerd.spark.worker_edge import worker_stores
from tailerd.storage.stores import StoreSettings

_JOBS_AT_ONCE = 4
"""Jobs with deliveries of several tables."""
_ALONE_AT_ONCE = 16
"""Large and slow deliveries; each has a thread of the engine."""
_MAX_ITEMS = 10_000
_GIVEN_BYTES = 32 * 1024 * 1024
"""Most bytes that are sent to the tasks of one job."""
_READ_BYTES = 64 * 1024 * 1024
"""Most bytes that they read; a larger delivery has its own job."""
_CANCEL_SECONDS = 60.0
"""How long a cancelled delivery waits for the end of its task, which Spark kills."""
_KILL_SECONDS = 3.0
"""After a job has failed: Spark ends the Python workers of its other tasks within two seconds."""
_FIRST_SECONDS = 4.0
_SLOW_SECONDS = 2.5
_SLOW_BYTES_PER_SECOND = 4 * 1024 * 1024
"""A delivery is slow if it takes longer than its bytes and these seconds explain; the first one of
a table may take longer."""
_DESTINATION_SECONDS = 60.0
_WAIT_SECONDS = 1.0
_POLL_SECONDS = 0.5
_SPECULATION = "spark.speculation"
_HOST = "spark.driver.host"
_LOOPBACK = "127.0.0.1"

_T = TypeVar("_T")
_Answer = RemoteAnswer | dict[str, object]
"""The result of a delivery: an answer, or an error as data."""
_IS_REPORTED = b""
_IS_UNREACHABLE = b"unreachable"


@dataclass(eq=False, slots=True, kw_only=True)
class _Item:
    """A delivery that is waiting or running.

    Attributes:
        table, destination, data, size_bytes: Its work.
        patience_seconds: How long it may take before it is slow.
        answer: Its result.
        since: Monotonic time since which it waits or, once it has started, runs.
        job: The job that it was given to.
        link: The task that works on it.
        is_dropped: Whether it must not start any more.
    """

    table: str
    destination: str
    data: bytes
    size_bytes: int
    patience_seconds: float
    answer: asyncio.Future[RemoteAnswer]
    since: float
    job: _Job | None = None
    link: TaskLink | None = None
    is_dropped: bool = False

    @property
    def is_large(self) -> bool:
        """Whether it has its own job."""
        return self.size_bytes > _READ_BYTES

    def has_become_slow(self, now: float) -> bool:
        """Return whether it runs, and is slow."""
        return self.link is not None and not self.answer.done() and self.is_slow(now)

    def is_slow(self, now: float) -> bool:
        """Return whether it has run for longer than it should."""
        return now - self.since > self.patience_seconds


@dataclass(eq=False, slots=True, kw_only=True)
class _Job:
    """A job of Spark.

    Attributes:
        number: Unique in this process.
        items: Its deliveries.
        is_alone: Whether it has the one item of a large delivery or a slow table.
        is_reporting: Whether its tasks ask before they start an item.
        ended: Set when Spark has returned.
    """

    number: int
    items: list[_Item]
    is_alone: bool
    is_reporting: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def is_quick(self, now: float) -> bool:
        """Return whether it does more than slow deliveries."""
        return not self.is_alone and not all(
            item.answer.done() or item.has_become_slow(now) for item in self.items
        )

    @property
    def group(self) -> str:
        """Spark's name for it."""
        return f"tailerd-delivery-{self.number}"


class SparkTaskRunner:
    """A `TaskRunner` on a session's executors. Use it from one event loop."""

    def __init__(self, engine: SparkEngine, storage: Callable[[], StoreSettings]) -> None:
        """Initialize; no session is opened yet.

        Args:
            engine: The session.
            storage: Returns how tables are reached now.
        """
        self._engine = engine
        self._storage = storage
        self._waiting: list[_Item] = []
        self._jobs: dict[int, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        # Tables that have delivered, and those whose last delivery failed or was slow.
        self._known_tables: set[str] = set()
        self._failed_tables: set[str] = set()
        self._slow_tables: set[str] = set()
        # Destination -> monotonic time until which it is taken for slow.
        self._slow_destinations: dict[str, float] = {}
        self._cores = 1
        self._context: SparkContext | None = None
        self._reports = ReportServer(self)
        self._has_reports = True
        self._watch: asyncio.Task[None] | None = None

    async def run(self, work: RemoteWork) -> RemoteAnswer:
        """Do work in a task of a job; if cancelled, end the task before raising.

        Raises:
            TailerdError: Of reading or writing.
            EngineError: Spark failed, or the delivery was interrupted to let others run.
        """
        base = _SLOW_SECONDS if work.table in self._known_tables else _FIRST_SECONDS
        item = _Item(
            table=work.table,
            destination=work.destination,
            data=pickle.dumps(work),
            size_bytes=work.size_bytes,
            patience_seconds=base + work.size_bytes / _SLOW_BYTES_PER_SECOND,
            answer=asyncio.get_running_loop().create_future(),
            since=time.monotonic(),
        )
        self._waiting.append(item)
        self._begin()
        try:
            return await asyncio.shield(item.answer)
        except asyncio.CancelledError:
            await self._stop(item)
            raise

    # What tasks report.

    def may_start(self, link: TaskLink, index: int) -> bool:
        """Allow an item once, in the job that it was given to last."""
        job = self._jobs.get(link.job)
        if job is None:
            return False
        item = job.items[index]
        if item.job is not job or item.is_dropped or item.answer.done() or item.link is not None:
            return False
        item.link, item.since = link, time.monotonic()
        return True

    def receive(self, link: TaskLink, index: int, result: bytes) -> None:
        """Give an item its result."""
        if (job := self._jobs.get(link.job)) is not None:
            self._settle(job, job.items[index], pickle.loads(result))

    def end(self, link: TaskLink) -> None:
        """Fail the item of a task that died or was interrupted: nothing writes it any more."""
        job = self._jobs.get(link.job)
        if job is None or link.item is None:
            return
        item = job.items[link.item]
        error = _build_retry_error()
        if link.is_killed:
            error = BatchRetryError(
                f"A delivery of {item.table} took long while other tables waited for a core of"
                " Spark, so it was interrupted and is repeated by itself."
            )
        _fail(item, error)

    # Jobs.

    def _begin(self) -> None:
        while items := self._take_alone() or self._take_together():
            is_alone = self._is_alone(items[0])
            job = _Job(number=next(self._numbers), items=items, is_alone=is_alone)
            for item in items:
                item.job = job
            self._jobs[job.number] = job
            task = asyncio.get_running_loop().create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._jobs and self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_jobs())

    def _is_alone(self, item: _Item) -> bool:
        """Return whether an item is large or taken for slow."""
        until = self._slow_destinations.get(item.destination, 0.0)
        is_slow = item.table in self._slow_tables or time.monotonic() < until
        return item.is_large or is_slow

    def _take_alone(self) -> list[_Item]:
        """Return the delivery that has waited longest for its own job, if it may begin."""
        if self._count_slow() >= max(1, self._slow_room):
            return []
        alone = [each for each in self._waiting if self._is_alone(each)]
        # A large one is not slow: it must not wait for several that are.
        alone.sort(key=lambda each: each.table in self._slow_tables)
        if not alone:
            return []
        self._waiting.remove(alone[0])
        return alone[:1]

    def _take_together(self) -> list[_Item]:
        """Return the items of the next job, including the one that has waited longest."""
        now = time.monotonic()
        if sum(job.is_quick(now) for job in self._jobs.values()) >= _JOBS_AT_ONCE:
            return []
        taken: list[_Item] = []
        given = read = 0
        for item in self._waiting:
            if self._is_alone(item) or (taken and item.table in self._failed_tables):
                continue
            given, read = given + len(item.data), read + item.size_bytes
            is_full = given > _GIVEN_BYTES or read > _READ_BYTES or len(taken) == _MAX_ITEMS
            if taken and is_full:
                break
            taken.append(item)
            if item.table in self._failed_tables:
                break
        chosen = set(map(id, taken))
        self._waiting = [item for item in self._waiting if id(item) not in chosen]
        return taken

    async def _run(self, job: _Job) -> None:
        try:
            answers = await self._answers(job)
        except EngineError as error:
            # Its tasks may still write; nothing may be rewritten before they have ended.
            await asyncio.sleep(_KILL_SECONDS)
            self._fail_all(job, error)
        except BaseException as error:
            self._fail_all(job, error)
            if not isinstance(error, Exception):
                raise
        else:
            for item, answer in zip(job.items, answers, strict=True):
                if answer is not None:
                    self._settle(job, item, answer)
            await self._wait_for_tasks(job)
            lost = EngineError("A task of Spark ended without a result.")
            self._fail_all(job, lost)
        finally:
            del self._jobs[job.number]
            job.ended.set()
            self._begin()
            if not self._jobs:
                self._reports.close()

    async def _wait_for_tasks(self, job: _Job) -> None:
        """Wait for the end of tasks that were interrupted; Spark does not wait for them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                for item in job.items:
                    if item.link is not None and not item.answer.done():
                        await item.link.ended.wait()

    async def _answers(self, job: _Job) -> Sequence[_Answer | None]:
        """Return the answers of a job; None for those that its tasks have reported."""
        data = [item.data for item in job.items]
        spark = await self._engine.session()
        context = self._context = spark.sparkContext
        self._cores, host = await self._call_spark(lambda: _facts(context))
        address = await self._open_reports(host, job.number)
        job.is_reporting = address is not None
        work = _doing(self._storage(), address)

        def run() -> list[bytes]:
            _check_speculation(context)
            context.setJobGroup(job.group, "tailerd", interruptOnCancel=True)
            tasks = min(len(data), context.defaultParallelism)
            given = context.parallelize(list(enumerate(data)), tasks)
            found: list[bytes] = given.mapPartitions(work).collect()
            return found

        found = await self._call_spark(run)
        if _IS_UNREACHABLE in found:
            # Nothing has run. From now on results come at the end of a job.
            self._has_reports = False
            raise EngineError("Spark's executors cannot reach the driver.")
        return [None if each == _IS_REPORTED else pickle.loads(each) for each in found]

    async def _call_spark(self, call: Callable[[], _T]) -> _T:
        """Call Java in a thread; raise `EngineError` if it fails or is gone."""
        try:
            return await self._engine.blocking(call)
        except TailerdError:
            raise
        except Exception as error:
            # PySpark raises various exceptions if Java ends in the middle of an answer.
            raise EngineError(f"A job of Spark failed: {type(error).__name__}: {error}.") from error

    async def _open_reports(self, host: str, job: int) -> ReportAddress | None:
        if not self._has_reports:
            return None
        try:
            return await self._reports.open(host, job)
        except OSError:
            # The host is that of a gateway in front of this machine.
            self._has_reports = False
            return None

    def _settle(self, job: _Job, item: _Item, answer: _Answer) -> None:
        if item.job is not job or item.answer.done():
            return
        is_slow = item.link is not None and item.is_slow(time.monotonic())
        is_failed = not isinstance(answer, RemoteAnswer)
        self._known_tables.add(item.table)
        for tables, is_member in ((self._slow_tables, is_slow), (self._failed_tables, is_failed)):
            if is_member:
                tables.add(item.table)
            else:
                tables.discard(item.table)
        if not is_slow and not is_failed:
            self._slow_destinations.pop(item.destination, None)
        if isinstance(answer, RemoteAnswer):
            item.answer.set_result(answer)
        else:
            _fail(item, TailerdError.from_data(answer))

    def _fail_all(self, job: _Job, error: BaseException) -> None:
        for item in job.items:
            if item.job is job:
                _fail(item, error)

    # Slow deliveries.

    async def _watch_jobs(self) -> None:
        try:
            while self._jobs:
                await asyncio.sleep(_POLL_SECONDS)
                await self._make_room()
        finally:
            self._watch = None

    async def _make_room(self) -> None:
        """Interrupt slow deliveries that hold the last core while others wait."""
        slow = self._slow_items()
        self._slow_tables.update(item.table for item in slow)
        excess = self._count_slow() - self._slow_room
        if excess > 0 and self._has_waiting():
            counts = Counter(item.destination for item in slow if item.destination)
            until = time.monotonic() + _DESTINATION_SECONDS
            self._slow_destinations |= {name: until for name, count in counts.items() if count > 1}
            self._take_back()
            for item in sorted(slow, key=lambda each: each.since)[:excess]:
                if item.link is not None and not item.link.is_killed:
                    await self._kill(item.link)
        self._begin()

    @property
    def _slow_room(self) -> int:
        """How many cores large and slow deliveries may hold."""
        return min(_ALONE_AT_ONCE, self._cores - 1)

    def _count_slow(self) -> int:
        """Return how many cores they hold or will hold."""
        return sum(job.is_alone for job in self._jobs.values()) + len(self._slow_items())

    def _slow_items(self) -> list[_Item]:
        """Return the deliveries that turned out to be slow in a job with others."""
        now = time.monotonic()
        shared = (job for job in self._jobs.values() if not job.is_alone)
        return [item for job in shared for item in job.items if item.has_become_slow(now)]

    def _has_waiting(self) -> bool:
        """Return whether deliveries of other tables have waited for a core for a while."""
        until = time.monotonic() - _WAIT_SECONDS
        given = (item for job in self._jobs.values() if not job.is_alone for item in job.items)
        return any(
            item.link is None and not item.answer.done() and item.since < until
            for item in (*given, *self._waiting)
            if not self._is_alone(item)
        )

    def _take_back(self) -> None:
        """Let slow tables wait for their own jobs that have not started in a job with others."""
        shared = (job for job in self._jobs.values() if not job.is_alone)
        later = [
            item
            for job in shared
            for item in job.items
            if item.job is job and item.link is None and not item.answer.done()
        ]
        back = [item for item in later if self._is_alone(item)]
        for item in back:
            item.job = None
        self._waiting = back + self._waiting

    async def _kill(self, link: TaskLink) -> None:
        link.is_killed = True
        context = self._context

        def kill() -> None:
            if context is not None:
                # Spark repeats the task, which then asks in vain whether it may start.
                reason = "tailerd ends this delivery"
                context._jsc.sc().killTaskAttempt(link.task_id, True, reason)

        with suppress(Exception):
            await self._engine.blocking(kill)

    async def _stop(self, item: _Item) -> None:
        """Return once a cancelled item is not worked on any more, and never will be."""
        item.is_dropped = True
        if item in self._waiting:
            self._waiting.remove(item)
            return
        job, link = item.job, item.link
        if job is None or item.answer.done() or (link is None and job.is_reporting):
            return
        with suppress(TimeoutError, TailerdError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                if link is not None:
                    await self._kill(link)
                    await link.ended.wait()
                elif len(job.items) == 1:
                    await self._cancel(job)
                    await job.ended.wait()
                else:
                    await asyncio.shield(item.answer)

    async def _cancel(self, job: _Job) -> None:
        context = self._context
        if context is not None:
            with suppress(Exception):
                await self._engine.blocking(lambda: context.cancelJobGroup(job.group))


def _facts(context: SparkContext) -> tuple[int, str]:
    """Return the number of cores, and the address of this machine for executors."""
    host = _LOOPBACK
    if not is_local(str(context.master)):
        host = context.getConf().get(_HOST) or _LOOPBACK
    return context.defaultParallelism, host


def _check_speculation(context: SparkContext) -> None:
    """Refuse a session in which two tasks may write one delivery at the same time."""
    if (context.getConf().get(_SPECULATION) or "").lower() == "true":
        raise ConfigError(
            f"{_SPECULATION} is set, so Spark would write rows of slow tasks twice.",
            remedy=f"Leave {_SPECULATION} out of `spark.conf`, or set the table option"
            " `engine: arrow`.",
        )


def _fail(item: _Item, error: BaseException) -> None:
    if item.answer.done():
        return
    item.answer.set_exception(error)
    # The caller may be gone: mark the exception as retrieved.
    item.answer.exception()


def _build_retry_error() -> BatchRetryError:
    return BatchRetryError(
        "A Spark task failed and is retried, so the delivery restarts: rows of the first"
        " attempt may have been written."
    )


def _doing(
    storage: StoreSettings, address: ReportAddress | None
) -> Callable[[Iterable[tuple[int, bytes]]], Iterator[bytes]]:
    """Return the function that a task applies to its items."""

    def do(items: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        from tailerd.arrow_start import start_arrow

        start_arrow()
        freeze_gc()
        if address is None:
            for _, data in items:
                yield pickle.dumps(_done(data, storage))
            return
        context = TaskContext.get()
        try:
            reporter = TaskReporter(address, 0 if context is None else context.taskAttemptId())
        except OSError:
            for _ in items:
                yield _IS_UNREACHABLE
            return
        try:
            for index, data in items:
                yield _run_item(reporter, index, data, storage)
        finally:
            reporter.close()

    return do


def _run_item(reporter: TaskReporter, index: int, data: bytes, storage: StoreSettings) -> bytes:
    """Do an item, if it may start, and report its result; return an unreported one."""
    # Loads modules, which is not the table's fault.
    pickle.loads(data)
    if not reporter.may_start(index):
        return _IS_REPORTED
    result = pickle.dumps(_done(data, storage, is_allowed=True))
    return _IS_REPORTED if reporter.send_result(index, result) else result


def _done(data: bytes, storage: StoreSettings, *, is_allowed: bool = False) -> _Answer:
    try:
        context = TaskContext.get()
        if not is_allowed and context is not None and context.attemptNumber():
            raise _build_retry_error()
        return do_remote_work(pickle.loads(data), worker_stores(storage))
    except TailerdError as error:
        return error.to_data()
    except Exception as error:  # noqa: BLE001 - one table's bug must not stop the others
        return as_bug(error).to_data()
