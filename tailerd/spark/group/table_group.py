"""One group while it runs: its query, started and restarted, and the tables that come and go.

Tables that join or leave while the query runs are written into `members.json`; it goes on. A table
has left when the source has reported that it goes by a file without it, which it does between two
batches only. The query ends with the last table.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.backoff import Backoff
from tailerd.errors import BugError, TailerdError
from tailerd.pipeline.pipeline_records import PIPELINES_FOLDER, FilePipelineRecords
from tailerd.spark.checkpoints import CHECKPOINT_FOLDER, batch_end, logged_batches
from tailerd.spark.deliveries import RecordSink
from tailerd.spark.engine import SparkEngine
from tailerd.spark.group.assignments import Assignments
from tailerd.spark.group.group_offset import GroupOffset
from tailerd.spark.group.group_query import group_sink, start_group_query
from tailerd.spark.group.members import GroupTable, Members
from tailerd.spark.group.quarantine import Hold, held_back, settle_holds, write_holds
from tailerd.spark.group.report import REPORT_FILE, SourceReport
from tailerd.spark.progress import BatchReport
from tailerd.spark.query_run import QueryRun, first_of

_GATHER_SECONDS = 0.1
_LOOK_SECONDS = 0.25


class GroupedRunner(Protocol):
    """A table's part in its group; called in the event loop."""

    @property
    def table(self) -> GroupTable:
        """The table."""
        ...

    @property
    def max_attempts(self) -> int | None:
        """Failed attempts in a row after which it stops; None: never."""
        ...

    def heard(self, report: SourceReport) -> None:
        """Hear what the source tells."""
        ...

    def moved(self, end: GroupOffset, duration_seconds: float) -> None:
        """Hear that a batch is done that moved it."""
        ...

    def retries(self, error: TailerdError, attempt: int, wait_seconds: float) -> None:
        """Hear that its next try is after a wait."""
        ...

    def ended(self, error: TailerdError | None) -> None:
        """Hear that it is in the group no more, and why."""
        ...


