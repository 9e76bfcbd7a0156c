"""One maintenance job on Spark: `python -m tailerd.spark.maintenance_program`.

Reads the request as a line of JSON from standard input, and writes the answer to standard output.
It is a separate process so that Java and its memory are released when the job is done. It exits
when its input ends, which also happens when its parent is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailerd.formats.detect import table_format
from tailerd.formats.part_request import PartRequest
from tailerd.formats.parts import require_part
from tailerd.maintenance.programs import EngineRequest, answer_with
from tailerd.spark.query_errors import parse_error
from tailerd.spark.session import local_session
from tailerd.spark.worker_edge import errors_travel
from tailerd.storage.stores import Stores, StoreSettings
from tailerd.storage.table_location import locate_table

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Piece = TypeVar("_Piece")
_Shared = TypeVar("_Shared")


def main() -> None:
    """Answer one request."""
    # Output of Java or a library must not be taken for the answer.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        request = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineRequest)
        threading.Thread(target=_end_with_input, daemon=True).start()
        output.write(msgspec.json.encode(asyncio.run(answer_with(_run(request)))) + b"\n")


def _end_with_input() -> None:
    # Unbuffered: the interpreter ends with the lock of `sys.stdin`, which would be held here.
    while os.read(0, 4096):
        pass
    # Java exits too: its input is a pipe from this process.
    os._exit(1)


async def _run(request: EngineRequest) -> bytes:
    stores = Stores(StoreSettings.from_json(request.storage))
    maintainer = require_part(
        table_format(request.format).maintainer, request.format, "maintenance"
    )
    spark = await asyncio.to_thread(
        local_session, "tailerd-maintenance", request.master, request.conf
    )
    try:
        executor = SparkTaskExecutor(spark)
        location = locate_table(request.location, stores=stores)
        return await maintainer.run_request(PartRequest(location=location), request.job, executor)
    finally:
        await asyncio.to_thread(spark.stop)


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
            TailerdError: The error of a task.
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
            TailerdError: The error of a task.
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
            TailerdError: The error of a task.
            EngineError: Spark failed.
        """
        if not items:
            return []

        def write_results() -> list[_Out]:
            pieces = self._context.parallelize(items, len(items)).flatMap(errors_travel(cut))
            by_range = pieces.partitionBy(ranges, lambda number: int(number))
            return by_range.mapPartitions(
                errors_travel(lambda found: write(piece for _, piece in found))
            ).collect()

        return await _blocking(write_results)


async def _blocking(work: Callable[[], list[_Out]]) -> list[_Out]:
    try:
        return await asyncio.to_thread(work)
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise parse_error(str(error)) from error


if __name__ == "__main__":
    main()
