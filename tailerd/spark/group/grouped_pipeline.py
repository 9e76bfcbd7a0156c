"""A table's pipeline where it shares a query: what a manager runs, and all groups of a daemon."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from functools import partial
from pathlib import Path

from tailerd.backoff import ATTEMPTS_ONCE, Backoff
from tailerd.changefeed.offset import Offset
from tailerd.config import SinkConfig, TableConfig
from tailerd.errors import TailerdError
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.claim import Brokers, SparkClaim
from tailerd.spark.engine import SparkEngine
from tailerd.spark.file_writer import batch_prefix
from tailerd.spark.group.assignments import (
    Assignment,
    Assignments,
    group_kind,
    unfinished_batch,
)
from tailerd.spark.group.group_offset import GroupOffset
from tailerd.spark.group.left_groups import (
    Delivered,
    LeftGroups,
    PendingPlacement,
    delivered_by,
    waits_for,
)
from tailerd.spark.group.members import GroupTable
from tailerd.spark.group.report import Problem, SourceReport, Standing
from tailerd.spark.group.table_group import TableGroup
from tailerd.spark.progress import ENGINE, tell_begin
from tailerd.spark.query_run import first_of
from tailerd.telemetry import events

_LOOK_SECONDS = 0.25
_LOOKS_UNTIL_TOLD = 40


class Groups:
    """The groups of one state folder, made as tables need them."""

    def __init__(self, engine: SparkEngine, most: int) -> None:
        """Prepare.

        Args:
            engine: The session.
            most: How many tables share a query; a table that was in a group before goes there in
                any case.
        """
        self.engine = engine
        self._most = most
        self._state = Path(engine.config.state).absolute() / "spark"
        self._assignments = Assignments(self._state)
        self._groups: dict[str, TableGroup] = {}
        self._left = LeftGroups()
        # Tables that have a place and wait until nobody asks their group.
        self._coming: Counter[str] = Counter()
        self._brokers: dict[str, Brokers] = {}

    def brokers(self, sink: SinkConfig) -> Brokers | None:
        """Return the cluster that a sink writes to, if it is one into Kafka."""
        if not isinstance(sink, KafkaSinkConfig):
            return None
        # Loads the client, which files do without.
        from tailerd.spark.kafka.brokers import SharedBrokers

        return self._brokers.setdefault(sink.sharing_key, SharedBrokers(sink))

    async def place(
        self, name: str, table: TableConfig
    ) -> tuple[TableGroup, GroupTable] | PendingPlacement:
        """Return the group of a table, and the table as its group knows it.

        It is to be joined at once, without waiting for anything in between.

        Returns:
            What it waits for, while it cannot be told where it goes on.

        Raises:
            OffsetError, StorageError: The state folder cannot be read or written.
        """
        kind = group_kind(table.sink) or ""
        while True:
            before = self._assignments.find(name)
            delivered: int | None = None
            if before is None:
                _remove_unfinished(self._state, name, table)
            elif self._assignments.unfinished(name, kind) is not None:
                answer = await self._answer(name, table, before.group, kind)
                if isinstance(answer, PendingPlacement):
                    return answer
                if answer is None:
                    # What was looked at before may be another by now.
                    continue
                delivered = answer.batch_id
            running = Counter({group: len(found) for group, found in self._groups.items()})
            running += self._coming
            found = self._assignments.assign(name, kind, running, self._most, delivered=delivered)
            asking = self._left.asking(found.group)
            if asking is None:
                return self._in_group(name, table, found)
            self._coming[found.group] += 1
            try:
                await asyncio.wait([asking])
            finally:
                self._coming[found.group] -= 1

    async def _answer(
        self, name: str, table: TableConfig, group: str, kind: str
    ) -> Delivered | PendingPlacement | None:
        """Return what the group that a table leaves has delivered; None: look at all again."""
        left = self._groups.get(group)
        if left is not None and left.is_running:
            return waits_for(name, group, _LOOK_SECONDS)
        answer = self._left.answer(group, kind)
        if answer is None:
            folder = self._assignments.folder(group)
            ask = partial(delivered_by, folder, group, name, table.sink)
            await self._left.ask(group, kind, ask)
        return answer

    def _in_group(
        self, name: str, table: TableConfig, found: Assignment
    ) -> tuple[TableGroup, GroupTable]:
        # It goes on now: what it has delivered is not for certain any more.
        self._left.forget(found.group)
        if found.group not in self._groups:
            folder = self._assignments.folder(found.group)
            self._groups[found.group] = TableGroup(self.engine, found.group, folder)
        member = GroupTable(name=name, config=table, generation=found.generation, begin=found.begin)
        return self._groups[found.group], member

    def delivered_until(self, name: str) -> Offset | None:
        """Return where a table in a group goes on; None before its first batch. Blocking, short.

        Raises:
            OffsetError, StorageError: The state folder cannot be read.
        """
        return self._assignments.offset(name)

    async def close(self) -> None:
        """Cancel what still runs."""
        await self._left.aclose()
        await asyncio.gather(*(group.aclose() for group in self._groups.values()))


class GroupedPipeline:
    """One table of a group: a `PipelineRunner`, and the `GroupedRunner` of its group.

    Attributes:
        error: Why it failed; None while it runs and when it ended well.
    """

    def __init__(
        self, groups: Groups, name: str, config: TableConfig, claim: SparkClaim | None = None
    ) -> None:
        self.error: TailerdError | None = None
        self.table = GroupTable(name=name, config=config)
        self._groups = groups
        self._claim = claim
        self._telemetry = groups.engine.telemetry
        self._is_once = groups.engine.once
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._standing: Standing | None = None
        self._problem: Problem | None = None

    @property
    def max_attempts(self) -> int | None:
        """Failed attempts in a row after which it stops; None: never."""
        return self.table.config.max_attempts or (ATTEMPTS_ONCE if self._is_once else None)

    def stop(self) -> None:
        """Ask `run` to leave the group and return."""
        self._stop.set()

    async def run(self) -> None:
        """Be in the group until it is asked to stop, fails or, with `once`, is at its head."""
        config = self.table.config
        self._telemetry.emit(
            events.PipelineStarted(
                table=self.table.name,
                source=config.path,
                sink=config.sink.kind,
                engine=ENGINE,
                guarantee=config.sink.guarantee(),
            )
        )
        try:
            await self._take_part()
        except TailerdError as error:
            self.error = error
        if self.error is not None:
            self._telemetry.emit(
                events.PipelineFailed(
                    table=self.table.name,
                    engine=ENGINE,
                    error_code=self.error.code,
                    error=str(self.error),
                )
            )
            return
        is_complete = self._is_once and not self._stop.is_set()
        self._telemetry.emit(
            events.PipelineStopped(table=self.table.name, engine=ENGINE, is_complete=is_complete)
        )

    async def _take_part(self) -> None:
        if not await self._has_claimed():
            return
        group = await self._enter()
        if group is None:
            return
        try:
            waits = [asyncio.ensure_future(each.wait()) for each in (self._stop, self._ended)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if not self._ended.is_set():
                await group.leave(self)
        finally:
            group.drop(self)

    async def _has_claimed(self) -> bool:
        """Claim the table's name in the state; False when asked to stop before."""
        failures = 0
        while self._claim is not None and not self._stop.is_set():
            try:
                await self._claim.enter(self._groups.brokers(self.table.config.sink))
                break
            except TailerdError as error:
                failures += 1
                if not error.retryable or failures > (self.max_attempts or math.inf):
                    raise
                wait = Backoff().wait_seconds(failures - 1, random.Random())
                self.retries(error, failures, wait)
            await first_of(self._stop, seconds=wait)
        return not self._stop.is_set()

    async def _enter(self) -> TableGroup | None:
        """Join the group; None when asked to stop before that was possible."""
        failures, looks = 0, 0
        while not self._stop.is_set():
            placed = await self._groups.place(self.table.name, self.table.config)
            if not isinstance(placed, PendingPlacement):
                group, self.table = placed
                stands = partial(self._groups.delivered_until, self.table.name)
                tell_begin(self._telemetry, self.table.name, stands)
                group.join(self)
                return group
            if placed.is_failure:
                failures += 1
                if not placed.error.retryable or failures > (self.max_attempts or math.inf):
                    raise placed.error
                self.retries(placed.error, failures, placed.seconds)
            else:
                looks += 1
                # A group in order is done with its batch before; and it is told, not shouted.
                if looks % _LOOKS_UNTIL_TOLD == 0:
                    self.retries(placed.error, looks // _LOOKS_UNTIL_TOLD, placed.seconds)
            await first_of(self._stop, seconds=placed.seconds)
        return None

    def heard(self, report: SourceReport) -> None:
        """Pass on what is new of this table."""
        name = self.table.name
        standing, problem = report.standings.get(name), report.problems.get(name)
        if problem is not None and problem != self._problem and problem.wait_seconds is not None:
            self.retries(problem.error(), problem.attempt, problem.wait_seconds)
        if standing is not None and (standing != self._standing or problem != self._problem):
            self._telemetry.emit(
                events.BacklogMeasured(
                    table=name,
                    engine=ENGINE,
                    version=standing.version,
                    head_version=standing.head_version,
                    versions=standing.versions,
                    oldest_timestamp_ms=standing.oldest_ms,
                    retention_seconds=standing.retention_seconds,
                    delivered_version=standing.delivered_version,
                )
            )
        self._standing, self._problem = standing, problem

    def moved(self, end: GroupOffset, duration_seconds: float) -> None:
        """Tell that its offset is durable."""
        offset = end.tables[self.table.name].offset
        self._telemetry.emit(
            events.OffsetSaved(
                table=self.table.name,
                engine=ENGINE,
                version=offset.version,
                offset=offset.to_json(),
                duration_seconds=duration_seconds,
            )
        )

    def retries(self, error: TailerdError, attempt: int, wait_seconds: float) -> None:
        """Tell that its next try is after a wait."""
        self._telemetry.emit(
            events.RetryScheduled(
                table=self.table.name,
                engine=ENGINE,
                attempt=attempt,
                wait_seconds=wait_seconds,
                error_code=error.code,
                error=str(error),
            )
        )

    def ended(self, error: TailerdError | None) -> None:
        """End `run`."""
        self.error = error
        self._ended.set()


def _remove_unfinished(state: Path, name: str, table: TableConfig) -> None:
    """Take back what a query of the table's own may have left of a batch it had not finished.

    The group delivers its rows again, into files of other names.
    """
    batch_id = unfinished_batch(state, name)
    if batch_id is None or not isinstance(table.sink, FileSinkConfig):
        return
    for file in Path(table.sink.path).absolute().glob(f"{batch_prefix(batch_id)}*"):
        file.unlink(missing_ok=True)
