"""The process that maintains logs: `python -m tailerd.maintenance.maintenance_worker [--once]`.

The daemon starts it and communicates with it through standard input and output; it is not meant to
be started manually. It ends with the daemon, however that ends: then its input ends. It runs at low
priority, so that deliveries go first.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import BinaryIO

from tailerd.arrow_start import start_without_pandas
from tailerd.clock import SystemClock
from tailerd.errors import BugError
from tailerd.formats.maintenance import RetentionFloor
from tailerd.maintenance import messages
from tailerd.maintenance.keeper import MaintenanceScheduler
from tailerd.maintenance.messages import FromKeeper, ToKeeper, line_of, to_keeper
from tailerd.maintenance.opening import MaintainedTable, open_maintained
from tailerd.maintenance.table_maintainer import KeptTable
from tailerd.storage.metered import MeteredStore, RequestKind
from tailerd.storage.stores import Stores, StoreSettings
from tailerd.telemetry import Telemetry, events

NICE = 10
"""A tenth of the weight of other processes. Linux derives the IO priority from it too."""
ORPHAN_SECONDS = 2.0
"""How long a job may take to end after the daemon is gone."""


class _Line:
    """Sends messages to the daemon. `say` may be called from any thread."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()

    def say(self, message: FromKeeper) -> None:
        """Send a message; do nothing if the daemon has closed the pipe."""
        with self._lock, suppress(BrokenPipeError):
            requests, self._requests = self._requests, Counter()
            if requests:
                self._output.write(line_of(messages.Requested(counts=dict(requests))))
            self._output.write(line_of(message))
            self._output.flush()

    def count(self, verb: RequestKind) -> None:
        """Count a request to the storage, to be sent with the next message."""
        with self._lock:
            self._requests[verb] += 1

    def handle(self, event: events.Event) -> None:
        """Pass an event on."""
        self.say(messages.event_message(event))


class _Program:
    """Connects the scheduler to the daemon."""

    def __init__(self, line: _Line, *, is_once: bool) -> None:
        self._line = line
        self._stores = Stores()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[RetentionFloor]] = {}
        self._keeper = MaintenanceScheduler(
            self._open_table,
            ask_needs=self._ask_needs,
            telemetry=Telemetry([line.handle]),
            clock=SystemClock(),
            on_turn=lambda name: line.say(messages.TurnEnded(table=name)),
            is_once=is_once,
        )
        self._may_begin = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self, source: BinaryIO) -> None:
        """Work until a message asks to end, or until the source ends."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(source, loop), daemon=True).start()
        await self._may_begin.wait()
        self._task = asyncio.create_task(self._keeper.run())
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
        for error in self._keeper.errors:
            self._line.say(messages.Failed(error=error.to_data()))

    def _listen(self, source: BinaryIO, loop: asyncio.AbstractEventLoop) -> None:
        # A closed loop takes no more messages.
        with suppress(RuntimeError):
            try:
                for line in source:
                    loop.call_soon_threadsafe(self._take, to_keeper(line))
            except BugError as error:
                sys.stderr.write(f"{error}\n")
            loop.call_soon_threadsafe(self._cancel)
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    def _take(self, message: ToKeeper) -> None:
        match message:
            case messages.SetTables(tables=tables, held_seconds=skipped, storage=storage):
                self._stores.reconfigure(StoreSettings.of_json(storage))
                for name, seconds in skipped.items():
                    self._keeper.skip(name, seconds)
                self._keeper.set_tables(tables)
                self._may_begin.set()
            case messages.Ring(table=table):
                self._keeper.ring(table)
            case messages.Maintain(table=table):
                self._keeper.ask(table)
            case messages.Answer(number=number, floor=floor):
                future = self._asked.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(floor)
            case messages.Stop():
                self._keeper.stop()
                self._may_begin.set()
            case messages.Cancel():
                self._cancel()

    def _cancel(self) -> None:
        self._keeper.stop()
        self._may_begin.set()
        if self._task is not None:
            self._task.cancel()

    async def _ask_needs(self, folder: str, table_id: str) -> RetentionFloor:
        number = next(self._numbers)
        future: asyncio.Future[RetentionFloor] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self._line.say(messages.Ask(number=number, folder=folder, table_id=table_id))
            return await future
        finally:
            self._asked.pop(number, None)

    async def _open_table(self, kept: KeptTable) -> MaintainedTable:
        return await open_maintained(
            kept.place,
            stores=self._stores,
            table_format=kept.format,
            allowed=kept.allowed,
            ledgers=kept.ledgers,
            wrap_store=lambda store: MeteredStore(store, self._line.count),
        )


def main() -> None:
    """Run until the daemon sends a stop, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Meant for the daemon, which sends a message.
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    start_without_pandas()
    source, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Output of a library must not come between the messages.
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)

    async def work() -> None:
        await _Program(_Line(output), is_once="--once" in sys.argv[1:]).run(source)

    asyncio.run(work())


if __name__ == "__main__":
    main()
