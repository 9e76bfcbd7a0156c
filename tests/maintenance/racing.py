"""Maintenance of all kinds that races with a writer, wherever the log is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tailerd.clock import Clock
from tailerd.errors import TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import (
    CheckpointPolicy,
    ChecksumPolicy,
    LogCompactionPolicy,
    Policies,
)
from tailerd.formats.maintenance import CleanupPolicy, RetentionFloor
from tests.formats.delta.histories import assert_described, assert_is, live_files
from tests.tables import naive_log
from tests.waiting import PATIENCE_SECONDS

KEPT_VERSIONS = 5
"""So many of the newest versions are young; no writer looks at what is older."""
TWO_MONTHS = 60 * 86_400.0
ALL_JOBS = Policies(
    checkpoint=CheckpointPolicy(every_commits=4, min_interval_seconds=0.0),
    log_compaction=LogCompactionPolicy(every_commits=2),
    checksum=ChecksumPolicy(is_enabled=True),
    cleanup=CleanupPolicy(is_enabled=True),
)


class RacedLog(Protocol):
    """A log that is written and maintained at once.

    Attributes:
        clock: By which maintenance tells what has expired.
    """

    @property
    def clock(self) -> Clock: ...

    def reader(self) -> LogReader:
        """Return a reader for the event loop that asks."""
        ...

    def keep_commits(self, aside: Path) -> None:
        """Copy the commits that are not in `aside` yet."""
        ...

    def date_back(self, before: int) -> None:
        """Make what is older than a version expire, where the clock does not."""
        ...


class Maintenance:
    """Does all jobs in a loop, in a separate thread, and keeps every commit aside.

    Attributes:
        aside: A copy of the log's commits, as nobody touched them.
        done: Jobs that were done, by kind.
        errors: What jobs raised.
    """

    def __init__(self, log: RacedLog, aside: Path) -> None:
        self.aside = aside
        self.done: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._log = log
        self._is_over = threading.Event()
        aside.mkdir()

    @property
    def head(self) -> int:
        return max((int(path.stem) for path in self.aside.iterdir()), default=-1)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._loop()))
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(60)
        assert not thread.is_alive()

    async def _loop(self) -> None:
        work = self._work()
        while not self._is_over.is_set():
            try:
                await self._turn(work)
            except TailerdError as error:
                self.errors.append(error)
            await asyncio.sleep(0.01)

    async def turn(self) -> None:
        """Do what is due now that nobody else is there."""
        await self._turn(self._work())

    def _work(self) -> DeltaMaintenance:
        log = self._log
        return DeltaMaintenance(log.reader(), ALL_JOBS, clock=log.clock, floor=self._needs)

    async def _turn(self, work: DeltaMaintenance) -> None:
        await asyncio.to_thread(self._log.keep_commits, self.aside)
        await asyncio.to_thread(self._log.date_back, self.head - KEPT_VERSIONS)
        assessment = await work.assessment()
        for decision in assessment.decisions:
            if decision.is_due:
                result = await work.apply(assessment, decision)
                if result.outcome in ("written", "deleted"):
                    self.done[result.job] += 1

    async def _needs(self, _: str) -> RetentionFloor:
        return RetentionFloor(from_version=max(0, self.head - KEPT_VERSIONS) + 1)

    async def assert_whole(self) -> None:
        """Every version that must be readable is what its commits say, by ours."""
        reader = self._log.reader()
        for version in range(self.head - KEPT_VERSIONS, self.head + 1):
            snapshot = await reader.open(version)
            state = naive_log.replay(self.aside, version)
            assert_is(snapshot, state)
            assert_described(await live_files(reader, snapshot), state)


def race(maintenance: Maintenance, seconds: float, write: Callable[[int], None]) -> int:
    """Let a writer write so long; return how often it did."""
    started, number = time.monotonic(), 0
    jobs = {"checkpoint", "checksum", "log_compaction", "cleanup"}
    with maintenance.running():
        # A slow machine must come to the first job of each kind too.
        while (spent := time.monotonic() - started) < seconds or (
            maintenance.done.keys() != jobs and spent < PATIENCE_SECONDS
        ):
            number += 1
            write(number)
    # Whoever came last, everything can be done now that nobody else is there.
    asyncio.run(maintenance.turn())
    assert maintenance.done.keys() == jobs, maintenance.done
    reported = [repr(error) for error in maintenance.errors]
    print(f"\n{number} writes, {dict(maintenance.done)}, {len(reported)} refusals: {reported[:3]}")
    # A job may find that the log changed under it and be done again; that is the exception.
    assert len(reported) <= maintenance.done.total() // 10, reported
    return number
