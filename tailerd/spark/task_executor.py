"""Runs the tasks of a format's maintenance job in a Spark session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailerd.spark.query_errors import error_of
from tailerd.spark.worker_edge import errors_travel

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Piece = TypeVar("_Piece")
_Shared = TypeVar("_Shared")


class SparkTaskExecutor:
    """A `TaskExecutor` whose tasks are those of RDDs.

    Args:
        spark: A session whose workers have this release.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    async def map(self, items: Sequence[_In], work: Callable[[_In], _Out]) -> list[_Out]:
        """Return what each item's own task makes of it, in the order of the items.

        Raises:
            TailerdError: What a task raised.
            EngineError: Spark failed.
        """
        if not items:
            return []
        return await _blocking(
            lambda: self._context.parallelize(items, len(items)).map(errors_travel(work)).collect()
        )

    async def map_with(
        self, shared: _Shared, items: Sequence[_In], work: Callable[[_In, _Shared], _Out]
    ) -> list[_Out]:
        """Do the same with a value that is sent to each worker once.

        Raises:
            TailerdError: What a task raised.
            EngineError: Spark failed.
        """
        sent = self._context.broadcast(shared)
        try:
            return await self.map(items, lambda item: work(item, sent.value))
        finally:
            sent.unpersist()

    async def map_by_range(
        self,
        items: Sequence[_In],
        cut: Callable[[_In], Iterable[tuple[int, _Piece]]],
        ranges: int,
        write: Callable[[Iterable[_Piece]], Iterable[_Out]],
    ) -> list[_Out]:
        """Cut items into pieces in tasks, shuffle these by their range, write each range.

        Raises:
            TailerdError: What a task raised.
            EngineError: Spark failed.
        """
        if not items:
            return []

        def written() -> list[_Out]:
            pieces = self._context.parallelize(items, len(items)).flatMap(errors_travel(cut))
            by_range = pieces.partitionBy(ranges, lambda number: int(number))
            return by_range.mapPartitions(
                errors_travel(lambda found: write(piece for _, piece in found))
            ).collect()

        return await _blocking(written)


async def _blocking(work: Callable[[], list[_Out]]) -> list[_Out]:
    try:
        return await asyncio.to_thread(work)
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise error_of(str(error)) from error
