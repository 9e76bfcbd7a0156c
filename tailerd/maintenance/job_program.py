"""Runs maintenance jobs: `python -m tailerd.maintenance.job_program`; see `programs`.

It runs at low priority, so that deliveries go first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO

import msgspec

from tailerd.arrow_start import start_arrow
from tailerd.clock import Clock, SystemClock
from tailerd.errors import BugError
from tailerd.formats.maintenance import CLEANUP, RetentionFloor, TableMaintenance
from tailerd.maintenance.opening import MaintainedTable, open_maintained
from tailerd.maintenance.programs import (
    JobRequest,
    Measurement,
    Message,
    answer_with,
    encode_result,
)
from tailerd.storage.base import ObjectStore
from tailerd.storage.metered import MeteredStore
from tailerd.storage.stores import Stores, StoreSettings

NICE = 10
"""A tenth of the weight of other processes. Linux derives the IO priority from it too."""
ORPHAN_SECONDS = 2.0
"""How long a job may take to end after the daemon is gone."""


class _Program:
    """Answers requests about one table.

    Args:
        source, output: Lines from and to the process that started this one.
    """

    def __init__(self, source: BinaryIO, output: BinaryIO) -> None:
        self._source = source
        self._output = output
        self._store: MeteredStore | None = None
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._clock: Clock = SystemClock()
        self._table: MaintainedTable | None = None
        self._work: TableMaintenance | None = None

    async def run(self) -> None:
        """Answer requests until the source ends."""
        task = asyncio.create_task(self._answer_all())
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop, task), daemon=True).start()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def _listen(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        # A closed loop takes no more calls.
        with suppress(RuntimeError):
            for line in self._source:
                loop.call_soon_threadsafe(self._lines.put_nowait, line)
            loop.call_soon_threadsafe(task.cancel)
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    async def _answer_all(self) -> None:
        while True:
            request = msgspec.json.decode(await self._lines.get(), type=JobRequest)
            answer = await answer_with(self._do(request))
            self._say(msgspec.structs.replace(answer, requests=self._take_requests()))

    def _say(self, message: Message) -> None:
        with suppress(BrokenPipeError):
            self._output.write(msgspec.json.encode(message) + b"\n")
            self._output.flush()

    def _take_requests(self) -> dict[str, int]:
        if self._store is None:
            return {}
        counts = {str(kind): count for kind, count in self._store.requests.items() if count}
        self._store.reset()
        return counts

    async def _do(self, request: JobRequest) -> bytes:
        table = self._table or await self._open(request)
        if request.kind == "measure":
            return encode_result(await self._measure(table))
        if self._work is None:
            self._work = table.maintenance(
                request.table.policies, clock=self._clock, pipelines=self._ask_floor
            )
        decision = request.decision
        if decision is None:
            assessment = await self._work.assessment(is_requested=request.is_requested)
            return encode_result(replace(assessment, payload=None))
        assessment = await self._work.assessment(with_cleanup=decision.job == CLEANUP)
        if assessment.cleanup_error is not None:
            raise assessment.cleanup_error
        return encode_result(await self._work.apply(assessment, decision))

    async def _open(self, request: JobRequest) -> MaintainedTable:
        requested = request.table
        self._table = await open_maintained(
            requested.location,
            stores=Stores(StoreSettings.from_json(request.storage)),
            table_format=requested.format,
            allowed=requested.allowed,
            ledgers=requested.ledgers,
            wrap_store=self._meter,
        )
        return self._table

    def _meter(self, store: ObjectStore) -> ObjectStore:
        self._store = MeteredStore(store)
        return self._store

    async def _ask_floor(self, table_id: str) -> RetentionFloor:
        self._say(Message(question=table_id))
        return msgspec.json.decode(await self._lines.get(), type=RetentionFloor)

    async def _measure(self, table: MaintainedTable) -> Measurement:
        if table.statistics is None:
            raise BugError(f"Tables of the format {table.format} have no statistics.")
        statistics = table.statistics(table.request)
        now = self._clock.monotonic()
        await statistics.open(now, first=None, next_up=None)
        while await statistics.advance(now):
            # No pipeline needs them.
            statistics.take_commits()
        return Measurement(size=statistics.size(), due_seconds=statistics.due_in(now))


def main() -> None:
    """Answer requests until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Meant for the daemon, which closes the input.
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    start_arrow()
    source, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Output of a library must not come between the messages.
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    asyncio.run(_Program(source, output).run())


if __name__ == "__main__":
    main()