class TableGroup:
    """A group's tables and their query."""

    def __init__(self, engine: SparkEngine, name: str, folder: Path) -> None:
        """Take the group's folder, which nobody else uses."""
        self._engine = engine
        self._name = name
        self._folder = folder
        self._checkpoint = folder / CHECKPOINT_FOLDER
        self._loop = asyncio.get_running_loop()
        self._runners: dict[str, GroupedRunner] = {}
        self._joined: dict[str, int] = {}
        self._leaving: dict[str, tuple[GroupTable, int]] = {}
        self._left: dict[str, asyncio.Event] = {}
        self._number = 0
        self._changed = asyncio.Event()
        self._emptied = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._query: QueryRun | None = None
        self._sink: RecordSink | None = None
        self._holds: dict[str, Hold] = {}
        self._sinks: Mapping[str, GroupTable] = {}
        self._heard = SourceReport()
        self._writing: asyncio.Task[None] | None = None
        self._attempt = 0
        self._last_end = ""

    def __len__(self) -> int:
        """Return how many tables are in it."""
        return len(self._runners)

    @property
    def is_running(self) -> bool:
        """Whether its query runs, or will run again."""
        return self._task is not None and not self._task.done()

    def join(self, runner: GroupedRunner) -> None:
        """Let a table take part from the next batch on."""
        name = runner.table.name
        self._runners[name] = runner
        self._joined.pop(name, None)
        self._leaving.pop(name, None)
        self._emptied.clear()
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run(), name=f"group {self._name}")

    async def leave(self, runner: GroupedRunner) -> None:
        """Take a table out; when this returns, no batch has its rows, nor will one."""
        name, task = runner.table.name, self._task
        if self._runners.get(name) is not runner or task is None:
            return
        left = self._left[name] = asyncio.Event()
        self._take_out(runner)
        if self._runners:
            ended = asyncio.ensure_future(left.wait())
            await asyncio.wait([ended, task], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        else:
            await asyncio.wait([task])

    def drop(self, runner: GroupedRunner) -> None:
        """Take a table out without waiting, if it is still in."""
        if self._runners.get(runner.table.name) is runner:
            self._take_out(runner)

    async def aclose(self) -> None:
        """Cancel what still runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _take_out(self, runner: GroupedRunner) -> None:
        table = runner.table
        self._runners.pop(table.name, None)
        self._leaving[table.name] = table.leaving(), self._number + 1
        self._changed.set()
        if not self._runners:
            self._emptied.set()
            if self._query is not None:
                self._query.stop.set()

    async def _run(self) -> None:
        """Keep the query alive while there are tables."""
        try:
            await self._load()
            # Whoever starts with this one is part of the first batch.
            await asyncio.sleep(_GATHER_SECONDS)
            while self._runners:
                failure = await self._run_query()
                if failure is None:
                    if self._engine.once and not self._emptied.is_set():
                        break
                    continue
                if not await self._hold_back(failure):
                    await self._wait_or_give_up(failure)
            self._end(None)
        except TailerdError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - its tables must not wait for ever
            said = BugError(
                f"The group {self._name} ended with {error!r}.", remedy="Please report it."
            )
            self._end(said)

    async def _load(self) -> None:
        members, self._holds, needed = await asyncio.to_thread(self._read)
        # From here on nothing joins or leaves in between.
        self._number = max(self._number, members.number)
        # A batch that Spark repeats may have rows of tables that nobody runs now.
        found = {table.name: table.leaving() for table in members.tables}
        left = {**found, **{name: table for name, (table, _) in self._leaving.items()}}
        self._leaving = {
            name: (table, self._number + 1)
            for name, table in left.items()
            if name not in self._runners
        }
        for name, error in members.unreadable.items():
            if name not in self._runners and name in needed:
                raise error

    def _read(self) -> tuple[Members, dict[str, Hold], set[str]]:
        """Return the tables, those held back, and whose unreadable sections a batch asks for."""
        members, holds = Members.read(self._folder), settle_holds(self._folder)
        batch = self._unfinished()
        if batch is None:
            return members, holds, set()
        assignments = Assignments.around(self._folder)
        needed = set()
        for name in members.unreadable.keys() & batch.begins:
            # The source leaves out who is held back, and who has begun another life since.
            entry, hold, found = batch.tables[name], holds.get(name), assignments.find(name)
            is_held = hold is not None and hold.counts(entry)
            if not is_held and (found is None or found.generation <= entry.generation):
                needed.add(name)
        return members, holds, needed

    def _end(self, error: TailerdError | None) -> None:
        runners, self._runners = self._runners, {}
        for runner in runners.values():
            runner.ended(error)

    async def _run_query(self) -> TailerdError | None:
        await self._write_members()
        await asyncio.to_thread((self._folder / REPORT_FILE).unlink, missing_ok=True)
        query = self._query = QueryRun(
            self._engine, f"the group {self._name}", self._start, self._reported
        )
        if not self._runners:
            return None
        watching = asyncio.ensure_future(self._watch())
        watching.add_done_callback(lambda _: query.stop.set())
        try:
            failure = await query.run()
            if watching.done():
                await watching
            return failure
        except TailerdError as error:
            return error
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            self._query = None
            if self._sink is not None:
                await asyncio.to_thread(self._sink.close)
            await self._hear()

    def _start(self, spark: SparkSession) -> StreamingQuery:
        def tables() -> Mapping[str, GroupTable]:
            return self._sinks

        if self._sink is None:
            telemetry = self._engine.telemetry
            records = FilePipelineRecords(Path(self._engine.config.state) / PIPELINES_FOLDER)
            self._sink = group_sink(self._name, self._folder, tables, telemetry, records)
        return start_group_query(
            spark,
            self._name,
            self._folder,
            self._sink,
            once=self._engine.once,
            hints=self._engine.hints,
        )

    async def _watch(self) -> None:
        """Write down who comes and goes, and hear what the source reports; until cancelled."""
        while True:
            await first_of(self._changed, seconds=_LOOK_SECONDS)
            if self._changed.is_set():
                await self._write_members()
            await self._hear()

    async def _write_members(self) -> None:
        if self._writing is not None:
            # Of whoever was cancelled meanwhile: two at once would write one draft.
            await asyncio.wait([self._writing])
        self._changed.clear()
        self._number += 1
        staying = [
            replace(runner.table, joined=self._joined.setdefault(name, self._number))
            for name, runner in self._runners.items()
        ]
        leaving = [table for table, _ in self._leaving.values()]
        members = Members(number=self._number, tables=(*staying, *leaving))
        # Whoever is in a batch that runs, or is repeated, is among them until that is done.
        self._sinks = {table.name: table for table in members.tables}
        self._writing = asyncio.ensure_future(asyncio.to_thread(members.write, self._folder))
        await asyncio.shield(self._writing)

    async def _hear(self) -> None:
        report = await asyncio.to_thread(SourceReport.read, self._folder)
        if report == self._heard or report.members < 0:
            return
        self._heard = report
        if self._query is not None:
            # A first batch may take minutes.
            self._query.answered()
        for name, (_, number) in list(self._leaving.items()):
            if report.members >= number:
                del self._leaving[name]
                if (left := self._left.pop(name, None)) is not None:
                    left.set()
        for name, runner in list(self._runners.items()):
            if report.members < self._joined.get(name, self._number + 1):
                # It is about the time before the table joined, perhaps again.
                continue
            runner.heard(report)
            problem = report.problems.get(name)
            if problem is not None and problem.wait_seconds is None:
                self._fail(runner, problem.error())

    def _fail(self, runner: GroupedRunner, error: TailerdError) -> None:
        self._take_out(runner)
        runner.ended(error)

    def _reported(self, report: BatchReport) -> None:
        """Pass a report on; called from Spark's callback thread."""
        self._loop.call_soon_threadsafe(self._progressed, report)

    def _progressed(self, report: BatchReport) -> None:
        if not report.end or report.end in (report.start, self._last_end):
            return
        self._last_end = report.end
        self._attempt = 0
        end = GroupOffset.from_json(report.end)
        for name in end.begins:
            runner, hold = self._runners.get(name), self._holds.get(name)
            entry = end.tables[name]
            is_held = hold is not None and hold.counts(entry)
            # A batch that was planned before a reset says nothing of the life that began with it.
            is_of_runner = runner is not None and runner.table.generation == entry.generation
            if runner is not None and is_of_runner and not is_held:
                runner.moved(end, report.duration_seconds)

    async def _hold_back(self, failure: TailerdError) -> bool:
        """Hold a table back from the batch that it made fail; False if it is nobody's fault."""
        name, error = failure.table, failure
        batch = await asyncio.to_thread(self._unfinished)
        if not name:
            return False
        runner, before = self._runners.get(name), self._holds.get(name)
        is_in = batch is not None and name in batch.begins
        if batch is None or not is_in or (before and before.counts(batch.tables[name])):
            # It has no rows in this batch, or no more: something else of it fails.
            return self._stop_alone(runner, error)
        attempt = 1 + (
            before.attempt if before is not None and before.begin == batch.begins[name] else 0
        )
        most = None if runner is None else runner.max_attempts
        may_retry = error.retryable and (most is None or attempt <= most)
        wait = Backoff().wait_seconds(attempt - 1, random.Random()) if may_retry else 0.0
        self._holds = held_back(
            self._holds, batch, name, attempt=attempt, retry_at=time.time() + wait
        )
        await asyncio.to_thread(write_holds, self._folder, self._holds)
        if runner is not None and may_retry:
            runner.retries(error, attempt, wait)
        elif runner is not None:
            self._fail(runner, error)
        return True

    def _stop_alone(self, runner: GroupedRunner | None, error: TailerdError) -> bool:
        """Take out a table whose error does not pass; False if the others have to wait for it."""
        if runner is None or error.retryable:
            return False
        self._fail(runner, error)
        return True

    def _unfinished(self) -> GroupOffset | None:
        batch_id = logged_batches(self._checkpoint).unfinished
        if batch_id is None:
            return None
        return GroupOffset.of(batch_end(self._checkpoint, batch_id))

    async def _wait_or_give_up(self, failure: TailerdError) -> None:
        runners: Iterable[GroupedRunner] = list(self._runners.values())
        wait = Backoff().wait_seconds(self._attempt, random.Random())
        self._attempt += 1
        if failure.table:
            # It keeps the others waiting, who are told whose it is.
            failure = failure.restated(f"Table {failure.table}: {failure.message}")
        for runner in runners:
            most = runner.max_attempts
            if failure.retryable and (most is None or self._attempt <= most):
                runner.retries(failure, self._attempt, wait)
            else:
                self._fail(runner, failure)
        await first_of(self._emptied, seconds=wait)
