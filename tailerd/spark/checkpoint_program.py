"""One checkpoint by Spark: `python -m tailerd.spark.checkpoint_program`.

A request as a line of JSON on standard input, the answer on standard output. It is a process of its
own so that Java and its memory are gone when the checkpoint is written. It ends when its input
ends, as that of a parent that was killed does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import msgspec

from tailerd.errors import BugError, TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import CheckpointResult
from tailerd.formats.delta.maintenance.checkpoint_request import CheckpointAnswer, CheckpointRequest
from tailerd.spark.checkpoint_job import DistributedCheckpoints
from tailerd.spark.session import local_session
from tailerd.storage.stores import Stores, StoreSettings


def main() -> None:
    """Answer one request."""
    # Whatever Java or a library prints must not be taken for the answer.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        request = msgspec.json.decode(sys.stdin.buffer.readline(), type=CheckpointRequest)
        threading.Thread(target=_end_with_input, daemon=True).start()
        output.write(msgspec.json.encode(_answer(request)) + b"\n")


def _end_with_input() -> None:
    # Unbuffered: the interpreter ends with the lock of `sys.stdin`, which would be held here.
    while os.read(0, 4096):
        pass
    # Java follows: its input is a pipe from here.
    os._exit(1)


def _answer(request: CheckpointRequest) -> CheckpointAnswer:
    try:
        return CheckpointAnswer.of(asyncio.run(_write(request)))
    except TailerdError as error:
        return CheckpointAnswer.failed(error)
    except Exception as error:  # noqa: BLE001 - the parent tells of it
        bug = BugError(f"The Spark checkpoint broke: {error!r}.", hint="Please report it.")
        return CheckpointAnswer.failed(bug)


async def _write(request: CheckpointRequest) -> CheckpointResult:
    stores = Stores(StoreSettings.of_json(request.storage))
    reader = LogReader.at(request.place, on_mismatch=lambda _: None, stores=stores)
    snapshot, _ = await reader.open_listed(with_files=False)
    spark = await asyncio.to_thread(
        local_session, "tailerd-checkpoint", request.master, request.conf
    )
    try:
        return await DistributedCheckpoints(spark, reader).write(snapshot, request.manifest)
    finally:
        await asyncio.to_thread(spark.stop)


if __name__ == "__main__":
    main()
