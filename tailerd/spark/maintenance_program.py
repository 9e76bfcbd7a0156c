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

import msgspec

from tailerd.errors import BugError, TailerdError
from tailerd.formats.detect import table_format
from tailerd.formats.parts import required
from tailerd.formats.placement import place_at
from tailerd.maintenance.engine_messages import EngineAnswer, EngineRequest
from tailerd.spark.session import local_session
from tailerd.spark.task_executor import SparkTaskExecutor
from tailerd.storage.stores import Stores, StoreSettings


def main() -> None:
    """Answer one request."""
    # Output of Java or a library must not be taken for the answer.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        request = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineRequest)
        threading.Thread(target=_end_with_input, daemon=True).start()
        output.write(msgspec.json.encode(_answer(request)) + b"\n")


def _end_with_input() -> None:
    # Unbuffered: the interpreter ends with the lock of `sys.stdin`, which would be held here.
    while os.read(0, 4096):
        pass
    # Java exits too: its input is a pipe from this process.
    os._exit(1)


def _answer(request: EngineRequest) -> EngineAnswer:
    try:
        return EngineAnswer(result=asyncio.run(_run(request)))
    except TailerdError as error:
        return EngineAnswer.failed(error)
    except Exception as error:  # noqa: BLE001 - the parent reports it
        bug = BugError(
            f"A maintenance job on Spark failed unexpectedly: {error!r}.",
            remedy="Please report it.",
        )
        return EngineAnswer.failed(bug)


async def _run(request: EngineRequest) -> bytes:
    stores = Stores(StoreSettings.of_json(request.storage))
    maintainer = required(table_format(request.format).maintainer, request.format, "maintenance")
    spark = await asyncio.to_thread(
        local_session, "tailerd-maintenance", request.master, request.conf
    )
    try:
        executor = SparkTaskExecutor(spark)
        place = place_at(request.place, stores=stores)
        return await maintainer.run_request(place, request.job, executor)
    finally:
        await asyncio.to_thread(spark.stop)


if __name__ == "__main__":
    main()
