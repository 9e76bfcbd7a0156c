"""Reads and writes deliveries on Spark: each is one task of a job.

A job takes all waiting deliveries, so that a thousand small tables need few jobs; large deliveries
have jobs of their own, so that no other table waits for them. Errors are values: those of one table
do not fail the job. If Spark itself fails a job, all its deliveries fail and are retried.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark import SparkContext, TaskContext

from tailerd.errors import BatchRetryError, BugError, ConfigError, EngineError, TailerdError
from tailerd.pipeline.remote_rows import RemoteAnswer, RemoteWork, do_remote_work
from tailerd.spark.engine import SparkEngine
from tailerd.spark.partitions import freeze_gc
from tailerd.spark.worker_stores import worker_stores
from tailerd.storage.stores import StoreSettings

_JOBS_AT_ONCE = 4
_LARGE_AT_ONCE = 2
"""Fewer than `_JOBS_AT_ONCE`, so that small deliveries can always get a job."""
_MOST_ITEMS = 10_000
_GIVEN_BYTES = 32 * 1024 * 1024
"""Most bytes that are sent to the tasks of one job."""
_READ_BYTES = 64 * 1024 * 1024
"""Most bytes that they read; a larger delivery has a job of its own."""
_CANCEL_SECONDS = 5.0
_KILL_SECONDS = 3.0
"""After a job has failed: Spark ends the Python workers of its other tasks within two seconds."""
_SPECULATION = "spark.speculation"

_Answer = RemoteAnswer | dict[str, object]
"""The result of a delivery: an answer, or an error as data."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Item:
    """A delivery that is waiting or running."""

    data: bytes
    size_bytes: int
    answer: asyncio.Future[RemoteAnswer]

    @property
    def is_large(self) -> bool:
        """Whether it has a job of its own."""
        return self.size_bytes > _READ_BYTES


class SparkPlace:
    """A `Place` on a session's executors. Use it from one event loop."""

    def __init__(self, engine: SparkEngine, storage: Callable[[], StoreSettings]) -> None:
        """Initialize; no session is opened yet.

        Args:
            engine: The session.
            storage: Returns how tables are reached now.
        """
        self._engine = engine
        self._storage = storage
        self._waiting: list[_Item] = []
        self._jobs: dict[asyncio.Task[None], bool] = {}

    async def run(self, work: RemoteWork) -> RemoteAnswer:
        """Do work in a task of a job.

        Raises:
            TailerdError: Of reading or writing.
            EngineError: Spark failed.
        """
        item = _Item(
            data=pickle.dumps(work),
            size_bytes=work.size_bytes,
            answer=asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(item)
        self._begin()
        try:
            return await asyncio.shield(item.answer)
        except asyncio.CancelledError:
            await self._settled(item)
            raise

    async def _settled(self, item: _Item) -> None:
        """Wait until an item is no longer worked on; a task cannot be interrupted."""
        if item in self._waiting:
            self._waiting.remove(item)
            return
        with suppress(TimeoutError, TailerdError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await asyncio.shield(item.answer)

    def _begin(self) -> None:
        while len(self._jobs) < _JOBS_AT_ONCE and (items := self._taken()):
            job = asyncio.get_running_loop().create_task(self._job(items))
            self._jobs[job] = items[0].is_large
            job.add_done_callback(self._ended)

    def _taken(self) -> list[_Item]:
        """Return the items of the next job, including the one that has waited longest."""
        if (
            sum(self._jobs.values()) < _LARGE_AT_ONCE
            and self._waiting[:1]
            and self._waiting[0].is_large
        ):
            return [self._waiting.pop(0)]
        taken: list[_Item] = []
        given = read = 0
        for item in self._waiting:
            if item.is_large:
                continue
            given, read = given + len(item.data), read + item.size_bytes
            is_full = given > _GIVEN_BYTES or read > _READ_BYTES or len(taken) == _MOST_ITEMS
            if taken and is_full:
                break
            taken.append(item)
        self._waiting = [item for item in self._waiting if item not in taken]
        return taken

    def _ended(self, job: asyncio.Task[None]) -> None:
        del self._jobs[job]
        self._begin()

    async def _answers(self, data: Sequence[bytes]) -> list[_Answer]:
        spark = await self._engine.session()
        context = spark.sparkContext
        work = _doing(self._storage())

        def run() -> list[_Answer]:
            _check_speculation(context)
            given = context.parallelize(data, min(len(data), context.defaultParallelism))
            found: list[bytes] = given.mapPartitions(work).collect()
            return [pickle.loads(each) for each in found]

        try:
            return await self._engine.blocking(run)
        except TailerdError:
            raise
        except Exception as error:
            # PySpark raises various exceptions if Java ends in the middle of an answer.
            raise EngineError(f"A job of Spark failed: {type(error).__name__}: {error}.") from error

    async def _job(self, items: list[_Item]) -> None:
        try:
            answers = await self._answers([item.data for item in items])
        except EngineError as error:
            # Its tasks may still write; nothing may be rewritten before they have ended.
            await asyncio.sleep(_KILL_SECONDS)
            for item in items:
                _fail(item, error)
            return
        except BaseException as error:
            for item in items:
                _fail(item, error)
            if not isinstance(error, Exception):
                raise
            return
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, RemoteAnswer):
                if not item.answer.done():
                    item.answer.set_result(answer)
            else:
                _fail(item, TailerdError.from_data(answer))


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


def _doing(storage: StoreSettings) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
    """Return the function that a task applies to its items."""

    def do(items: Iterable[bytes]) -> Iterator[bytes]:
        from tailerd.arrow_start import start_without_pandas

        start_without_pandas()
        freeze_gc()
        for data in items:
            yield pickle.dumps(_done(data, storage))

    return do


def _done(data: bytes, storage: StoreSettings) -> _Answer:
    try:
        context = TaskContext.get()
        if context is not None and context.attemptNumber():
            raise BatchRetryError(
                "A Spark task failed and is retried, so the delivery restarts: rows of the first"
                " attempt may have been written."
            )
        return do_remote_work(pickle.loads(data), worker_stores(storage))
    except TailerdError as error:
        return error.to_data()
    except Exception as error:  # noqa: BLE001 - one table's bug must not stop the others
        return BugError(
            f"An unexpected error occurred: {type(error).__name__}: {error}.",
            remedy="Please report it; `tailerd --debug run` shows where.",
        ).to_data()
